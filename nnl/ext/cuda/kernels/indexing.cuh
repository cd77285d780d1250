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
template <class L>
struct RankP {
  const L* index;
  int* order;
  int64 m;
};
template <class L>
INLINE void rank(const RankP<L>& p) {
  __shared__ int64 tile[256];
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x, m = (unsigned)p.m;
  const int64 own = i < m ? (int64)p.index[i] : 0;
  unsigned before = 0;
  for (unsigned start = 0; start < m; start += blockDim.x) {
    __syncthreads();
    if (start + threadIdx.x < m) tile[threadIdx.x] = (int64)p.index[start + threadIdx.x];
    __syncthreads();
    const unsigned n = min(blockDim.x, m - start);
    for (unsigned k = 0; k < n; ++k)
      before += tile[k] < own || (tile[k] == own && start + k < i);
  }
  if (i < m) p.order[before] = (int)i;
}

// gw[row] = sum of the gy whose index is row, in their order. One block for V x 256 features of one
// place in the order; those that do not begin a run of equal indices have nothing to do.
template <class L, class G, class Y>
struct SumRowsP {
  const L* index;
  const int* order;
  const G* gy;
  Y* gw;
  int64 m, rows, features;
};
template <int V, class L, class G, class Y>
INLINE void sum_rows(const SumRowsP<L, G, Y>& p) {
  const unsigned s = blockIdx.x, f = (blockIdx.y * blockDim.x + threadIdx.x) * V;
  const int64 row = (int64)p.index[p.order[s]];
  if (row < 0 || row >= p.rows || f >= p.features) return;
  if (s > 0 && (int64)p.index[p.order[s - 1]] == row) return;
  float sum[V];
#pragma unroll
  for (int l = 0; l < V; ++l) sum[l] = 0.0f;
  for (unsigned k = s; k < p.m; ++k) {
    const unsigned i = (unsigned)p.order[k];
    if ((int64)p.index[i] != row) break;
    float v[V];
    load<V>(v, p.gy + i * (unsigned)p.features + f);
#pragma unroll
    for (int l = 0; l < V; ++l) sum[l] += v[l];
  }
  store<V>(p.gw + (unsigned)row * (unsigned)p.features + f, sum);
}
