/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NNL_CONVOLUTION_H
#define NNL_CONVOLUTION_H

#include "product.h"
#include "window.h"

/* `count` of the `all` numbers at x: of lines `width` long and `step` apart, from number o of the
   first one on. Up to 15 more are written where there are as many. */
static inline void nnl_copy(int count, const float* x, int all, int o, int width, int step,
                            float* y) {
  for (int from = o; count > 0; from += step - o, o = 0) {
    const int n = nnl_least(width - o, count);
    int i = 0;
    for (; i < n && from + i + 16 <= all; i += 16) memcpy(y + i, x + from + i, 16 * sizeof *y);
    for (; i < n; i++) y[i] = x[from + i];
    y += n;
    count -= n;
  }
}

/* What a position of the window sees in a plane of an image, which has `all` numbers behind x: the
   pixels of `columns` outputs from number o of a line on, which sees line y from pixel `at` on. */
static inline float* nnl_seen_lines(const nnl_window* w, const float* x, int all, int y, int at,
                                    int o, int columns, float* panel) {
  const int width = w->out[2], lines = w->size[1], down = w->stride[1], stride = w->stride[2];
  const int first = nnl_first(at, stride, width), end = nnl_end(at, stride, w->size[2], width);
  const int step = down * w->size[2], line = y * w->size[2] + at;
  const int inside = first == 0 && end == width && y >= 0;
  if (stride == 1 && inside && y + (o + columns - 1) / width * down < lines) {
    nnl_copy(columns, x + line, all - line, o, width, step, panel);
    return panel + columns;
  }
  for (int from = line; columns > 0; from += step, y += down, o = 0) {
    const int until = nnl_least(width, o + columns);
    const int last = y >= 0 && y < lines ? nnl_least(end, until) : o;
    columns -= until - o;
    for (; o < until && o < first; o++) *panel++ = 0.0f;
    if (stride == 1 && o < last) {
      nnl_copy(last - o, x + from + o, all - from - o, 0, width, 0, panel);
      panel += last - o;
      o = last;
    }
    for (; o < last; o++) *panel++ = x[from + o * stride];
    for (; o < until; o++) *panel++ = 0.0f;
  }
  return panel;
}

/* A panel of the matrix with a row for each position of the window in each of `in` maps, and a
   column for each output: the pixels that they see. It writes up to 16 numbers behind the panel. */
static inline void nnl_patches(const nnl_window* w, int in, const float* x, int row, int rows,
                               int column, int columns, float* panel) {
  const int k = w->kernel[2], h = w->kernel[1], d = w->kernel[0], pixels = nnl_volume(w->size);
  const int width = w->out[2], plane = w->size[1] * w->size[2], outs = w->out[1] * width;
  for (int r = row; r < row + rows; r++) {
    const int front = r / (k * h) % d * w->dilation[0] - w->pad[0];
    const int above = r / k % h * w->dilation[1] - w->pad[1];
    const int at = r % k * w->dilation[2] - w->pad[2];
    for (int c = column; c < column + columns;) {
      const int z = c / outs * w->stride[0] + front, line = c % outs / width;
      const int count = nnl_least(outs - c % outs, column + columns - c);
      const int inside = z >= 0 && z < w->size[0];
      const int y = inside ? line * w->stride[1] + above : w->size[1]; /* else no line of it */
      const int from = r / (k * h * d) * pixels + (inside ? z * plane : 0);
      panel = nnl_seen_lines(w, x + from, in * pixels - from, y, at, c % width, count, panel);
      c += count;
    }
  }
}

/* Add the products for the first columns, if what is beside each other in them is so in x, too.
   Returns how many these are. */
static inline int nnl_add_in_place(int in, int out, const nnl_window* w, const float* x,
                                   const float* weight, float* y) {
  const int pixels = nnl_volume(w->out), width = w->out[2], height = w->out[1];
  const int columns = pixels - pixels % (2 * NNL_LANES), taps = nnl_volume(w->kernel);
  const int line = w->size[2], plane = w->size[1] * line, image = w->size[0] * plane;
  const int maps = nnl_least(in, NNL_PANEL_ROWS / taps);
  if (!maps || w->pad[0] || w->pad[1] || w->pad[2] || w->stride[2] != 1 || width % NNL_LANES ||
      out % 4)
    return 0;
  int at[NNL_PANEL_ROWS], n = 0;
  for (int i = 0; i < maps; i++)
    for (int z = 0; z < w->kernel[0]; z++)
      for (int v = 0; v < w->kernel[1]; v++)
        for (int u = 0; u < w->kernel[2]; u++)
          at[n++] = i * image + z * w->dilation[0] * plane + v * w->dilation[1] * line +
                    u * w->dilation[2];
  for (int map = 0; map < in; map += maps) {
    const int rows = nnl_least(in - map, maps) * taps;
#ifdef NNL_OPENMP
#pragma omp parallel for
#endif
    for (int c = 0; c < columns; c += 2 * NNL_LANES) {
      int from[2];
      for (int i = 0; i < 2; i++) {
        const int o = (c + i * NNL_LANES) / width;
        from[i] = o / height * w->stride[0] * plane + o % height * w->stride[1] * line +
                  (c + i * NNL_LANES) % width;
      }
      for (int o = 0; o < out; o += 4)
        nnl_add_tile(rows, weight + (o * in + map) * taps, in * taps, 1, x + map * image + from[0],
                     0, at, from[1] - from[0], y + o * pixels + c, pixels);
    }
  }
  return columns;
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
    const int done = nnl_add_in_place(in, out, w, x, weight + map * terms, y);
    for (int c = done; c < pixels; c += NNL_PANEL_COLUMNS) {
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
