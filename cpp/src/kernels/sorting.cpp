// SPDX-License-Identifier: Apache-2.0
// Sorting along an axis, and what is counted by scores and labels.
#include <algorithm>
#include <cmath>

#include "line.h"

namespace nnl {
namespace {

// NaN comes last, as numpy sorts it; equal elements keep their order. A line becomes words, whose
// upper half orders the elements as numbers do and whose lower one is their place.
uint64_t word_of(float x, int64_t place) {
  if (x == 0.0f) x = 0.0f;  // as -0
  const uint32_t u = bits(x), key = x != x ? ~0u : u ^ (u >> 31 ? ~0u : 0x80000000u);
  return static_cast<uint64_t>(key) << 32 | static_cast<uint64_t>(place);
}

// Sorts words by their upper half, those that are equal there as they stand, by digits of some
// bits.
template <int bits_of_digit>
void by_digits(uint64_t* words, uint64_t* free, int64_t n) {
  constexpr int digits = 1 << bits_of_digit, passes = (32 + bits_of_digit - 1) / bits_of_digit;
  uint32_t count[passes][digits] = {};
  for (int64_t i = 0; i < n; ++i)
    for (int d = 0; d < passes; ++d)
      ++count[d][words[i] >> (32 + bits_of_digit * d) & (digits - 1)];
  for (int d = 0; d < passes; ++d) {
    uint32_t* places = count[d];
    for (uint32_t k = 0, sum = 0; k < digits; ++k) {
      const uint32_t here = places[k];
      places[k] = sum;
      sum += here;
    }
    for (int64_t i = 0; i < n; ++i)
      free[places[words[i] >> (32 + bits_of_digit * d) & (digits - 1)]++] = words[i];
    std::swap(words, free);
  }
  if (passes % 2) std::copy(words, words + n, free);  // they lie in the other place
}

class Sort : public Kernel {
 public:
  explicit Sort(const Signature& s)
      : line_(line_of(s.in[0], s.attributes.integer("axis"))),
        type_(s.in[0].dtype),
        reverse_(s.attributes.flag("reverse")),
        only_index_(s.attributes.flag("only_index")),
        with_index_(s.attributes.flag("with_index")) {}
  size_t workspace() const override {
    return static_cast<size_t>(line_.n * threads_) * 2 * sizeof(uint64_t);
  }

  void run(const Buffers& b) override {
    const int64_t n = line_.n, inner = line_.inner, lines = line_.outer * inner;
    const int64_t parts = n * lines < 1 << 13 ? 1 : std::min<int64_t>(threads_, lines);
    parallel_for(parts, 1, [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p) {
        auto* words = static_cast<uint64_t*>(b.workspace) + 2 * n * p;
        for (int64_t k = lines * p / parts; k < lines * (p + 1) / parts; ++k)
          line(b, words, k / inner * n * inner + k % inner);
      }
    });
  }

 private:
  void line(const Buffers& b, uint64_t* words, int64_t first) const {
    const int64_t n = line_.n, inner = line_.inner;
    const bool indexed = only_index_ || with_index_;
    auto* index = indexed ? b.output<uint64_t>(only_index_ ? 0 : 1) : nullptr;
    for (int64_t i = 0; i < n; ++i) {
      const float x = float_at(b.in[0], type_, first + i * inner);
      words[i] = word_of(reverse_ ? -x : x, i);
    }
    if (n < 32)
      std::sort(words, words + n);
    else if (n < 1024)
      by_digits<8>(words, words + n, n);
    else
      by_digits<11>(words, words + n, n);
    for (int64_t i = 0; i < n; ++i) {
      const auto from = static_cast<int64_t>(words[i] & 0xffffffffu);
      if (!only_index_)
        set_float(b.out[0], type_, first + i * inner,
                  float_at(b.in[0], type_, first + from * inner));
      if (indexed) index[first + i * inner] = static_cast<uint64_t>(from);
    }
  }

  Line line_;
  DType type_;
  int64_t threads_ = threads();
  bool reverse_, only_index_, with_index_;
};

std::unique_ptr<Kernel> sort(const Signature& s) {
  if (!is_real(s.in[0].dtype) || s.in[0].layout != Layout::plain) return nullptr;
  if (s.in[0].size() >= int64_t{1} << 32) return nullptr;
  for (const Spec& y : s.out)
    if (y.layout != Layout::plain || (y.dtype != s.in[0].dtype && y.dtype != DType::u64))
      return nullptr;
  return std::make_unique<Sort>(s);
}

// The k largest elements of every sample, largest first, or the k smallest; of equal ones the
// first.
class TopK : public Kernel {
 public:
  explicit TopK(const Signature& s)
      : k_(s.attributes.integer("k")),
        type_(s.in[0].dtype),
        key_{s.attributes.flag("abs") ? 0x7fffffffu : ~0u,
             s.attributes.flag("largest") ? 0x80000000u : 0},
        reduce_(s.attributes.flag("reduce")),
        with_index_(s.attributes.flag("with_index")) {
    const Shape& shape = s.in[0].shape;
    for (size_t a = 0; a < shape.size(); ++a)
      (static_cast<int64_t>(a) < s.attributes.integer("base_axis") ? rows_ : n_) *= shape[a];
  }
  size_t workspace() const override {
    return static_cast<size_t>((n_ + k_) * threads_) * 2 * sizeof(uint64_t);
  }
  bool may_overwrite(size_t, size_t) const override { return false; }

