// SPDX-License-Identifier: Apache-2.0
// Sequences of different lengths: padded to one length, or packed step by step.
#include "convert.h"
#include "line.h"

namespace nnl {
namespace {

// packs: x (T, B, ...) and lengths -> packed (N, ...) and the sequences of each step. Otherwise x
// packed and the sequences of each step -> padded and lengths.
template <bool packs>
class Sequences : public Kernel {
 public:
  explicit Sequences(const Signature& s) : in_(s.in), out_(s.out) {
    const Shape& padded = packs ? in_[0].shape : out_[0].shape;
    first_ = s.attributes.flag("batch_first");
    steps_ = padded[first_ ? 1 : 0], batch_ = padded[first_ ? 0 : 1];
    const Spec& packed = packs ? out_[0] : in_[0];
    count_ = packed.shape[0];
    width_ = static_cast<int64_t>(bytes_of(packed.dtype));
    for (size_t i = 1; i < packed.shape.size(); ++i) width_ *= packed.shape[i];
    if (!packs) {
      const double value = s.attributes.number("padding_value");
      conversion(DType::f64, packed.dtype)(&value, element_, 1);
    }
  }

  void run(const Buffers& b) override {
    const Spec& given = in_[1];
    const int64_t most = packs ? steps_ : batch_;
    const auto value = [&](int64_t i) { return integer_at(b.in[1], given.dtype, i); };
    int64_t sum = 0;
    for (int64_t i = 0; i < given.size(); ++i) {
      if (value(i) < 0 || value(i) > most)
        throw ValueError(std::string(packs ? "pack_padded_sequence: lengths"
                                           : "pad_packed_sequence: batch_sizes") +
                         " has the value " + std::to_string(value(i)) + ", wanted 0 to " +
                         std::to_string(most));
      sum += value(i);
    }
    const std::string name = packs ? "pack_padded_sequence" : "pad_packed_sequence";
    if (sum != count_)
      throw ValueError(
          name + ": " + (packs ? "lengths" : "batch_sizes") + " have the sum " +
          std::to_string(sum) + ", wanted " + (packs ? "" : "the ") + std::to_string(count_) +
          (packs ? " as when " + name + " was called, because that fixed the shapes: call " + name +
                       " again"
                 : " steps of packed_sequence"));
    auto* others = b.output<int64_t>(1);  // how many of the values are above 0, above 1, ...
    for (int64_t i = 0; i < out_[1].size(); ++i) {
      others[i] = 0;
      for (int64_t k = 0; k < given.size(); ++k) others[i] += value(k) > i;
    }
    if (!packs) pad(b.output<char>());
    const int64_t rows = packs ? steps_ : given.size();
    for (int64_t t = 0, k = 0; t < rows; ++t)
      for (int64_t i = 0, n = packs ? others[t] : value(t); i < n; ++i, ++k) {
        const int64_t place = first_ ? i * steps_ + t : t * batch_ + i;
        const int64_t from = packs ? place : k, to = packs ? k : place;
        std::memcpy(b.output<char>() + to * width_, b.input<char>(0) + from * width_,
                    static_cast<size_t>(width_));
      }
  }

 private:
  void pad(char* y) const {
    const size_t bytes = bytes_of(out_[0].dtype);
    for (size_t i = 0; i < out_[0].bytes(); i += bytes) std::memcpy(y + i, element_, bytes);
  }
  std::vector<Spec> in_, out_;
  bool first_;
  int64_t steps_, batch_, count_, width_;
  char element_[8] = {};
};

template <bool packs>
std::unique_ptr<Kernel> sequences(const Signature& s) {
  for (const Spec* x : {&s.in[0], &s.in[1], &s.out[0], &s.out[1]})
    if (x->layout != Layout::plain) return nullptr;
  if (s.in[0].dtype != s.out[0].dtype || !is_integer(s.in[1].dtype) || s.out[1].dtype != DType::i64)
    return nullptr;
  return std::make_unique<Sequences<packs>>(s);
}

const Registration registrations[] = {
    {"pack_padded_sequence", sequences<true>},
    {"pad_packed_sequence", sequences<false>},
};

}  // namespace
}  // namespace nnl
