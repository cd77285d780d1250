/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NNL_GATHER_ND_H
#define NNL_GATHER_ND_H

#include <math.h>

#include "position.h"

/* `count` parts of x, each `inner` long; NaN where the position is outside. */
static void nnl_gather_nd(int count, int inner, int axes, const int* sizes, const float* x,
                          const float* index, float* y) {
  for (int k = 0; k < count; k++, y += inner) {
    const int at = nnl_position(index, count, k, axes, sizes);
    for (int i = 0; i < inner; i++) y[i] = at < 0 ? NAN : x[at * inner + i];
  }
}

#endif
