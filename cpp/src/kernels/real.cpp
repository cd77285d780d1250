// SPDX-License-Identifier: Apache-2.0
#include "real.h"

#include <algorithm>
#include <type_traits>

#include "nnl/threads.h"

namespace nnl {
namespace {

template <class From, class To>
void convert_as(const void* x, void* y, int64_t n) {
  const From* from = static_cast<const From*>(x);
  To* to = static_cast<To*>(y);
  parallel_for(n, 1 << 15, [=](int64_t begin, int64_t end) {
    if constexpr (std::is_same_v<To, float>) {
      load(from + begin, to + begin, end - begin);
    } else if constexpr (std::is_same_v<From, float>) {
      store(from + begin, to + begin, end - begin);
    } else {
      constexpr int64_t block = 512;
      float between[block];
      for (int64_t i = begin; i < end; i += block) {
        const int64_t m = std::min(block, end - i);
        load(from + i, between, m);
        store(between, to + i, m);
      }
    }
  });
}

template <class From>
void convert_from(const void* x, DType to, void* y, int64_t n) {
  if (to == DType::f32) return convert_as<From, float>(x, y, n);
  if (to == DType::bf16) return convert_as<From, bf16>(x, y, n);
  convert_as<From, f16>(x, y, n);
}

}  // namespace

void load_any(DType type, const void* x, int64_t at, float* y, int64_t n) {
  if (type == DType::bf16) return load(static_cast<const bf16*>(x) + at, y, n);
  if (type == DType::f16) return load(static_cast<const f16*>(x) + at, y, n);
  load(static_cast<const float*>(x) + at, y, n);
}

void store_any(DType type, const float* x, void* y, int64_t at, int64_t n) {
  if (type == DType::bf16) return store(x, static_cast<bf16*>(y) + at, n);
  if (type == DType::f16) return store(x, static_cast<f16*>(y) + at, n);
  store(x, static_cast<float*>(y) + at, n);
}

void convert(DType from, const void* x, DType to, void* y, int64_t n) {
  if (from == DType::f32) return convert_from<float>(x, to, y, n);
  if (from == DType::bf16) return convert_from<bf16>(x, to, y, n);
  convert_from<f16>(x, to, y, n);
}

}  // namespace nnl
