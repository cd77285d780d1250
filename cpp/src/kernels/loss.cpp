// SPDX-License-Identifier: Apache-2.0
// Losses element by element, and the divergence of distributions.
#include <cmath>

#include "line.h"

namespace nnl {
namespace {

// ln x as fast_log computes it.
NNL_INLINE Lanes log_of(Lanes x) {
  const LaneInts tiny = x < 1.17549435e-38f;
  const LaneBits u = reinterpret_cast<LaneBits>(tiny ? x * 8388608.0f : x);  // times 2^23
  LaneInts e = reinterpret_cast<LaneInts>(u >> 23) - 126 - (tiny & 23);
  Lanes m = reinterpret_cast<Lanes>((u & 0x007fffffu) | 0x3f000000u);  // in [1/2, 1)
  const LaneInts low = m < 0.707106781186547524f;
  e += low;
  m = low ? m + m - 1.0f : m - 1.0f;
  const Lanes z = m * m, fe = __builtin_convertvector(e, Lanes);
  Lanes p = 7.0376836292e-2f * m - 1.1514610310e-1f;
  p = p * m + 1.1676998740e-1f;
  p = p * m - 1.2420140846e-1f;
  p = p * m + 1.4249322787e-1f;
  p = p * m - 1.6668057665e-1f;
  p = p * m + 2.0000714765e-1f;
  p = p * m - 2.4999993993e-1f;
  p = p * m + 3.3333331174e-1f;
  Lanes y = p * m * z - 2.12194440e-4f * fe - 0.5f * z;
  y = m + y + 0.693359375f * fe;
  y = x == 0.0f ? all(-INFINITY) : y;
  y = x < 0.0f || x != x ? all(NAN) : y;
  return x == INFINITY ? x : y;
}

// ln(1 + x) for x >= 0: what the addition rounds off is put back.
NNL_INLINE Lanes log1p_of(Lanes x) {
  const Lanes u = 1.0f + x;
  return log_of(u) + (x - (u - 1.0f)) / u;
}

NNL_INLINE Lanes magnitude(Lanes x) {
  return reinterpret_cast<Lanes>(reinterpret_cast<LaneBits>(x) & 0x7fffffffu);
}

constexpr float kTiny = 1.17549435e-38f;  // the smallest probability whose logarithm is taken

// y = f(a, b, parameter), element by element.
struct SquaredError {
  static NNL_INLINE Lanes of(Lanes a, Lanes b, float) { return (a - b) * (a - b); }
};
struct AbsoluteError {
  static NNL_INLINE Lanes of(Lanes a, Lanes b, float) { return magnitude(a - b); }
};
struct Huber {
  static NNL_INLINE Lanes of(Lanes a, Lanes b, float delta) {
    const Lanes d = magnitude(a - b), near = d > delta ? all(delta) : d;
    return near * (2.0f * d - near);
  }
};
struct EpsilonInsensitive {
  static NNL_INLINE Lanes of(Lanes a, Lanes b, float epsilon) {
    return relu(magnitude(a - b) - epsilon);
  }
};
struct BinaryCrossEntropy {
  static NNL_INLINE Lanes of(Lanes x, Lanes t, float) {
    const Lanes rest = 1.0f - x;
    const Lanes yes = log_of(x < kTiny ? all(kTiny) : x);
    const Lanes no = log_of(rest < kTiny ? all(kTiny) : rest);
    return -(t * yes + (1.0f - t) * no);
  }
};
struct SigmoidCrossEntropy {
  static NNL_INLINE Lanes of(Lanes x, Lanes t, float) {
    return log1p_of(exp_of(-magnitude(x))) + (relu(x) - x * t);
  }
};

constexpr int64_t kGrain = 1 << 13;

template <class F, class P>
class Pairs : public Kernel {
 public:
  Pairs(const Signature& s, float parameter) : in_(s.in), out_(s.out[0]), parameter_(parameter) {}
  bool may_overwrite(size_t, size_t i) const override {
    return in_[i].dtype == out_.dtype && in_[i].size() == out_.size();
  }
  void run(const Buffers& b) override {
    const P x0 = pointer<P>(b.in[0], in_[0].dtype), x1 = pointer<P>(b.in[1], in_[1].dtype);
    const P y = pointer<P>(b.out[0], out_.dtype);
    // a single element stretches
    const bool one0 = in_[0].size() != out_.size(), one1 = in_[1].size() != out_.size();
    const Lanes a0 = one0 ? all(load_part(x0, 1)[0]) : Lanes{};
    const Lanes a1 = one1 ? all(load_part(x1, 1)[0]) : Lanes{};
    parallel_for(out_.size(), kGrain, [&](int64_t begin, int64_t end) {
      by_lanes(end - begin, [&](int64_t i, int64_t lanes, auto whole) {
        i += begin;
        const Lanes v0 = one0 ? a0 : get<whole()>(x0 + i, lanes);
        const Lanes v1 = one1 ? a1 : get<whole()>(x1 + i, lanes);
        put<whole()>(y + i, F::of(v0, v1, parameter_), lanes);
      });
    });
  }

