/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NNL_DEPTHWISE_H
#define NNL_DEPTHWISE_H

#include "window.h"

/* Each of `maps` maps by itself, with `multiplier` kernels: (maps * multiplier, kernel). */
static void nnl_depthwise(int batch, int maps, int multiplier, const nnl_window* w, const float* x,
                          const float* weight, const float* bias, float* y) {
  const int taps = nnl_volume(w->kernel), width = w->out[2], stride = w->stride[2];
#ifdef NNL_OPENMP
#pragma omp parallel for
#endif
  for (int n = 0; n < batch * maps * multiplier; n++) {
    const int map = n % (maps * multiplier);
    const float* image = x + n / multiplier * nnl_volume(w->size);
    float* line = y + n * nnl_volume(w->out);
    for (int o = 0; o < w->out[0] * w->out[1]; o++, line += width) {
      for (int i = 0; i < width; i++) line[i] = bias ? bias[map] : 0.0f;
      for (int k = 0; k < taps; k++) {
        int first, count;
        const float* from = nnl_seen(w, o, k, image, &first, &count);
        const float factor = weight[map * taps + k];
        float* restrict to = line + first;
        if (stride == 1)
          for (int i = 0; i < count; i++) to[i] += factor * from[i];
        else
          for (int i = 0; i < count; i++) to[i] += factor * from[i * stride];
      }
    }
  }
}

#endif
