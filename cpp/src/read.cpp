// SPDX-License-Identifier: Apache-2.0
#include "nnl/read.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <system_error>

#include "nnl/crc32.h"
#include "nnl/errors.h"
#include "nnl/threads.h"

namespace nnl {
namespace {

constexpr size_t kPart = size_t{1} << 20;  // bytes: what was just read is still in the cache
constexpr size_t kPage = 4096;
constexpr uint64_t kShare = uint64_t{4} << 20;  // bytes: what one thread takes at a time
constexpr int kMostThreads = 4;                 // more do not copy faster than memory lets them

// Systems copy with the processor's string instruction. On AMD's Zen 3 and 4 that takes two to
// three times as long if the target lies these few bytes after the source, counted within a page.
constexpr size_t kSlow = 64;

std::string reason() { return std::string("cannot be read: ") + std::strerror(errno); }

void read_all(int file, uint64_t offset, uint8_t* data, size_t size) {
  while (size) {
    const ssize_t n = ::pread(file, data, size, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw ValueError(reason());
    if (n == 0) throw ValueError("ends " + std::to_string(size) + " bytes too early");
    data += n;
    offset += static_cast<uint64_t>(n);
    size -= static_cast<size_t>(n);
  }
}

// Reads the bytes from `offset` on into the spans, and returns their CRC-32 if it is wanted.
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

}  // namespace

Reading::Reading(int file, uint64_t offset, const std::vector<Span>& spans, bool checked)
    : file_(::dup(file)), checked_(checked) {
  if (file_ < 0) throw ValueError(reason());
  divide(offset, spans);
  const size_t most = static_cast<size_t>(std::clamp(threads(), 2, kMostThreads));
  threads_.reserve(most);
  try {
    for (size_t i = 1; i < std::min(most, parts_.size()); ++i)
      threads_.emplace_back(&Reading::read_parts, this);
  } catch (const std::system_error&) {  // the system gives no more threads: fewer do the work
  }
}

Reading::~Reading() {
  next_ = parts_.size();
  join();
  ::close(file_);
}

void Reading::divide(uint64_t offset, const std::vector<Span>& spans) {
  for (Span left : spans)
    while (left.size) {
      if (parts_.empty() || parts_.back().size >= kShare) parts_.push_back({offset, 0, {}, 0});
      Part& part = parts_.back();
      const size_t n = std::min<uint64_t>(left.size, kShare - part.size);
      part.spans.push_back({left.data, n});
      part.size += n;
      offset += n;
      left.size -= n;
      if (left.data) left.data = static_cast<uint8_t*>(left.data) + n;
    }
}

void Reading::read_parts() {
  for (size_t i; (i = next_++) < parts_.size();) try {
      parts_[i].checksum = read_spans(file_, parts_[i].offset, parts_[i].spans, checked_);
    } catch (...) {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (!error_) error_ = std::current_exception();
      next_ = parts_.size();
    }
}

void Reading::join() {
  for (std::thread& t : threads_) t.join();
  threads_.clear();
}

uint32_t Reading::wait() {
  read_parts();
  join();
  if (error_) std::rethrow_exception(error_);
  uint32_t checksum = 0;
  if (checked_)
    for (const Part& part : parts_) checksum = crc32_joined(checksum, part.checksum, part.size);
  return checksum;
}

}  // namespace nnl
