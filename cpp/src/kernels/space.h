// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>

namespace nnl {

// Hands out parts of a workspace, 64-byte aligned: offsets at set-up, addresses at each run.
class Space {
 public:
  size_t take(size_t bytes) {
    const size_t at = size_;
    size_ += (bytes + 63) / 64 * 64;
    return at;
  }
  size_t floats(int64_t n) { return take(static_cast<size_t>(n) * sizeof(float)); }
  size_t size() const { return size_; }

  template <class T = float>
  static T* at(void* workspace, size_t offset) {
    return reinterpret_cast<T*>(static_cast<char*>(workspace) + offset);
  }

 private:
  size_t size_ = 0;
};

}  // namespace nnl
