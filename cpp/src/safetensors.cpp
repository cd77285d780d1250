// SPDX-License-Identifier: Apache-2.0
#include "safetensors.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "nnl/errors.h"

namespace nnl {
namespace {

constexpr size_t largest_header = 100'000'000;  // the bound of safetensors
constexpr size_t alignment = 64;                // of the first array

struct TypeName {
  const char *in_header, *in_program;
  DType type;
};
constexpr std::array<TypeName, 13> types = {{
    {"F32", "float32", DType::f32},
    {"F64", "float64", DType::f64},
    {"F16", "float16", DType::f16},
    {"BF16", "bfloat16", DType::bf16},
    {"I8", "int8", DType::i8},
    {"U8", "uint8", DType::u8},
    {"I16", "int16", DType::i16},
    {"U16", "uint16", DType::u16},
    {"I32", "int32", DType::i32},
    {"U32", "uint32", DType::u32},
    {"I64", "int64", DType::i64},
    {"U64", "uint64", DType::u64},
    {"BOOL", "bool", DType::boolean},
}};

DType type_of(const std::string& name, const char* TypeName::* which) {
  for (const TypeName& t : types)
    if (name == t.*which) return t.type;
  throw ValueError("the type '" + name + "' is unknown");
}

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) < 0x20) {
      const char* digits = "0123456789abcdef";
      out += std::string("\\u00") + digits[c >> 4] + digits[c & 15];
    } else {
      out += c;
    }
  }
  return out + '"';
}

}  // namespace

DType type_in_header(const std::string& name) { return type_of(name, &TypeName::in_header); }
DType type_in_program(const std::string& name) { return type_of(name, &TypeName::in_program); }

Shape shape_of(const Json& json, DType type) {
  Shape shape = json.integers();
  if (shape.size() > 64) throw ValueError("a shape has more than 64 axes");
  double bytes = static_cast<double>(bytes_of(type));
  for (int64_t n : shape) {
    if (n < 0) throw ValueError("a size is negative");
    bytes *= static_cast<double>(std::max<int64_t>(n, 1));
  }
  if (bytes > 0x1p62) throw ValueError("a shape is larger than any memory");
  return shape;
}

Safetensors::Safetensors(char* data, size_t size) {
  uint64_t length = 0;
  if (size < 8) throw ValueError("it is no safetensors file");
  std::memcpy(&length, data, 8);
  if (length > std::min(largest_header, size - 8))
    throw ValueError("its header is longer than the file");
  const size_t start = 8 + length;
  const Json header = Json::parse({data + 8, length});
  for (const auto& [name, entry] : header.object()) {
    if (name == "__metadata__") {
      for (const auto& [key, value] : entry.object())
        if (value.is_text()) metadata[key] = value.text();
      continue;
    }
    FileArray a;
    a.spec.dtype = type_in_header(entry.at("dtype").text());
    a.spec.shape = shape_of(entry.at("shape"), a.spec.dtype);
    const std::vector<int64_t> offsets = entry.at("data_offsets").integers();
    const auto most = static_cast<int64_t>(size - start);
    if (offsets.size() != 2 || offsets[0] < 0 || offsets[0] > offsets[1] || offsets[1] > most ||
        static_cast<size_t>(offsets[1] - offsets[0]) != a.spec.bytes())
      throw ValueError("damaged: '" + name + "' is not in the file");
    char* at = data + start + offsets[0];
    if (reinterpret_cast<uintptr_t>(at) % bytes_of(a.spec.dtype)) {
      copies_.push_back(std::make_unique<char[]>(a.spec.bytes()));
      at = static_cast<char*>(std::memcpy(copies_.back().get(), at, a.spec.bytes()));
    }
    a.data = at;
    arrays[name] = a;
  }
}

std::string safetensors_header(const std::vector<std::pair<std::string, Spec>>& arrays) {
  std::string header = "{";
  size_t at = 0;
  for (const auto& [name, spec] : arrays) {
    const auto* type =
        std::find_if(types.begin(), types.end(),
                     [type = spec.dtype](const TypeName& t) { return t.type == type; });
    std::string shape;
    for (int64_t n : spec.shape) shape += (shape.empty() ? "" : ",") + std::to_string(n);
    header += (at || header.size() > 1 ? "," : "") + quoted(name) + ":{\"dtype\":\"" +
              type->in_header + "\",\"shape\":[" + shape + "],\"data_offsets\":[" +
              std::to_string(at) + "," + std::to_string(at + spec.bytes()) + "]}";
    at += spec.bytes();
  }
  header += "}";
  header.resize((8 + header.size() + alignment - 1) / alignment * alignment - 8, ' ');
  const uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + header;
}

}  // namespace nnl
