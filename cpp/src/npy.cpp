// SPDX-License-Identifier: Apache-2.0
#include "npy.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <map>
#include <string>

#include "nnl/errors.h"

namespace nnl {
namespace {

[[noreturn]] void damaged() { throw ValueError("is no array of numpy, or damaged"); }

// What stands behind a name in the header, a Python dictionary, up to its end.
std::string_view entry(std::string_view header, const std::string& name) {
  size_t at = header.find("'" + name + "':");
  if (at == header.npos) damaged();
  at = header.find_first_not_of(' ', at + name.size() + 3);
  if (at == header.npos) damaged();
  const std::string_view rest = header.substr(at);
  const size_t end = rest[0] == '(' ? rest.find(')') : rest.find_first_of(",}");
  if (end == rest.npos) damaged();
  return rest.substr(0, end);
}

DType type_of(std::string_view text) {
  static const std::map<std::string_view, DType> types = {
      {"'<f4'", DType::f32}, {"'<f8'", DType::f64}, {"'<f2'", DType::f16},
      {"'|i1'", DType::i8},  {"'|u1'", DType::u8},  {"'<i2'", DType::i16},
      {"'<u2'", DType::u16}, {"'<i4'", DType::i32}, {"'<u4'", DType::u32},
      {"'<i8'", DType::i64}, {"'<u8'", DType::u64}, {"'|b1'", DType::boolean}};
  const auto found = types.find(text);
  if (found == types.end()) throw ValueError("holds " + std::string(text) + ", wanted numbers");
  return found->second;
}

// (2, 3), (2,) or ().
Shape shape_of(std::string_view text, DType type) {
  Shape shape;
  double bytes = static_cast<double>(bytes_of(type));
  for (size_t at = 1; at < text.size();) {
    if (text[at] == ' ' || text[at] == ',') {
      ++at;
      continue;
    }
    int64_t n = 0;
    const size_t begin = at;
    for (; at < text.size() && std::isdigit(static_cast<unsigned char>(text[at])); ++at)
      n = n * 10 + (text[at] - '0');
    if (at == begin || at - begin > 18 || shape.size() == 64) damaged();
    bytes *= static_cast<double>(std::max<int64_t>(n, 1));
    shape.push_back(n);
  }
  if (bytes > 0x1p62) damaged();
  return shape;
}

}  // namespace

NpyArray npy_array(std::string_view file) {
  if (file.size() < 12 || file.substr(0, 6) != "\x93NUMPY") damaged();
  const size_t version = static_cast<unsigned char>(file[6]), width = version == 1 ? 2 : 4;
  uint32_t length = 0;
  std::memcpy(&length, file.data() + 8, width);
  const size_t start = 8 + width;
  if (version < 1 || version > 3 || length > file.size() - start) damaged();
  const std::string_view header = file.substr(start, length);
  if (entry(header, "fortran_order") != "False")
    throw ValueError("lies in memory column by column: save numpy.ascontiguousarray of it");
  NpyArray array;
  array.spec.dtype = type_of(entry(header, "descr"));
  array.spec.shape = shape_of(entry(header, "shape"), array.spec.dtype);
  const std::string_view data = file.substr(start + length);
  if (data.size() != array.spec.bytes()) damaged();
  array.data = data.data();
  return array;
}

}  // namespace nnl
