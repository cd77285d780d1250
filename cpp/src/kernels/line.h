// SPDX-License-Identifier: Apache-2.0
// Kernels along one axis: where the axis lies in memory, and integers that choose from it.
#pragma once
#include "lanes.h"

namespace nnl {

// x is [outer][n][inner] in memory, n along the axis.
struct Line {
  int64_t outer = 0, n = 0, inner = 1;
  int64_t lines() const { return outer * inner; }
};

inline Line line_of(const Spec& s, int64_t axis) {
  const size_t a = static_cast<size_t>(axis < 0 ? axis + s.rank() : axis);
  Line line;
  line.n = s.shape[a];
  line.inner = std::max<int64_t>(s.strides()[a], 1);
  line.outer = s.size() ? s.size() / (line.n * line.inner) : 0;
  return line;
}

inline bool is_integer(DType t) { return !is_real(t) && t != DType::f64; }

// Element i of an array of integers.
inline int64_t integer_at(const void* p, DType type, int64_t i) {
  switch (type) {
    case DType::i64:
    case DType::u64:
      return static_cast<const int64_t*>(p)[i];
    case DType::i32:
      return static_cast<const int32_t*>(p)[i];
    case DType::u32:
      return static_cast<const uint32_t*>(p)[i];
    case DType::i16:
      return static_cast<const int16_t*>(p)[i];
    case DType::u16:
      return static_cast<const uint16_t*>(p)[i];
    case DType::i8:
      return static_cast<const int8_t*>(p)[i];
    default:
      return static_cast<const uint8_t*>(p)[i];
  }
}

// Element i of a small floating array, and writing it.
inline float float_at(const void* p, DType type, int64_t i) {
  if (type == DType::f32) return static_cast<const float*>(p)[i];
  if (type == DType::bf16) return to_float(static_cast<const bf16*>(p)[i]);
  return to_float(static_cast<const f16*>(p)[i]);
}
inline void set_float(void* p, DType type, int64_t i, float v) {
  if (type == DType::f32)
    static_cast<float*>(p)[i] = v;
  else if (type == DType::bf16)
    static_cast<bf16*>(p)[i] = to_bf16(v);
  else
    static_cast<f16*>(p)[i] = to_f16(v);
}

}  // namespace nnl
