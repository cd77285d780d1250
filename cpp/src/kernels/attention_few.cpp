// SPDX-License-Identifier: Apache-2.0
// Attention of few queries: keys and values are read once, in their own type, which is what takes
// time when one token follows another.
#include "attention.h"
#include "lanes.h"
#include "vector16.h"

namespace nnl::attention {
namespace {

// Sums of 16 vectors, in the lanes of one.
NNL_INLINE Lanes sums_of(v16* s) {
  transpose16(s);
  for (int step = 8; step; step /= 2)
    for (int i = 0; i < step; ++i) s[i] += s[i + step];
  return s[0];
}

template <class T>
void dots_of(const T* k, const float* rows, int64_t m, int64_t n, int64_t d, float* scores) {
  for (int64_t j = 0; j < n; j += 16) {
    const int64_t some = std::min<int64_t>(16, n - j);
    for (int64_t i = 0; i < m; ++i) {
      const float* q = rows + i * d;
      v16 s[16] = {};
      int64_t c = 0;
      for (; c + kLanes <= d; c += kLanes) {
        const Lanes x = load(q + c);
        if (some == 16)
          for (int t = 0; t < 16; ++t) s[t] += x * load(k + (j + t) * d + c);
        else
          for (int64_t t = 0; t < some; ++t) s[t] += x * load(k + (j + t) * d + c);
      }
      if (c < d) {
        const Lanes x = load_part(q + c, d - c);
        for (int64_t t = 0; t < some; ++t) s[t] += x * load_part(k + (j + t) * d + c, d - c);
      }
      const Lanes sums = sums_of(s);
      float* to = scores + i * kScores + j;
      if (some == 16)
        store(to, sums);
      else
        store_part(to, sums, some);
    }
  }
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
      unroll<R>(NNL_EACH(r) { s[r][k] += p[r * kScores + j] * x; });
    });
  unroll<R>(NNL_EACH(r) {
    unroll<K>(NNL_EACH(k) { put<whole>(sums + r * e + k * kLanes, s[r][k], lanes); });
  });
}

template <int R, class T>
void weigh_rows(const T* v, const float* p, int64_t n, int64_t e, float* sums) {
  int64_t c = 0;
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
    int64_t i = 0;
    for (; i + 4 <= m; i += 4)
      weigh_rows<4>(p + at, weights + i * kScores, n, depth, sums + i * depth);
    for (; i < m; ++i) weigh_rows<1>(p + at, weights + i * kScores, n, depth, sums + i * depth);
  });
}

}  // namespace nnl::attention