  void run(const Buffers& b) override {
    const int64_t parts = n_ * rows_ < 1 << 13 ? 1 : std::min<int64_t>(threads_, rows_);
    parallel_for(parts, 1, [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p) {
        auto* words = static_cast<uint64_t*>(b.workspace) + 2 * (n_ + k_) * p;
        for (int64_t r = rows_ * p / parts; r < rows_ * (p + 1) / parts; ++r) row(b, words, r);
      }
    });
  }

 private:
  uint64_t word(const void* x, int64_t first, int64_t i) const {
    return word_of(key_(float_at(x, type_, first + i)), i);
  }

  void row(const Buffers& b, uint64_t* words, int64_t r) const {
    const int64_t first = r * n_;
    if (8 * k_ < n_) {
      few(b.in[0], words, first);
    } else {
      for (int64_t i = 0; i < n_; ++i) words[i] = word(b.in[0], first, i);
      n_ < 32 ? std::sort(words, words + n_) : by_digits<8>(words, words + n_, n_);
    }
    if (!reduce_)
      for (int64_t i = 0; i < n_; ++i) set_float(b.out[0], type_, first + i, 0.0f);
    for (int64_t j = 0; j < k_; ++j) {
      const auto at = static_cast<int64_t>(words[j] & 0xffffffffu);
      set_float(b.out[0], type_, reduce_ ? r * k_ + j : first + at,
                float_at(b.in[0], type_, first + at));
      if (with_index_) b.output<uint64_t>(1)[r * k_ + j] = static_cast<uint64_t>(at);
    }
  }

  // The first k words in their order, where most elements are none of them.
  void few(const void* x, uint64_t* words, int64_t first) const {
    const auto enter = [&](uint64_t w) {
      if (w >= words[k_ - 1]) return;
      uint64_t* place = std::upper_bound(words, words + k_, w);
      std::copy_backward(place, words + k_ - 1, words + k_);
      *place = w;
    };
    const float* values = static_cast<const float*>(x) + first;
    const Key key = key_;
    const float bound = type_ == DType::f32 ? least_bound(values) : INFINITY;
    int64_t begin = 0;
    if (bound < INFINITY) {
      std::fill_n(words, k_, word_of(bound, nowhere));
    } else {
      for (begin = 0; begin < k_; ++begin) words[begin] = word(x, first, begin);
      std::sort(words, words + k_);
    }
    if (type_ != DType::f32) {
      for (int64_t i = begin; i < n_; ++i) enter(word(x, first, i));
      return;
    }
    constexpr int64_t together = 32;
    float keys[together];
    for (int64_t i = begin; i < n_; i += together) {
      const int64_t m = std::min(together, n_ - i), at = words[k_ - 1] & 0xffffffffu;
      const float last = at == nowhere ? bound : key(values[at]);
      const bool none = last != last;  // any number is before one that is none
      const float limit = none ? INFINITY : last;
      const bool or_equal = none || at == nowhere;
      int32_t found = 0;
#pragma omp simd reduction(| : found)
      for (int64_t j = 0; j < m; ++j) {
        keys[j] = key(values[i + j]);
        found |= (keys[j] < limit) | (or_equal & (keys[j] == limit));
      }
      if (!found) continue;
      for (int64_t j = 0; j < m; ++j)
        if (keys[j] < limit || (or_equal && keys[j] == limit)) enter(word_of(keys[j], i + j));
    }
  }

  static constexpr int64_t nowhere = 0xffffffff;  // the place of a bound
  static constexpr int64_t lanes = 16;

  // What orders elements as they are wanted: by bits that stay and bits that change, which a loop
  // takes as they are.
  struct Key {
    uint32_t keep, change;
    float operator()(float v) const { return from_bits((bits(v) & keep) ^ change); }
  };

  // A key that at least k elements do not exceed: the k-th of the least ones of every 16th element.
  // INFINITY where there are not as many numbers.
  float least_bound(const float* values) const {
    if (k_ > lanes) return INFINITY;
    const Key key = key_;
    float least[lanes];
    std::fill_n(least, lanes, INFINITY);
    for (int64_t i = 0; i + lanes <= n_; i += lanes)
#pragma omp simd
      for (int64_t j = 0; j < lanes; ++j) {
        const float v = key(values[i + j]);
        least[j] = v < least[j] ? v : least[j];
      }
    std::nth_element(least, least + k_ - 1, least + lanes);
    return least[k_ - 1];
  }

  int64_t k_, rows_ = 1, n_ = 1, threads_ = threads();
  DType type_;
  Key key_;
  bool reduce_, with_index_;
};

std::unique_ptr<Kernel> top_k(const Signature& s) {
  const Spec &x = s.in[0], &y = s.out[0];
  if (!is_real(x.dtype) || x.layout != Layout::plain || x.size() >= int64_t{1} << 32)
    return nullptr;
  if (y.layout != Layout::plain || y.dtype != x.dtype) return nullptr;
  if (s.out.size() > 1 && s.out[1].dtype != DType::u64) return nullptr;
  return std::make_unique<TopK>(s);
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
    {"top_k_data", top_k},
    {"confusion_matrix", confusion_matrix},
};

}  // namespace
}  // namespace nnl
