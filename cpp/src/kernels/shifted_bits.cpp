// SPDX-License-Identifier: Apache-2.0
// Shifting the bits of unsigned integers.
#include <cmath>

#include "line.h"

namespace nnl {
namespace {

class BitShift : public Kernel {
 public:
  explicit BitShift(const Signature& s)
      : x_(s.in[0]),
        shift_(s.in[1]),
        y_(s.out[0]),
        left_(s.attributes.text("direction") == "LEFT") {}

  void run(const Buffers& b) override {
    for (int64_t i = 0; i < shift_.size(); ++i)
      if (const int64_t n = signed_at(b.in[1], i); n < 0)
        throw ValueError("bit_shift: shift has the value " + std::to_string(n) + ", wanted >= 0");
    const auto bits = static_cast<int64_t>(bytes_of(x_.dtype)) * 8;
    for (int64_t i = 0; i < y_.size(); ++i) {
      const auto x = static_cast<uint64_t>(integer_at(b.in[0], x_.dtype, at(x_, i)));
      const int64_t n = signed_at(b.in[1], at(shift_, i));
      const uint64_t v = n >= bits ? 0 : left_ ? x << n : x >> n;
      std::memcpy(b.output<char>() + i * bits / 8, &v, static_cast<size_t>(bits / 8));
    }
  }

 private:
  // A number of bits; one that has more than 63 binary digits is as good as the largest.
  int64_t signed_at(const void* p, int64_t i) const {
    const int64_t n = integer_at(p, shift_.dtype, i);
    return shift_.dtype == DType::u64 && n < 0 ? INT64_MAX : n;
  }
  // The element that stretches to element i of y.
  int64_t at(const Spec& spec, int64_t i) const {
    int64_t o = 0, step = 1;
    for (size_t d = y_.shape.size(); d-- > 0; i /= y_.shape[d]) {
      if (spec.shape[d] != 1) o += i % y_.shape[d] * step;
      step *= spec.shape[d];
    }
    return o;
  }
  Spec x_, shift_, y_;
  bool left_;
};

std::unique_ptr<Kernel> bit_shift(const Signature& s) {
  if (!is_integer(s.in[1].dtype) || s.in[0].dtype != s.out[0].dtype) return nullptr;
  for (const Spec* x : {&s.in[0], &s.in[1], &s.out[0]})
    if (x->layout != Layout::plain) return nullptr;
  return std::make_unique<BitShift>(s);
}

const Registration registration("bit_shift", bit_shift);

}  // namespace
}  // namespace nnl
