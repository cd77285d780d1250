// SPDX-License-Identifier: Apache-2.0
// rotary_embedding: (x, positions, frequencies) -> y. Pairs of the first 2 R features of x (B, ...)
//   are turned by position times frequency, and multiplied by factor; positions, (T,) or (B, T),
//   belong to the axis `axis`. The pair of feature i is i + R, or with interleaved 2 i and 2 i + 1.
//   inverse turns back.
#include <algorithm>
#include <cmath>

#include "line.h"
#include "nnl/threads.h"
#include "space.h"
#include "vector_math.h"

namespace nnl {
namespace {

template <class T>
class Rotary : public Kernel {
 public:
  explicit Rotary(const Signature& s) : x_(s.in[0]), positions_(s.in[1]), r_(s.in[2].size()) {
    const Attributes& a = s.attributes;
    const size_t axis = static_cast<size_t>(a.integer("axis"));
    width_ = x_.shape.back();
    rows_ = width_ ? x_.size() / width_ : 0;
    length_ = x_.shape[axis];
    inner_ = 1;
    for (size_t i = axis + 1; i + 1 < x_.shape.size(); ++i) inner_ *= x_.shape[i];
    sample_ = positions_.rank() == 2 && x_.shape[0] ? rows_ / x_.shape[0] : 0;
    interleaved_ = a.flag("interleaved");
    factor_ = static_cast<float>(a.number("factor"));
    sign_ = a.flag("inverse") ? -1.0f : 1.0f;
    cos_ = space_.floats(positions_.size() * r_);
    sin_ = space_.floats(positions_.size() * r_);
  }
  size_t workspace() const override { return space_.size(); }
  bool may_overwrite(size_t o, size_t i) const override { return o == 0 && i == 0; }

  void run(const Buffers& b) override {
    float *cos = Space::at(b.workspace, cos_), *sin = Space::at(b.workspace, sin_);
    angles(b, cos, sin);
    const T* x = b.input<T>(0);
    T* y = b.output<T>();
    const int64_t grain = std::max<int64_t>(1, 16384 / std::max<int64_t>(width_, 1));
    parallel_for(rows_, grain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t t = i / inner_ % length_ + (sample_ ? i / sample_ * length_ : 0);
        turn(x + i * width_, cos + t * r_, sin + t * r_, y + i * width_);
      }
    });
  }

 private:
  void angles(const Buffers& b, float* cos, float* sin) const {
    const float* f = b.input<float>(2);
    const int64_t grain = std::max<int64_t>(1, 2048 / std::max<int64_t>(r_, 1));
    parallel_for(positions_.size(), grain, [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p) {
        const float at = static_cast<float>(integer_at(b.in[1], positions_.dtype, p));
        float *c = cos + p * r_, *s = sin + p * r_;
        float largest = 0.0f;
        for (int64_t i = 0; i < r_; ++i) largest = std::max(largest, std::fabs(at * f[i]));
        if (largest < angle_limit) {
#pragma omp simd
          for (int64_t i = 0; i < r_; ++i) {
            c[i] = fast_cos(at * f[i]) * factor_;
            s[i] = fast_sin(at * f[i]) * factor_ * sign_;
          }
        } else {
          for (int64_t i = 0; i < r_; ++i) {
            c[i] = std::cos(at * f[i]) * factor_;
            s[i] = std::sin(at * f[i]) * factor_ * sign_;
          }
        }
      }
    });
  }

  void turn(const T* x, const float* c, const float* s, T* y) const {
    if (interleaved_) {
#pragma omp simd
      for (int64_t i = 0; i < r_; ++i) {
        const float p = to_float(x[2 * i]), q = to_float(x[2 * i + 1]);
        y[2 * i] = from_float<T>(p * c[i] - q * s[i]);
        y[2 * i + 1] = from_float<T>(q * c[i] + p * s[i]);
      }
    } else {
      by_lanes(r_, [&](int64_t i, int64_t n, auto whole) {
        const Lanes p = get<whole()>(x + i, n), q = get<whole()>(x + r_ + i, n);
        const Lanes u = get<whole()>(c + i, n), v = get<whole()>(s + i, n);
        put<whole()>(y + i, p * u - q * v, n);
        put<whole()>(y + r_ + i, q * u + p * v, n);
      });
    }
    if (x != y) std::copy(x + 2 * r_, x + width_, y + 2 * r_);
  }

  const Spec x_, positions_;
  int64_t r_, width_, rows_, length_, inner_, sample_;
  bool interleaved_;
  float factor_, sign_;
  Space space_;
  size_t cos_, sin_;
};

std::unique_ptr<Kernel> setup(const Signature& s) {
  for (const Spec& x : s.in)
    if (x.layout != Layout::plain) return nullptr;
  const Spec &x = s.in[0], &y = s.out[0];
  if (!is_real(x.dtype) || y.dtype != x.dtype || y.layout != Layout::plain) return nullptr;
  if (!is_integer(s.in[1].dtype) || s.in[2].dtype != DType::f32) return nullptr;
  if (x.dtype == DType::f32) return std::make_unique<Rotary<float>>(s);
  if (x.dtype == DType::bf16) return std::make_unique<Rotary<bf16>>(s);
  return std::make_unique<Rotary<f16>>(s);
}

const Registration registration("rotary_embedding", setup);

}  // namespace
}  // namespace nnl
