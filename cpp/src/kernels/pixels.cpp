// SPDX-License-Identifier: Apache-2.0
// Values of images between their pixels: which pixels are around a position, and weighted sums.
#include <cmath>

#include "line.h"

namespace nnl {
namespace {

// p (B, d, P) -> index and inside (B, T, P), and the positions rounded down.
class CornerPixels : public Kernel {
 public:
  explicit CornerPixels(const Signature& s)
      : sizes_(s.attributes.integers("sizes")),
        nearest_(s.attributes.flag("nearest")),
        batch_(s.in[0].shape[0]),
        positions_(s.in[0].shape[2]),
        type_(s.in[0].dtype),
        inside_(s.out[1].dtype),
        low_(s.out[2].dtype) {}

  void run(const Buffers& b) override {
    const auto d = static_cast<int64_t>(sizes_.size()), taps = nearest_ ? 1 : int64_t{1} << d;
    auto* index = b.output<int64_t>(0);
    for (int64_t n = 0; n < batch_; ++n)
      for (int64_t p = 0; p < positions_; ++p)
        for (int64_t t = 0; t < taps; ++t) {
          int64_t at = 0;
          bool inside = true;
          for (int64_t k = 0; k < d; ++k) {
            const int64_t from = (n * d + k) * positions_ + p;
            const float x = float_at(b.in[0], type_, from);
            const float low = nearest_ ? std::trunc(x + std::copysign(0.5f, x)) : std::floor(x);
            if (t == 0) set_float(b.out[2], low_, from, low);
            const auto size = static_cast<float>(sizes_[static_cast<size_t>(k)]);
            const float corner = low + static_cast<float>(t >> (d - 1 - k) & 1);
            inside = inside && corner >= 0 && corner < size;  // not a number is outside too
            if (inside) at = at * sizes_[static_cast<size_t>(k)] + static_cast<int64_t>(corner);
          }
          const int64_t to = (n * taps + t) * positions_ + p;
          index[to] = inside ? at : 0;
          set_float(b.out[1], inside_, to, inside ? 1.0f : 0.0f);
        }
  }

 private:
  std::vector<int64_t> sizes_;
  bool nearest_;
  int64_t batch_, positions_;
  DType type_, inside_, low_;
};

bool plain(const Signature& s) {
  for (const Spec& x : s.in)
    if (x.layout != Layout::plain) return false;
  for (const Spec& y : s.out)
    if (y.layout != Layout::plain) return false;
  return is_real(s.in[0].dtype);
}

std::unique_ptr<Kernel> corner_pixels(const Signature& s) {
  if (!plain(s) || s.out[0].dtype != DType::i64 || !is_real(s.out[1].dtype) ||
      !is_real(s.out[2].dtype))
    return nullptr;
  return std::make_unique<CornerPixels>(s);
}

// y[b, c, p] = sum of weight[b, t, p] x[b, c, index[b, t, p]] over t.
class SamplePixels : public Kernel {
 public:
  explicit SamplePixels(const Signature& s)
      : x_(s.in[0]), index_(s.in[1]), weight_(s.in[2].dtype), y_(s.out[0].dtype) {}

  void run(const Buffers& b) override {
    const int64_t pixels = x_.shape[2], taps = index_.shape[1], results = index_.shape[2];
    for (int64_t i = 0, n = x_.size() ? index_.size() : 0; i < n; ++i)
      if (const int64_t v = integer_at(b.in[1], index_.dtype, i); v < 0 || v >= pixels)
        throw ValueError("sample_pixels: index has the value " + std::to_string(v) +
                         ", wanted 0 <= value < " + std::to_string(pixels));
    const int64_t channels = x_.shape[1];
    parallel_for(x_.shape[0] * channels, 1, [&](int64_t begin, int64_t end) {
      for (int64_t image = begin; image < end; ++image)
        for (int64_t p = 0; p < results; ++p) {
          float total = 0;
          for (int64_t t = 0; t < taps && pixels; ++t) {
            const int64_t at = (image / channels * taps + t) * results + p;
            total +=
                float_at(b.in[2], weight_, at) *
                float_at(b.in[0], x_.dtype, image * pixels + integer_at(b.in[1], index_.dtype, at));
          }
          set_float(b.out[0], y_, image * results + p, total);
        }
    });
  }

 private:
  Spec x_, index_;
  DType weight_, y_;
};

std::unique_ptr<Kernel> sample_pixels(const Signature& s) {
  if (!plain(s) || !is_integer(s.in[1].dtype) || !is_real(s.in[2].dtype) ||
      !is_real(s.out[0].dtype))
    return nullptr;
  return std::make_unique<SamplePixels>(s);
}

const Registration registrations[] = {
    {"corner_pixels", corner_pixels},
    {"sample_pixels", sample_pixels},
};

}  // namespace
}  // namespace nnl
