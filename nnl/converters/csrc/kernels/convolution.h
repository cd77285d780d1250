/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NNL_CONVOLUTION_H
#define NNL_CONVOLUTION_H

#include "product.h"
#include "window.h"

/* A panel of the matrix with a row for each position of the window in each of `in` maps, and a
   column for each output: the pixels that they see. It writes up to 16 numbers behind the panel. */
static inline void nnl_patches(const nnl_window* w, int in, const float* x, int row, int rows,
                               int column, int columns, float* panel) {
  const int k = w->kernel[2], h = w->kernel[1], d = w->kernel[0], stride = w->stride[2];
  const int width = w->out[2], height = w->out[1], pixels = nnl_volume(w->size);
  const int top = column / width % height, front = column / width / height;
  for (int r = row; r < row + rows; r++) {
    const int at = r % k * w->dilation[2] - w->pad[2];
    const int first = nnl_first(at, stride, width);
    const int end = nnl_end(at, stride, w->size[2], width);
    const int above = r / k % h * w->dilation[1] - w->pad[1];
    int y = top * w->stride[1] + above;
    int z = front * w->stride[0] + r / (k * h) % d * w->dilation[0] - w->pad[0];
    int line = top, o = column % width;
    for (int left = columns; left > 0;) {
      const int until = nnl_least(width, o + left);
      const int inside = y >= 0 && y < w->size[1] && z >= 0 && z < w->size[0];
      const int last = inside ? nnl_least(end, until) : o;
      const int from = r / (k * h * d) * pixels + (z * w->size[1] + y) * w->size[2] + at;
      left -= until - o;
      for (; o < until && o < first; o++) *panel++ = 0.0f;
      while (stride == 1 && o < last && from + o + 16 <= in * pixels) {
        const int count = nnl_least(16, last - o);
        memcpy(panel, x + from + o, 16 * sizeof *panel); /* what is too much is written over */
        panel += count;
        o += count;
      }
      for (; o < last; o++) *panel++ = x[from + o * stride];
      for (; o < until; o++) *panel++ = 0.0f;
      o = 0;
      y += w->stride[1];
      if (++line == height) {
        line = 0;
        y = above;
        z += w->stride[0];
      }
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
        nnl_patches(w, in, x, r, rows, c, columns, panel);
        nnl_add_product(out, columns, rows, weight + map * terms + r, terms, 1, panel, columns,
                        y + c, pixels);
      }
    }
    x += in * nnl_volume(w->size);
    y += out * pixels;
  }
}

#endif
