// SPDX-License-Identifier: Apache-2.0
// Conversion between element types.
#pragma once
#include "nnl/spec.h"

namespace nnl {

// Converts n elements that lie side by side. The memory may be the same if the sizes are.
using Convert = void (*)(const void* x, void* y, int64_t n);

// Floats to integers are truncated, to bool compared with 0; integers wrap, as numpy's astype.
Convert conversion(DType from, DType to);

inline const void* at(const void* x, DType type, int64_t i) {
  return static_cast<const char*>(x) + i * static_cast<int64_t>(bytes_of(type));
}
inline void* at(void* x, DType type, int64_t i) {
  return static_cast<char*>(x) + i * static_cast<int64_t>(bytes_of(type));
}

inline bool is_float(DType t) { return t == DType::f32 || is_half(t); }

}  // namespace nnl
