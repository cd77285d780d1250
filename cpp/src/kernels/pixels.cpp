// SPDX-License-Identifier: Apache-2.0
// Values of images between their pixels: which pixels are around a position, and weighted sums.
#include <algorithm>
#include <cmath>
#include <string>

#include "line.h"
#include "nnl/threads.h"
#include "space.h"
#include "vector16.h"

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
    if (d == 2 && !nearest_ && sizes_[0] * sizes_[1] < int64_t{1} << 31 && type_ == DType::f32 &&
        inside_ == DType::f32 && low_ == DType::f32) {
      for (int64_t n = 0; n < batch_; ++n) in_planes(b, n);
      return;
    }
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
  // Of pictures, the four pixels around every position.
  void in_planes(const Buffers& b, int64_t n) const {
    const float* y = b.input<float>(0) + 2 * n * positions_;
    const float* x = y + positions_;
    auto* index = b.output<int64_t>(0) + 4 * n * positions_;
    auto* inside = b.output<float>(1) + 4 * n * positions_;
    auto* low = b.output<float>(2) + 2 * n * positions_;
    const auto h = static_cast<float>(sizes_[0]), w = static_cast<float>(sizes_[1]);
    const auto width = static_cast<int32_t>(sizes_[1]);
    for (int64_t t = 0; t < 4; ++t) {
      const float down = t / 2 ? 1.0f : 0.0f, right = t % 2 ? 1.0f : 0.0f;
#pragma omp simd
      for (int64_t p = 0; p < positions_; ++p) {
        const float top = std::floor(y[p]), left = std::floor(x[p]);
        const float r = top + down, c = left + right;
        const bool good = (r >= 0.0f) & (r < h) & (c >= 0.0f) & (c < w);
        const auto row = static_cast<int32_t>(good ? r : 0.0f);
        const auto column = static_cast<int32_t>(good ? c : 0.0f);
        index[t * positions_ + p] = row * width + column;
        inside[t * positions_ + p] = good ? 1.0f : 0.0f;
        low[p] = top;
        low[positions_ + p] = left;
      }
    }
  }

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

// Taps of a block of results side by side, (taps, block), with indices that are looked at once.
constexpr int64_t block = 256, most_taps = 8;

struct Taps {
  int32_t index[most_taps * block];
  float weight[most_taps * block];

  // Of results first .. first + n - 1 of an image, from (taps, results).
  void read(const char* op, const int64_t* at, const float* w, int64_t taps, int64_t results,
            int64_t first, int64_t n, int64_t pixels) {
    for (int64_t t = 0; t < taps; ++t)
      for (int64_t p = 0; p < n; ++p) {
        const int64_t v = at[t * results + first + p];
        if (v < 0 || v >= pixels)
          throw ValueError(std::string(op) + ": index has the value " + std::to_string(v) +
                           ", wanted 0 <= value < " + std::to_string(pixels));
        index[t * block + p] = static_cast<int32_t>(v);
        weight[t * block + p] = w ? w[t * results + first + p] : 0.0f;
      }
  }
};

bool are_floats(const Signature& s, size_t index, int64_t pixels) {
  for (size_t i = 0; i < s.in.size(); ++i)
    if (i != index && s.in[i].dtype != DType::f32) return false;
  return s.in[index].dtype == DType::i64 && s.out[0].dtype == DType::f32 &&
         s.in[index].shape[1] <= most_taps && pixels < int64_t{1} << 31;
}

// y[b, c, p] = sum of weight[b, t, p] x[b, c, index[b, t, p]] over t.
class SamplePixels : public Kernel {
 public:
  explicit SamplePixels(const Signature& s)
      : x_(s.in[0]), index_(s.in[1]), weight_(s.in[2].dtype), y_(s.out[0].dtype) {
    floats_ = are_floats(s, 1, x_.shape[2]) && x_.shape[2];
    const int64_t pixels = x_.shape[2];
    if (!floats_ || index_.shape[2] < pixels / 8) return;
    groups_ = x_.shape[1] / together;
    if (groups_)
      for (int i = 0; i < threads(); ++i) spaces_.push_back(space_.floats(pixels * together));
  }

  size_t workspace() const override { return space_.size(); }

