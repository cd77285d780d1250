// SPDX-License-Identifier: Apache-2.0
// Running sums and products along an axis, linear recurrences, and moving by one place.
#include <type_traits>

#include "line.h"

namespace nnl {
namespace {

enum class Along { sum, product, before, delay, recurrence, transposed };

// A factor 0 makes 0 of what has overflowed.
float absorbed(float a, float b) {
  const float y = a * b;
  if (y == y) [[likely]]
    return y;
  return a == a && b == b ? 0.0f : y;
}

// Inputs x, or g and x; y has their shape. Every line along the axis by itself.
template <Along how>
class Cumulative : public Kernel {
 public:
  explicit Cumulative(const Signature& s)
      : line_(line_of(s.in[0], s.attributes.integer("axis"))), type_(s.in[0].dtype) {
    reverse_ = s.attributes.flag("reverse");
    if constexpr (how == Along::sum || how == Along::product)
      exclusive_ = s.attributes.flag("exclusive");
    else
      exclusive_ = how == Along::delay || how == Along::before;
  }

  void run(const Buffers& b) override {
    const int64_t n = line_.n, inner = line_.inner, lines = line_.outer * inner;
    if (how == Along::sum && type_ == DType::f32 && inner == 1) {
      parallel_for(lines, 1 + (1 << 14) / std::max<int64_t>(n, 1), [&](int64_t begin, int64_t end) {
        for (int64_t k = begin; k < end; ++k)
          sums(b.input<float>(0) + k * n, b.output<float>() + k * n);
      });
      return;
    }
    parallel_for(lines, 1 + (1 << 14) / std::max<int64_t>(n, 1), [&](int64_t begin, int64_t end) {
      for (int64_t k = begin; k < end; ++k) {
        const int64_t first = k / inner * n * inner + k % inner;
        const int64_t step = reverse_ ? -inner : inner;
        walk(b, reverse_ ? first + (n - 1) * inner : first, step);
      }
    });
  }

  bool may_overwrite(size_t, size_t) const override { return false; }

 private:
  // The sums of a line, eight at a time: one at a time, each waits for the one before.
  void sums(const float* x, float* y) const {
    using Eight = double __attribute__((vector_size(64)));
    using Floats = float __attribute__((vector_size(32)));
    const Eight zero = {};
    Eight before = zero;  // the sum so far, in all places
    int64_t k = 0;
    for (; k + 8 <= line_.n; k += 8) {
      const int64_t at = reverse_ ? line_.n - 8 - k : k;
      Floats f;
      __builtin_memcpy(&f, x + at, sizeof(f));
      Eight v = __builtin_convertvector(f, Eight);
      if (reverse_) v = NNL_SHUFFLE_DOUBLES(v, v, 7, 6, 5, 4, 3, 2, 1, 0);
      v += NNL_SHUFFLE_DOUBLES(zero, v, 0, 8, 9, 10, 11, 12, 13, 14);
      v += NNL_SHUFFLE_DOUBLES(zero, v, 0, 1, 8, 9, 10, 11, 12, 13);
      v += NNL_SHUFFLE_DOUBLES(zero, v, 0, 1, 2, 3, 8, 9, 10, 11);
      v += before;
      Eight out = exclusive_ ? NNL_SHUFFLE_DOUBLES(before, v, 0, 8, 9, 10, 11, 12, 13, 14) : v;
      before = NNL_SHUFFLE_DOUBLES(v, v, 7, 7, 7, 7, 7, 7, 7, 7);
      if (reverse_) out = NNL_SHUFFLE_DOUBLES(out, out, 7, 6, 5, 4, 3, 2, 1, 0);
      f = __builtin_convertvector(out, Floats);
      __builtin_memcpy(y + at, &f, sizeof(f));
    }
    double total = before[0];
    for (; k < line_.n; ++k) {
      const int64_t at = reverse_ ? line_.n - 1 - k : k;
      const double last = total;
      total += x[at];
      y[at] = static_cast<float>(exclusive_ ? last : total);
    }
  }

  // One line from its element `at` on.
  void walk(const Buffers& b, int64_t at, int64_t step) const {
    const auto read = [&](size_t i, int64_t o) { return float_at(b.in[i], type_, o); };
    // long sums lose digits of float
    using Total = std::conditional_t<how == Along::sum, double, float>;
    Total total = how == Along::product || how == Along::before ? 1.0f : 0.0f;
    float before = 0.0f;
    for (int64_t k = 0; k < line_.n; ++k, at += step) {
      const float x = read(0, at), last = static_cast<float>(total);
      if (how == Along::sum) total += x;
      if (how == Along::product) total *= x;
      if constexpr (how == Along::before) total = absorbed(total, x);
      if (how == Along::delay) total = x;
      if constexpr (how == Along::recurrence) total = k ? x + absorbed(read(1, at), total) : x;
      if constexpr (how == Along::transposed) {
        total = k ? x + absorbed(before, total) : x;
        before = read(1, at);
      }
      set_float(b.out[0], type_, at, exclusive_ ? last : static_cast<float>(total));
    }
  }

  Line line_;
  DType type_;
  bool reverse_ = false, exclusive_ = false;
};

template <Along how>
std::unique_ptr<Kernel> cumulative(const Signature& s) {
  const Spec& y = s.out[0];
  for (const Spec& x : s.in)
    if (x.layout != Layout::plain || x.dtype != y.dtype || !is_real(x.dtype)) return nullptr;
  if (y.layout != Layout::plain) return nullptr;
  return std::make_unique<Cumulative<how>>(s);
}

const Registration registrations[] = {
    {"cumsum", cumulative<Along::sum>},
    {"cumprod", cumulative<Along::product>},
    {"product_before", cumulative<Along::before>},
    {"delay", cumulative<Along::delay>},
    {"recurrence", cumulative<Along::recurrence>},
    {"transposed_recurrence", cumulative<Along::transposed>},
};

}  // namespace
}  // namespace nnl
