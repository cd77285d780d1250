// SPDX-License-Identifier: Apache-2.0
// Rows at positions that are data, and the sum of rows at equal positions.

// y[b][o][j][i] = x[b][o][index[b][j]][i], V neighbours along i at a time. Where an index is out of
// range the result is NaN: a device cannot raise.
template <class X, class L, class Y>
struct GatherP {
  const X* x;
  const L* index;
  Y* y;
  int64 count, n;
  Divisor inner, m, outer;  // packs of i; j; o
};
template <int V, class X, class L, class Y>
INLINE void gather(const GatherP<X, L, Y>& p) {
  for (unsigned e = blockIdx.x * blockDim.x + threadIdx.x; e < p.count;
       e += gridDim.x * blockDim.x) {
    const unsigned q = p.inner(e), i = e - q * p.inner.divisor;
    const unsigned r = p.m(q), j = q - r * p.m.divisor, b = p.outer(r);
    const int64 at = (int64)p.index[b * p.m.divisor + j];
    float v[V];
    if (at >= 0 && at < p.n) {
      load<V>(v, p.x + ((r * (unsigned)p.n + (unsigned)at) * p.inner.divisor + i) * V);
    } else {
#pragma unroll
      for (int l = 0; l < V; ++l) v[l] = not_a_number();
    }
    store<V>(p.y + e * V, v);
  }
}

// order[rank of i] = i, the ranks being those of a stable sort of the indices: every index is
// compared with every other, which for some ten thousands takes less time than a sort in passes.
// What is out of range comes first.
template <class L>
struct RankP {
  const L* index;
  int* order;
  int64 m, rows;
};
template <class L>
INLINE int row_of(L index, int64 rows) {
  const int64 row = (int64)index;
  return row < 0 || row >= rows ? -1 : (int)row;
}
template <class L>
INLINE void rank(const RankP<L>& p) {
  __shared__ int64 tile[256];
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x, m = (unsigned)p.m;
  // a row and a place, so that no two keys are equal
  auto key = [&](unsigned k) {
    return k < m ? ((int64)row_of(p.index[k], p.rows) * (1ll << 32)) + k : (int64)(~0ull >> 1);
  };
  const int64 own = key(i);
  unsigned before = 0;
  for (unsigned start = 0; start < m; start += 256) {
    __syncthreads();
    tile[threadIdx.x] = key(start + threadIdx.x);
    __syncthreads();
#pragma unroll 16
    for (unsigned k = 0; k < 256; ++k) before += tile[k] < own;
  }
  if (i < m) p.order[before] = (int)i;
}

// gw[row] = sum of the gy whose index is row. A block takes 32 places of the order and V features
// for each thread: it writes the sums of rows that begin and end there, and hands on the others, so
// that an index that most places share is not left to one block. parts: for every chunk of places,
// the sum that belongs to a row from before, and that of a row which goes on after.
template <class L, class G, class Y>
struct SumRowsP {
  const L* index;
  const int* order;
  const G* gy;
  Y* gw;
  float* parts;
  int64 m, rows, features, tiles;
};
constexpr unsigned places = 32;
template <class P>
INLINE int row_at(const P& p, unsigned place) {  // -1 outside of the order, and for place -1
  return place < p.m ? row_of(p.index[p.order[place]], p.rows) : -1;
}

template <int V, class L, class G, class Y>
INLINE void sum_rows(const SumRowsP<L, G, Y>& p) {
  __shared__ int from[places], row[places + 2];  // row[k + 1] is that of from[k]
  const unsigned chunk = blockIdx.x / (unsigned)p.tiles, first = chunk * places;
  const unsigned count = min(places, (unsigned)p.m - first), features = (unsigned)p.features;
  for (unsigned k = threadIdx.x; k < count + 2; k += blockDim.x) {
    row[k] = row_at(p, first + k - 1);
    if (k < count) from[k] = p.order[first + k];
  }
  __syncthreads();
  const unsigned tile = blockIdx.x - chunk * (unsigned)p.tiles;
  const unsigned f = (tile * blockDim.x + threadIdx.x) * V;
  if (f >= features) return;
  float sum[V], v[4][V];
#pragma unroll
  for (int l = 0; l < V; ++l) sum[l] = 0.0f;
  bool begun = row[0] != row[1];
  for (unsigned k = 0; k < count; k += 4) {
#pragma unroll
    for (int j = 0; j < 4; ++j)
      if (k + j < count) load<V>(v[j], p.gy + (unsigned)from[k + j] * features + f);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (k + j >= count) break;
#pragma unroll
      for (int l = 0; l < V; ++l) sum[l] += v[j][l];
      const int own = row[k + j + 1];
      const bool ended = row[k + j + 2] != own;
      if (!ended && k + j + 1 < count) continue;
      if (own >= 0 && begun && ended) store<V>(p.gw + (unsigned)own * features + f, sum);
      else if (own >= 0) store<V>(p.parts + (2 * chunk + begun) * features + f, sum);
#pragma unroll
      for (int l = 0; l < V; ++l) sum[l] = 0.0f;
      begun = true;
    }
  }
}

// Adds up what was handed on, for the row that begins in a chunk and goes on after it.
template <int V, class L, class G, class Y>
INLINE void join_rows(const SumRowsP<L, G, Y>& p) {
  const unsigned chunk = blockIdx.x / (unsigned)p.tiles, first = chunk * places;
  const unsigned tile = blockIdx.x - chunk * (unsigned)p.tiles, features = (unsigned)p.features;
  const unsigned f = (tile * blockDim.x + threadIdx.x) * V;
  const int row = row_at(p, first + places);  // the first one after
  if (row < 0 || f >= features || row_at(p, first + places - 1) != row) return;
  if (row_at(p, first - 1) == row) return;  // it began before
  unsigned low = chunk + 1, high = ((unsigned)p.m + places - 1) / places;
  while (high - low > 1) {  // the last chunk that begins with this row
    const unsigned middle = (low + high) / 2;
    if (row_at(p, middle * places) == row) low = middle; else high = middle;
  }
  float sum[V];
  load<V>(sum, p.parts + (2 * chunk + 1) * features + f);
#pragma unroll 4
  for (unsigned k = chunk + 1; k <= low; ++k) {
    float v[V];
    load<V>(v, p.parts + 2 * k * features + f);
#pragma unroll
    for (int l = 0; l < V; ++l) sum[l] += v[l];
  }
  store<V>(p.gw + (unsigned)row * features + f, sum);
}
