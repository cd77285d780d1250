/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NNL_POSITION_H
#define NNL_POSITION_H

/* An index of an axis of size n, which may count from the end; -1 if there is no such element. */
static inline int nnl_index(float v, int n) {
  v = v < 0.0f ? v + (float)n : v;
  return v >= 0.0f && v < (float)n ? (int)v : -1;
}

/* Where in memory the element is that row `i` of each of `axes` lists of indices names; -1 if it is
   nowhere. */
static inline int nnl_position(const float* index, int count, int i, int axes, const int* sizes) {
  int at = 0;
  for (int a = 0; a < axes; a++) {
    const int j = nnl_index(index[a * count + i], sizes[a]);
    if (j < 0) return -1;
    at = at * sizes[a] + j;
  }
  return at;
}

#endif
