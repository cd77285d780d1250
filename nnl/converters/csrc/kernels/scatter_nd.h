/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NNL_SCATTER_ND_H
#define NNL_SCATTER_ND_H

#include "position.h"

/* Write `count` parts, each `inner` long, into y, or add them; not those whose position is
   outside. */
static void nnl_scatter_nd(int count, int inner, int axes, const int* sizes, int add,
                           const float* x, const float* index, float* y) {
  for (int k = 0; k < count; k++, x += inner) {
    const int at = nnl_position(index, count, k, axes, sizes);
    for (int i = 0; i < inner && at >= 0; i++)
      y[at * inner + i] = add ? y[at * inner + i] + x[i] : x[i];
  }
}

#endif
