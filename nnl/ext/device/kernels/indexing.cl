// SPDX-License-Identifier: Apache-2.0
// Rows at positions that are data, and the sum of rows at equal positions.

#ifdef GATHER
// y[b][o][j][i] = x[b][o][index[b][j]][i], V neighbours along i at a time. Where an index is out of
// range the result is NaN: a device cannot raise.
typedef struct {
  i64 count, n;
  Divisor inner, m, outer;  // packs of i; j; o
} GatherP;
INLINE void gather(GLOBAL const X* x, GLOBAL const L* index, GLOBAL Y* y, const GatherP* p) {
  EACH(e, p->count) {
    const unsigned q = quotient(p->inner, e), i = e - q * p->inner.divisor;
    const unsigned r = quotient(p->m, q), j = q - r * p->m.divisor, b = quotient(p->outer, r);
    const i64 at = (i64)index[b * p->m.divisor + j];
    float v[V];
    if (at >= 0 && at < p->n) {
      LOAD(V, X, v, x + ((r * (unsigned)p->n + (unsigned)at) * p->inner.divisor + i) * V);
    } else {
      UNROLL for (int l = 0; l < V; ++l) v[l] = not_a_number();
    }
    STORE(V, Y, y + e * V, v);
  }
}
#else

INLINE int row_of(L index, i64 rows) {
  const i64 row = (i64)index;
  return row < 0 || row >= rows ? -1 : (int)row;
}
#endif

#ifdef RANK
// order[rank of i] = i, the ranks being those of a stable sort of the indices: every index is
// compared with every other, which for some ten thousands takes less time than a sort in passes.
// What is out of range comes first.
typedef struct {
  i64 m, rows;
} RankP;
// A row and a place, so that no two keys are equal.
INLINE i64 key_of(GLOBAL const L* index, unsigned k, unsigned m, i64 rows) {
  if (k >= m) return (i64)(~(u64)0 >> 1);
  return (i64)row_of(index[k], rows) * ((i64)1 << 32) + k;
}
INLINE void rank(GLOBAL const L* index, GLOBAL i32* order, LOCAL i64* tile, const RankP* p) {
  const unsigned i = BLOCK_X * SIDE_X + THREAD_X, m = (unsigned)p->m;
  const i64 own = key_of(index, i, m, p->rows);
  unsigned before = 0;
  for (unsigned start = 0; start < m; start += THREADS) {
    BARRIER();
    tile[THREAD_X] = key_of(index, start + THREAD_X, m, p->rows);
    BARRIER();
    for (unsigned k = 0; k < THREADS; ++k) before += tile[k] < own;
  }
  if (i < m) order[before] = (int)i;
}
#endif

#ifdef SUM_ROWS
// gw[row] = sum of the gy whose index is row. A block takes 32 places of the order and V features
// for each thread: it writes the sums of rows that begin and end there, and hands on the others, so
// that an index that most places share is not left to one block. parts: for every chunk of places,
// the sum that belongs to a row from before, and that of a row which goes on after.
typedef struct {
  i64 m, rows, features, tiles;
} SumRowsP;
#define PLACES 32u
#define ROW_AT(place) \
  ((place) < p->m ? row_of(index[order[place]], p->rows) : -1)  // -1 outside, and for place -1

// from: PLACES of the order; row: PLACES + 2 rows, row[k + 1] is that of from[k].
INLINE void sum_rows(GLOBAL const L* index, GLOBAL const i32* order, GLOBAL const G* gy,
                     GLOBAL Y* gw, GLOBAL float* parts, LOCAL int* from, LOCAL int* row,
                     const SumRowsP* p) {
  const unsigned chunk = BLOCK_X / (unsigned)p->tiles, first = chunk * PLACES;
  const unsigned count = least_of(PLACES, (unsigned)p->m - first), features = (unsigned)p->features;
  for (unsigned k = THREAD_X; k < count + 2; k += SIDE_X) {
    row[k] = ROW_AT(first + k - 1);
    if (k < count) from[k] = order[first + k];
  }
  BARRIER();
  const unsigned tile = BLOCK_X - chunk * (unsigned)p->tiles;
  const unsigned f = (tile * SIDE_X + THREAD_X) * V;
  if (f >= features) return;
  float sum[V], v[4][V];
  UNROLL for (int l = 0; l < V; ++l) sum[l] = 0.0f;
  bool begun = row[0] != row[1];
  for (unsigned k = 0; k < count; k += 4) {
    UNROLL for (int j = 0; j < 4; ++j) if (k + j < count)
        LOAD(V, G, v[j], gy + (unsigned)from[k + j] * features + f);
    UNROLL for (int j = 0; j < 4; ++j) {
      if (k + j >= count) break;
      UNROLL for (int l = 0; l < V; ++l) sum[l] += v[j][l];
      const int own = row[k + j + 1];
      const bool ended = row[k + j + 2] != own;
      if (!ended && k + j + 1 < count) continue;
      if (own >= 0 && begun && ended) {
        STORE(V, Y, gw + (unsigned)own * features + f, sum);
      } else if (own >= 0) {
        STORE(V, f32, parts + (2 * chunk + (begun ? 1 : 0)) * features + f, sum);
      }
      UNROLL for (int l = 0; l < V; ++l) sum[l] = 0.0f;
      begun = true;
    }
  }
}

// Adds up what was handed on, for the row that begins in a chunk and goes on after it.
INLINE void join_rows(GLOBAL const L* index, GLOBAL const i32* order, GLOBAL const G* gy,
                      GLOBAL Y* gw, GLOBAL float* parts, LOCAL int* from, LOCAL int* rows,
                      const SumRowsP* p) {
  const unsigned chunk = BLOCK_X / (unsigned)p->tiles, first = chunk * PLACES;
  const unsigned tile = BLOCK_X - chunk * (unsigned)p->tiles, features = (unsigned)p->features;
  const unsigned f = (tile * SIDE_X + THREAD_X) * V;
  const int row = ROW_AT(first + PLACES);  // the first one after
  if (row < 0 || f >= features || ROW_AT(first + PLACES - 1) != row) return;
  if (ROW_AT(first - 1) == row) return;  // it began before
  unsigned low = chunk + 1, high = ((unsigned)p->m + PLACES - 1) / PLACES;
  while (high - low > 1) {  // the last chunk that begins with this row
    const unsigned middle = (low + high) / 2;
    if (ROW_AT(middle * PLACES) == row) low = middle; else high = middle;
  }
  float sum[V];
  LOAD(V, f32, sum, parts + (2 * chunk + 1) * features + f);
  for (unsigned k = chunk + 1; k <= low; ++k) {
    float v[V];
    LOAD(V, f32, v, parts + 2 * k * features + f);
    UNROLL for (int l = 0; l < V; ++l) sum[l] += v[l];
  }
  STORE(V, Y, gw + (unsigned)row * features + f, sum);
}
#endif
