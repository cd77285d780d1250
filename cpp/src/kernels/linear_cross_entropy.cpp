// SPDX-License-Identifier: Apache-2.0
// Cross entropy of scores x w^T that are never in memory as a whole, but for as many classes at a
// time as fill kScores.
//
// linear_cross_entropy: (x, weight, label) -> (y, lse). x (..., D), weight (V, D), label (...).
// linear_cross_entropy_backward: (gy, x, weight, label, lse, glse?) -> (gx, gw).
//   Attributes: ignore_index, whose loss is 0; soft_cap, if not 0.
//
// Products are those of bfloat16 where x is, whatever weight is; sums are float32.
#include <algorithm>
#include <cmath>

#include "line.h"
#include "nnl/errors.h"
#include "nnl/threads.h"
#include "product.h"

namespace nnl {
namespace {

constexpr int64_t kScores = 1 << 22;  // 16 MiB: the work of a chunk hides what its set-up costs

// Classes [begin, begin + n) at a time: the whole chunks, and a shorter one at the end.
struct Chunks {
  int64_t rows, classes, width, each;
  DType type;  // of the factors

  Chunks(int64_t rows_, int64_t classes_, int64_t width_, DType x)
      : rows(rows_), classes(classes_), width(width_), type(x == DType::bf16 ? x : DType::f32) {
    each = std::clamp<int64_t>(kScores / std::max<int64_t>(rows, 1) / 64 * 64, 256, 1 << 16);
    each = std::min(each, classes);
  }
  int64_t last() const { return classes % each; }
  // f(first, how many, whether it is the shorter one)
  template <class F>
  void run(F&& f) const {
    for (int64_t at = 0; at < classes; at += each) {
      const int64_t n = std::min(each, classes - at);
      f(at, n, n < each);
    }
  }
};

// A product of one chunk, for whole chunks and for the last.
struct ChunkProduct {
  std::unique_ptr<Product> of[2];

  template <class F>  // f(classes) -> ProductSpec
  ChunkProduct(const Chunks& c, Space& space, F&& f) {
    of[0] = Product::make(f(c.each), space);
    if (c.last()) of[1] = Product::make(f(c.last()), space);
  }
  void run(bool last, const void* a, const void* b, const void* z, void* y, void* workspace) const {
    of[last]->run(a, b, nullptr, z, y, workspace);
  }
};

// What the loss and its gradient share: x and weight in the type of the factors, and scores.
class OfClasses : public Kernel {
 public:
  OfClasses(const Signature& s, size_t x)
      : s_(s),
        x_(x),
        c_(s.in[x + 2].size(), s.in[x + 1].shape[0], s.in[x + 1].shape[1], s.in[x].dtype),
        ignored_(s.attributes.integer("ignore_index")),
        cap_(static_cast<float>(s.attributes.number("soft_cap"))),
        scores_product_(c_, space_, [this](int64_t n) {
          ProductSpec p;
          p.a = Matrices::of(c_.type, {c_.rows, c_.width});
          p.b = Matrices::of(c_.type, {n, c_.width}).transposed();
          p.y = Matrices::of(DType::f32, {c_.rows, n});
          return p;
        }) {
    const size_t bytes = bytes_of(c_.type);
    if (s.in[x].dtype != c_.type)
      own_x_ = space_.take(static_cast<size_t>(c_.rows * c_.width) * bytes);
    if (s.in[x + 1].dtype != c_.type)
      own_w_ = space_.take(static_cast<size_t>(c_.each * c_.width) * bytes);
    scores_ = space_.floats(c_.rows * c_.each);
  }
  size_t workspace() const override { return space_.size(); }

