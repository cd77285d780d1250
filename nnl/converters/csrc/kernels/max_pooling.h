/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NNL_MAX_POOLING_H
#define NNL_MAX_POOLING_H

#include <math.h>

#include "window.h"

/* The largest pixel of each window; a NaN counts as the largest. */
static void nnl_max_pooling(int maps, const nnl_window* w, const float* x, float* y) {
  const int pixels = nnl_volume(w->out), stride = w->stride[2];
  for (int n = 0; n < maps; n++, x += nnl_volume(w->size), y += pixels) {
    for (int i = 0; i < pixels; i++) y[i] = -INFINITY;
    nnl_tap t = nnl_start(w);
    do {
      for (int z = t.first[0]; z < t.end[0]; z++)
        for (int v = t.first[1]; v < t.end[1]; v++) {
          const float* from = x + nnl_pixel(w, &t, z, v);
          float* restrict to = y + nnl_output(w, &t, z, v);
          for (int i = 0; i < t.end[2] - t.first[2]; i++) {
            const float pixel = from[i * stride];
            to[i] = ((pixel > to[i]) | (pixel != pixel)) ? pixel : to[i]; /* no branch */
          }
        }
    } while (nnl_next(w, &t));
  }
}

#endif
