// SPDX-License-Identifier: Apache-2.0
// quantized_pair: (x0, x1, x0_scale, x0_zero, x1_scale, x1_zero, y_scale, y_zero) -> y, the sum or
// product of two arrays of 8 bits. x1 has the shape of x0, or one number a sample and channel.
//   multiply    whether it is the product
//   activation  identity or relu
#include <algorithm>
#include <cmath>

#include "nnl/kernel.h"
#include "nnl/threads.h"
#include "pooling_bytes.h"

namespace nnl {
namespace {

// Numbers with a sign are read as those without, 128 more.
struct Numbers {
  float a, b, c;  // of a sum: a x0 + b x1 + c
  float x0_zero, x1_zero, product;
  float y_zero, low, high;  // bounds before y_zero is added
  uint8_t x0_sign, x1_sign, y_sign;
};

float number(uint8_t x, uint8_t sign) {
  return static_cast<float>(static_cast<int32_t>(static_cast<uint8_t>(x ^ sign)));
}

uint8_t stored(float v, const Numbers& k) {
  v = std::min(std::max(v, k.low), k.high);
  const auto whole = static_cast<int32_t>(__builtin_rintf(v) + k.y_zero);
  return static_cast<uint8_t>(static_cast<uint8_t>(whole) ^ k.y_sign);
}

template <bool multiply>
float joined(float x0, float x1, const Numbers& k) {
  return multiply ? (x0 - k.x0_zero) * (x1 - k.x1_zero) * k.product : x0 * k.a + (x1 * k.b + k.c);
}

template <bool multiply>
void run_pair(const uint8_t* x0, const uint8_t* x1, uint8_t* y, int64_t n, const Numbers& numbers) {
  const Numbers k = numbers;
#pragma omp simd
  for (int64_t i = 0; i < n; ++i)
    y[i] = stored(joined<multiply>(number(x0[i], k.x0_sign), number(x1[i], k.x1_sign), k), k);
}

template <bool multiply>
void run_one(const uint8_t* x0, uint8_t x1, uint8_t* y, int64_t n, const Numbers& numbers) {
  const Numbers k = numbers;
  const float other = number(x1, k.x1_sign);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i)
    y[i] = stored(joined<multiply>(number(x0[i], k.x0_sign), other, k), k);
}

class Pair : public Kernel {
 public:
  explicit Pair(const Signature& s)
      : multiply_(s.attributes.flag("multiply")),
        relu_(s.attributes.text("activation") == "relu"),
        full_(s.in[1].size() == s.in[0].size()),
        n_(s.out[0].size()) {
    uint8_t* const signs[] = {&k_.x0_sign, &k_.x1_sign, &k_.y_sign};
    const DType types[] = {s.in[0].dtype, s.in[1].dtype, s.out[0].dtype};
    for (int i = 0; i < 3; ++i) *signs[i] = types[i] == DType::i8 ? 0x80 : 0;
    const Shape& x = s.in[0].shape;
    last_ = s.in[0].layout == Layout::channels_last;
    if (!full_) channels_ = x[1], pixels_ = n_ / std::max<int64_t>(x[0] * x[1], 1);
  }

  bool may_overwrite(size_t, size_t i) const override { return i == 0 || (i == 1 && full_); }

  void run(const Buffers& b) override {
    Numbers k = k_;
    const auto value = [&](size_t i) { return *b.input<float>(i); };
    const auto zero = [&](size_t i, uint8_t sign) {
      return std::nearbyint(value(i)) + static_cast<float>(sign);
    };
    k.x0_zero = zero(3, k.x0_sign), k.x1_zero = zero(5, k.x1_sign), k.y_zero = zero(7, k.y_sign);
    k.a = value(2) / value(6), k.b = value(4) / value(6);
    k.c = -(k.x0_zero * k.a + k.x1_zero * k.b);
    k.product = value(2) * value(4) / value(6);
    k.low = relu_ ? std::max(0.0f, -k.y_zero) : -k.y_zero, k.high = 255.0f - k.y_zero;
    multiply_ ? each<true>(b, k) : each<false>(b, k);
  }

 private:
  template <bool multiply>
  void each(const Buffers& b, const Numbers& k) const {
    const auto *x0 = b.input<uint8_t>(0), *x1 = b.input<uint8_t>(1);
    auto* y = b.output<uint8_t>();
    if (full_)
      return parallel_for(n_, 1 << 15, [&](int64_t i, int64_t end) {
        run_pair<multiply>(x0 + i, x1 + i, y + i, end - i, k);
      });
    if (last_) return each_pixel<multiply>(x0, x1, y, k);
    parallel_for(n_ / pixels_, 1 + (1 << 15) / pixels_, [&](int64_t r, int64_t end) {
      for (; r < end; ++r) run_one<multiply>(x0 + r * pixels_, x1[r], y + r * pixels_, pixels_, k);
    });
  }

  // Several pixels at once, beside as many copies of the other's channels.
  template <bool multiply>
  void each_pixel(const uint8_t* x0, const uint8_t* x1, uint8_t* y, const Numbers& k) const {
    constexpr int64_t room = 2048;
    const int64_t several = std::clamp<int64_t>(room / channels_, 1, pixels_);
    const int64_t samples = n_ / (pixels_ * channels_);
    const int64_t blocks = (pixels_ + several - 1) / several;
    parallel_for(
        samples * blocks, 1 + (1 << 15) / (several * channels_), [&](int64_t i, int64_t end) {
          uint8_t copies[room];
          int64_t copied = -1;
          for (; i < end; ++i) {
            const int64_t sample = i / blocks, first = i % blocks * several;
            const int64_t pixels = std::min(several, pixels_ - first);
            const uint8_t* own = x1 + sample * channels_;
            for (int64_t p = 0; copied != sample && several > 1 && p < several; ++p)
              std::copy_n(own, channels_, copies + p * channels_);
            copied = sample;
            const int64_t at = (sample * pixels_ + first) * channels_;
            run_pair<multiply>(x0 + at, several > 1 ? copies : own, y + at, pixels * channels_, k);
          }
        });
  }

  bool multiply_, relu_, full_, last_ = false;
  int64_t n_, channels_ = 1, pixels_ = 1;
  Numbers k_{};
};

std::unique_ptr<Kernel> pair(const Signature& s) {
  const Spec &x = s.in[0], &other = s.in[1], &y = s.out[0];
  if (!is_byte(x.dtype) || !is_byte(other.dtype) || !is_byte(y.dtype)) return nullptr;
  for (size_t i = 2; i < 8; ++i)
    if (!s.given(i) || s.in[i].dtype != DType::f32 || s.in[i].size() != 1) return nullptr;
  const bool full = other.shape == x.shape && other.layout == x.layout;
  const bool thin = x.shape.size() > 2 && other.size() == x.shape[0] * x.shape[1];
  if (x.shape != y.shape || x.layout != y.layout || !(full || thin) || !x.size()) return nullptr;
  return std::make_unique<Pair>(s);
}
const Registration registration("quantized_pair", pair);

}  // namespace
}  // namespace nnl
