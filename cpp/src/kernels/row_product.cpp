// SPDX-License-Identifier: Apache-2.0
#include "row_product.h"

#include <algorithm>
#include <type_traits>

#include "gemm.h"
#include "lanes.h"
#include "nnl/threads.h"

namespace nnl {
namespace {

constexpr int64_t kColumns = 4096;  // sums of one pass over the rows of the matrix
constexpr int kDeep = 4;            // rows of the matrix that are added at a time
// Memory that is asked for while the numbers before it are used: with several rows, processors wait
// for what they have not asked for early. It lies two rows of tokens' usual width ahead.
constexpr int64_t kAhead = 16384;

// A few rows at a time, R of them, the largest that is left.
template <class F>
void by_rows(int64_t m, F&& f) {
  int64_t i = 0;
  for (; i + 4 <= m; i += 4) f(i, std::integral_constant<int, 4>{});
  for (; i + 2 <= m; i += 2) f(i, std::integral_constant<int, 2>{});
  if (i < m) f(i, std::integral_constant<int, 1>{});
}

// The same for one type.
template <class T>
class Few : FewRows {
 public:
  explicit Few(const FewRows& f) : FewRows(f) {}

  void run(const T* b, const float* x, int64_t width, float* y) const {
    if (m > most(type, row == 1)) {
      many(b, x, width, y);
    } else if (column == 1) {
      for (int64_t r = 0; r < m; ++r) std::fill_n(y + r * n, width, 0.0f);
      int64_t p = 0;
      for (; p + kDeep <= k; p += kDeep) add_rows<kDeep>(b, x, p, width, y);
      for (; p < k; ++p) add_rows<1>(b, x, p, width, y);
    } else {
      for (int64_t j = 0; j < width; ++j, b += column)
        by_rows(m, [&](int64_t r, auto rows) { dots<rows()>(b, x + r * step, y + r * n + j); });
    }
  }

 private:
  // More rows than that: parts of the matrix become floats in the order of gemm.h, which stay in
  // the second cache.
  void many(const T* b, const float* x, int64_t width, float* y) const {
    constexpr int64_t kDepth = 256;
    alignas(64) float packed[kDepth * gemm::kPanel];
    for (int64_t j = 0; j < width; j += gemm::kPanel)
      for (int64_t p = 0; p < k; p += kDepth) {
        const int64_t wide = std::min(gemm::kPanel, width - j), deep = std::min(kDepth, k - p);
        gemm::pack(b + p * row + j * column, row, column, deep, wide, packed);
        gemm::multiply(x + p, step, 1, packed, y + j, n, m, wide, deep, p > 0);
      }
  }

  // Columns lie next to each other: K rows of the matrix, from p on, onto the sums.
  template <int K>
  void add_rows(const T* b, const float* x, int64_t p, int64_t width, float* y) const {
    by_rows(m, [this, b, x, p, width, y](int64_t r, auto rows) {
      constexpr int R = rows();
      const T* from = b + p * row;
      const float* factors = x + r * step + p;
      float* __restrict to = y + r * n;
      int64_t j = 0;
      for (; j + kLanes <= width; j += kLanes)
        add_block<K, R, true>(from + j, factors, to + j, kLanes);
      if (j < width) add_block<K, R, false>(from + j, factors, to + j, width - j);
    });
  }

  template <int K, int R, bool whole>
  NNL_INLINE void add_block(const T* b, const float* x, float* __restrict y, int64_t lanes) const {
    Lanes w[K];
    unroll<K>(NNL_EACH(q) {
      w[q] = get<whole>(b + q * row, lanes);
      ask(b + (K + q) * row);
    });
    unroll<R>(NNL_EACH(i) {
      Lanes sum = get<whole>(y + i * n, lanes), other = {};
      unroll<K>(NNL_EACH(q) {
        if (q & 1)
          other += w[q] * x[i * step + q];
        else
          sum += w[q] * x[i * step + q];
      });
      put<whole>(y + i * n, sum + other, lanes);
    });
  }
  // Inlined by force: a function that does nothing else is taken for one that does nothing.
  NNL_INLINE static void ask(const void* p) { __builtin_prefetch(p); }

