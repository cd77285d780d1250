// SPDX-License-Identifier: Apache-2.0
// Attention of few queries: keys and values are read once, in their own type, which is what takes
// time when one token follows another.
#include <algorithm>

#include "attention.h"
#include "lanes.h"

namespace nnl::attention {
namespace {

constexpr int64_t kNear =
    32;  // keys whose values stay in the first cache while rows pass over them

NNL_INLINE void ask(const void* p) { __builtin_prefetch(p); }

// Products of one row with 16 keys; the first row asks for the 16 after them.
template <bool first, class T>
NNL_INLINE Lanes dots_of_16(const T* k, const float* q, int64_t d) {
  Lanes s[16];
  unroll<16>(NNL_EACH(t) { s[t] = Lanes{}; });
  int64_t c = 0;
  for (; c + kLanes <= d; c += kLanes) {
    const Lanes x = load(q + c);
    unroll<16>(NNL_EACH(t) {
      s[t] += x * load(k + t * d + c);
      if (first) ask(k + (16 + t) * d + c);
    });
  }
  if (c < d) {
    const Lanes x = load_part(q + c, d - c);
    for (int t = 0; t < 16; ++t) s[t] += x * load_part(k + t * d + c, d - c);
  }
  return folds(s, [](Lanes p, Lanes q) { return p + q; });
}

// Products of four rows with 4 keys, which are converted once.
template <bool first, class T>
NNL_INLINE Lanes dots_of_4(const T* k, const float* q, int64_t d) {
  Lanes s[16];
  unroll<16>(NNL_EACH(t) { s[t] = Lanes{}; });
  int64_t c = 0;
  for (; c + kLanes <= d; c += kLanes) {
    Lanes x[4];
    unroll<4>(NNL_EACH(t) {
      x[t] = load(k + t * d + c);
      if (first) ask(k + (16 + t) * d + c);
    });
    unroll<4>(NNL_EACH(i) {
      const Lanes y = load(q + i * d + c);
      unroll<4>(NNL_EACH(t) { s[4 * i + t] += y * x[t]; });
    });
  }
  if (c < d)
    for (int i = 0; i < 16; ++i)
      s[i] += load_part(q + i / 4 * d + c, d - c) * load_part(k + i % 4 * d + c, d - c);
  return folds(s, [](Lanes p, Lanes q) { return p + q; });
}

template <bool first, class T>
void four_rows(const T* k, const float* q, int64_t d, float* scores) {
  for (int64_t t = 0; t < 16; t += 4) {
    const Lanes sums = dots_of_4<first>(k + t * d, q, d);
    for (int i = 0; i < 4; ++i)
      __builtin_memcpy(scores + i * kScores + t, reinterpret_cast<const float*>(&sums) + 4 * i, 16);
  }
}

template <class T>
void dots_of(const T* k, const float* rows, int64_t m, int64_t n, int64_t d, float* scores) {
  int64_t j = 0;
  for (; j + 16 <= n; j += 16) {
    const T* keys = k + j * d;
    int64_t i = 0;
    for (; sizeof(T) == 2 && i + 4 <= m; i += 4) {
      if (i)
        four_rows<false>(keys, rows + i * d, d, scores + i * kScores + j);
      else
        four_rows<true>(keys, rows, d, scores + j);
    }
    for (; i < m; ++i) {
      const float* q = rows + i * d;
      store(scores + i * kScores + j,
            i ? dots_of_16<false>(keys, q, d) : dots_of_16<true>(keys, q, d));
    }
  }
  for (; j < n; ++j)
    for (int64_t i = 0; i < m; ++i)
      scores[i * kScores + j] = sum_of(lane_sums(d, [&](int64_t c, int64_t lanes, auto whole) {
        return get<whole()>(rows + i * d + c, lanes) * get<whole()>(k + j * d + c, lanes);
      }));
}

// R rows of weights times K vectors of columns.
template <int R, int K, bool whole, class T>
NNL_INLINE void weigh_block(const T* v, const float* p, int64_t n, int64_t e, int64_t lanes,
                            float* sums) {
  Lanes s[R][K];
  unroll<R>(NNL_EACH(r) {
    unroll<K>(NNL_EACH(k) { s[r][k] = get<whole>(sums + r * e + k * kLanes, lanes); });
  });
  for (int64_t j = 0; j < n; ++j, v += e)
    unroll<K>(NNL_EACH(k) {
      const Lanes x = get<whole>(v + k * kLanes, lanes);
      ask(v + kNear * e + k * kLanes);
      unroll<R>(NNL_EACH(r) { s[r][k] += p[r * kScores + j] * x; });
    });
  unroll<R>(NNL_EACH(r) {
    unroll<K>(NNL_EACH(k) { put<whole>(sums + r * e + k * kLanes, s[r][k], lanes); });
  });
}

template <int R, class T>
void weigh_rows(const T* v, const float* p, int64_t n, int64_t e, float* sums) {
  int64_t c = 0;
  if constexpr (R < 3)  // as many sums as keep the processor busy
    for (; c + 8 * kLanes <= e; c += 8 * kLanes)
      weigh_block<R, 8, true>(v + c, p, n, e, kLanes, sums + c);
  for (; c + 4 * kLanes <= e; c += 4 * kLanes)
    weigh_block<R, 4, true>(v + c, p, n, e, kLanes, sums + c);
  for (; c + kLanes <= e; c += kLanes) weigh_block<R, 1, true>(v + c, p, n, e, kLanes, sums + c);
  if (c < e) weigh_block<R, 1, false>(v + c, p, n, e, e - c, sums + c);
}

template <class F>
void typed(DType type, const void* x, F&& f) {
  if (type == DType::bf16) return f(static_cast<const bf16*>(x));
  if (type == DType::f16) return f(static_cast<const f16*>(x));
  f(static_cast<const float*>(x));
}

}  // namespace

void dots(DType type, const void* k, int64_t at, const float* rows, int64_t m, int64_t n,
          int64_t depth, float* scores) {
  typed(type, k, [&](auto* p) { dots_of(p + at, rows, m, n, depth, scores); });
}

void weigh(DType type, const void* v, int64_t at, const float* weights, int64_t m, int64_t n,
           int64_t depth, float* sums) {
  typed(type, v, [&](auto* p) {
    for (int64_t j = 0; j < n; j += kNear) {
      const auto* from = p + at + j * depth;
      const float* w = weights + j;
      const int64_t some = std::min(kNear, n - j);
      const auto rows = [&](int64_t i, auto count) {
        weigh_rows<count()>(from, w + i * kScores, some, depth, sums + i * depth);
      };
      int64_t i = 0;
      for (; i + 4 <= m; i += 4) rows(i, std::integral_constant<int, 4>{});
      if (m - i == 3) rows(i, std::integral_constant<int, 3>{});
      if (m - i == 2) rows(i, std::integral_constant<int, 2>{});
      if (m - i == 1) rows(i, std::integral_constant<int, 1>{});
    }
  });
}

}  // namespace nnl::attention
