/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NNL_SUM_H
#define NNL_SUM_H

#include <string.h>

/* In 16 parts, which vectors can hold, and which round less than one long sum. */
static inline float nnl_line_sum(int n, const float* x) {
  float part[16] = {0.0f};
  int i = 0;
  for (; i + 16 <= n; i += 16)
    for (int j = 0; j < 16; j++) part[j] += x[i + j];
  for (int j = 0; j < 16 && i < n; i++, j++) part[j] += x[i];
  for (int width = 8; width; width /= 2)
    for (int j = 0; j < width; j++) part[j] += part[j + width];
  return part[0];
}

/* (outer, n, inner) -> (outer, inner) */
static void nnl_sum(int outer, int n, int inner, const float* x, float* y) {
  for (int o = 0; o < outer; o++, x += n * inner, y += inner) {
    if (inner == 1) {
      *y = nnl_line_sum(n, x);
      continue;
    }
    memset(y, 0, inner * sizeof *y);
    for (int i = 0; i < n; i++)
      for (int j = 0; j < inner; j++) y[j] += x[i * inner + j];
  }
}

#endif
