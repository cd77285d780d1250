// SPDX-License-Identifier: Apache-2.0
// Elements where a mask is not zero.
#include "convert.h"
#include "line.h"

namespace nnl {
namespace {

enum class Masked { gather, scatter, positions };

// Rows of x where the mask is not zero (gather), rows of x put there (scatter, over a base), or
// where they are (positions). The mask has as many elements that are not zero as shapes say.
template <Masked how>
class Mask : public Kernel {
 public:
  explicit Mask(const Signature& s)
      : mask_(s.in[how == Masked::positions ? 0 : 1]), x_(s.in[0]), y_(s.out[0]) {
    based_ = how == Masked::scatter && s.given(2);
    count_ = how == Masked::scatter  ? x_.shape[0]
             : how == Masked::gather ? y_.shape[0]
                                     : y_.shape[1];
    const int64_t whole = how == Masked::scatter ? y_.size() : x_.size();
    width_ = mask_.size() ? whole / mask_.size() : 0;
  }
  size_t workspace() const override { return static_cast<size_t>(mask_.size()); }

  void run(const Buffers& b) override {
    auto* there = static_cast<uint8_t*>(b.workspace);
    conversion(mask_.dtype, DType::boolean)(b.in[how == Masked::positions ? 0 : 1], there,
                                            mask_.size());
    // a bool from a file may be any byte
    const int64_t found = mask_.size() - std::count(there, there + mask_.size(), 0);
    if (found != count_) fail(found);
    const int64_t bytes = width_ * static_cast<int64_t>(bytes_of(x_.dtype));
    if (based_)
      std::memcpy(b.out[0], b.in[2], y_.bytes());
    else if (how == Masked::scatter)
      std::memset(b.out[0], 0, y_.bytes());
    for (int64_t i = 0, k = 0; i < mask_.size(); ++i) {
      if (!there[i]) continue;
      if constexpr (how == Masked::positions) {
        int64_t rest = i;
        for (size_t d = mask_.shape.size(); d-- > 0; rest /= mask_.shape[d])
          b.output<uint64_t>()[static_cast<int64_t>(d) * count_ + k] =
              static_cast<uint64_t>(rest % mask_.shape[d]);
      } else {
        const int64_t from = how == Masked::gather ? i : k, to = how == Masked::gather ? k : i;
        std::memcpy(b.output<char>() + to * bytes, b.input<char>(0) + from * bytes,
                    static_cast<size_t>(bytes));
      }
      ++k;
    }
  }

 private:
  [[noreturn]] void fail(int64_t found) const {
    const std::string name = how == Masked::gather    ? "bool_gather: mask"
                             : how == Masked::scatter ? "bool_scatter: mask"
                                                      : "nonzero: x";
    throw ValueError(name + " has " + std::to_string(found) +
                     " elements that are not zero, wanted " + std::to_string(count_) +
                     (how == Masked::scatter ? ", the first size of input" : ""));
  }
  Spec mask_, x_, y_;
  bool based_ = false;
  int64_t count_, width_;
};

template <Masked how>
std::unique_ptr<Kernel> masked(const Signature& s) {
  for (size_t i = 0; i < s.in.size(); ++i)
    if (s.given(i) && s.in[i].layout != Layout::plain) return nullptr;
  const bool moves = how != Masked::positions;
  if (s.out[0].layout != Layout::plain || s.out[0].dtype != (moves ? s.in[0].dtype : DType::u64) ||
      (s.given(2) && s.in[2].dtype != s.out[0].dtype))
    return nullptr;
  return std::make_unique<Mask<how>>(s);
}

const Registration registrations[] = {
    {"bool_gather", masked<Masked::gather>},
    {"bool_scatter", masked<Masked::scatter>},
    {"nonzero", masked<Masked::positions>},
};

}  // namespace
}  // namespace nnl
