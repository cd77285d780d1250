// SPDX-License-Identifier: Apache-2.0
// Reads arrays that numpy.save has written, for the examples.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

template <class T>
struct Array {
  std::vector<int64_t> shape;
  std::vector<T> values;

  int64_t rows() const { return shape.at(0); }
  size_t row_size() const { return values.size() / static_cast<size_t>(rows()); }
  const T* row(int64_t i) const { return values.data() + static_cast<size_t>(i) * row_size(); }
};

// Source: numpy.lib.format, version 1.0.
template <class T>
Array<T> read_npy(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  const auto wrong = [&](const char* why) { return std::runtime_error(path + " " + why); };
  if (bytes.compare(0, 7, "\x93NUMPY\x01") != 0 || bytes.size() < 10)
    throw wrong("is no array that numpy.save has written");
  const size_t begin = 10 + static_cast<uint8_t>(bytes[8]) + 256 * static_cast<uint8_t>(bytes[9]);
  const std::string header = bytes.substr(10, begin - 10);
  const char* dtype = std::is_same_v<T, float> ? "'<f4'" : "'<i4'";
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, int32_t>);
  if (header.find(dtype) == std::string::npos || header.find("False") == std::string::npos)
    throw wrong("is another array than of this type, row by row");

  Array<T> array;
  size_t size = 1;
  for (const char* at = header.c_str() + header.find('(') + 1; *at >= '0' && *at <= '9';) {
    char* end;
    array.shape.push_back(std::strtoll(at, &end, 10));
    size *= static_cast<size_t>(array.shape.back());
    at = end + (*end == ',') + (*end == ',' && end[1] == ' ');
  }
  if (array.shape.empty() || array.rows() == 0 || bytes.size() != begin + size * sizeof(T))
    throw wrong("has another number of elements than it says, or none");
  const T* values = reinterpret_cast<const T*>(bytes.data() + begin);  // numpy aligns them
  array.values.assign(values, values + size);
  return array;
}
