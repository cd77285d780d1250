// SPDX-License-Identifier: Apache-2.0
// decay_gradient, scale_gradient and clip_gradient of the solvers, and what only plans use:
//
// finite_check: any number of arrays -> y, bool[2]: whether an element is infinite, whether one is
//   NaN. No attributes.
// clipped_scale: scale s, float32 of rank 0, and gradients -> max(s, their norm / clip_norm).
#include <algorithm>
#include <atomic>
#include <cmath>

#include "nnl/kernel.h"
#include "nnl/threads.h"
#include "real.h"

namespace nnl {
namespace {

constexpr int64_t kBlock = 2048;

// f(first element, number) for the blocks of n elements, on several threads where that pays.
template <class F>
void for_blocks(int64_t n, F&& f) {
  parallel_for((n + kBlock - 1) / kBlock, 8, [&](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; ++k) f(k * kBlock, std::min(kBlock, n - k * kBlock));
  });
}

// The sum of the squares of an array; a block's sum comes into the place that it has in `sums`.
double squares(const Spec& x, const void* data, double* sums) {
  for_blocks(x.size(), [&](int64_t at, int64_t n) {
    float g[kBlock], sum = 0.0f;
    load_any(x.dtype, data, at, g, n);
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; ++i) sum += g[i] * g[i];
    sums[at / kBlock] = sum;
  });
  double total = 0.0;
  for (int64_t k = 0; k * kBlock < x.size(); ++k) total += sums[k];
  return total;
}

size_t bytes_of_sums(const Spec& x) {
  return static_cast<size_t>((x.size() + kBlock - 1) / kBlock) * sizeof(double);
}

// y = scale g + rate w
class Scaled : public Kernel {
 public:
  Scaled(const Signature& s, double scale, double rate)
      : g_(s.in[0]),
        w_(s.in.size() > 1 ? s.in[1] : Spec{}),
        y_(s.out[0]),
        scale_(static_cast<float>(scale)),
        rate_(static_cast<float>(rate)),
        has_w_(s.in.size() > 1) {}
  bool may_overwrite(size_t, size_t i) const override {
    return bytes_of((i ? w_ : g_).dtype) == bytes_of(y_.dtype);
  }
  void run(const Buffers& b) override {
    for_blocks(g_.size(), [&](int64_t at, int64_t n) {
      float g[kBlock], w[kBlock];
      load_any(g_.dtype, b.in[0], at, g, n);
      if (has_w_) {
        load_any(w_.dtype, b.in[1], at, w, n);
#pragma omp simd
        for (int64_t i = 0; i < n; ++i) g[i] += w[i] * rate_;
      } else {
#pragma omp simd
        for (int64_t i = 0; i < n; ++i) g[i] *= scale_;
      }
      store_any(y_.dtype, g, b.out[0], at, n);
    });
  }

 private:
  Spec g_, w_, y_;
  float scale_, rate_;
  bool has_w_;
};

class Clip : public Kernel {
 public:
  explicit Clip(const Signature& s)
      : g_(s.in[0]), y_(s.out[0]), most_(s.attributes.number("clip_norm")) {}
  bool may_overwrite(size_t, size_t) const override {
    return bytes_of(g_.dtype) == bytes_of(y_.dtype);
  }
  size_t workspace() const override { return bytes_of_sums(g_); }
  void run(const Buffers& b) override {
    double length = 0.0;
    if (most_ > 0.0) length = std::sqrt(squares(g_, b.in[0], static_cast<double*>(b.workspace)));
    const bool clip = 0.0 < most_ && most_ < length;
    const auto factor = static_cast<float>(clip ? most_ / length : 1.0);
    for_blocks(g_.size(), [&](int64_t at, int64_t n) {
      float g[kBlock];
      load_any(g_.dtype, b.in[0], at, g, n);
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) g[i] *= factor;
      store_any(y_.dtype, g, b.out[0], at, n);
    });
  }

 private:
  Spec g_, y_;
  double most_;
};

class ClippedScale : public Kernel {
 public:
  explicit ClippedScale(const Signature& s) : in_(s.in), most_(s.attributes.number("clip_norm")) {}
  size_t workspace() const override {
    size_t most = 0;
    for (const Spec& g : in_) most = std::max(most, bytes_of_sums(g));
    return most;
  }
  void run(const Buffers& b) override {
    double total = 0.0;
    for (size_t k = 1; k < in_.size(); ++k)
      total += squares(in_[k], b.in[k], static_cast<double*>(b.workspace));
    const auto needed = static_cast<float>(std::sqrt(total) / most_);
    const float scale = *static_cast<const float*>(b.in[0]);
    *b.output<float>() = needed > scale ? needed : scale;
  }

 private:
  std::vector<Spec> in_;
  double most_;
};

class FiniteCheck : public Kernel {
 public:
  explicit FiniteCheck(const Signature& s) : in_(s.in) {}
  void run(const Buffers& b) override {
    std::atomic<bool> inf{false}, nan{false};
    for (size_t k = 0; k < in_.size(); ++k) {
      for_blocks(in_[k].size(), [&](int64_t at, int64_t n) {
        float x[kBlock];
        load_any(in_[k].dtype, b.in[k], at, x, n);
        uint32_t any_inf = 0, any_nan = 0;
#pragma omp simd reduction(| : any_inf, any_nan)
        for (int64_t i = 0; i < n; ++i) {
          const uint32_t size = bits(x[i]) & 0x7fffffffu;
          any_inf |= size == 0x7f800000u, any_nan |= size > 0x7f800000u;
        }
        if (any_inf) inf.store(true, std::memory_order_relaxed);
        if (any_nan) nan.store(true, std::memory_order_relaxed);
      });
    }
    b.output<uint8_t>()[0] = inf, b.output<uint8_t>()[1] = nan;
  }

 private:
  std::vector<Spec> in_;
};

bool takes(const Signature& s) {
  for (const Spec& x : s.in)
    if (!is_real(x.dtype) || x.layout != s.in[0].layout) return false;
  return is_real(s.out[0].dtype) && s.out[0].layout == s.in[0].layout;
}

std::unique_ptr<Kernel> decay(const Signature& s) {
  if (!takes(s)) return nullptr;
  return std::make_unique<Scaled>(s, 1.0, s.attributes.number("rate"));
}

std::unique_ptr<Kernel> scale(const Signature& s) {
  if (!takes(s)) return nullptr;
  return std::make_unique<Scaled>(s, s.attributes.number("scale"), 0.0);
}

std::unique_ptr<Kernel> clip(const Signature& s) {
  if (!takes(s)) return nullptr;
  return std::make_unique<Clip>(s);
}

bool all_real(const Signature& s) {
  return std::all_of(s.in.begin(), s.in.end(), [](const Spec& x) { return is_real(x.dtype); });
}

std::unique_ptr<Kernel> clipped_scale(const Signature& s) {
  if (!all_real(s) || s.in[0].dtype != DType::f32 || s.out[0].dtype != DType::f32) return nullptr;
  return std::make_unique<ClippedScale>(s);
}

std::unique_ptr<Kernel> finite_check(const Signature& s) {
  if (!all_real(s)) return nullptr;
  if (bytes_of(s.out[0].dtype) != 1 || s.out[0].size() != 2) return nullptr;
  return std::make_unique<FiniteCheck>(s);
}

const Registration r0("decay_gradient", decay);
const Registration r1("scale_gradient", scale);
const Registration r2("clip_gradient", clip);
const Registration r3("finite_check", finite_check);
const Registration r4("clipped_scale", clipped_scale);

}  // namespace
}  // namespace nnl
