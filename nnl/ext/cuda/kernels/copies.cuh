// SPDX-License-Identifier: Apache-2.0
// Copies between arrays of any strides and element types.

template <class Y, class X>
struct Cast {  // at least one of them is no half type
  static INLINE Y value(X x) { return (Y)x; }
};
template <class T>
struct Cast<T, T> {
  static INLINE T value(T x) { return x; }
};
#define NNL_CAST_HALF(H)                                                          \
  template <class Y>                                                              \
  struct Cast<Y, H> {                                                             \
    static INLINE Y value(H x) { return Cast<Y, float>::value(to_float(x)); }     \
  };                                                                              \
  template <class X>                                                              \
  struct Cast<H, X> {                                                             \
    static INLINE H value(X x) { return from_float<H>(Cast<float, X>::value(x)); } \
  };                                                                              \
  template <>                                                                     \
  struct Cast<H, H> {                                                             \
    static INLINE H value(H x) { return x; }                                      \
  };
NNL_CAST_HALF(f16)
NNL_CAST_HALF(bf16)
template <>
struct Cast<f16, bf16> {
  static INLINE f16 value(bf16 x) { return from_float<f16>(to_float(x)); }
};
template <>
struct Cast<bf16, f16> {
  static INLINE bf16 value(f16 x) { return from_float<bf16>(to_float(x)); }
};
template <class Y>
struct Cast<Y, bool8> {
  static INLINE Y value(bool8 x) { return Cast<Y, float>::value(x.bits ? 1.0f : 0.0f); }
};
template <class X>
struct Cast<bool8, X> {
  static INLINE bool8 value(X x) { return {(unsigned char)(x != (X)0)}; }
};
#define NNL_CAST_BOOL(H)                                                          \
  template <>                                                                     \
  struct Cast<bool8, H> {                                                         \
    static INLINE bool8 value(H x) { return {(unsigned char)(to_float(x) != 0.0f)}; } \
  };                                                                              \
  template <>                                                                     \
  struct Cast<H, bool8> {                                                         \
    static INLINE H value(bool8 x) { return from_float<H>(to_float(x)); }         \
  };
NNL_CAST_BOOL(f16)
NNL_CAST_BOOL(bf16)
template <>
struct Cast<bool8, bool8> {
  static INLINE bool8 value(bool8 x) { return x; }
};

// Runs of V elements that are neighbours in both arrays. Patterns of 1 axis are runs through all.
template <class X, class Y, int rx, int ry>
struct CopyP {
  const X* x;
  Y* y;
  int64 n, x_offset, y_offset;
  Axis ax[rx], ay[ry];
};
template <int V, class X, class Y, int rx, int ry>
INLINE void copy_runs(const CopyP<X, Y, rx, ry>& p) {
  const unsigned step = gridDim.x * blockDim.x * V;
  for (unsigned i = (blockIdx.x * blockDim.x + threadIdx.x) * V; i < p.n; i += step) {
    const Pack<X, V> a = *(const Pack<X, V>*)(p.x + place_of<rx>(i, p.ax, p.x_offset));
    Pack<Y, V> b;
#pragma unroll
    for (int l = 0; l < V; ++l) b.v[l] = Cast<Y, X>::value(a.v[l]);
    *(Pack<Y, V>*)(p.y + place_of<ry>(i, p.ay, p.y_offset)) = b;
  }
}

template <class Y>
struct FillP {
  Y* y;
  int64 n;
  double value;
};
template <int V, class Y>
INLINE void fill_all(const FillP<Y>& p) {
  Pack<Y, V> pack;
#pragma unroll
  for (int l = 0; l < V; ++l) pack.v[l] = Cast<Y, double>::value(p.value);
  const unsigned first = blockIdx.x * blockDim.x + threadIdx.x, step = gridDim.x * blockDim.x;
  const unsigned n = (unsigned)p.n, packs = n / V;
  for (unsigned i = first; i < packs; i += step) *(Pack<Y, V>*)(p.y + i * V) = pack;
  for (unsigned i = packs * V + first; i < n; i += step) p.y[i] = pack.v[0];
}

// y[b][r][c] = x[place of b + c stride + r]: squares of 32 x 32 through shared memory, so that both
// sides are read and written along rows. A block has 32 x 8 threads.
template <class X, class Y, int rank>
struct TransposeP {
  const X* x;
  Y* y;
  int64 rows, columns, stride, row_tiles, column_tiles, offset;
  Axis batch[rank];
};
template <class X, class Y, int rank>
INLINE void transpose(const TransposeP<X, Y, rank>& p) {
  __shared__ Y tile[32][33];
  const unsigned tiles = (unsigned)(p.row_tiles * p.column_tiles), b = blockIdx.x / tiles;
  const unsigned t = blockIdx.x - b * tiles, row_tile = t / (unsigned)p.column_tiles;
  const unsigned row = row_tile * 32, column = (t - row_tile * (unsigned)p.column_tiles) * 32;
  const X* x = p.x + place_of<rank>(b, p.batch, p.offset);
  Y* y = p.y + b * p.rows * p.columns;
  for (unsigned k = threadIdx.y; k < 32; k += 8)
    if (column + k < p.columns && row + threadIdx.x < p.rows)
      tile[k][threadIdx.x] = Cast<Y, X>::value(x[(column + k) * p.stride + row + threadIdx.x]);
  __syncthreads();
  for (unsigned k = threadIdx.y; k < 32; k += 8)
    if (row + k < p.rows && column + threadIdx.x < p.columns)
      y[(row + k) * p.columns + column + threadIdx.x] = tile[threadIdx.x][k];
}
