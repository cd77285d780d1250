/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NNL_SAMPLE_PIXELS_H
#define NNL_SAMPLE_PIXELS_H

#include <math.h>

#include "position.h"

/* y[b][c][p] is the sum over t of weight[b][t][p] x[b][c][index[b][t][p]]. */
static void nnl_sample_pixels(int batch, int maps, int pixels, int taps, int count, const float* x,
                              const float* index, const float* weight, float* y) {
  for (int b = 0; b < batch; b++, index += taps * count, weight += taps * count)
    for (int c = 0; c < maps; c++, x += pixels, y += count)
      for (int p = 0; p < count; p++) {
        y[p] = 0.0f;
        for (int t = p; t < taps * count; t += count) {
          const int at = nnl_index(index[t], pixels);
          y[p] += at < 0 ? NAN : weight[t] * x[at];
        }
      }
}

#endif
