/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NNL_SCATTER_ALONG_H
#define NNL_SCATTER_ALONG_H

#include <string.h>

#include "position.h"

/* y[o][index[o][j][i]][i] is the sum of x[o][j][i], of the sizes outer, n (count in x) and inner;
   indices outside are left out. */
static void nnl_scatter_along(int outer, int n, int inner, int count, const float* x,
                              const float* index, float* y) {
  memset(y, 0, outer * n * inner * sizeof *y);
  for (int o = 0; o < outer; o++, y += n * inner)
    for (int j = 0; j < count; j++, x += inner, index += inner)
      for (int i = 0; i < inner; i++) {
        const int at = nnl_index(index[i], n);
        if (at >= 0) y[at * inner + i] += x[i];
      }
}

#endif
