/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NNL_GATHER_H
#define NNL_GATHER_H

#include <math.h>

#include "position.h"

/* y[b][o][j][i] = x[b][o][index[b][j]][i], of the sizes batch, outer, n (count in y) and inner;
   NaN where the index is outside. */
static void nnl_gather(int batch, int outer, int n, int count, int inner, const float* x,
                       const float* index, float* y) {
  for (int b = 0; b < batch; b++, index += count)
    for (int o = 0; o < outer; o++, x += n * inner)
      for (int j = 0; j < count; j++, y += inner) {
        const int at = nnl_index(index[j], n);
        for (int i = 0; i < inner; i++) y[i] = at < 0 ? NAN : x[at * inner + i];
      }
}

#endif
