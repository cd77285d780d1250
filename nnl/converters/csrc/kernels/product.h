/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NNL_PRODUCT_H
#define NNL_PRODUCT_H

#include <string.h>

/* Products of matrices are taken in panels of the right one, 64 KiB at most. */
enum { NNL_PANEL_ROWS = 128, NNL_PANEL_COLUMNS = 128 };

static inline int nnl_least(int a, int b) { return a < b ? a : b; }

/* c += a b for one row of c, `n` long; steps in memory are those of rows and columns. */
static inline void nnl_add_row(int n, int k, const float* a, int a_column, const float* b,
                               int b_row, float* restrict c) {
  for (; k >= 4; k -= 4, a += 4 * a_column, b += 4 * b_row) {
    const float a0 = a[0], a1 = a[a_column], a2 = a[2 * a_column], a3 = a[3 * a_column];
    const float *b1 = b + b_row, *b2 = b1 + b_row, *b3 = b2 + b_row;
    for (int j = 0; j < n; j++) c[j] += a0 * b[j] + a1 * b1[j] + a2 * b2[j] + a3 * b3[j];
  }
  for (; k > 0; k--, a += a_column, b += b_row)
    for (int j = 0; j < n; j++) c[j] += *a * b[j];
}

/* The same for four rows of c: every element of b that is read is used four times. */
static inline void nnl_add_four_rows(int n, int k, const float* a, int a_row, int a_column,
                                     const float* b, int b_row, float* restrict c, int c_row) {
  float* restrict c0 = c, * restrict c1 = c + c_row;
  float* restrict c2 = c + 2 * c_row, * restrict c3 = c + 3 * c_row;
  for (; k >= 4; k -= 4, a += 4 * a_column, b += 4 * b_row) {
    float v[4][4];
    for (int i = 0; i < 4; i++)
      for (int q = 0; q < 4; q++) v[i][q] = a[i * a_row + q * a_column];
    const float *b1 = b + b_row, *b2 = b1 + b_row, *b3 = b2 + b_row;
    for (int j = 0; j < n; j++) {
      const float x0 = b[j], x1 = b1[j], x2 = b2[j], x3 = b3[j];
      c0[j] += v[0][0] * x0 + v[0][1] * x1 + v[0][2] * x2 + v[0][3] * x3;
      c1[j] += v[1][0] * x0 + v[1][1] * x1 + v[1][2] * x2 + v[1][3] * x3;
      c2[j] += v[2][0] * x0 + v[2][1] * x1 + v[2][2] * x2 + v[2][3] * x3;
      c3[j] += v[3][0] * x0 + v[3][1] * x1 + v[3][2] * x2 + v[3][3] * x3;
    }
  }
  for (; k > 0; k--, a += a_column, b += b_row) {
    const float v0 = a[0], v1 = a[a_row], v2 = a[2 * a_row], v3 = a[3 * a_row];
    for (int j = 0; j < n; j++) {
      c0[j] += v0 * b[j];
      c1[j] += v1 * b[j];
      c2[j] += v2 * b[j];
      c3[j] += v3 * b[j];
    }
  }
}

/* c += a b: m x n += (m x k)(k x n). */
static inline void nnl_add_product(int m, int n, int k, const float* a, int a_row, int a_column,
                                   const float* b, int b_row, float* c, int c_row) {
  const int fours = m / 4;
#ifdef NNL_OPENMP
#pragma omp parallel for
#endif
  for (int i = 0; i < fours; i++)
    nnl_add_four_rows(n, k, a + 4 * i * a_row, a_row, a_column, b, b_row, c + 4 * i * c_row, c_row);
  for (int i = 4 * fours; i < m; i++)
    nnl_add_row(n, k, a + i * a_row, a_column, b, b_row, c + i * c_row);
}

#endif