 protected:
  int64_t label(const Buffers& b, int64_t i) const {
    return integer_at(b.in[x_ + 2], s_.in[x_ + 2].dtype, i);
  }
  void check_labels(const Buffers& b) const {
    for (int64_t i = 0; i < c_.rows; ++i) {
      const int64_t k = label(b, i);
      if ((k < 0 || k >= c_.classes) && k != ignored_)
        throw ValueError(
            std::string(x_ ? "linear_cross_entropy_backward" : "linear_cross_entropy") +
            ": label holds " + std::to_string(k) + ", wanted 0 to " +
            std::to_string(c_.classes - 1) + ", or ignore_index " + std::to_string(ignored_));
    }
  }
  const void* ready_x(const Buffers& b) const { return own(b, x_, 0, c_.rows * c_.width, own_x_); }
  const void* ready_w(const Buffers& b, int64_t at, int64_t n) const {
    return own(b, x_ + 1, at * c_.width, n * c_.width, own_w_);
  }
  // The scores of classes [at, at + n), with the cap.
  float* scores(const Buffers& b, const void* x, const void* w, int64_t n, bool last) const {
    float* s = Space::at(b.workspace, scores_);
    scores_product_.run(last, x, w, nullptr, s, b.workspace);
    if (cap_ == 0.0f) return s;
    parallel_for(c_.rows * n, 1 << 14, [&](int64_t begin, int64_t end) {
      const float inverse = 1.0f / cap_;
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) s[i] = cap_ * fast_tanh(s[i] * inverse);
    });
    return s;
  }
  int64_t grain(int64_t n) const { return std::max<int64_t>(1, (1 << 14) / n); }

  Signature s_;
  size_t x_;
  Space space_;
  Chunks c_;
  int64_t ignored_;
  float cap_;

 private:
  const void* own(const Buffers& b, size_t i, int64_t at, int64_t n, size_t place) const {
    const DType given = s_.in[i].dtype;
    const char* from =
        static_cast<const char*>(b.in[i]) + at * static_cast<int64_t>(bytes_of(given));
    if (given == c_.type) return from;
    void* to = Space::at<char>(b.workspace, place);
    convert(given, from, c_.type, to, n);
    return to;
  }

  ChunkProduct scores_product_;
  size_t own_x_ = 0, own_w_ = 0, scores_;
};

class Loss : public OfClasses {
 public:
  explicit Loss(const Signature& s) : OfClasses(s, 0) {
    for (size_t* at : {&largest_, &total_, &chosen_}) *at = space_.floats(c_.rows);
  }

  void run(const Buffers& b) override {
    check_labels(b);
    float *largest = Space::at(b.workspace, largest_), *total = Space::at(b.workspace, total_);
    float* chosen = Space::at(b.workspace, chosen_);
    std::fill_n(largest, c_.rows, -INFINITY);
    std::fill_n(total, c_.rows, 0.0f);
    std::fill_n(chosen, c_.rows, 0.0f);
    const void* x = ready_x(b);
    c_.run([&](int64_t at, int64_t n, bool last) {
      const float* s = scores(b, x, ready_w(b, at, n), n, last);
      parallel_for(c_.rows, grain(n), [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          const float* row = s + i * n;
          const int64_t k = label(b, i) - at;
          if (k >= 0 && k < n) chosen[i] = row[k];
          add_row(row, n, largest + i, total + i);
        }
      });
    });
    float *y = b.output<float>(0), *lse = b.output<float>(1);
    for (int64_t i = 0; i < c_.rows; ++i) {
      lse[i] = largest[i] + std::log(total[i]);
      y[i] = label(b, i) == ignored_ ? 0.0f : lse[i] - chosen[i];
    }
  }

 private:
  static void add_row(const float* s, int64_t n, float* largest, float* total) {
    Lanes best = all(-INFINITY);
    by_lanes(n, [&](int64_t j, int64_t lanes, auto whole) {
      best = larger(get<whole()>(s + j, lanes, -INFINITY), best);
    });
    const float top = std::max(*largest, max_of(best));
    const float sum = sum_of(lane_sums(n, [&](int64_t j, int64_t lanes, auto whole) {
      return exp_of(get<whole()>(s + j, lanes, -INFINITY) - top);
    }));
    *total = *total * std::exp(*largest - top) + sum;
    *largest = top;
  }

  size_t largest_, total_, chosen_;
};

