/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NNL_MATMUL_H
#define NNL_MATMUL_H

#include "product.h"

/* c += a b, with b in any order in memory: panels of it are copied. */
static inline void nnl_add_panels(int m, int n, int k, const float* a, int a_row, int a_column,
                                  const float* b, int b_row, int b_column, float* c, float* panel) {
  for (int j = 0; j < n; j += NNL_PANEL_COLUMNS) {
    const int columns = nnl_least(n - j, NNL_PANEL_COLUMNS);
    for (int p = 0; p < k; p += NNL_PANEL_ROWS) {
      const int rows = nnl_least(k - p, NNL_PANEL_ROWS);
      for (int r = 0; r < rows; r++) {
        const float* from = b + (p + r) * b_row + j * b_column;
        for (int i = 0; i < columns; i++) panel[r * columns + i] = from[i * b_column];
      }
      nnl_add_product(m, columns, rows, a + p * a_column, a_row, a_column, panel, columns, c + j,
                      n);
    }
  }
}

/* Several products of matrices, each beginning with `bias` (n numbers) in every row, or zeros.
   Without a panel b is used where it is, its columns beside each other. */
static void nnl_matmul(int count, int m, int n, int k, const float* a, int a_row, int a_column,
                       const float* b, int b_row, int b_column, const float* bias, float* c,
                       float* panel) {
  for (int t = 0; t < count; t++) {
    for (int i = 0; i < m; i++) {
      if (bias)
        memcpy(c + i * n, bias, n * sizeof *c);
      else
        memset(c + i * n, 0, n * sizeof *c);
    }
    if (panel)
      nnl_add_panels(m, n, k, a, a_row, a_column, b, b_row, b_column, c, panel);
    else
      nnl_add_product(m, n, k, a, a_row, a_column, b, b_row, c, n);
    a += m * k;
    b += k * n;
    c += m * n;
  }
}

#endif