 private:
  const std::vector<Spec> in_;
  const Spec out_;
  const float parameter_;
};

template <class F>
std::unique_ptr<Kernel> pairs(const Signature& s, float parameter) {
  const Spec& y = s.out[0];
  if (!is_real(y.dtype)) return nullptr;
  for (const Spec& x : s.in) {
    if (!is_real(x.dtype)) return nullptr;
    if (x.size() != 1 && (x.shape != y.shape || x.layout != y.layout)) return nullptr;
    if (y.size() == 0 && x.shape != y.shape) return nullptr;
  }
  return with_pointer(common_type({&s.in[0], &s.in[1], &y}),
                      [&](auto type) -> std::unique_ptr<Kernel> {
                        return std::make_unique<Pairs<F, decltype(type)>>(s, parameter);
                      });
}
template <class F>
std::unique_ptr<Kernel> simple(const Signature& s) {
  return pairs<F>(s, 0.0f);
}
std::unique_ptr<Kernel> huber(const Signature& s) {
  return pairs<Huber>(s, static_cast<float>(s.attributes.number("delta")));
}
std::unique_ptr<Kernel> insensitive(const Signature& s) {
  return pairs<EpsilonInsensitive>(s, static_cast<float>(s.attributes.number("epsilon")));
}

// ---- sigmoid_cross_entropy: integers as targets ----

// Inputs x, target; or gy, x, target and the gradient comes out.
template <bool gradient, class P>
class Sigmoid : public Kernel {
 public:
  explicit Sigmoid(const Signature& s) : in_(s.in), out_(s.out[0]) {}
  bool may_overwrite(size_t, size_t i) const override {
    return i + 1 < in_.size() && in_[i].dtype == out_.dtype;
  }
  void run(const Buffers& b) override {
    constexpr size_t at = gradient ? 1 : 0;
    const P gy = pointer<P>(b.in[0], in_[0].dtype), x = pointer<P>(b.in[at], in_[at].dtype);
    const P y = pointer<P>(b.out[0], out_.dtype);
    const Spec& target = in_[at + 1];
    parallel_for(out_.size(), kGrain, [&](int64_t begin, int64_t end) {
      by_lanes(end - begin, [&](int64_t i, int64_t lanes, auto whole) {
        i += begin;
        float label[kLanes] = {};
        for (int64_t k = 0; k < lanes; ++k)
          label[k] = static_cast<float>(integer_at(b.in[at + 1], target.dtype, i + k));
        const Lanes v = get<whole()>(x + i, lanes), t = load(label);
        if constexpr (gradient) {
          const Lanes e = exp_of(-magnitude(v)), top = v < 0.0f ? e : all(1.0f);
          put<whole()>(y + i, (top / (1.0f + e) - t) * get<whole()>(gy + i, lanes), lanes);
        } else {
          put<whole()>(y + i, SigmoidCrossEntropy::of(v, t, 0.0f), lanes);
        }
      });
    });
  }

 private:
  const std::vector<Spec> in_;
  const Spec out_;
};

template <bool gradient>
std::unique_ptr<Kernel> sigmoid(const Signature& s) {
  const Spec &y = s.out[0], &target = s.in.back();
  if (!is_integer(target.dtype) || !is_real(y.dtype)) return nullptr;
  for (const Spec& x : s.in) {
    if (&x != &target && !is_real(x.dtype)) return nullptr;
    if (x.layout != y.layout) return nullptr;
  }
  return with_pointer(common_type({&s.in[0], &s.in[gradient ? 1 : 0], &y}),
                      [&](auto type) -> std::unique_ptr<Kernel> {
                        return std::make_unique<Sigmoid<gradient, decltype(type)>>(s);
                      });
}

// ---- kl_multinomial ----

class Divergence : public Kernel {
 public:
  Divergence(const Signature& s, int64_t rows, int64_t n)
      : in_(s.in), out_(s.out[0]), rows_(rows), n_(n) {}
  void run(const Buffers& b) override {
    constexpr float epsilon = 1e-8f;
    const Any p{b.in[0], in_[0].dtype}, q{b.in[1], in_[1].dtype};
    parallel_for(rows_, std::max<int64_t>(1, kGrain / std::max<int64_t>(n_, 1)),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t r = begin; r < end; ++r) {
                     const Any a = p + r * n_, c = q + r * n_;
                     const Lanes s = lane_sums(n_, [&](int64_t i, int64_t lanes, auto whole) {
                       const Lanes v = get<whole()>(a + i, lanes), w = get<whole()>(c + i, lanes);
                       return (log_of(v + epsilon) - log_of(w + epsilon)) * v;
                     });
                     set_float(b.out[0], out_.dtype, r, sum_of(s));
                   }
                 });
  }

 private:
  const std::vector<Spec> in_;
  const Spec out_;
  const int64_t rows_, n_;
};

std::unique_ptr<Kernel> divergence(const Signature& s) {
  for (const Spec* a : {&s.in[0], &s.in[1], &s.out[0]})
    if (!is_real(a->dtype) || a->layout != Layout::plain) return nullptr;
  int64_t n = 1;
  const Shape& shape = s.in[0].shape;
  for (size_t i = static_cast<size_t>(s.attributes.integer("base_axis")); i < shape.size(); ++i)
    n *= shape[i];
  return std::make_unique<Divergence>(s, s.out[0].size(), n);
}

const Registration registrations[] = {
    {"squared_error", simple<SquaredError>},
    {"absolute_error", simple<AbsoluteError>},
    {"binary_cross_entropy", simple<BinaryCrossEntropy>},
    {"huber_loss", huber},
    {"epsilon_insensitive_loss", insensitive},
    {"sigmoid_cross_entropy", sigmoid<false>},
    {"sigmoid_cross_entropy_backward", sigmoid<true>},
    {"kl_multinomial", divergence},
};

}  // namespace
}  // namespace nnl
