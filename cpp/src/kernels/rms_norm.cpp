// SPDX-License-Identifier: Apache-2.0
// rms_normalization: (x, gamma?) -> y = x (gamma + gamma_offset) / sqrt(mean(x^2) + eps), the mean
//   over the last axes, in whose order gamma lies.
// rms_normalization_backward: (gy, x, gamma?) -> (gx, ggamma?).
#include <algorithm>
#include <cmath>

#include "lanes.h"
#include "space.h"

namespace nnl {
namespace {

struct Sizes {
  int64_t rows, n;
  float eps, offset;
  bool has_gamma;
  DType gamma;
};

// gamma as it is multiplied with; null where there is none.
const float* read_gamma(const Sizes& z, const void* gamma, float* place) {
  if (!z.has_gamma) return nullptr;
  read_floats(gamma, z.gamma, place, z.n);
  for (int64_t i = 0; i < z.n; ++i) place[i] += z.offset;
  return place;
}

template <class P>
class Forward : public Kernel {
 public:
  Forward(const Signature& s, const Sizes& z) : in_(s.in[0]), out_(s.out[0]), z_(z) {
    if (z.has_gamma) gamma_ = space_.floats(z.n);
    parts_ = parts_of(2 * in_.size());
  }
  size_t workspace() const override { return space_.size(); }
  bool may_overwrite(size_t o, size_t i) const override {
    return o == 0 && i == 0 && in_.dtype == out_.dtype;
  }
  void run(const Buffers& b) override {
    const P x = pointer<P>(b.in[0], in_.dtype), y = pointer<P>(b.out[0], out_.dtype);
    const float* gamma =
        read_gamma(z_, z_.has_gamma ? b.in[1] : nullptr, Space::at(b.workspace, gamma_));
    const int64_t n = z_.n;
    for_parts(parts_, z_.rows, [&](int64_t, int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const P row = x + r * n, to = y + r * n;
        const float square = sum_of(lane_sums(n, [&](int64_t i, int64_t lanes, auto whole) {
          const Lanes v = get<whole()>(row + i, lanes);
          return v * v;
        }));
        const float scale = 1.0f / std::sqrt(square / static_cast<float>(n) + z_.eps);
        by_lanes(n, [&](int64_t i, int64_t lanes, auto whole) {
          Lanes v = get<whole()>(row + i, lanes) * scale;
          if (gamma) v *= get<whole()>(gamma + i, lanes);
          put<whole()>(to + i, v, lanes);
        });
      }
    });
  }

 private:
  const Spec in_, out_;
  Sizes z_;
  Space space_;
  size_t gamma_ = 0;
  int64_t parts_;
};

template <class P>
class Backward : public Kernel {
 public:
  Backward(const Signature& s, const Sizes& z) : in_(s.in), out_(s.out), z_(z) {
    parts_ = parts_of(4 * in_[1].size());
    if (!z.has_gamma) return;
    gamma_ = space_.floats(z.n);
    sums_ = space_.floats(parts_ * z.n);
  }
  size_t workspace() const override { return space_.size(); }
  void run(const Buffers& b) override {
    const P gy = pointer<P>(b.in[0], in_[0].dtype), x = pointer<P>(b.in[1], in_[1].dtype);
    const P gx = pointer<P>(b.out[0], out_[0].dtype);
    const float* gamma =
        read_gamma(z_, z_.has_gamma ? b.in[2] : nullptr, Space::at(b.workspace, gamma_));
    float* all_sums = Space::at(b.workspace, sums_);
    const int64_t n = z_.n;
    const float per = 1.0f / static_cast<float>(n);
    for_parts(parts_, z_.rows, [&](int64_t part, int64_t begin, int64_t end) {
      float* sums = all_sums + part * n;
      if (gamma) std::fill_n(sums, n, 0.0f);
      for (int64_t r = begin; r < end; ++r) {
        const int64_t at = r * n;
        Lanes squares = {}, products = {};
        by_lanes(n, [&](int64_t i, int64_t lanes, auto whole) {
          const Lanes v = get<whole()>(x + (at + i), lanes);
          Lanes g = get<whole()>(gy + (at + i), lanes);
          if (gamma) g *= get<whole()>(gamma + i, lanes);
          squares += v * v, products += g * v;
        });
        const float inverse = 1.0f / std::sqrt(sum_of(squares) * per + z_.eps);
        const float back = sum_of(products) * per * inverse * inverse * inverse;
        by_lanes(n, [&](int64_t i, int64_t lanes, auto whole) {
          const Lanes v = get<whole()>(x + (at + i), lanes);
          Lanes g = get<whole()>(gy + (at + i), lanes);
          if (gamma) {
            put<whole()>(sums + i, get<whole()>(sums + i, lanes) + g * v * inverse, lanes);
            g *= get<whole()>(gamma + i, lanes);
          }
          put<whole()>(gx + (at + i), g * inverse - v * back, lanes);
        });
      }
    });
    if (!gamma) return;
    for (int64_t part = 1; part < parts_; ++part)
      for (int64_t i = 0; i < n; ++i) all_sums[i] += all_sums[part * n + i];
    write_floats(all_sums, b.out[1], out_[1].dtype, n);
  }

 private:
  const std::vector<Spec> in_, out_;
  Sizes z_;
  Space space_;
  size_t gamma_ = 0, sums_ = 0;
  int64_t parts_;
};

// x is input `at`; gamma follows it.
bool sizes_of(const Signature& s, size_t at, Sizes* z) {
  for (const auto* specs : {&s.in, &s.out})
    for (const Spec& x : *specs)
      if (x.layout != Layout::plain) return false;
  const Shape& x = s.in[at].shape;
  std::vector<int64_t> axes = s.attributes.integers("axes");
  z->n = 1;
  for (size_t k = 0; k < axes.size(); ++k) {  // the last axes, in their order
    if (axes[k] != static_cast<int64_t>(x.size() - axes.size() + k)) return false;
    z->n *= x[static_cast<size_t>(axes[k])];
  }
  if (!z->n || axes.empty()) return false;
  z->rows = s.in[at].size() / z->n;
  z->eps = static_cast<float>(s.attributes.number("eps"));
  z->offset = static_cast<float>(s.attributes.number("gamma_offset"));
  z->has_gamma = s.given(at + 1);
  if (z->has_gamma) z->gamma = s.in[at + 1].dtype;
  for (size_t i = 0; i < s.in.size(); ++i)
    if (s.given(i) && !is_real(s.in[i].dtype)) return false;
  for (const Spec& y : s.out)
    if (!is_real(y.dtype)) return false;
  return true;
}

std::unique_ptr<Kernel> forward(const Signature& s) {
  Sizes z;
  if (!sizes_of(s, 0, &z)) return nullptr;
  return with_pointer(common_type({&s.in[0], &s.out[0]}),
                      [&](auto type) -> std::unique_ptr<Kernel> {
                        return std::make_unique<Forward<decltype(type)>>(s, z);
                      });
}

std::unique_ptr<Kernel> backward(const Signature& s) {
  Sizes z;
  if (!sizes_of(s, 1, &z)) return nullptr;
  return with_pointer(common_type({&s.in[0], &s.in[1], &s.out[0]}),
                      [&](auto type) -> std::unique_ptr<Kernel> {
                        return std::make_unique<Backward<decltype(type)>>(s, z);
                      });
}

const Registration registration("rms_normalization", forward);
const Registration of_backward("rms_normalization_backward", backward);

}  // namespace
}  // namespace nnl
