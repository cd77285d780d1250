/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NNL_EXTREME_H
#define NNL_EXTREME_H

/* (outer, n, inner) -> (outer, inner): the largest (sign 1) or smallest (sign -1), and where the
   first such is. A NaN comes before all. Either result may be NULL. */
static void nnl_extreme(int outer, int n, int inner, float sign, const float* x, float* y,
                        float* index) {
  for (int k = 0; k < outer * inner; k++) {
    const float* column = x + k / inner * n * inner + k % inner;
    float best = sign * column[0];
    int at = 0;
    for (int i = 1; i < n; i++) {
      const float v = sign * column[i * inner];
      if (v > best || (v != v && best == best)) {
        best = v;
        at = i;
      }
    }
    if (y) y[k] = sign * best;
    if (index) index[k] = (float)at;
  }
}

#endif
