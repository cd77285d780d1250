// SPDX-License-Identifier: Apache-2.0
// A file, or a part of one, or memory, of which a few bytes here and there are wanted.
#pragma once
#include <cstdint>
#include <string>
#include <unordered_map>

#include "nnl/errors.h"

namespace nnl {

// `data` if it is in memory, else `size` bytes of `file` from `start` on.
struct Bytes {
  const uint8_t* data = nullptr;
  int file = -1;
  uint64_t start = 0, size = 0;
};

class NNL_API FileBytes {
 public:
  explicit FileBytes(const Bytes& where) : where_(where) {}

  uint64_t size() const { return where_.size; }

  // A copy of the bytes from `at` on. ValueError: they are not all there.
  std::string take(uint64_t at, uint64_t size);

 private:
  void read(uint64_t at, char* out, uint64_t size);
  const std::string& block_of(uint64_t i);

  Bytes where_;
  std::unordered_map<uint64_t, std::string> blocks_;  // what was looked at is often wanted again
};

}  // namespace nnl
