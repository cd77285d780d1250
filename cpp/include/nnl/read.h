// SPDX-License-Identifier: Apache-2.0
// Reading a large part of a file into many places, while the caller does other things.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "nnl/errors.h"

namespace nnl {

struct Span {
  void* data;  // nullptr: nobody wants these bytes
  size_t size;
};

// Reads the bytes of a file from `offset` on into the spans, one after the other, by up to three
// threads of its own and by the one that waits. The file may be closed meanwhile; the memory must
// live as long as this does.
class NNL_API Reading {
 public:
  // ValueError: there is no such file.
  Reading(int file, uint64_t offset, const std::vector<Span>& spans, bool checked);
  ~Reading();
  Reading(const Reading&) = delete;
  Reading& operator=(const Reading&) = delete;

  // Comes back when everything is read. Returns the CRC-32 of all bytes, those that nobody wants
  // included, or 0 unless `checked`. ValueError: the file ends before, or cannot be read.
  uint32_t wait();

 private:
  // Of a few megabytes.
  struct Part {
    uint64_t offset, size;
    std::vector<Span> spans;
    uint32_t checksum;
  };

  void divide(uint64_t offset, const std::vector<Span>& spans);
  void read_parts();
  void join();

  int file_;
  bool checked_;
  std::vector<Part> parts_;
  std::atomic<size_t> next_{0};  // part that nobody has taken
  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::exception_ptr error_;  // the first one
};

}  // namespace nnl