  void run(const Buffers& b) override {
    const int64_t pixels = x_.shape[2], taps = index_.shape[1], results = index_.shape[2];
    if (floats_) {
      if (groups_) by_channels(b, pixels, taps, results);
      if (groups_ * together < x_.shape[1]) floats(b, pixels, taps, results);
      return;
    }
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
  static constexpr int64_t together = 16;  // channels

  // Channels side by side: a pixel of all of them is a vector, and a result a few of these.
  void by_channels(const Buffers& b, int64_t pixels, int64_t taps, int64_t results) const {
    const int64_t total = x_.shape[0] * groups_;
    const int64_t workers = std::min<int64_t>(static_cast<int64_t>(spaces_.size()), total);
    parallel_for(workers, 1, [&](int64_t begin, int64_t end) {
      Taps at;
      for (int64_t w = begin; w < end; ++w) {
        auto* space = Space::at<float>(b.workspace, spaces_[static_cast<size_t>(w)]);
        for (int64_t g = total * w / workers; g < total * (w + 1) / workers; ++g) {
          const int64_t image = g / groups_, to = image * taps * results;
          const int64_t channel = image * x_.shape[1] + g % groups_ * together;
          side_by_side(b.input<float>(0) + channel * pixels, pixels, space);
          float* y = b.output<float>() + channel * results;
          for (int64_t first = 0; first < results; first += block) {
            const int64_t n = std::min(block, results - first);
            at.read("sample_pixels", b.input<int64_t>(1) + to, b.input<float>(2) + to, taps,
                    results, first, n, pixels);
            for (int64_t p = 0; p < n; p += together)
              sums(space, at, taps, p, std::min(together, n - p), y + first + p, results);
          }
        }
      }
    });
  }

  static void side_by_side(const float* x, int64_t pixels, float* space) {
    v16 v[together];
    for (int64_t p = 0; p < pixels; p += together) {
      const int64_t n = std::min(together, pixels - p);
      for (int64_t c = 0; c < together; ++c)
        if (n == together)
          load16(x + c * pixels + p, v[c]);
        else
          load_some(x + c * pixels + p, n, v[c]);
      transpose16(v);
      for (int64_t k = 0; k < n; ++k) store16(space + (p + k) * together, v[k]);
    }
  }

  // Results p .. p + n - 1 of the block.
  static void sums(const float* space, const Taps& at, int64_t taps, int64_t p, int64_t n, float* y,
                   int64_t step) {
    v16 v[together] = {}, pixel;
    for (int64_t k = 0; k < n; ++k)
      for (int64_t t = 0; t < taps; ++t) {
        load16(space + at.index[t * block + p + k] * together, pixel);
        v[k] += pixel * at.weight[t * block + p + k];
      }
    transpose16(v);
    for (int64_t c = 0; c < together; ++c)
      if (n == together)
        store16(y + c * step, v[c]);
      else
        store_some(y + c * step, n, v[c]);
  }

  void floats(const Buffers& b, int64_t pixels, int64_t taps, int64_t results) const {
    const int64_t channels = x_.shape[1], blocks = (results + block - 1) / block;
    parallel_for(
        x_.shape[0] * blocks, 1 + 4096 / (block * channels + 1), [&](int64_t begin, int64_t end) {
          Taps at;
          for (int64_t i = begin; i < end; ++i) {
            const int64_t image = i / blocks, first = i % blocks * block;
            const int64_t n = std::min(block, results - first), to = image * taps * results;
            at.read("sample_pixels", b.input<int64_t>(1) + to, b.input<float>(2) + to, taps,
                    results, first, n, pixels);
            for (int64_t c = groups_ * together; c < channels; ++c) {
              const float* x = b.input<float>(0) + (image * channels + c) * pixels;
              float* y = b.output<float>() + (image * channels + c) * results + first;
              if (taps == 4)
                sum<4>(x, at, y, n);
              else if (taps == 1)
                sum<1>(x, at, y, n);
              else
                for (int64_t p = 0; p < n; ++p) {
                  float total = 0;
                  for (int64_t t = 0; t < taps; ++t)
                    total += at.weight[t * block + p] * x[at.index[t * block + p]];
                  y[p] = total;
                }
            }
          }
        });
  }

  template <int64_t taps>
  static void sum(const float* x, const Taps& at, float* y, int64_t n) {
#pragma omp simd
    for (int64_t p = 0; p < n; ++p) {
      float total = at.weight[p] * x[at.index[p]];
      for (int64_t t = 1; t < taps; ++t)
        total += at.weight[t * block + p] * x[at.index[t * block + p]];
      y[p] = total;
    }
  }

  Spec x_, index_;
  DType weight_, y_;
  bool floats_;
  int64_t groups_ = 0;  // of channels
  Space space_;
  std::vector<size_t> spaces_;
};

// Its gradients: gx[b, c, s] = sum of weight[b, t, p] gy[b, c, p] over index[b, t, p] = s, and
// gw[b, t, p] = sum of gy[b, c, p] x[b, c, index[b, t, p]] over c.
class SpreadToPixels : public Kernel {
 public:
  explicit SpreadToPixels(const Signature& s)
      : gy_(s.in[0].shape), taps_(s.in[1].shape[1]), pixels_(s.out[0].shape[2]) {}

