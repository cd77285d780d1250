// SPDX-License-Identifier: Apache-2.0
#include "nnl/read.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "nnl/crc32.h"
#include "nnl/errors.h"

namespace nnl {
namespace {

constexpr size_t kPart = size_t{1} << 20;  // bytes: what was just read is still in the cache

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
  std::vector<uint8_t> unwanted;
  uint32_t checksum = 0;
  for (const Span& span : spans) {
    auto* data = static_cast<uint8_t*>(span.data);
    for (size_t at = 0; at < span.size; at += kPart) {
      const size_t n = std::min(kPart, span.size - at);
      if (!data && checked) unwanted.resize(std::max(unwanted.size(), n));
      uint8_t* part = data ? data + at : unwanted.data();
      if (data || checked) read_all(file, offset + at, part, n);
      if (checked) checksum = crc32(part, n, checksum);
    }
    offset += span.size;
  }
  return checksum;
}

}  // namespace nnl
