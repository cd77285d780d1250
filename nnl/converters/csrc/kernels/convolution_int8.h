/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NNL_CONVOLUTION_INT8_H
#define NNL_CONVOLUTION_INT8_H

#include <stdint.h>

#include "window.h"

/* A sum of products as a stored number: times factor / 2^shift, rounded. */
static inline int8_t nnl_rescaled(int32_t sum, int32_t factor, int shift, int zero) {
  const int64_t half = (int64_t)1 << (shift - 1);
  const int64_t v = (((int64_t)sum * factor + half) >> shift) + zero;
  return v < -128 ? -128 : v > 127 ? 127 : (int8_t)v;
}

/* Like nnl_convolution, of numbers of 8 bits; `zero` is what stands for 0. Biases, factors and
   shifts are those of each map. */
static void nnl_convolution_int8(int batch, int groups, int in, int out, const nnl_window* w,
                                 const int8_t* x, int x_zero, const int8_t* weight,
                                 const int32_t* bias, const int32_t* factor, const int32_t* shift,
                                 int8_t* y, int y_zero) {
  const int taps = nnl_volume(w->kernel), pixels = nnl_volume(w->size);
  const int kd = w->kernel[0], kh = w->kernel[1], kw = w->kernel[2];
  for (int n = 0; n < batch * groups * out; n++) {
    const int map = n % (groups * out);
    const int8_t* images = x + n / out * in * pixels;
    for (int o = 0; o < nnl_volume(w->out); o++) {
      const int z = o / (w->out[2] * w->out[1]) * w->stride[0] - w->pad[0];
      const int v = o / w->out[2] % w->out[1] * w->stride[1] - w->pad[1];
      const int u = o % w->out[2] * w->stride[2] - w->pad[2];
      const int first = nnl_first(u, w->dilation[2], kw);
      const int end = nnl_end(u, w->dilation[2], w->size[2], kw);
      int32_t sum = bias[map];
      for (int c = 0; c < in; c++)
        for (int k = 0; k < kd * kh; k++) {
          const int row = v + k % kh * w->dilation[1], plane = z + k / kh * w->dilation[0];
          if (row < 0 || row >= w->size[1] || plane < 0 || plane >= w->size[0]) continue;
          const int8_t* line = images + c * pixels + (plane * w->size[1] + row) * w->size[2];
          const int8_t* kernel = weight + (map * in + c) * taps + k * kw;
          for (int i = first; i < end; i++)
            sum += kernel[i] * (line[u + i * w->dilation[2]] - x_zero);
        }
      *y++ = nnl_rescaled(sum, factor[map], shift[map], y_zero);
    }
  }
}

#endif
