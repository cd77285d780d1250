// SPDX-License-Identifier: Apache-2.0
// Convolutions of images of one channel to such images, as where planes are smoothed, halved or
// doubled by taps; and their gradients by the data, which are deconvolutions. oneDNN fills the
// channel up to a block: 0.2 to 1 billion operations a second.
//
// Rows wait in float32 with zeros around, split by the remainder of the column by the stride. Then
// each tap of a row of the result reads values that lie side by side.
#include <algorithm>

#include "convolution.h"
#include "nnl/threads.h"
#include "real.h"
#include "space.h"
#include "vector16.h"

namespace nnl {
namespace {

constexpr int64_t kVector = 16, kMost = 4;  // vectors summed at a time

struct Axis {
  int64_t size = 1, out = 1, kernel = 1, stride = 1, dilation = 1, pad = 0;
};

struct Column {
  int64_t tap, part, at;  // of the kernel; which remainder; from where on in it
};

struct Tap {
  const float* x;
  float weight;
};

int64_t floor_of(int64_t a, int64_t b) { return a / b - (a % b < 0); }

template <int V>
void add_taps(const Tap* taps, int64_t n, float first, int64_t at, float* y) {
  v16 sum[V];
  for (int v = 0; v < V; ++v) sum[v] = v16{} + first;
  for (int64_t t = 0; t < n; ++t)
    for (int v = 0; v < V; ++v) {
      v16 x;
      load16(taps[t].x + at + v * kVector, x);
      sum[v] += x * taps[t].weight;
    }
  for (int v = 0; v < V; ++v) store16(y + at + v * kVector, sum[v]);
}

class PlaneFilter : public Kernel {
 public:
  explicit PlaneFilter(const Convolution& c)
      : c_(c), forward_(c.direction == Direction::forward), high_(axis(c, 0)), wide_(axis(c, 1)) {
    split_ = forward_ ? wide_.stride : 1;
    join_ = forward_ ? 1 : wide_.stride;
    const int64_t from = forward_ ? wide_.size : wide_.out;
    to_ = forward_ ? wide_.out : wide_.size;
    rows_ = forward_ ? high_.size : high_.out;
    columns_.resize(static_cast<size_t>(join_));
    for (int64_t b = 0; b < join_; ++b)
      for (int64_t k = 0; k < wide_.kernel; ++k) {
        const int64_t q =
            forward_ ? k * wide_.dilation - wide_.pad : b + wide_.pad - k * wide_.dilation;
        if (!forward_ && q % join_) continue;
        const int64_t at = floor_of(q, wide_.stride);
        columns_[static_cast<size_t>(b)].push_back({k, forward_ ? q - at * split_ : 0, at});
        left_ = std::max(left_, -at);
      }
    run_ = ((to_ + join_ - 1) / join_ + kVector - 1) / kVector * kVector;
    width_ = left_ + (from + split_ - 1) / split_;
    for (auto& part : columns_)
      for (Column& k : part) width_ = std::max(width_, (k.at += left_) + run_);
    parts_ = std::min<int64_t>(threads(), c.batch);
    for (int64_t i = 0; i < parts_; ++i)
      places_.push_back(
          {space_.floats(rows_ * split_ * width_), space_.floats(std::max(from, run_)),
           space_.floats(run_ * join_),
           space_.take(static_cast<size_t>(high_.kernel * wide_.kernel) * sizeof(Tap))});
    weights_ = space_.floats(high_.kernel * wide_.kernel);
  }
  size_t workspace() const override { return space_.size(); }

  void run(const Buffers& b) override {
    float* weights = Space::at(b.workspace, weights_);
    for (int64_t i = 0; i < high_.kernel * wide_.kernel; ++i)
      load_any(c_.w.dtype, b.in[c_.w_at],
               i / wide_.kernel * (c_.spatial() > 1 ? c_.w.strides[3] : 0) +
                   i % wide_.kernel * c_.w.strides.back(),
               weights + i, 1);
    float first = 0;
    if (forward_ && c_.bias_at != c_.none) load_any(c_.bias_type, b.in[c_.bias_at], 0, &first, 1);
    const Convolution::Array &x = forward_ ? c_.x : c_.y, &y = forward_ ? c_.y : c_.x;
    const void* from = b.in[forward_ ? c_.x_at : c_.y_at];
    void* to = b.out[forward_ ? c_.y_at : c_.x_at];
    parallel_for(parts_, 1, [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p) {
        const Places& place = places_[static_cast<size_t>(p)];
        float* planes = Space::at(b.workspace, place.rows);
        std::fill_n(planes, rows_ * split_ * width_, 0.0f);
        for (int64_t i = c_.batch * p / parts_; i < c_.batch * (p + 1) / parts_; ++i) {
          load(x, from, i, planes, Space::at(b.workspace, place.line));
          for (int64_t row = 0; row < (forward_ ? high_.out : high_.size); ++row)
            write(y, to, i, row, planes, weights, first, Space::at(b.workspace, place.results),
                  Space::at<Tap>(b.workspace, place.taps));
        }
      }
    });
  }

