// SPDX-License-Identifier: Apache-2.0
// The nearest power of two, in logarithm, among those that n bits can number.
#include <cmath>

#include "line.h"

namespace nnl {
namespace {

class Pow2Quantize : public Kernel {
 public:
  explicit Pow2Quantize(const Signature& s)
      : x_(s.in[0]),
        y_(s.out[0].dtype),
        sign_(s.attributes.flag("sign")),
        zero_(s.attributes.flag("with_zero")) {
    // below 2^-1074 there are no numbers, so no lower exponent is needed
    const int64_t m = s.attributes.integer("m");
    const int64_t bits = std::min<int64_t>(s.attributes.integer("n") - sign_ - zero_, 62);
    highest_ = static_cast<int>(std::max<int64_t>(m, -1080));
    lowest_ = static_cast<int>(std::max<int64_t>(m + 1 - (int64_t{1} << bits), -1080));
  }

  void run(const Buffers& b) override {
    parallel_for(x_.size(), 1 << 12, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        set_float(b.out[0], y_, i, quantized(float_at(b.in[0], x_.dtype, i)));
    });
  }
  bool may_overwrite(size_t, size_t) const override { return x_.dtype == y_; }

 private:
  float quantized(float x) const {
    const float size = std::fabs(x);
    if (x < 0 && !sign_) return zero_ ? 0.0f : std::ldexp(1.0f, lowest_);
    int exponent = lowest_;
    if (size != 0) {
      const float fraction = std::frexp(size, &exponent);  // in [1/2, 1)
      exponent -= fraction <= static_cast<float>(std::sqrt(0.5));
      exponent = std::clamp(exponent, lowest_, highest_);
    }
    const bool vanishes = zero_ && size < std::exp2(lowest_ - 0.5);
    const float y = vanishes ? 0.0f : std::ldexp(1.0f, exponent);
    return x < 0 ? -y : y;
  }

  Spec x_;
  DType y_;
  bool sign_, zero_;
  int lowest_, highest_;
};

std::unique_ptr<Kernel> pow2_quantize(const Signature& s) {
  const Spec &x = s.in[0], &y = s.out[0];
  if (!is_real(x.dtype) || !is_real(y.dtype) || x.layout != y.layout) return nullptr;
  return std::make_unique<Pow2Quantize>(s);
}

const Registration registration("pow2_quantize", pow2_quantize);

}  // namespace
}  // namespace nnl
