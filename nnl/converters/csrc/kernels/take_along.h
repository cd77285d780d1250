/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NNL_TAKE_ALONG_H
#define NNL_TAKE_ALONG_H

#include <math.h>

#include "position.h"

/* y[o][j][i] = x[o][index[o][j][i]][i], of the sizes outer, n (count in y) and inner; NaN where the
   index is outside. */
static void nnl_take_along(int outer, int n, int inner, int count, const float* x,
                           const float* index, float* y) {
  for (int o = 0; o < outer; o++, x += n * inner)
    for (int j = 0; j < count; j++, y += inner, index += inner)
      for (int i = 0; i < inner; i++) {
        const int at = nnl_index(index[i], n);
        y[i] = at < 0 ? NAN : x[at * inner + i];
      }
}

#endif
