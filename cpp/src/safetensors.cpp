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

// In the order of DType.
constexpr std::array<const char*, 13> types = {"F32", "F64", "F16", "BF16", "I8",  "U8",  "I16",
                                               "U16", "I32", "U32", "I64",  "U64", "BOOL"};

DType type_in_header(const std::string& name) {
  const auto* found = std::find(types.begin(), types.end(), name);
  if (found == types.end()) throw ValueError("the type '" + name + "' is unknown");
  return static_cast<DType>(found - types.begin());
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

bool Safetensors::begins(const char* data, size_t size) {
  uint64_t length = 0;
  if (size < 8) return false;
  std::memcpy(&length, data, 8);
  return length <= largest_header;
}

Safetensors::Safetensors(char* data, size_t size) {
  uint64_t length = 0;
  if (!begins(data, size)) throw ValueError("it is no safetensors file");
  std::memcpy(&length, data, 8);
  if (length > size - 8) throw ValueError("its header is longer than the file");
  const size_t start = 8 + length;
  const Json header = Json::parse({data + 8, length});
  std::vector<std::pair<int64_t, int64_t>> places;
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
    places.emplace_back(offsets[0], offsets[1]);
    char* at = data + start + offsets[0];
    if (reinterpret_cast<uintptr_t>(at) % bytes_of(a.spec.dtype)) {
      copies_.push_back(std::make_unique<char[]>(a.spec.bytes()));
      at = static_cast<char*>(std::memcpy(copies_.back().get(), at, a.spec.bytes()));
    }
    a.data = at;
    if (!arrays.emplace(name, a).second)
      throw ValueError("damaged: the name '" + name + "' is there twice");
  }
  std::sort(places.begin(), places.end());
  int64_t end = 0;
  for (const auto& [begin, next] : places) {
    if (begin != end) throw ValueError("damaged: an array is not where the one before it ends");
    end = next;
  }
  if (static_cast<size_t>(end) != size - start)
    throw ValueError("damaged: there are bytes behind the last array");
}

std::string safetensors_header(const std::vector<std::pair<std::string, Spec>>& arrays) {
  std::string header = "{";
  size_t at = 0;
  for (const auto& [name, spec] : arrays) {
    std::string shape;
    for (int64_t n : spec.shape) shape += (shape.empty() ? "" : ",") + std::to_string(n);
    header += (at || header.size() > 1 ? "," : "") + quoted(name) + ":{\"dtype\":\"" +
              types[static_cast<size_t>(spec.dtype)] + "\",\"shape\":[" + shape +
              "],\"data_offsets\":[" + std::to_string(at) + "," +
              std::to_string(at + spec.bytes()) + "]}";
    at += spec.bytes();
  }
  header += "}";
  header.resize((8 + header.size() + alignment - 1) / alignment * alignment - 8, ' ');
  const uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + header;
}

}  // namespace nnl
