/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NNL_SOFTMAX_H
#define NNL_SOFTMAX_H

#include <math.h>

/* Along the axis in the middle of (outer, n, inner). */
static void nnl_softmax(int outer, int n, int inner, const float* x, float* y) {
  for (int k = 0; k < outer * inner; k++) {
    const int at = k / inner * n * inner + k % inner;
    float most = x[at], sum = 0.0f;
    for (int i = 1; i < n; i++) most = x[at + i * inner] > most ? x[at + i * inner] : most;
    for (int i = 0; i < n; i++) {
      y[at + i * inner] = expf(x[at + i * inner] - most);
      sum += y[at + i * inner];
    }
    for (int i = 0; i < n; i++) y[at + i * inner] /= sum;
  }
}

#endif
