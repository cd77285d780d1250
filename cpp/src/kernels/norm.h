// SPDX-License-Identifier: Apache-2.0
// How a normalization sees its array: which elements share a mean and variance, and a gamma and
// beta, in the order of memory.
#pragma once
#include "lanes.h"

namespace nnl {

// One of two views.
//
// By channel: x is [outer][reduced][inner], inner contiguous. The elements over which a mean is
// taken are all of `reduced`, and those of `inner` that have the same `stat_of`. Batch
// normalization channels-last is [1][N H W][C], group normalization channels-last [N][H W][C].
//
// By row: a mean is taken over rows of `row` neighbours, one for every entry of `reduced_x`. Layer
// normalization has one row per mean, batch normalization in the plain order N of them. Gamma and
// beta vary along a row (row_param is 1) or not (0).
struct NormShape {
  bool by_channel = false;
  int64_t size = 0;    // elements of x
  int64_t stats = 1;   // means
  int64_t params = 0;  // gammas; 0 if there is neither gamma nor beta
  int64_t count = 0;   // elements per mean

  int64_t outer = 1, reduced = 1, inner = 1;
  int64_t outer_stat = 0, outer_param = 0;
  std::vector<int32_t> stat_of, param_of;

  int64_t row = 1, row_param = 0;
  std::vector<int64_t> kept_x, kept_stat, kept_param;  // where a mean's first row begins
  std::vector<int64_t> reduced_x, reduced_param;       // its other rows, from there
};

// One axis of x: its size, and the distance of neighbours in x, in the array of means (0 along
// reduced axes) and in gamma (0 where gamma stretches).
struct NormAxis {
  int64_t n, x, stat, param;
  bool reduced;
};

// False where x is not one run of memory in some order of the axes.
bool see(std::vector<NormAxis> axes, NormShape& shape);

// The axes of x, split at `channel` into (groups, rest) if groups is positive. `reduced` is by axis
// after the split; p is the spec of gamma and beta (before it) or null.
std::vector<NormAxis> axes_of(const Spec& x, const Spec& stat, const Spec* p,
                              const std::vector<bool>& reduced, int64_t channel = -1,
                              int64_t groups = 0);

// Sums over n neighbours in float64, from float32 sums over at most 2048 of them: f(i, n, whole)
// gives 16 terms each for as many sums as `sums` has.
template <int kSums, class F>
NNL_INLINE void row_sums(int64_t n, double* sums, F&& f) {
  constexpr int64_t block = 2048;
  for (int64_t begin = 0; begin < n; begin += block) {
    Lanes s[2][kSums] = {};
    const int64_t end = std::min(begin + block, n);
    int64_t i = begin;
    for (; i + 2 * kLanes <= end; i += 2 * kLanes) {
      f(i, int64_t{kLanes}, std::true_type{}, s[0]);
      f(i + kLanes, int64_t{kLanes}, std::true_type{}, s[1]);
    }
    for (; i + kLanes <= end; i += kLanes) f(i, int64_t{kLanes}, std::true_type{}, s[0]);
    if (i < end) f(i, end - i, std::false_type{}, s[0]);
    for (int k = 0; k < kSums; ++k) sums[k] += static_cast<double>(sum_of(s[0][k] + s[1][k]));
  }
}

// Lanes [0, n) of v, zeros beyond: terms of a sum in the last step of a row.
template <bool whole>
NNL_INLINE Lanes masked(Lanes v, int64_t n) {
  if constexpr (whole) return v;
  Lanes y = {};
  for (int64_t i = 0; i < n; ++i) y[i] = v[i];
  return y;
}

// Channels in blocks of 64, then 16, then the rest: f(first channel, vectors, whole, lanes), where
// vectors (4 or 1) and whole are constants of the compiler.
template <class F>
NNL_INLINE void by_blocks(int64_t channels, F&& f) {
  int64_t c = 0;
  for (; c + 4 * kLanes <= channels; c += 4 * kLanes)
    f(c, std::integral_constant<int, 4>{}, std::true_type{}, int64_t{kLanes});
  for (; c + kLanes <= channels; c += kLanes)
    f(c, std::integral_constant<int, 1>{}, std::true_type{}, int64_t{kLanes});
  if (c < channels) f(c, std::integral_constant<int, 1>{}, std::false_type{}, channels - c);
}

// Runs f(first, n, next) over [begin, end) in tiles of `tile`, the last tile first if backwards: a
// second pass begins with what the first one left in the cache. The tile after it begins at `next`.
template <class F>
NNL_INLINE void by_tiles(int64_t begin, int64_t end, bool backwards, F&& f) {
  constexpr int64_t tile = 64;
  const int64_t tiles = (end - begin + tile - 1) / tile;
  for (int64_t i = 0; i < tiles; ++i) {
    const int64_t first = begin + (backwards ? tiles - 1 - i : i) * tile;
    const int64_t next = first + (backwards ? -tile : tile);
    f(first, std::min(tile, end - first), i + 1 < tiles ? next : first);
  }
}

// Asks for n elements from p on. A block of channels of a tile is many short pieces of memory,
// which the processor does not foresee; so each piece asks for one of the next tile, in the order
// of memory.
template <class T>
NNL_INLINE void ask_for(const T* p, int64_t n) {
  constexpr int64_t line = 64 / sizeof(T);
  for (int64_t i = 0; i < n; i += line) __builtin_prefetch(p + i, 0, 2);
}
NNL_INLINE void ask_for(Any, int64_t) {}

// Whether two arrays of one shape have their elements in one order.
bool same_order(const Spec& a, const Spec& b);

NNL_INLINE void add_to(double* sums, Lanes v, int64_t n) {
  float s[kLanes];
  store(s, v);
  for (int64_t i = 0; i < n; ++i) sums[i] += static_cast<double>(s[i]);
}

}  // namespace nnl
