/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NNL_DEPTHWISE_H
#define NNL_DEPTHWISE_H

#include "window.h"

/* Each of `maps` maps by itself, with `multiplier` kernels: (maps * multiplier, kernel). */
static void nnl_depthwise(int batch, int maps, int multiplier, const nnl_window* w, const float* x,
                          const float* weight, const float* bias, float* y) {
  const int taps = nnl_volume(w->kernel), pixels = nnl_volume(w->out), stride = w->stride[2];
#ifdef NNL_OPENMP
#pragma omp parallel for
#endif
  for (int n = 0; n < batch * maps * multiplier; n++) {
    const int map = n % (maps * multiplier);
    const float* image = x + n / multiplier * nnl_volume(w->size);
    const float* factor = weight + map * taps;
    float* result = y + n * pixels;
    for (int i = 0; i < pixels; i++) result[i] = bias ? bias[map] : 0.0f;
    nnl_tap t = nnl_start(w);
    do {
      for (int z = t.first[0]; z < t.end[0]; z++)
        for (int v = t.first[1]; v < t.end[1]; v++) {
          const float* from = image + nnl_pixel(w, &t, z, v);
          float* restrict to = result + nnl_output(w, &t, z, v);
          const int count = t.end[2] - t.first[2];
          if (stride == 1)
            for (int i = 0; i < count; i++) to[i] += *factor * from[i];
          else
            for (int i = 0; i < count; i++) to[i] += *factor * from[i * stride];
        }
      factor++;
    } while (nnl_next(w, &t));
  }
}

#endif
