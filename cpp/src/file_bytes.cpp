// SPDX-License-Identifier: Apache-2.0
#include "nnl/file_bytes.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "nnl/errors.h"

namespace nnl {
namespace {

constexpr uint64_t kBlock = 4096;  // bytes

}  // namespace

std::string FileBytes::take(uint64_t at, uint64_t size) {
  if (at > where_.size || size > where_.size - at)
    throw ValueError("the file ends before byte " + std::to_string(at + size) +
                     ": it is truncated or damaged");
  if (where_.data) return {reinterpret_cast<const char*>(where_.data) + at, size};
  std::string out(size, '\0');
  if (size > kBlock) {
    read(at, out.data(), size);
    return out;
  }
  for (uint64_t done = 0; done < size;) {
    const std::string& block = block_of((at + done) / kBlock);
    const uint64_t begin = (at + done) % kBlock, n = std::min(size - done, block.size() - begin);
    std::memcpy(out.data() + done, block.data() + begin, n);
    done += n;
  }
  return out;
}

void FileBytes::read(uint64_t at, char* out, uint64_t size) {
  while (size) {
    const ssize_t n = ::pread(where_.file, out, size, static_cast<off_t>(where_.start + at));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw ValueError(std::string("cannot be read: ") + std::strerror(errno));
    if (n == 0) throw ValueError("ends " + std::to_string(size) + " bytes too early");
    at += static_cast<uint64_t>(n);
    out += n;
    size -= static_cast<uint64_t>(n);
  }
}

const std::string& FileBytes::block_of(uint64_t i) {
  std::string& block = blocks_[i];
  if (block.empty()) {
    std::string found(std::min(kBlock, where_.size - i * kBlock), '\0');
    read(i * kBlock, found.data(), found.size());
    block = std::move(found);
  }
  return block;
}

}  // namespace nnl
