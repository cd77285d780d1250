// SPDX-License-Identifier: Apache-2.0
#include "column_sums.h"

#include <algorithm>
#include <type_traits>

#include "nnl/threads.h"

namespace nnl {
namespace {

constexpr int64_t kBlock = 256;
constexpr int64_t kRows = 64;  // rows of one partial sum, against the rounding of long sums

}  // namespace

template <class T>
void ColumnSums::add(const T* x, float* y, int64_t m) const {
  float part[kBlock];
  double total[kBlock];
  std::fill_n(total, m, 0.0);
  for (int64_t i = 0; i < rows_; i += kRows) {
    std::fill_n(part, m, 0.0f);
    const int64_t end = std::min(rows_, i + kRows);
    for (int64_t r = i; r < end; ++r) {
      const T* from = x + r * n_;
      if constexpr (std::is_same_v<T, f16>) {
        float row[kBlock];
        load(from, row, m);
#pragma omp simd
        for (int64_t j = 0; j < m; ++j) part[j] += row[j];
      } else {
#pragma omp simd
        for (int64_t j = 0; j < m; ++j) part[j] += to_float(from[j]);
      }
    }
#pragma omp simd
    for (int64_t j = 0; j < m; ++j) total[j] += part[j];
  }
#pragma omp simd
  for (int64_t j = 0; j < m; ++j) y[j] = static_cast<float>(total[j]);
}

void ColumnSums::run(const void* x, void* y, void* workspace) const {
  float* sums = out_ == DType::f32 ? static_cast<float*>(y) : Space::at(workspace, sums_);
  // whole columns for each thread, so that nothing has to be joined
  const int64_t grain = std::max<int64_t>(kBlock, (1 << 17) / std::max<int64_t>(rows_, 1));
  parallel_for(n_, grain, [&](int64_t begin, int64_t end) {
    for (int64_t j = begin; j < end; j += kBlock) {
      const int64_t m = std::min(kBlock, end - j);
      if (type_ == DType::f32) add(static_cast<const float*>(x) + j, sums + j, m);
      if (type_ == DType::bf16) add(static_cast<const bf16*>(x) + j, sums + j, m);
      if (type_ == DType::f16) add(static_cast<const f16*>(x) + j, sums + j, m);
    }
  });
  if (out_ != DType::f32) convert(DType::f32, sums, out_, y, n_);
}

}  // namespace nnl
