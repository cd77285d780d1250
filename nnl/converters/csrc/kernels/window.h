/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NNL_WINDOW_H
#define NNL_WINDOW_H

/* How a window of three axes (depth, height, width) moves over images.
   Position k of the window at output o is on pixel o * stride + k * dilation - pad. */
typedef struct {
  int size[3], out[3], kernel[3], stride[3], dilation[3], pad[3];
} nnl_window;

static inline int nnl_volume(const int* sizes) { return sizes[0] * sizes[1] * sizes[2]; }

/* The first output whose pixel at offset `at` is at 0 or later, and the first beyond the image. */
static inline int nnl_first(int at, int stride, int out) {
  const int o = at >= 0 ? 0 : (-at + stride - 1) / stride;
  return o < out ? o : out;
}
static inline int nnl_end(int at, int stride, int size, int out) {
  const int o = at >= size ? 0 : (size - at + stride - 1) / stride;
  return o < out ? o : out;
}

/* What position `k` of the window sees at the outputs of line `o`: `count` of them, from the
   `first` one on, see the pixels at the result, at stride[2] from each other. */
static inline const float* nnl_seen(const nnl_window* w, int o, int k, const float* image,
                                    int* first, int* count) {
  const int kw = k % w->kernel[2], kh = k / w->kernel[2] % w->kernel[1];
  const int kd = k / (w->kernel[2] * w->kernel[1]);
  const int z = o / w->out[1] * w->stride[0] + kd * w->dilation[0] - w->pad[0];
  const int y = o % w->out[1] * w->stride[1] + kh * w->dilation[1] - w->pad[1];
  const int at = kw * w->dilation[2] - w->pad[2];
  *first = nnl_first(at, w->stride[2], w->out[2]);
  *count = nnl_end(at, w->stride[2], w->size[2], w->out[2]) - *first;
  if (z < 0 || z >= w->size[0] || y < 0 || y >= w->size[1] || *count <= 0) {
    *count = 0;
    return image;
  }
  return image + (z * w->size[1] + y) * w->size[2] + at + *first * w->stride[2];
}

#endif
