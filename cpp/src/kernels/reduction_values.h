// SPDX-License-Identifier: Apache-2.0
// What the reductions do with the elements.
#pragma once
#include <cmath>
#include <limits>
#include <type_traits>

#include "vector_math.h"

namespace nnl {

// What is done to an element, how two values become one, and what to start from.
struct Sum {
  static float map(float x, float) { return x; }
  template <class T>
  static T join(T a, T b) {
    return a + b;
  }
  static constexpr float start = 0.0f;
};
struct Squares : Sum {
  static float map(float x, float) { return x * x; }
};
struct Sizes : Sum {
  static float map(float x, float) { return std::fabs(x); }
};
struct Powers : Sum {
  static float map(float x, float p) { return fast_pow(std::fabs(x), p); }
};
struct Max {
  static float map(float x, float) { return x; }
  template <class T>
  static T join(T a, T b) {
    return (a > b) | (a != a) ? a : b;  // NaN counts as the largest; no branch
  }
  static constexpr float start = -std::numeric_limits<float>::infinity();
};
struct Min {
  static float map(float x, float) { return x; }
  template <class T>
  static T join(T a, T b) {
    return (a < b) | (a != a) ? a : b;
  }
  static constexpr float start = std::numeric_limits<float>::infinity();
};
struct Multiply {
  static float map(float x, float) { return x; }
  template <class T>
  static T join(T a, T b) {
    return a * b;
  }
  static constexpr float start = 1.0f;
};

// Joins groups of `lanes` elements lane by lane, then the lanes.
template <class R, int lanes, class T>
T reduce_lanes(const float* x, int64_t n, float p) {
  T v[lanes];
  for (T& lane : v) lane = R::start;
  for (int64_t i = 0; i < n; i += lanes) {
#pragma omp simd
    for (int j = 0; j < lanes; ++j) v[j] = R::join(v[j], static_cast<T>(R::map(x[i + j], p)));
  }
  for (int width = lanes / 2; width > 0; width /= 2) {
#pragma omp simd
    for (int j = 0; j < width; ++j) v[j] = R::join(v[j], v[j + width]);
  }
  return v[0];
}

// Up to a few hundred elements as one value.
template <class R>
double reduce_run(const float* x, int64_t n, float p) {
  // a product of a few elements would overflow in float32
  using T = std::conditional_t<std::is_same_v<R, Multiply>, double, float>;
  int64_t i = 0;
  T total = R::start;
  if (n >= 256) {
    i = n / 64 * 64;
    total = reduce_lanes<R, 64, T>(x, i, p);
  }
  T rest = R::start;
  if (n - i >= 16) {
    const int64_t whole = (n - i) / 16 * 16;
    rest = reduce_lanes<R, 16, T>(x + i, whole, p);
    i += whole;
  }
  for (; i < n; ++i) rest = R::join(rest, static_cast<T>(R::map(x[i], p)));
  return R::join(static_cast<double>(total), static_cast<double>(rest));
}

}  // namespace nnl
