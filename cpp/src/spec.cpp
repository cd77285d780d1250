// SPDX-License-Identifier: Apache-2.0
#include "nnl/spec.h"

#include <iterator>

namespace nnl {

size_t bytes_of(DType type) {
  switch (type) {
    case DType::f64:
    case DType::i64:
    case DType::u64:
      return 8;
    case DType::f32:
    case DType::i32:
    case DType::u32:
      return 4;
    case DType::f16:
    case DType::bf16:
    case DType::i16:
    case DType::u16:
      return 2;
    case DType::i8:
    case DType::u8:
    case DType::boolean:
      return 1;
  }
  return 0;
}

constexpr const char* names[] = {"float32", "float64", "float16", "bfloat16", "int8",
                                 "uint8",   "int16",   "uint16",  "int32",    "uint32",
                                 "int64",   "uint64",  "bool"};

const char* name_of(DType type) { return names[static_cast<size_t>(type)]; }

DType type_named(const std::string& name) {
  for (size_t i = 0; i < std::size(names); ++i)
    if (name == names[i]) return static_cast<DType>(i);
  throw ValueError("the type '" + name + "' is unknown");
}

Shape Spec::strides() const {
  Shape s(shape.size());
  int64_t n = 1;
  if (layout != Layout::channels_last) {
    for (size_t i = shape.size(); i-- > 0; n *= shape[i]) s[i] = n;
    return s;
  }
  s[1] = 1;
  n = shape[1];
  for (size_t i = shape.size(); i-- > 2; n *= shape[i]) s[i] = n;
  s[0] = n;
  return s;
}

std::string Spec::text() const {
  std::string s = std::string(name_of(dtype)) + "[";
  for (size_t i = 0; i < shape.size(); ++i) s += (i ? ", " : "") + std::to_string(shape[i]);
  static const char* const orders[] = {"]", "], channels last", "], tiled"};
  return s + orders[static_cast<size_t>(layout)];
}

}  // namespace nnl
