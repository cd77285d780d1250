/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NNL_SUM_POOLING_H
#define NNL_SUM_POOLING_H

#include "window.h"

/* The sum of the pixels of each window. */
static void nnl_sum_pooling(int maps, const nnl_window* w, const float* x, float* y) {
  const int width = w->out[2], stride = w->stride[2];
  for (int n = 0; n < maps; n++, x += nnl_volume(w->size))
    for (int o = 0; o < w->out[0] * w->out[1]; o++, y += width) {
      for (int i = 0; i < width; i++) y[i] = 0.0f;
      for (int k = 0; k < nnl_volume(w->kernel); k++) {
        int first, count;
        const float* from = nnl_seen(w, o, k, x, &first, &count);
        float* restrict to = y + first;
        for (int i = 0; i < count; i++) to[i] += from[i * stride];
      }
    }
}

#endif
