// SPDX-License-Identifier: Apache-2.0
// The gradient of the weights of a depthwise convolution over channels-last images, for windows of
// 5 x 5 and 7 x 7. oneDNN fills each group up to a whole block of channels there: 5 times slower
// than this in float32, 14 times in bfloat16. For 3 x 3 it has a kernel of its own.
#include <algorithm>
#include <cstring>

#include "convolution.h"
#include "nnl/threads.h"
#include "real.h"
#include "space.h"
#include "vector16.h"

namespace nnl {
namespace {

constexpr int64_t kChannels = 16;  // of a block, one vector

// One row of kernels after another takes all pixels of an output row: sums of R x K taps.
template <int R, int K, class T>
void add_row(const float* const* rows, int64_t step, const T* gy, int64_t gy_step, int64_t n,
             int64_t channels, float* sums) {
  v16 sum[R][K];
  for (int r = 0; r < R; ++r)
    for (int k = 0; k < K; ++k) load16(sums + (r * K + k) * kChannels, sum[r][k]);
  for (int64_t i = 0; i < n; ++i) {
    v16 g;
    if (channels == kChannels)
      load16(gy + i * gy_step, g);
    else
      load_some(gy + i * gy_step, channels, g);
    for (int r = 0; r < R; ++r)
      for (int k = 0; k < K; ++k) {
        v16 x;
        load16(rows[r] + i * step + k * kChannels, x);
        sum[r][k] += x * g;
      }
  }
  for (int r = 0; r < R; ++r)
    for (int k = 0; k < K; ++k) store16(sums + (r * K + k) * kChannels, sum[r][k]);
}

template <class T>
class DepthwiseWeight : public Kernel {
 public:
  explicit DepthwiseWeight(const Convolution& c) : c_(c) {
    blocks_ = (c.channels + kChannels - 1) / kChannels;
    taps_ = c.kernel[0] * c.kernel[1];
    width_ = (c.out[1] - 1) * c.stride[1] + c.kernel[1];
    parts_ = std::min<int64_t>(threads(), c.batch * blocks_);
    for (int64_t i = 0; i < parts_; ++i)
      rows_.push_back(space_.floats(c.kernel[0] * width_ * kChannels));
    sums_ = space_.floats(c.batch * blocks_ * taps_ * kChannels);
  }
  size_t workspace() const override { return space_.size(); }

  void run(const Buffers& b) override {
    float* sums = Space::at(b.workspace, sums_);
    const int64_t n = c_.batch * blocks_, size = taps_ * kChannels;
    parallel_for(parts_, 1, [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p) {
        float* rows = Space::at(b.workspace, rows_[static_cast<size_t>(p)]);
        for (int64_t i = n * p / parts_; i < n * (p + 1) / parts_; ++i)
          image(b.input<T>(c_.x_at), b.input<T>(c_.y_at), i / blocks_, i % blocks_, rows,
                sums + i * size);
      }
    });
    for (int64_t image = 1; image < c_.batch; ++image) {
      const float* more = sums + image * blocks_ * size;
#pragma omp simd
      for (int64_t i = 0; i < blocks_ * size; ++i) sums[i] += more[i];
    }
    for (int64_t c = 0; c < c_.channels; ++c)
      for (int64_t t = 0; t < taps_; ++t) {
        const int64_t at = c * c_.w.strides[0] + t / c_.kernel[1] * c_.w.strides[3] +
                           t % c_.kernel[1] * c_.w.strides[4];
        store_any(c_.w.dtype, sums + (c / kChannels * taps_ + t) * kChannels + c % kChannels,
                  b.out[c_.w_at], at, 1);
      }
  }

 private:
  // Sums over the pixels of one image for one block of channels. Rows of x wait in float32, with
  // zeros where the image ends, in as many places as windows are high.
  void image(const T* x, const T* gy, int64_t n, int64_t block, float* rows, float* sums) const {
    const int64_t channel = block * kChannels, high = c_.kernel[0];
    const int64_t channels = std::min(kChannels, c_.channels - channel);
    x += n * c_.x.strides[0] + channel, gy += n * c_.y.strides[0] + channel;
    std::fill_n(sums, taps_ * kChannels, 0.0f);
    int64_t ready = 0;  // rows counted from the first that a window touches
    for (int64_t o = 0; o < c_.out[0]; ++o) {
      const int64_t top = o * c_.stride[0];
      for (ready = std::max(ready, top); ready < top + high; ++ready)
        load_row(x, ready - c_.pad[0], channels, rows + ready % high * width_ * kChannels);
      const float* of_window[kMost];
      for (int64_t r = 0; r < high; ++r)
        of_window[r] = rows + (top + r) % high * width_ * kChannels;
      const T* g = gy + o * c_.y.strides[2];
      const int64_t step = c_.stride[1] * kChannels, g_step = c_.y.strides[3], wide = c_.out[1];
      if (high == 5) {
        add_row<5, 5>(of_window, step, g, g_step, wide, channels, sums);
      } else {
        for (int64_t r = 0; r < high; ++r)
          add_row<1, 7>(of_window + r, step, g, g_step, wide, channels, sums + r * 7 * kChannels);
      }
    }
  }

  void load_row(const T* x, int64_t row, int64_t channels, float* to) const {
    if (row < 0 || row >= c_.size[0]) {
      std::fill_n(to, width_ * kChannels, 0.0f);
      return;
    }
    x += row * c_.x.strides[2];
    for (int64_t i = 0; i < width_; ++i, to += kChannels) {
      const int64_t column = i - c_.pad[1];
      v16 v{};
      if (column >= 0 && column < c_.size[1]) {
        const T* from = x + column * c_.x.strides[3];
        if (channels == kChannels)
          load16(from, v);
        else
          load_some(from, channels, v);
      }
      store16(to, v);
    }
  }

  static constexpr int64_t kMost = 7;

  Convolution c_;
  int64_t blocks_, taps_, width_, parts_;
  Space space_;
  std::vector<size_t> rows_;
  size_t sums_;
};

}  // namespace

std::unique_ptr<Kernel> depthwise_weight(const Convolution& c) {
  if (c.direction != Direction::weight || c.bias_at != c.none || c.spatial() != 2) return nullptr;
  if (c.groups != c.channels || c.groups != c.maps || c.groups < kChannels || !c.batch)
    return nullptr;
  const int64_t k = c.kernel[0];
  if (c.kernel[1] != k || (k != 5 && k != 7)) return nullptr;
  if (c.dilation != Shape{1, 1} || !c.y.size() || !c.x.size()) return nullptr;
  if (c.x.strides[1] != 1 || c.y.strides[1] != 1 || c.x.dtype != c.y.dtype) return nullptr;
  if (c.x.dtype == DType::bf16) return std::make_unique<DepthwiseWeight<bf16>>(c);
  if (c.x.dtype == DType::f32) return std::make_unique<DepthwiseWeight<float>>(c);
  return nullptr;
}

}  // namespace nnl
