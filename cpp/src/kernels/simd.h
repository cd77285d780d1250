// SPDX-License-Identifier: Apache-2.0
// Element types of 16 bits, and transcendental functions that the compiler can vectorise.
#pragma once
#ifdef __F16C__
#include <immintrin.h>
#endif

#include <cmath>
#include <cstdint>
#include <cstring>

// Elements of two vectors of 16 floats, or of 8 doubles, by their numbers; the first builtin came
// with gcc 12.
#if defined(__clang__) || __GNUC__ >= 12
#define NNL_SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#define NNL_SHUFFLE_DOUBLES NNL_SHUFFLE
#else
using ElementNumbers = int32_t __attribute__((vector_size(64)));
using DoubleNumbers = int64_t __attribute__((vector_size(64)));
#define NNL_SHUFFLE(a, b, ...) __builtin_shuffle(a, b, ElementNumbers{__VA_ARGS__})
#define NNL_SHUFFLE_DOUBLES(a, b, ...) __builtin_shuffle(a, b, DoubleNumbers{__VA_ARGS__})
#endif

namespace nnl {

inline uint32_t bits(float x) {
  uint32_t u;
  std::memcpy(&u, &x, 4);
  return u;
}
inline float from_bits(uint32_t u) {
  float x;
  std::memcpy(&x, &u, 4);
  return x;
}

// bfloat16: the upper half of a float32. Conversion rounds to nearest, ties to even; NaN stays NaN.
struct bf16 {
  uint16_t value;
};
inline float to_float(bf16 x) { return from_bits(static_cast<uint32_t>(x.value) << 16); }
inline bf16 to_bf16(float x) {
  const uint32_t u = bits(x);
  const uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  const uint32_t nan = (u >> 16) | 0x40u;
  return {static_cast<uint16_t>((u & 0x7fffffffu) > 0x7f800000u ? nan : rounded)};
}

// IEEE half precision.
struct f16 {
  uint16_t value;
};
#ifdef __F16C__
inline float to_float(f16 x) { return _cvtsh_ss(x.value); }
inline f16 to_f16(float x) { return {_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT)}; }
#else
float to_float(f16 x);
f16 to_f16(float x);
#endif

inline float to_float(float x) { return x; }

template <class T>
inline T from_float(float x);
template <>
inline float from_float<float>(float x) {
  return x;
}
template <>
inline bf16 from_float<bf16>(float x) {
  return to_bf16(x);
}
template <>
inline f16 from_float<f16>(float x) {
  return to_f16(x);
}

// n elements to and from float32; n is usually a few hundred, so that both stay in the first cache.
void load(const float* x, float* y, int64_t n);
void load(const bf16* x, float* y, int64_t n);
void load(const f16* x, float* y, int64_t n);
void store(const float* x, float* y, int64_t n);
void store(const float* x, bf16* y, int64_t n);
void store(const float* x, f16* y, int64_t n);

// e^x to about 2 units in the last place, in two factors: p 2^n, and p = 1 + rest. For x of less
// than 2^20.
struct Exp {
  float p, rest;
  int32_t n;
  explicit Exp(float x) {
    constexpr float magic = 12582912.0f;  // 1.5 2^23: what is added to it is rounded to an integer
    const float t = x * 1.44269504088896341f + magic, whole = t - magic;
    float r = x - whole * 0.693145751953125f;  // ln 2 in two parts: exact product, then the rest
    r -= whole * 1.42860682030941723212e-6f;
    p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    rest = p * r * r + r;
    p = rest + 1.0f;
    n = static_cast<int32_t>(bits(t) - bits(magic));
  }
};
inline float power_of_two(int32_t n) { return from_bits(static_cast<uint32_t>(n + 127) << 23); }

// e^x; 0 below -104, inf above 88.73, NaN for NaN.
inline float fast_exp(float x) {
  const Exp e(x < -104.0f ? -104.0f : (x > 89.0f ? 89.0f : x));
  // 2^n in two factors, for results below the smallest normal number and n = 128
  const int32_t half = e.n >> 1;
  const float y = e.p * power_of_two(half) * power_of_two(e.n - half);
  return x != x ? x : y;
}

// (ln(1 + m) - m + m^2 / 2) / m^3 for m in [1/sqrt(2) - 1, sqrt(2) - 1]; a number or a vector of
// them.
template <class F>
inline F log_polynomial(F m) {
  F p = 7.0376836292e-2f * m - 1.1514610310e-1f;
  p = p * m + 1.1676998740e-1f;
  p = p * m - 1.2420140846e-1f;
  p = p * m + 1.4249322787e-1f;
  p = p * m - 1.6668057665e-1f;
  p = p * m + 2.0000714765e-1f;
  p = p * m - 2.4999993993e-1f;
  return p * m + 3.3333331174e-1f;
}

// ln x to about 2 units in the last place; -inf at 0, NaN below and for NaN, inf for inf.
inline float fast_log(float x) {
  const bool tiny = x < 1.17549435e-38f;
  const float scaled = tiny ? x * 8388608.0f : x;  // 2^23: subnormal numbers become normal
  const uint32_t u = bits(scaled);
  int32_t e = static_cast<int32_t>(u >> 23) - 126 - (tiny ? 23 : 0);
  float m = from_bits((u & 0x007fffffu) | 0x3f000000u);  // in [1/2, 1)
  const bool low = m < 0.707106781186547524f;
  e -= low ? 1 : 0;
  m = low ? m + m - 1.0f : m - 1.0f;
  const float z = m * m, fe = static_cast<float>(e);
  float y = log_polynomial(m) * m * z - 2.12194440e-4f * fe - 0.5f * z;
  y = m + y + 0.693359375f * fe;
  y = x == 0.0f ? -INFINITY : y;
  y = x < 0.0f || x != x ? NAN : y;
  return x == INFINITY ? x : y;
}

// e^-|x|, for NaN NaN: 0 beyond 104.
inline float exp_of_minus(float x) {
  const float a = std::fabs(x);
  const Exp e(a > 104.0f ? -104.0f : -a);
  const int32_t half = e.n >> 1;  // in two factors, for results below the smallest normal number
  return e.p * power_of_two(half) * power_of_two(e.n - half);
}

// 1 / (1 + e^-x)
inline float fast_sigmoid(float x) {
  const float e = exp_of_minus(x);
  return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}

// x / (1 + e^-x)
inline float fast_swish(float x) { return x * fast_sigmoid(x); }

// tanh x = t / (t + 2), with t = e^2|x| - 1 of which near 0 nothing cancels.
inline float fast_tanh(float x) {
  const float a = std::fabs(x);
  const Exp e(a > 10.0f ? 20.0f : a + a);  // 1 - 2 e^-20 is 1 by now
  const float scale = power_of_two(e.n), t = e.rest * scale + (scale - 1.0f);
  return std::copysign(t / (t + 2.0f), x);
}

}  // namespace nnl