  // Each column lies in one run, read from its begin to its end: the fastest way through memory.
  template <int R>
  void dots(const T* w, const float* x, float* y) const {
    constexpr int U = R < 4 ? 4 : 2;  // sums of one row, which do not wait for each other
    Lanes sums[R][U] = {};
    int64_t p = 0;
    for (; p + U * kLanes <= k; p += U * kLanes)
      unroll<U>(NNL_EACH(u) {
        const T* at = w + p + u * kLanes;
        const Lanes v = load(at);
        ask(reinterpret_cast<const char*>(at) + kAhead);
        unroll<R>(NNL_EACH(i) { sums[i][u] += load(x + i * step + p + u * kLanes) * v; });
      });
    for (; p < k; p += kLanes) {
      const int64_t n = std::min<int64_t>(kLanes, k - p);
      const Lanes v = load_part(w + p, n);
      unroll<R>(NNL_EACH(i) { sums[i][0] += load_part(x + i * step + p, n) * v; });
    }
    unroll<R>(NNL_EACH(i) {
      unroll<U - 1>(NNL_EACH(u) { sums[i][0] += sums[i][u + 1]; });
      y[i * n] = sum_of(sums[i][0]);
    });
  }
};

class RowProduct : public Product {
 public:
  RowProduct(const ProductSpec& s, Space& space)
      : s_(s),
        m_(s.y.rows()),
        k_(s.a.columns()),
        n_(s.y.columns()),
        step_(FewRows::step_of(k_)),
        few_{s.b.dtype, s.b.strides[0], s.b.strides[1], m_, k_, step_, n_} {
    if (n_ == 1 && few_.row == 1) few_.column = k_;
    x_ = space.floats(m_ * step_);
    y_ = space.floats(m_ * n_);
  }

  void run(const void* a, const void* b, const void* bias, const void* z, void* y,
           void* workspace) override {
    float* x = Space::at(workspace, x_);
    for (int64_t r = 0; r < m_; ++r)
      if (s_.a.strides[1] == 1)
        load_any(s_.a.dtype, a, r * s_.a.strides[0], x + r * step_, k_);
      else
        for (int64_t i = 0; i < k_; ++i)
          load_any(s_.a.dtype, a, r * s_.a.strides[0] + i * s_.a.strides[1], x + r * step_ + i, 1);
    float* sums = Space::at(workspace, y_);
    const int64_t grain = std::max<int64_t>(64, (1 << 16) / std::max<int64_t>(k_, 1));
    parallel_for(n_, grain, [&](int64_t begin, int64_t end) {
      // so that sums stay in the first cache
      const int64_t most = std::max(gemm::kPanel, kColumns / m_ / gemm::kPanel * gemm::kPanel);
      for (int64_t j = begin; j < end; j += most) {
        const int64_t width = std::min(most, end - j);
        few_.run(b, j * few_.column, x, width, sums + j);
        for (int64_t r = 0; r < m_; ++r) finish(bias, z, r, j, width, sums + r * n_ + j, y);
      }
    });
  }

 private:
  void finish(const void* bias, const void* z, int64_t r, int64_t j, int64_t width, float* sums,
              void* y) const {
    const auto add = [&](const void* given, DType type, int64_t at) {
      float more[kColumns];
      load_any(type, given, at, more, width);
#pragma omp simd
      for (int64_t i = 0; i < width; ++i) sums[i] += more[i];
    };
    if (bias) add(bias, s_.bias_type, j);
    if (z) add(z, s_.addend_type, r * n_ + j);
    activate(s_.activation, sums, width);
    store_any(s_.y.dtype, sums, y, r * n_ + j, width);
  }

  ProductSpec s_;
  int64_t m_, k_, n_, step_;
  FewRows few_;
  size_t x_, y_;
};

}  // namespace

void FewRows::run(const void* b, int64_t at, const float* x, int64_t width, float* y) const {
  if (type == DType::f32)
    Few<float>(*this).run(static_cast<const float*>(b) + at, x, width, y);
  else if (type == DType::f16)
    Few<f16>(*this).run(static_cast<const f16*>(b) + at, x, width, y);
  else
    Few<bf16>(*this).run(static_cast<const bf16*>(b) + at, x, width, y);
}

bool multiplies_bf16() {
#if defined(__x86_64__)
  static const bool has = __builtin_cpu_supports("avx512bf16");
  return has;
#else
  return true;
#endif
}

int64_t FewRows::most(DType type, bool columns_run) {
  return type == DType::f32 ? 2 : columns_run ? 6 : 8;
}

std::unique_ptr<Product> make_row_product(const ProductSpec& s, Space& space) {
  const bool runs = s.b.shape.size() == 2 && (s.b.strides[0] == 1 || s.b.strides[1] == 1);
  if (!runs || s.y.shape.size() != 2 || s.y.rows() < 1) return nullptr;
  // What the processor has no products of is converted as it is read.
  const bool halves = s.b.dtype == DType::f16 || (s.b.dtype == DType::bf16 && !multiplies_bf16());
  const int64_t most = halves ? kConverted - 1 : FewRows::most(s.b.dtype, s.b.strides[0] == 1);
  if (s.y.rows() > most || s.a.columns() < 16) return nullptr;
  // One column is a run, which needs no other order.
  const bool column = s.y.columns() == 1 && s.b.strides[0] == 1;
  if (!column && s.a.columns() * s.y.columns() < 4096 * s.y.rows()) return nullptr;
  return std::make_unique<RowProduct>(s, space);
}

}  // namespace nnl
