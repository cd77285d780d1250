/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NNL_CONVOLUTION_H
#define NNL_CONVOLUTION_H

#include "product.h"
#include "window.h"

/* What position `at` of the window sees at `count` outputs of a line from the `first` one on. */
static inline void nnl_line(const float* pixels, int size, int at, int stride, int first, int count,
                            float* y) {
  int i = nnl_first(at + first * stride, stride, count);
  const int end = nnl_end(at + first * stride, stride, size, count);
  if (i) memset(y, 0, i * sizeof *y);
  pixels += at + (first + i) * stride;
  if (stride == 1 && i < end) {
    memcpy(y + i, pixels, (end - i) * sizeof *y);
    i = end;
  }
  for (; i < end; i++, pixels += stride) y[i] = *pixels;
  if (i < count) memset(y + i, 0, (count - i) * sizeof *y);
}

/* A panel of the matrix with a row for each position of the window in each map, and a column for
   each output: the pixels that they see. */
static inline void nnl_patches(const nnl_window* w, const float* x, int row, int rows, int column,
                               int columns, float* panel) {
  for (int r = row; r < row + rows; r++) {
    const int k = w->kernel[2], h = w->kernel[1], d = w->kernel[0];
    const int at[3] = {r / (k * h) % d * w->dilation[0] - w->pad[0],
                       r / k % h * w->dilation[1] - w->pad[1], r % k * w->dilation[2] - w->pad[2]};
    const float* map = x + r / (k * h * d) * nnl_volume(w->size);
    for (int c = column; c < column + columns;) {
      const int o = c % w->out[2];
      const int count = nnl_least(w->out[2] - o, column + columns - c);
      const int y = c / w->out[2] % w->out[1] * w->stride[1] + at[1];
      const int z = c / (w->out[2] * w->out[1]) * w->stride[0] + at[0];
      if (y < 0 || y >= w->size[1] || z < 0 || z >= w->size[0])
        memset(panel, 0, count * sizeof *panel);
      else
        nnl_line(map + (z * w->size[1] + y) * w->size[2], w->size[2], at[2], w->stride[2], o, count,
                 panel);
      panel += count;
      c += count;
    }
  }
}

/* `groups` groups of `in` and `out` maps each; the weight is (groups * out, in, kernel). */
static void nnl_convolution(int batch, int groups, int in, int out, const nnl_window* w,
                            const float* x, const float* weight, const float* bias, float* y,
                            float* panel) {
  const int terms = in * nnl_volume(w->kernel), pixels = nnl_volume(w->out);
  for (int g = 0; g < batch * groups; g++) {
    const int map = g % groups * out;
    for (int o = 0; o < out; o++)
      for (int i = 0; i < pixels; i++) y[o * pixels + i] = bias ? bias[map + o] : 0.0f;
    for (int c = 0; c < pixels; c += NNL_PANEL_COLUMNS) {
      const int columns = nnl_least(pixels - c, NNL_PANEL_COLUMNS);
      for (int r = 0; r < terms; r += NNL_PANEL_ROWS) {
        const int rows = nnl_least(terms - r, NNL_PANEL_ROWS);
        nnl_patches(w, x, r, rows, c, columns, panel);
        nnl_add_product(out, columns, rows, weight + map * terms + r, terms, 1, panel, columns,
                        y + c, pixels);
      }
    }
    x += in * nnl_volume(w->size);
    y += out * pixels;
  }
}

#endif
