// SPDX-License-Identifier: Apache-2.0
// Copies between arrays of any strides and element types.

#ifdef COPY_RUNS
// Runs of V elements that are neighbours in both arrays, from a pattern of RX axes to one of RY.
// Patterns of 1 axis are runs through all.
typedef struct {
  i64 n, x_offset, y_offset;
  Axis ax[RX], ay[RY];
} CopyP;
INLINE void copy_runs(GLOBAL const X* x, GLOBAL Y* y, const CopyP* p) {
  EACH(k, p->n / V) {
    const unsigned i = k * V;
    X a[V];
    Y b[V];
    READ(V, X, a, x + place_of(RX, i, p->ax, p->x_offset));
    UNROLL for (int l = 0; l < V; ++l) b[l] = CAST(Y, VALUE(X, a[l]));
    WRITE(V, Y, y + place_of(RY, i, p->ay, p->y_offset), b);
  }
}
#endif

#ifdef FILL_ALL
typedef struct {
  i64 n;
  u64 value;
} FillP;
INLINE void fill_all(GLOBAL Y* y, const FillP* p) {
  Y pack[V];
  UNROLL for (int l = 0; l < V; ++l) pack[l] = CAST(Y, REAL(p->value));
  const unsigned n = (unsigned)p->n, packs = n / V;
  EACH(i, packs) WRITE(V, Y, y + i * V, pack);
  EACH(k, n - packs * V) y[packs * V + k] = pack[0];
}
#endif

#ifdef TRANSPOSE
// y[b][r][c] = x[place of b + c stride + r]: squares of 32 x 32 through local memory, so that both
// sides are read and written along rows. A block has 32 x SIDE_Y threads.
typedef struct {
  i64 rows, columns, stride, row_tiles, column_tiles, offset;
  Axis batch[RX];
} TransposeP;
INLINE void transpose(GLOBAL const X* x, GLOBAL Y* y, LOCAL Y* tile, const TransposeP* p) {
  const unsigned tiles = (unsigned)(p->row_tiles * p->column_tiles), b = BLOCK_X / tiles;
  const unsigned t = BLOCK_X - b * tiles, row_tile = t / (unsigned)p->column_tiles;
  const unsigned row = row_tile * 32, column = (t - row_tile * (unsigned)p->column_tiles) * 32;
  GLOBAL const X* from = x + place_of(RX, b, p->batch, p->offset);
  GLOBAL Y* to = y + b * p->rows * p->columns;
  for (unsigned k = THREAD_Y; k < 32; k += SIDE_Y)
    if (column + k < p->columns && row + THREAD_X < p->rows)
      tile[k * 33 + THREAD_X] = CAST(Y, VALUE(X, from[(column + k) * p->stride + row + THREAD_X]));
  BARRIER();
  for (unsigned k = THREAD_Y; k < 32; k += SIDE_Y)
    if (row + k < p->rows && column + THREAD_X < p->columns)
      to[(row + k) * p->columns + column + THREAD_X] = tile[THREAD_X * 33 + k];
}
#endif
