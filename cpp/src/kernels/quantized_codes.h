// SPDX-License-Identifier: Apache-2.0
// Weights of 4 or 8 bits, whose scales belong to groups of a row, and the numbers beside them.
#pragma once
#include "lanes.h"
#include "real.h"
#include "space.h"

namespace nnl {

// The weights of a call: codes, and a scale and an offset for each group of a row.
struct Codes {
  size_t w;  // which argument
  int64_t rows, groups, size, bits, columns;
  DType scale_type, offset_type;
  bool given;

  explicit Codes(const Signature& s, size_t w);
  int64_t row_bytes() const { return columns * bits / 8; }
  const uint8_t* row(const Buffers& b, int64_t r) const {
    return b.input<uint8_t>(w) + r * row_bytes();
  }
  float middle() const { return static_cast<float>(1 << (bits - 1)); }
  // The scales and offsets of the groups of a row; without offsets, the scales stand for them.
  Any scales(const Buffers& b, int64_t r) const { return at(b, w + 1, scale_type, r); }
  Any offsets(const Buffers& b, int64_t r) const {
    return given ? at(b, w + 2, offset_type, r) : scales(b, r);
  }
  // The weights [from, from + n) of a row, which are even numbers.
  void unpack(const Buffers& b, int64_t row, int64_t from, int64_t n, float* y) const;

 private:
  Any at(const Buffers& b, size_t i, DType type, int64_t r) const {
    return Any{const_cast<void*>(b.in[i]), type} + r * groups;
  }
};

// m rows of numbers x that are rounded to 8 bits: x is about unit code in each group.
class Rounded {
 public:
  // Codes of a row lie `stride` apart, those behind the columns are 0.
  Rounded(const Codes& w, DType type, int64_t m, int64_t stride, Space& space);
  void round(const Buffers& b, const void* x) const;

  int8_t* codes(const Buffers& b, int64_t m) const {
    return Space::at<int8_t>(b.workspace, codes_) + m * stride_;
  }
  // unit, and unit times the sum of codes, of the groups of a row
  const float* units(const Buffers& b, int64_t m) const {
    return Space::at(b.workspace, units_) + m * groups_;
  }
  const float* sums(const Buffers& b, int64_t m) const {
    return Space::at(b.workspace, sums_) + m * groups_;
  }

 private:
  int64_t m_, columns_, groups_, size_, stride_;
  DType type_;
  size_t codes_, units_, sums_;
};

// Products in integers, where the processor has the instructions for them; else null.
std::unique_ptr<Kernel> make_integer_product(const Signature& s);

}  // namespace nnl
