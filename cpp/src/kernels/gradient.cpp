// SPDX-License-Identifier: Apache-2.0
// decay_gradient, scale_gradient and clip_gradient of the solvers, and what only plans use:
//
// finite_check: any number of arrays -> y, bool[2]: whether an element is infinite, whether one is
//   NaN. No attributes.
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
  size_t workspace() const override {
    return static_cast<size_t>((g_.size() + kBlock - 1) / kBlock) * sizeof(double);
  }
  void run(const Buffers& b) override {
    auto* sums = static_cast<double*>(b.workspace);
    double total = 0.0;
    if (most_ > 0.0) {
      for_blocks(g_.size(), [&](int64_t at, int64_t n) {
        float g[kBlock], sum = 0.0f;
        load_any(g_.dtype, b.in[0], at, g, n);
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < n; ++i) sum += g[i] * g[i];
        sums[at / kBlock] = sum;
      });
      for (int64_t k = 0; k * kBlock < g_.size(); ++k) total += sums[k];
    }
    const double length = std::sqrt(total);
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

std::unique_ptr<Kernel> finite_check(const Signature& s) {
  if (!std::all_of(s.in.begin(), s.in.end(), [](const Spec& x) { return is_real(x.dtype); }))
    return nullptr;
  if (bytes_of(s.out[0].dtype) != 1 || s.out[0].size() != 2) return nullptr;
  return std::make_unique<FiniteCheck>(s);
}

const Registration r0("decay_gradient", decay);
const Registration r1("scale_gradient", scale);
const Registration r2("clip_gradient", clip);
const Registration r3("finite_check", finite_check);

}  // namespace
}  // namespace nnl
