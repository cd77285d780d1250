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
    if (how == Along::sum && type_ == DType::f32 && inner == 1 && lines >= 8) {
      parallel_for(lines / 8, 1 + (1 << 11) / std::max<int64_t>(n, 1),
                   [&](int64_t begin, int64_t end) {
                     for (int64_t k = begin; k < end; ++k) eight(b, 8 * k * n);
                   });
      for (int64_t k = lines / 8 * 8; k < lines; ++k)
        walk(b, reverse_ ? k * n + n - 1 : k * n, reverse_ ? -1 : 1);
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
  // Eight sums side by side: one alone waits for every addition.
  void eight(const Buffers& b, int64_t first) const {
    const float* x = b.input<float>(0) + first;
    float* y = b.output<float>() + first;
    double total[8] = {};
    for (int64_t k = 0; k < line_.n; ++k) {
      const int64_t at = reverse_ ? line_.n - 1 - k : k;
      for (int64_t i = 0; i < 8; ++i) {
        const double before = total[i];
        total[i] += x[i * line_.n + at];
        y[i * line_.n + at] = static_cast<float>(exclusive_ ? before : total[i]);
      }
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