  bool may_overwrite(size_t, size_t) const override { return false; }
  void run(const Buffers& b) override {
    const int64_t channels = gy_[1], results = gy_[2];
    parallel_for(gy_[0] * channels, 1, [&](int64_t begin, int64_t end) {
      Taps at;
      std::fill(b.output<float>() + begin * pixels_, b.output<float>() + end * pixels_, 0.0f);
      for (int64_t image = begin / channels; image * channels < end && pixels_; ++image) {
        const int64_t low = std::max(begin, image * channels), to = image * taps_ * results;
        const int64_t high = std::min(end, (image + 1) * channels);
        for (int64_t first = 0; first < results; first += block) {
          const int64_t n = std::min(block, results - first);
          at.read("spread_to_pixels", b.input<int64_t>(1) + to, b.input<float>(2) + to, taps_,
                  results, first, n, pixels_);
          for (int64_t c = low; c < high; ++c) {
            const float* gy = b.input<float>(0) + c * results + first;
            float* gx = b.output<float>() + c * pixels_;
            for (int64_t t = 0; t < taps_; ++t)
              for (int64_t p = 0; p < n; ++p)
                gx[at.index[t * block + p]] += at.weight[t * block + p] * gy[p];
          }
        }
      }
    });
  }

 private:
  Shape gy_;
  int64_t taps_, pixels_;
};

class PixelProducts : public Kernel {
 public:
  explicit PixelProducts(const Signature& s) : x_(s.in[0].shape), index_(s.in[2].shape) {}

  bool may_overwrite(size_t, size_t) const override { return false; }
  void run(const Buffers& b) override {
    const int64_t channels = x_[1], pixels = x_[2], taps = index_[1], results = index_[2];
    const int64_t blocks = (results + block - 1) / block;
    parallel_for(x_[0] * blocks, 1, [&](int64_t begin, int64_t end) {
      Taps at;
      for (int64_t i = begin; i < end; ++i) {
        const int64_t image = i / blocks, first = i % blocks * block;
        const int64_t n = std::min(block, results - first), to = image * taps * results;
        if (pixels)
          at.read("pixel_products", b.input<int64_t>(2) + to, nullptr, taps, results, first, n,
                  pixels);
        else
          std::fill(at.weight, at.weight + most_taps * block, 0.0f);
        for (int64_t c = 0; c < channels && pixels; ++c) {
          const float* x = b.input<float>(0) + (image * channels + c) * pixels;
          const float* gy = b.input<float>(1) + (image * channels + c) * results + first;
          for (int64_t t = 0; t < taps; ++t) {
#pragma omp simd
            for (int64_t p = 0; p < n; ++p)
              at.weight[t * block + p] += gy[p] * x[at.index[t * block + p]];
          }
        }
        for (int64_t t = 0; t < taps; ++t)
          std::copy(at.weight + t * block, at.weight + t * block + n,
                    b.output<float>() + to + t * results + first);
      }
    });
  }

 private:
  Shape x_, index_;
};

std::unique_ptr<Kernel> spread_to_pixels(const Signature& s) {
  if (!plain(s) || !are_floats(s, 1, s.out[0].shape[2])) return nullptr;
  return std::make_unique<SpreadToPixels>(s);
}

std::unique_ptr<Kernel> pixel_products(const Signature& s) {
  if (!plain(s) || !are_floats(s, 2, s.in[0].shape[2])) return nullptr;
  return std::make_unique<PixelProducts>(s);
}

std::unique_ptr<Kernel> sample_pixels(const Signature& s) {
  if (!plain(s) || !is_integer(s.in[1].dtype) || !is_real(s.in[2].dtype) ||
      !is_real(s.out[0].dtype))
    return nullptr;
  return std::make_unique<SamplePixels>(s);
}

const Registration registrations[] = {
    {"corner_pixels", corner_pixels},
    {"sample_pixels", sample_pixels},
    {"spread_to_pixels", spread_to_pixels},
    {"pixel_products", pixel_products},
};

}  // namespace
}  // namespace nnl
