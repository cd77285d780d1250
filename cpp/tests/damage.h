// SPDX-License-Identifier: Apache-2.0
// Damaged copies of files, the same everywhere.
#pragma once
#include <algorithm>
#include <fstream>
#include <iterator>
#include <string>

#include "check.h"

namespace nnl::test {

// Numbers below n.
struct Draw {
  uint32_t state = 1;
  size_t operator()(size_t n) {
    state = state * 1664525u + 1013904223u;
    return static_cast<size_t>(state >> 8) % n;
  }
};

inline std::string bytes_of_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

// Reads a thousand copies of a file, each damaged somewhere in its first bytes: every one must be
// read or end in an error that begins with its name. Returns how many ended so.
template <class Read>
int refused_copies(const std::string& path, size_t first, Read&& read) {
  const std::string good = bytes_of_file(path);
  Draw draw;
  int refused = 0;
  for (int round = 0; round < 1000; ++round) {
    std::string bytes = good;
    for (size_t k = 0, n = 1 + draw(3); k < n; ++k) {
      const size_t at = draw(std::min(bytes.size(), first));
      switch (draw(4)) {
        case 0:
          bytes[at] = static_cast<char>(bytes[at] ^ (1 << draw(8)));
          break;
        case 1:
          bytes.resize(at + 1);
          break;
        case 2:
          bytes.insert(at, std::to_string(draw(100000)));
          break;
        default:
          bytes.erase(at, 1 + draw(20));
          bytes += 'x';
      }
    }
    write_file(path, bytes);
    try {
      read();
    } catch (const ValueError& e) {
      ++refused;
      CHECK(std::string(e.what()).find(path) == 0);
    }
  }
  write_file(path, good);
  return refused;
}

}  // namespace nnl::test
