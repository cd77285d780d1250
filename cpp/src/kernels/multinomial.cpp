// SPDX-License-Identifier: Apache-2.0
// multinomial: (weights, rng) -> `count` positions drawn from each row of weights, int64. With
//   replace by the sums of weights up to each, else those whose exponential arrivals come first.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "../random.h"
#include "line.h"
#include "nnl/errors.h"
#include "space.h"

namespace nnl {
namespace {

class Multinomial : public Kernel {
 public:
  explicit Multinomial(const Signature& s)
      : w_(s.in[0]), count_(s.attributes.integer("count")), replace_(s.attributes.flag("replace")) {
    n_ = w_.shape.back(), rows_ = w_.size() / n_;
    values_ = space_.take(static_cast<size_t>(n_) * sizeof(double));
    order_ = space_.take(static_cast<size_t>(n_) * sizeof(int64_t));
    words_ = space_.take(static_cast<size_t>(replace_ ? count_ : n_) * sizeof(uint64_t));
  }
  size_t workspace() const override { return space_.size(); }

  void run(const Buffers& b) override {
    for (int64_t r = 0; r < rows_; ++r) check(b.in[0], r);
    const int64_t each = replace_ ? count_ : n_;
    const Philox random = Philox::take(b.written_input<uint64_t>(1), rows_ * each);
    double* values = Space::at<double>(b.workspace, values_);
    uint64_t* words = Space::at<uint64_t>(b.workspace, words_);
    for (int64_t r = 0; r < rows_; ++r) {
      random.words(r * each, each, words);
      int64_t* y = b.output<int64_t>() + r * count_;
      if (replace_)
        with_sums(b.in[0], r, words, values, y);
      else
        with_arrivals(b.in[0], r, words, values, Space::at<int64_t>(b.workspace, order_), y);
    }
  }

 private:
  double weight(const void* w, int64_t r, int64_t i) const {
    return float_at(w, w_.dtype, r * n_ + i);
  }
  static double uniform(uint64_t word) { return static_cast<double>(word >> 11) * 0x1p-53; }

  void check(const void* w, int64_t r) const {
    int64_t positive = 0;
    for (int64_t i = 0; i < n_; ++i) {
      const double v = weight(w, r, i);
      if (!(v >= 0)) {
        char text[32];
        std::snprintf(text, sizeof(text), "%g", v);
        throw ValueError(std::string("multinomial: weights has the weight ") + text +
                         ", wanted weights >= 0");
      }
      positive += v > 0;
    }
    if (!positive)
      throw ValueError("multinomial: weights has no positive weight in a slice, wanted one");
    if (!replace_ && positive < count_)
      throw ValueError("multinomial: weights has " + std::to_string(positive) +
                       " positive weights in a slice, wanted " + std::to_string(count_) +
                       " to draw without replacement");
  }

  void with_sums(const void* w, int64_t r, const uint64_t* words, double* sums, int64_t* y) const {
    double total = 0;
    int64_t last = 0;  // rounding can reach the end
    for (int64_t i = 0; i < n_; ++i) {
      const double v = weight(w, r, i);
      if (v > 0) last = i;
      sums[i] = total += v;
    }
    for (int64_t k = 0; k < count_; ++k) {
      const int64_t at = std::upper_bound(sums, sums + n_, uniform(words[k]) * total) - sums;
      y[k] = std::min(at, last);
    }
  }

  void with_arrivals(const void* w, int64_t r, const uint64_t* words, double* times, int64_t* order,
                     int64_t* y) const {
    for (int64_t i = 0; i < n_; ++i) {
      const double v = weight(w, r, i);
      times[i] = v > 0 ? -std::log1p(-uniform(words[i])) / v : INFINITY;
    }
    std::iota(order, order + n_, 0);
    std::partial_sort(order, order + count_, order + n_, [times](int64_t a, int64_t b) {
      return times[a] < times[b] || (times[a] == times[b] && a < b);
    });
    std::copy_n(order, count_, y);
  }

  Spec w_;
  int64_t count_, n_, rows_;
  bool replace_;
  Space space_;
  size_t values_, order_, words_;
};

std::unique_ptr<Kernel> setup(const Signature& s) {
  if (!is_real(s.in[0].dtype) || s.in[0].layout != Layout::plain || !s.in[0].size()) return nullptr;
  if (s.out[0].dtype != DType::i64) return nullptr;
  return std::make_unique<Multinomial>(s);
}

const Registration registration("multinomial", setup);

}  // namespace
}  // namespace nnl
