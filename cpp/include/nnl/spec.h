// SPDX-License-Identifier: Apache-2.0
// What is known of an array before it exists: shape, element type, order in memory.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "nnl/errors.h"

namespace nnl {

using Shape = std::vector<int64_t>;

enum class DType : uint8_t { f32, f64, f16, bf16, i8, u8, i16, u16, i32, u32, i64, u64, boolean };

NNL_API size_t bytes_of(DType type);
NNL_API const char* name_of(DType type);
NNL_API DType type_named(const std::string& name);  // ValueError: there is none
inline bool is_half(DType t) { return t == DType::f16 || t == DType::bf16; }

// Order of the elements. The shape is written in the plain order all the same.
//   channels_last  for (N, C, spatial...): in memory the channels vary fastest, as in
//                  (N, spatial..., C).
//   tiled          for weights (O, I, K...) with multiples of 16 in O and I: in memory
//                  (O/16, I/16, K..., 16 of I, 16 of O). Kernels of convolutions know it, and those
//                  for which the order does not matter.
enum class Layout : uint8_t { plain, channels_last, tiled };

struct NNL_API Spec {
  Shape shape;
  DType dtype = DType::f32;
  Layout layout = Layout::plain;

  int64_t size() const {
    int64_t n = 1;
    for (int64_t d : shape) n *= d;
    return n;
  }
  size_t bytes() const { return static_cast<size_t>(size()) * bytes_of(dtype); }
  int rank() const { return static_cast<int>(shape.size()); }
  // Distance of neighbours along each axis, in elements; for tiled weights, of the plain order.
  Shape strides() const;
  std::string text() const;  // "float32[2, 3]", for messages

  bool operator==(const Spec& other) const {
    return dtype == other.dtype && layout == other.layout && shape == other.shape;
  }
};

}  // namespace nnl
