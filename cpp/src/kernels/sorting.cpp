// SPDX-License-Identifier: Apache-2.0
// Sorting along an axis, and what is counted by scores and labels.
#include <cmath>
#include <numeric>

#include "line.h"

namespace nnl {
namespace {

// NaN comes last, as numpy sorts it; equal elements keep their order.
bool before(float a, float b) { return a < b || (std::isnan(b) && !std::isnan(a)); }

class Sort : public Kernel {
 public:
  explicit Sort(const Signature& s)
      : line_(line_of(s.in[0], s.attributes.integer("axis"))),
        type_(s.in[0].dtype),
        reverse_(s.attributes.flag("reverse")),
        only_index_(s.attributes.flag("only_index")),
        with_index_(s.attributes.flag("with_index")) {}
  size_t workspace() const override { return static_cast<size_t>(line_.n) * 2 * sizeof(int64_t); }

  void run(const Buffers& b) override {
    auto* order = static_cast<int64_t*>(b.workspace);
    auto* keys = reinterpret_cast<float*>(order + line_.n);
    const bool indexed = only_index_ || with_index_;
    auto* index = indexed ? b.output<uint64_t>(only_index_ ? 0 : 1) : nullptr;
    for (int64_t k = 0; k < line_.outer * line_.inner; ++k) {
      const int64_t first = k / line_.inner * line_.n * line_.inner + k % line_.inner;
      for (int64_t i = 0; i < line_.n; ++i) {
        const float x = float_at(b.in[0], type_, first + i * line_.inner);
        keys[i] = reverse_ ? -x : x;
        order[i] = i;
      }
      // std::stable_sort takes memory; numbers as a second key make any sort a stable one
      std::sort(order, order + line_.n, [&](int64_t i, int64_t j) {
        return before(keys[i], keys[j]) || (!before(keys[j], keys[i]) && i < j);
      });
      for (int64_t i = 0; i < line_.n; ++i) {
        const int64_t at = first + i * line_.inner;
        if (!only_index_)
          set_float(b.out[0], type_, at, reverse_ ? -keys[order[i]] : keys[order[i]]);
        if (indexed) index[at] = static_cast<uint64_t>(order[i]);
      }
    }
  }

 private:
  Line line_;
  DType type_;
  bool reverse_, only_index_, with_index_;
};

std::unique_ptr<Kernel> sort(const Signature& s) {
  if (!is_real(s.in[0].dtype) || s.in[0].layout != Layout::plain) return nullptr;
  for (const Spec& y : s.out)
    if (y.layout != Layout::plain || (y.dtype != s.in[0].dtype && y.dtype != DType::u64))
      return nullptr;
  return std::make_unique<Sort>(s);
}

// How often label i (row) was scored highest as class j (column).
class ConfusionMatrix : public Kernel {
 public:
  explicit ConfusionMatrix(const Signature& s)
      : line_(line_of(s.in[0], s.attributes.integer("axis"))),
        x_(s.in[0].dtype),
        target_(s.in[1]),
        y_(s.out[0]) {}

  void run(const Buffers& b) override {
    int64_t top = -1;
    for (int64_t k = 0; k < target_.size(); ++k) top = std::max(top, label(b, k));
    if (top >= line_.n)
      throw ValueError("confusion_matrix: target has the label " + std::to_string(top) +
                       ", wanted labels in [0, " + std::to_string(line_.n) +
                       "), or negative ones to be ignored");
    auto* counts = b.output<int32_t>();
    std::fill_n(counts, y_.size(), 0);
    for (int64_t k = 0; k < target_.size(); ++k) {
      const int64_t first = k / line_.inner * line_.n * line_.inner + k % line_.inner;
      const auto score = [&](int64_t i) { return float_at(b.in[0], x_, first + i * line_.inner); };
      int64_t best = 0;  // the first of equal ones, or of NaN
      for (int64_t i = 1; i < line_.n && !std::isnan(score(best)); ++i)
        if (std::isnan(score(i)) || score(i) > score(best)) best = i;
      if (label(b, k) >= 0) ++counts[label(b, k) * line_.n + best];
    }
  }

 private:
  int64_t label(const Buffers& b, int64_t k) const { return integer_at(b.in[1], target_.dtype, k); }
  Line line_;
  DType x_;
  Spec target_, y_;
};

std::unique_ptr<Kernel> confusion_matrix(const Signature& s) {
  if (!is_real(s.in[0].dtype) || !is_integer(s.in[1].dtype) || s.out[0].dtype != DType::i32 ||
      s.in[0].layout != Layout::plain || s.in[1].layout != Layout::plain)
    return nullptr;
  return std::make_unique<ConfusionMatrix>(s);
}

const Registration registrations[] = {
    {"sort", sort},
    {"confusion_matrix", confusion_matrix},
};

}  // namespace
}  // namespace nnl
