// SPDX-License-Identifier: Apache-2.0
// Arrays of float32, bfloat16 or float16, whichever their dtype says.
#pragma once
#include "nnl/spec.h"
#include "simd.h"

namespace nnl {

inline bool is_real(DType t) { return t == DType::f32 || is_half(t); }

// Elements [at, at + n) of an array to and from float32.
void load_any(DType type, const void* x, int64_t at, float* y, int64_t n);
void store_any(DType type, const float* x, void* y, int64_t at, int64_t n);

// n elements from one of the types to another, on several threads where that pays.
void convert(DType from, const void* x, DType to, void* y, int64_t n);

}  // namespace nnl
