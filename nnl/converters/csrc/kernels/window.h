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
  const int o = at >= 0 ? 0 : stride == 1 ? -at : (-at + stride - 1) / stride;
  return o < out ? o : out;
}
static inline int nnl_end(int at, int stride, int size, int out) {
  const int o = at >= size ? 0 : stride == 1 ? size - at : (size - at + stride - 1) / stride;
  return o < out ? o : out;
}

/* A position of the window, and along each axis the outputs `first` to `end` - 1 that see a pixel
   there: output o sees pixel o * stride + at. */
typedef struct {
  int position[3], first[3], end[3], at[3];
} nnl_tap;

static inline void nnl_look(const nnl_window* w, nnl_tap* t, int axis) {
  const int at = t->position[axis] * w->dilation[axis] - w->pad[axis];
  t->at[axis] = at;
  t->first[axis] = nnl_first(at, w->stride[axis], w->out[axis]);
  t->end[axis] = nnl_end(at, w->stride[axis], w->size[axis], w->out[axis]);
}
static inline nnl_tap nnl_start(const nnl_window* w) {
  nnl_tap t = {{0, 0, 0}, {0, 0, 0}, {0, 0, 0}, {0, 0, 0}};
  for (int axis = 0; axis < 3; axis++) nnl_look(w, &t, axis);
  return t;
}
/* The next position; 0 behind the last one. */
static inline int nnl_next(const nnl_window* w, nnl_tap* t) {
  for (int axis = 2; axis >= 0; axis--) {
    const int next = t->position[axis] + 1 < w->kernel[axis] ? t->position[axis] + 1 : 0;
    t->position[axis] = next;
    nnl_look(w, t, axis);
    if (next) return 1;
  }
  return 0;
}

/* The pixel that the first output of a line sees, and where that output is. */
static inline int nnl_pixel(const nnl_window* w, const nnl_tap* t, int z, int y) {
  const int plane = z * w->stride[0] + t->at[0], line = y * w->stride[1] + t->at[1];
  return (plane * w->size[1] + line) * w->size[2] + t->first[2] * w->stride[2] + t->at[2];
}
static inline int nnl_output(const nnl_window* w, const nnl_tap* t, int z, int y) {
  return (z * w->out[1] + y) * w->out[2] + t->first[2];
}

#endif
