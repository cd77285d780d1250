/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NNL_MAX_POOLING_H
#define NNL_MAX_POOLING_H

#include <math.h>

#include "window.h"

/* Takes n pixels that lie `step` apart where they are larger than what is there, or NaN. */
static inline void nnl_take_larger(int n, int step, const float* from, float* restrict to) {
  for (int i = 0; i < n; i++) {
    const float pixel = from[i * step];
    to[i] = ((pixel > to[i]) | (pixel != pixel)) ? pixel : to[i]; /* no branch */
  }
}

/* The largest pixel of each window; a NaN counts as the largest. */
static void nnl_max_pooling(int maps, const nnl_window* w, const float* x, float* y) {
  const int pixels = nnl_volume(w->out), stride = w->stride[2];
  for (int n = 0; n < maps; n++, x += nnl_volume(w->size), y += pixels) {
    for (int i = 0; i < pixels; i++) y[i] = -INFINITY;
    nnl_tap t = nnl_start(w);
    do {
      const int columns = t.end[2] - t.first[2];
      for (int z = t.first[0]; z < t.end[0]; z++)
        for (int v = t.first[1]; v < t.end[1]; v++) {
          const float* from = x + nnl_pixel(w, &t, z, v);
          float* to = y + nnl_output(w, &t, z, v);
          if (stride == 2) /* a number that compilers know makes vectors */
            nnl_take_larger(columns, 2, from, to);
          else
            nnl_take_larger(columns, stride, from, to);
        }
    } while (nnl_next(w, &t));
  }
}

#endif
