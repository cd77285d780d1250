/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NNL_MAX_POOLING_INT8_H
#define NNL_MAX_POOLING_INT8_H

#include <stdint.h>

#include "window.h"

/* The largest pixel of each window. */
static void nnl_max_pooling_int8(int maps, const nnl_window* w, const int8_t* x, int8_t* y) {
  for (int n = 0; n < maps; n++, x += nnl_volume(w->size))
    for (int o = 0; o < nnl_volume(w->out); o++) {
      int8_t most = -128;
      for (int k = 0; k < nnl_volume(w->kernel); k++) {
        const int kw = k % w->kernel[2], kh = k / w->kernel[2] % w->kernel[1];
        const int kd = k / (w->kernel[2] * w->kernel[1]);
        const int z = o / (w->out[2] * w->out[1]) * w->stride[0] + kd - w->pad[0];
        const int v = o / w->out[2] % w->out[1] * w->stride[1] + kh - w->pad[1];
        const int u = o % w->out[2] * w->stride[2] + kw - w->pad[2];
        if (z < 0 || z >= w->size[0] || v < 0 || v >= w->size[1] || u < 0 || u >= w->size[2])
          continue;
        const int8_t pixel = x[(z * w->size[1] + v) * w->size[2] + u];
        most = pixel > most ? pixel : most;
      }
      *y++ = most;
    }
}

#endif
