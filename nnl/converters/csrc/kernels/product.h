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

/* Numbers that a processor computes with at once; one where the compiler has no type for them. */
#ifdef __GNUC__
#ifdef __AVX__
enum { NNL_LANES = 8 };
#else
enum { NNL_LANES = 4 };
#endif
typedef float nnl_lanes __attribute__((vector_size(4 * NNL_LANES), aligned(4), may_alias));
#else
enum { NNL_LANES = 1 };
typedef float nnl_lanes;
#endif

/* The same for a tile of c, four rows of two `nnl_lanes`, which stays in registers. Those of b are
   `apart` from each other; `at` has the places of its rows, if they are not b_row from each other.
 */
static inline void nnl_add_tile(int k, const float* a, int a_row, int a_column, const float* b,
                                int b_row, const int* at, int apart, float* c, int c_row) {
  nnl_lanes* const c0 = (nnl_lanes*)c;
  nnl_lanes* const c1 = (nnl_lanes*)(c + c_row);
  nnl_lanes* const c2 = (nnl_lanes*)(c + 2 * c_row);
  nnl_lanes* const c3 = (nnl_lanes*)(c + 3 * c_row);
  nnl_lanes s0 = c0[0], t0 = c0[1], s1 = c1[0], t1 = c1[1];
  nnl_lanes s2 = c2[0], t2 = c2[1], s3 = c3[0], t3 = c3[1];
  nnl_lanes x = *(const nnl_lanes*)b, y = *(const nnl_lanes*)(b + apart);
  const float* from = b;
  for (int p = 1; p <= k; p++, a += a_column) {
    s0 += a[0] * x;
    t0 += a[0] * y;
    s1 += a[a_row] * x;
    t1 += a[a_row] * y;
    s2 += a[2 * a_row] * x;
    t2 += a[2 * a_row] * y;
    s3 += a[3 * a_row] * x;
    t3 += a[3 * a_row] * y;
    /* one step ahead: gcc reads again what it reads where it is used */
    if (p < k) from = at ? b + at[p] : from + b_row;
    x = *(const nnl_lanes*)from, y = *(const nnl_lanes*)(from + apart);
  }
  c0[0] = s0, c0[1] = t0, c1[0] = s1, c1[1] = t1;
  c2[0] = s2, c2[1] = t2, c3[0] = s3, c3[1] = t3;
}

/* c += a b: m x n += (m x k)(k x n). */
static inline void nnl_add_product(int m, int n, int k, const float* a, int a_row, int a_column,
                                   const float* b, int b_row, float* c, int c_row) {
  const int fours = m / 4, tiles = n / (2 * NNL_LANES), rest = tiles * 2 * NNL_LANES;
#ifdef NNL_OPENMP
#pragma omp parallel for collapse(2)
#endif
  for (int t = 0; t < tiles; t++)
    for (int i = 0; i < fours; i++)
      nnl_add_tile(k, a + 4 * i * a_row, a_row, a_column, b + 2 * NNL_LANES * t, b_row, NULL,
                   NNL_LANES, c + 4 * i * c_row + 2 * NNL_LANES * t, c_row);
  for (int i = 0; i < m; i++) {
    const int from = i < 4 * fours ? rest : 0;
    nnl_add_row(n - from, k, a + i * a_row, a_column, b + from, b_row, c + i * c_row + from);
  }
}

#endif
