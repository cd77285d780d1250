// SPDX-License-Identifier: Apache-2.0
#include "nnl/read.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>

#include "nnl/crc32.h"
#include "nnl/errors.h"

namespace nnl {
namespace {

constexpr size_t kPart = size_t{1} << 20;  // bytes: what was just read is still in the cache
constexpr size_t kPage = 4096;

// Systems copy with the processor's string instruction. On AMD's Zen 3 and 4 that takes two to
// three times as long if the target lies these few bytes behind the source, counted within a page.
constexpr size_t kSlow = 64;

void read_all(int file, uint64_t offset, uint8_t* data, size_t size) {
  while (size) {
    const ssize_t n = ::pread(file, data, size, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw ValueError(std::string("cannot be read: ") + std::strerror(errno));
    if (n == 0) throw ValueError("ends " + std::to_string(size) + " bytes too early");
    data += n;
    offset += static_cast<uint64_t>(n);
    size -= static_cast<size_t>(n);
  }
}

}  // namespace

uint32_t read_spans(int file, uint64_t offset, const std::vector<Span>& spans, bool checked) {
  const std::unique_ptr<uint8_t[]> scratch(new uint8_t[kPart + kPage]);
  // At the same place in a page as what is read.
  const auto beside = [&](uint64_t source) {
    return scratch.get() + (source - reinterpret_cast<uintptr_t>(scratch.get())) % kPage;
  };
  uint32_t checksum = 0;
  for (const Span& span : spans) {
    auto* data = static_cast<uint8_t*>(span.data);
    const bool slow = (reinterpret_cast<uintptr_t>(data) - offset - 1) % kPage < kSlow - 1;
    for (size_t at = 0; at < span.size && (data || checked); at += kPart) {
      const size_t n = std::min(kPart, span.size - at);
      uint8_t* part = data && !slow ? data + at : beside(offset + at);
      read_all(file, offset + at, part, n);
      if (checked) checksum = crc32(part, n, checksum);
      if (data && slow) std::memcpy(data + at, part, n);
    }
    offset += span.size;
  }
  return checksum;
}

}  // namespace nnl
