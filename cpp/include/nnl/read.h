// SPDX-License-Identifier: Apache-2.0
// Reading a large part of a file into many places.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace nnl {

struct Span {
  void* data;  // nullptr: nobody wants these bytes
  size_t size;
};

// Reads the bytes from `offset` on into the spans, one after the other. Returns their CRC-32, those
// that nobody wants included, or 0 unless `checked`. ValueError: the file ends before.
uint32_t read_spans(int file, uint64_t offset, const std::vector<Span>& spans, bool checked);

}  // namespace nnl
