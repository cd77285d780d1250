/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NNL_DECONVOLUTION_H
#define NNL_DECONVOLUTION_H

#include "product.h"
#include "window.h"

/* Columns of `columns` pixels from the one at `first` on: what each adds to the result, by map and
   position of the window. Sizes of the window are those of the convolution that this transposes:
   its `out` is the size of x. */
static inline void nnl_spread(int out, const nnl_window* w, int first, int columns,
                              const float* spread, float* y) {
  for (int r = 0; r < out * nnl_volume(w->kernel); r++) {
    const int k = w->kernel[2], h = w->kernel[1], d = w->kernel[0];
    const int at[3] = {r / (k * h) % d * w->dilation[0] - w->pad[0],
                       r / k % h * w->dilation[1] - w->pad[1], r % k * w->dilation[2] - w->pad[2]};
    float* map = y + r / (k * h * d) * nnl_volume(w->size);
    for (int c = 0; c < columns; c++) {
      const int i = first + c;
      const int z = i / (w->out[2] * w->out[1]) * w->stride[0] + at[0];
      const int v = i / w->out[2] % w->out[1] * w->stride[1] + at[1];
      const int u = i % w->out[2] * w->stride[2] + at[2];
      if (z >= 0 && z < w->size[0] && v >= 0 && v < w->size[1] && u >= 0 && u < w->size[2])
        map[(z * w->size[1] + v) * w->size[2] + u] += spread[r * columns + c];
    }
  }
}

/* The transpose of a convolution: the weight is (groups * in, out, kernel). The panel holds
   columns of out * kernel numbers, at most NNL_PANEL_COLUMNS. */
static void nnl_deconvolution(int batch, int groups, int in, int out, const nnl_window* w,
                              const float* x, const float* weight, const float* bias, float* y,
                              float* panel) {
  const int rows = out * nnl_volume(w->kernel);
  const int pixels = nnl_volume(w->out), results = nnl_volume(w->size);
  for (int g = 0; g < batch * groups; g++) {
    const int map = g % groups;
    for (int o = 0; o < out; o++)
      for (int i = 0; i < results; i++) y[o * results + i] = bias ? bias[map * out + o] : 0.0f;
    for (int c = 0; c < pixels; c += NNL_PANEL_COLUMNS) {
      const int columns = nnl_least(pixels - c, NNL_PANEL_COLUMNS);
      memset(panel, 0, rows * columns * sizeof *panel);
      nnl_add_product(rows, columns, in, weight + map * in * rows, 1, rows, x + c, pixels, panel,
                      columns);
      nnl_spread(out, w, c, columns, panel, y);
    }
    x += in * pixels;
    y += out * results;
  }
}

#endif