 private:
  struct Places {
    size_t rows, line, results, taps;
  };

  static Axis axis(const Convolution& c, size_t i) {
    if (c.spatial() == 1 && i == 0) return {};
    if (c.spatial() == 1) i = 0;
    return {c.size[i], c.out[i], c.kernel[i], c.stride[i], c.dilation[i], c.pad[i]};
  }

  static int64_t row_at(const Convolution::Array& a, int64_t image, int64_t row) {
    return image * a.strides[0] + (a.shape.size() > 3 ? row * a.strides[2] : 0);
  }

  void load(const Convolution::Array& a, const void* x, int64_t image, float* planes,
            float* line) const {
    const int64_t n = a.shape.back();
    for (int64_t r = 0; r < rows_; ++r, planes += split_ * width_) {
      load_any(a.dtype, x, row_at(a, image, r), split_ > 1 ? line : planes + left_, n);
      for (int64_t i = 0; split_ > 1 && i < n; ++i)
        planes[i % split_ * width_ + left_ + i / split_] = line[i];
    }
  }

  void write(const Convolution::Array& a, void* y, int64_t image, int64_t row, const float* planes,
             const float* weights, float first, float* results, Tap* taps) const {
    for (int64_t b = 0; b < join_; ++b) {
      int64_t n = 0;
      for (int64_t k = 0; k < high_.kernel; ++k) {
        const int64_t q = forward_ ? row * high_.stride + k * high_.dilation - high_.pad
                                   : row + high_.pad - k * high_.dilation;
        if (!forward_ && q % high_.stride) continue;
        const int64_t r = forward_ ? q : q / high_.stride;
        if (r < 0 || r >= rows_) continue;
        for (const Column& c : columns_[static_cast<size_t>(b)])
          taps[n++] = {planes + (r * split_ + c.part) * width_ + c.at,
                       weights[k * wide_.kernel + c.tap]};
      }
      float* sums = results + b * run_;
      int64_t i = 0;
      for (; i + kMost * kVector <= run_; i += kMost * kVector)
        add_taps<kMost>(taps, n, first, i, sums);
      for (; i < run_; i += kVector) add_taps<1>(taps, n, first, i, sums);
    }
    const int64_t at = row_at(a, image, row);
    if (join_ == 1) return store_any(a.dtype, results, y, at, to_);
    if (a.dtype == DType::f32) return joined(results, static_cast<float*>(y) + at);
    for (int64_t i = 0; i < to_; ++i)
      store_any(a.dtype, results + i % join_ * run_ + i / join_, y, at + i, 1);
  }

  void joined(const float* results, float* y) const {
    for (int64_t b = 0; b < join_; ++b)
      for (int64_t i = b; i < to_; i += join_) y[i] = results[b * run_ + i / join_];
  }

  Convolution c_;
  bool forward_;
  Axis high_, wide_;
  int64_t split_, join_, to_, rows_, left_ = 0, run_, width_, parts_;
  std::vector<std::vector<Column>> columns_;  // for every remainder of the result
  Space space_;
  std::vector<Places> places_;
  size_t weights_;
};

}  // namespace

bool is_plane_filter(const Convolution& c) {
  return c.direction != Direction::weight && c.groups == 1 && c.channels == 1 && c.maps == 1 &&
         (c.spatial() == 1 || c.spatial() == 2) && c.z_at == c.none && c.scale_at == c.none &&
         c.activation.kind == Activation::identity && !c.quantized.given && !c.packed &&
         c.x.size() && c.y.size() && c.w.size() &&
         (c.x.strides.back() == 1 || c.x.shape.back() == 1) &&
         (c.y.strides.back() == 1 || c.y.shape.back() == 1);
}

std::unique_ptr<Kernel> plane_filter(const Convolution& c) {
  return is_plane_filter(c) ? std::make_unique<PlaneFilter>(c) : nullptr;
}

}  // namespace nnl
