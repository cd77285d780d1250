// SPDX-License-Identifier: Apache-2.0
#include "row_product.h"

#include <algorithm>
#include <type_traits>

#include "nnl/threads.h"

namespace nnl {
namespace {

constexpr int64_t kColumns = 2048;  // sums of one pass over the rows, 8 KiB of the first cache

class RowProduct : public Product {
 public:
  RowProduct(const ProductSpec& s, Space& space) : s_(s), k_(s.a.columns()), n_(s.y.columns()) {
    x_ = space.floats(k_);
    y_ = space.floats(n_);
  }

  void run(const void* a, const void* b, const void* bias, const void* z, void* y,
           void* workspace) override {
    float* x = Space::at(workspace, x_);
    for (int64_t i = 0; i < k_; ++i) load_any(s_.a.dtype, a, i * s_.a.strides[1], x + i, 1);
    float* sums = Space::at(workspace, y_);
    const int64_t grain = std::max<int64_t>(64, (1 << 16) / std::max<int64_t>(k_, 1));
    parallel_for(n_, grain, [&](int64_t begin, int64_t end) {
      for (int64_t j = begin; j < end; j += kColumns) {
        const int64_t m = std::min(kColumns, end - j);
        if (s_.b.dtype == DType::f32)
          columns(static_cast<const float*>(b), x, j, m, sums + j);
        else
          columns(static_cast<const bf16*>(b), x, j, m, sums + j);
        for (const auto& [given, type] : {std::pair{bias, s_.bias_type}, {z, s_.addend_type}}) {
          if (!given) continue;
          float more[kColumns];
          load_any(type, given, j, more, m);
#pragma omp simd
          for (int64_t i = 0; i < m; ++i) sums[j + i] += more[i];
        }
        activate(s_.activation, sums + j, m);
        store_any(s_.y.dtype, sums + j, y, j, m);
      }
    });
  }

 private:
  template <class T>
  void columns(const T* b, const float* x, int64_t first, int64_t m, float* y) const {
    if (s_.b.strides[1] == 1)
      add_rows(b + first, x, m, y);
    else
      dots(b + first * s_.b.strides[1], x, m, y);
  }

  // Columns lie next to each other: four rows of the matrix at a time onto the sums.
  template <class T>
  void add_rows(const T* b, const float* x, int64_t m, float* __restrict y) const {
    const int64_t row = s_.b.strides[0];
    std::fill_n(y, m, 0.0f);
    int64_t p = 0;
    for (; p + 4 <= k_; p += 4) {
      const T *b0 = b + p * row, *b1 = b0 + row, *b2 = b1 + row, *b3 = b2 + row;
      const float x0 = x[p], x1 = x[p + 1], x2 = x[p + 2], x3 = x[p + 3];
#pragma omp simd
      for (int64_t j = 0; j < m; ++j)
        y[j] += (x0 * to_float(b0[j]) + x1 * to_float(b1[j])) +
                (x2 * to_float(b2[j]) + x3 * to_float(b3[j]));
    }
    for (; p < k_; ++p)
#pragma omp simd
      for (int64_t j = 0; j < m; ++j) y[j] += x[p] * to_float(b[p * row + j]);
  }

  // Each column lies in one run.
  template <class T>
  void dots(const T* b, const float* x, int64_t m, float* y) const {
    const int64_t column = s_.b.strides[1];
    for (int64_t j = 0; j < m; ++j) {
      const T* c = b + j * column;
      float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
      for (int64_t p = 0; p < k_; ++p) sum += x[p] * to_float(c[p]);
      y[j] = sum;
    }
  }

  ProductSpec s_;
  int64_t k_, n_;
  size_t x_, y_;
};

}  // namespace

std::unique_ptr<Product> make_row_product(const ProductSpec& s, Space& space) {
  const bool runs = s.b.shape.size() == 2 && (s.b.strides[0] == 1 || s.b.strides[1] == 1);
  if (!runs || s.y.rows() != 1 || s.b.dtype == DType::f16 || s.a.columns() < 16) return nullptr;
  if (s.a.columns() * s.y.columns() < 4096) return nullptr;
  return std::make_unique<RowProduct>(s, space);
}

}  // namespace nnl
