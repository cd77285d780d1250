/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NNL_PROD_H
#define NNL_PROD_H

/* (outer, n, inner) -> (outer, inner) */
static void nnl_prod(int outer, int n, int inner, const float* x, float* y) {
  for (int o = 0; o < outer; o++, x += n * inner, y += inner) {
    for (int j = 0; j < inner; j++) y[j] = 1.0f;
    for (int i = 0; i < n; i++)
      for (int j = 0; j < inner; j++) y[j] *= x[i * inner + j];
  }
}

#endif
