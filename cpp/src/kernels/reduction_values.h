// SPDX-License-Identifier: Apache-2.0
// What the reductions do with the elements.
#pragma once
#include <cmath>
#include <limits>
#include <type_traits>

#include "lanes.h"
#include "vector_math.h"

namespace nnl {

// What is done to an element, how two values become one, and what to start from.
struct Sum {
  template <class T>
  static T map(T x, float) {
    return x;
  }
  template <class T>
  static T join(T a, T b) {
    return a + b;
  }
  static constexpr float start = 0.0f;
};
struct Squares : Sum {
  template <class T>
  static T map(T x, float) {
    return x * x;
  }
};
struct Sizes : Sum {
  static float map(float x, float) { return std::fabs(x); }
};
struct Powers : Sum {
  static float map(float x, float p) { return fast_pow(std::fabs(x), p); }
};
struct Max {
  template <class T>
  static T map(T x, float) {
    return x;
  }
  template <class T>
  static T join(T a, T b) {
    return (a > b) | (a != a) ? a : b;  // NaN counts as the largest; no branch
  }
  static constexpr float start = -std::numeric_limits<float>::infinity();
};
struct Min {
  template <class T>
  static T map(T x, float) {
    return x;
  }
  template <class T>
  static T join(T a, T b) {
    return (a < b) | (a != a) ? a : b;
  }
  static constexpr float start = std::numeric_limits<float>::infinity();
};
struct Multiply {
  template <class T>
  static T map(T x, float) {
    return x;
  }
  template <class T>
  static T join(T a, T b) {
    return a * b;
  }
  static constexpr float start = 1.0f;
};

using Doubles = double __attribute__((vector_size(64)));
using HalfLanes = float __attribute__((vector_size(32)));

// Vectors joined to one number.
template <class R, int count>
double joined(Lanes (&t)[count]) {
  for (int k = count / 2; k > 0; k /= 2)
    for (int i = 0; i < k; ++i) t[i] = R::join(t[i], t[i + k]);
  return static_cast<double>(fold(t[0], [](Lanes a, Lanes b) { return R::join(a, b); }));
}
template <class R, int count>
double joined(Doubles (&t)[count]) {
  for (int k = count / 2; k > 0; k /= 2)
    for (int i = 0; i < k; ++i) t[i] = R::join(t[i], t[i + k]);
  double v[8];
  __builtin_memcpy(v, t, sizeof(v));
  for (int k = 4; k > 0; k /= 2)
    for (int i = 0; i < k; ++i) v[i] = R::join(v[i], v[i + k]);
  return v[0];
}

// Joins groups of `lanes` elements lane by lane, then the lanes.
template <class R, int lanes>
double reduce_lanes(const float* x, int64_t n, float p) {
  if constexpr (std::is_same_v<R, Powers> || std::is_same_v<R, Sizes>) {
    alignas(64) float v[lanes];
    for (float& lane : v) lane = R::start;
    for (int64_t i = 0; i < n; i += lanes) {
#pragma omp simd
      for (int j = 0; j < lanes; ++j) v[j] = R::join(v[j], R::map(x[i + j], p));
    }
    Lanes t[lanes / kLanes];
    __builtin_memcpy(t, v, sizeof(t));
    return joined<R>(t);
  } else {
    // a product of a few elements would overflow in float32
    constexpr bool wide = std::is_same_v<R, Multiply>;
    using V = std::conditional_t<wide, Doubles, Lanes>;
    using X = std::conditional_t<wide, HalfLanes, Lanes>;
    constexpr int width = sizeof(X) / 4, count = lanes / width;
    V t[count];
    unroll<count>(NNL_EACH(k) { t[k] = V{} + R::start; });
    for (int64_t i = 0; i < n; i += lanes)
      unroll<count>(NNL_EACH(k) {
        X some;
        __builtin_memcpy(&some, x + i + k * width, sizeof(some));
        t[k] = R::join(t[k], R::map(__builtin_convertvector(some, V), p));
      });
    return joined<R>(t);
  }
}

// The product of n elements, a multiple of 64, in float32: false where a product on the way is no
// normal number, of which double precision makes more.
inline bool multiply_narrow(const float* x, int64_t n, double& y) {
  Lanes t[4];
  unroll<4>(NNL_EACH(k) { t[k] = all(1.0f); });
  LaneBits least = LaneBits{} + 0x3f800000u;  // size on the way, in bits, which order as numbers do
  for (int64_t i = 0; i < n; i += 64)
    unroll<4>(NNL_EACH(k) {
      t[k] *= load(x + i + k * kLanes);
      const LaneBits size = reinterpret_cast<LaneBits>(t[k]) & 0x7fffffffu;
      least = size < least ? size : least;
    });
  // what is too large once stays so: infinite, or NaN
  const Lanes rest = (t[0] - t[0]) + (t[1] - t[1]) + (t[2] - t[2]) + (t[3] - t[3]);
  const float low = -max_of(-reinterpret_cast<Lanes>(least));
  if (low < std::numeric_limits<float>::min() || sum_of(rest) != 0.0f) return false;
  HalfLanes halves[8];
  __builtin_memcpy(halves, t, sizeof(t));
  Doubles wide[8];
  unroll<8>(NNL_EACH(k) { wide[k] = __builtin_convertvector(halves[k], Doubles); });
  y = joined<Multiply>(wide);
  return true;
}

// Up to a few hundred elements as one value.
template <class R>
double reduce_run(const float* x, int64_t n, float p) {
  int64_t i = 0;
  double total = R::start;
  constexpr bool narrow = std::is_same_v<R, Multiply>;
  if (n >= (narrow ? 64 : 256)) {
    i = n / 64 * 64;
    bool done = false;
    if constexpr (narrow) done = multiply_narrow(x, i, total);
    if (!done) total = reduce_lanes<R, 64>(x, i, p);
  }
  double rest = R::start;
  if (n - i >= 16) {
    const int64_t whole = (n - i) / 16 * 16;
    rest = reduce_lanes<R, 16>(x + i, whole, p);
    i += whole;
  }
  if (i < n) {
    using T = std::conditional_t<std::is_same_v<R, Multiply>, double, float>;
    auto last = static_cast<T>(rest);
    for (; i < n; ++i) last = R::join(last, static_cast<T>(R::map(x[i], p)));
    rest = static_cast<double>(last);
  }
  return R::join(total, rest);
}

}  // namespace nnl