class Backward : public OfClasses {
 public:
  explicit Backward(const Signature& s)
      : OfClasses(s, 1),
        gx_product_(c_, space_,
                    [this](int64_t n) {
                      ProductSpec p;  // the sum so far is added
                      p.a = Matrices::of(c_.type, {c_.rows, n});
                      p.b = Matrices::of(c_.type, {n, c_.width});
                      p.y = Matrices::of(DType::f32, {c_.rows, c_.width});
                      p.addend = true;
                      return p;
                    }),
        gw_product_(c_, space_, [this](int64_t n) {
          ProductSpec p;
          p.a = Matrices::of(c_.type, {c_.rows, n}).transposed();
          p.b = Matrices::of(c_.type, {c_.rows, c_.width});
          p.y = Matrices::of(DType::f32, {n, c_.width});
          return p;
        }) {
    if (c_.type == DType::bf16)
      slopes_ = space_.take(static_cast<size_t>(c_.rows * c_.each) * sizeof(bf16));
    for (size_t& at : sums_) at = space_.floats(c_.rows * c_.width);
  }

  void run(const Buffers& b) override {
    check_labels(b);
    const void* x = ready_x(b);
    float* sums[] = {Space::at(b.workspace, sums_[0]), Space::at(b.workspace, sums_[1])};
    std::fill_n(sums[0], c_.rows * c_.width, 0.0f);
    float* gw = b.output<float>(1);
    c_.run([&](int64_t at, int64_t n, bool last) {
      const void* w = ready_w(b, at, n);
      float* s = scores(b, x, w, n, last);
      void* g = s;
      parallel_for(c_.rows, grain(n), [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) slope(b, i, at, n, s + i * n);
      });
      if (c_.type == DType::bf16) {
        g = Space::at<char>(b.workspace, slopes_);
        convert(DType::f32, s, DType::bf16, g, c_.rows * n);
      }
      gx_product_.run(last, g, w, sums[0], sums[1], b.workspace);
      std::swap(sums[0], sums[1]);
      gw_product_.run(last, g, x, nullptr, gw + at * c_.width, b.workspace);
    });
    convert(DType::f32, sums[0], s_.out[0].dtype, b.out[0], c_.rows * c_.width);
  }

 private:
  // Scores of row i become the gradients by them, before the cap.
  void slope(const Buffers& b, int64_t i, int64_t at, int64_t n, float* s) const {
    const int64_t k = label(b, i);
    const float own = k == ignored_ ? 0.0f : float_at(b.in[0], s_.in[0].dtype, i);
    const float by = own + (s_.given(5) ? float_at(b.in[5], s_.in[5].dtype, i) : 0.0f);
    const float lse = b.input<float>(4)[i], inverse = cap_ == 0.0f ? 0.0f : 1.0f / cap_;
    const bool here = k != ignored_ && k >= at && k < at + n;
    const float score = here ? s[k - at] : 0.0f;
    by_lanes(n, [&](int64_t j, int64_t lanes, auto whole) {
      const Lanes v = get<whole()>(s + j, lanes), t = v * inverse;
      put<whole()>(s + j, exp_of(v - lse) * by * (1.0f - t * t), lanes);
    });
    if (here) s[k - at] -= own * (1.0f - score * inverse * score * inverse);
  }

  ChunkProduct gx_product_, gw_product_;
  size_t slopes_ = 0, sums_[2];
};

bool takes(const Signature& s, size_t x) {
  for (size_t i = 0; i < s.in.size(); ++i) {
    if (!s.given(i)) continue;
    if (s.in[i].layout != Layout::plain) return false;
    if (i == x + 2 ? !is_integer(s.in[i].dtype) : !is_real(s.in[i].dtype)) return false;
  }
  for (const Spec& y : s.out)
    if (y.layout != Layout::plain || !is_real(y.dtype)) return false;
  return s.in[x + 2].size() > 0 && s.in[x + 1].size() > 0;
}

std::unique_ptr<Kernel> loss(const Signature& s) {
  if (!takes(s, 0) || s.out[0].dtype != DType::f32 || s.out[1].dtype != DType::f32) return nullptr;
  return std::make_unique<Loss>(s);
}

std::unique_ptr<Kernel> backward(const Signature& s) {
  if (!takes(s, 1) || s.in[4].dtype != DType::f32 || s.out[1].dtype != DType::f32) return nullptr;
  return std::make_unique<Backward>(s);
}

const Registration registration("linear_cross_entropy", loss);
const Registration of_backward("linear_cross_entropy_backward", backward);

}  // namespace
}  // namespace nnl
