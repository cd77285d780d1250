// SPDX-License-Identifier: Apache-2.0
// More functions that the compiler can vectorise, beside those of simd.h: no branches, no calls.
// Errors are about 2 units in the last place, unless a comment says otherwise.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#include "simd.h"

namespace nnl {

inline uint64_t bits(double x) {
  uint64_t u;
  std::memcpy(&u, &x, 8);
  return u;
}
inline double from_bits(uint64_t u) {
  double x;
  std::memcpy(&x, &u, 8);
  return x;
}

// e^x - 1, exact near 0.
inline float fast_expm1(float x) {
  const Exp e(x < -20.0f ? -20.0f : (x > 17.0f ? 17.0f : x));
  const float s = power_of_two(e.n), y = (s - 1.0f) + s * e.rest;
  return x > 17.0f ? fast_exp(x) : (x != x ? x : y);
}

// ln(1 + x), exact near 0: what 1 + x loses by rounding is added to first order.
inline float fast_log1p(float x) {
  const float u = 1.0f + x;
  const float y = fast_log(u) + (x - (u - 1.0f)) / u;
  return u > 3e38f || u <= 0.0f ? fast_log(u) : y;
}

// ln(1 + e^x) without overflow; NaN for NaN. With e = e^-|x|, ln(1 + e) is the logarithm's
// polynomial at e, or at (e - 1) / 2 after ln 2 is taken off, and both are exact.
inline float fast_softplus(float x) {
  const float e = exp_of_minus(x);
  const bool low = e < 0.414213562373095049f;
  const float m = low ? e : 0.5f * e - 0.5f, z = m * m;
  const float y = log_polynomial(m) * m * z - 0.5f * z + m;
  return (x > 0.0f || x != x ? x : 0.0f) + (low ? y : y + 0.693147180559945309f);
}

// Of h = e^|x| / 2: h - 1 / (4 h), by a series where that cancels; h + 1 / (4 h).
inline float half_exp(float a) {
  const Exp e(a > 90.0f ? 90.0f : a);
  return e.p * power_of_two(e.n - 2) * 2.0f;
}
inline float fast_sinh(float x) {
  const float a = std::fabs(x), h = half_exp(a), z = a < 1.0f ? a * a : 1.0f;
  float p = 1.0f / 362880;
  p = p * z + 1.0f / 5040;
  p = p * z + 1.0f / 120;
  p = p * z + 1.0f / 6;
  const float far = h - 0.25f / h;
  return a < 1.0f ? p * z * x + x : (x != x ? x : std::copysign(far, x));
}

inline float fast_cosh(float x) {
  const float h = half_exp(std::fabs(x)), y = h + 0.25f / h;
  return x != x ? x : y;
}

inline float fast_asinh(float x) {
  const float a = std::fabs(x), z = a * a;
  const float near = fast_log1p(a + z / (1.0f + std::sqrt(z + 1.0f)));
  const float far = fast_log(a) + 0.693147180559945309f;
  return std::copysign(a > 1e9f ? far : near, x);
}

inline float fast_acosh(float x) {
  const float t = x - 1.0f;
  const float near = fast_log1p(t + std::sqrt(t * (t + 2.0f)));
  const float far = fast_log(x) + 0.693147180559945309f;
  return x < 1.0f ? NAN : (x > 1e9f ? far : near);
}

inline float fast_atanh(float x) {
  const float a = std::fabs(x);
  return std::copysign(0.5f * fast_log1p(2.0f * a / (1.0f - a)), x);
}

// The polynomials of asin and atan are those of the Cephes library (Moshier).
// asin of s <= 1 / 2, given its square.
inline float asin_near(float s, float z) {
  float p = 4.2163199048e-2f;
  p = p * z + 2.4181311049e-2f;
  p = p * z + 4.5470025998e-2f;
  p = p * z + 7.4953002686e-2f;
  p = p * z + 1.6666752422e-1f;
  return p * z * s + s;
}

inline float fast_asin(float x) {
  const float a = std::fabs(x);
  const bool far = a > 0.5f;
  const float z = far ? 0.5f * (1.0f - a) : a * a, s = far ? std::sqrt(z) : a;
  const float y = asin_near(s, z);
  return std::copysign(far ? 1.57079632679489662f - 2.0f * y : y, x);
}

inline float fast_acos(float x) {
  const float a = std::fabs(x);
  const bool far = a > 0.5f;
  const float z = far ? 0.5f * (1.0f - a) : a * a, s = far ? std::sqrt(z) : a;
  const float y = asin_near(s, z), two = 2.0f * y;
  const float near = 1.57079632679489662f - std::copysign(y, x);
  return far ? (x < 0.0f ? 3.14159265358979324f - two : two) : near;
}

inline float fast_atan(float x) {
  const float a = std::fabs(x);
  const bool far = a > 2.414213562373095f, middle = a > 0.4142135623730950f;
  const float over = far ? -1.0f : (middle ? a - 1.0f : a);
  const float t = over / (far ? a : (middle ? a + 1.0f : 1.0f));
  const float base = far ? 1.57079632679489662f : (middle ? 0.785398163397448310f : 0.0f);
  const float z = t * t;
  float p = 8.05374449538e-2f;
  p = p * z - 1.38776856032e-1f;
  p = p * z + 1.99777106478e-1f;
  p = p * z - 3.33329491539e-1f;
  return std::copysign(base + (p * z * t + t), x);
}

// The angle of (x, y) to the first axis, by the quotient that is at most 1.
inline float fast_atan2(float y, float x) {
  const float a = std::fabs(y), b = std::fabs(x);
  const bool steep = a > b;
  const float high = steep ? a : b, low = steep ? b : a;
  const float ratio = low == high ? (high == 0.0f ? 0.0f : 1.0f) : low / high;  // two infinities
  const float t = fast_atan(ratio);
  const float quarter = steep ? 1.57079632679489662f - t : t;
  const float half = std::copysign(1.0f, x) < 0.0f ? 3.14159265358979324f - quarter : quarter;
  return x != x || y != y ? x + y : std::copysign(half, y);
}

// a * b + c, rounded once.
inline float fused(float a, float b, float c) {
#if defined(__FMA__) || defined(__aarch64__)
  return __builtin_fmaf(a, b, c);
#else
  return static_cast<float>(static_cast<double>(a) * b + c);
#endif
}

// Below this a whole number of quarter turns is taken off exactly enough.
constexpr float angle_limit = 1e6f;

// x = quarter turns * pi / 2 + rest, with the rest's sine and cosine by the polynomials of the
// Cephes library (Moshier). pi / 2 is the sum of three numbers.
struct Angle {
  float sine, cosine;
  int32_t quarter;

  explicit Angle(float x) {
    constexpr float magic = 12582912.0f;  // 1.5 2^23: what is added to it is rounded to an integer
    const float t = fused(x, 0.636619772f, magic), n = t - magic;
    float r = fused(-n, 1.57079637f, x);
    r = fused(-n, -4.37113883e-8f, r);
    r = fused(-n, -1.71512482e-15f, r);
    quarter = static_cast<int32_t>(bits(t));
    const float z = r * r;
    const float p = fused(fused(-1.9515295891e-4f, z, 8.3321608736e-3f), z, -1.6666654611e-1f);
    sine = fused(p * z, r, r);
    const float c =
        fused(fused(2.443315711809948e-5f, z, -1.388731625493765e-3f), z, 4.166664568298827e-2f);
    cosine = fused(c * z, z, fused(-0.5f, z, 1.0f));
  }
};
inline float fast_sin(float x) {
  const Angle a(x);
  const float y = a.quarter & 1 ? a.cosine : a.sine;
  return a.quarter & 2 ? -y : y;
}
inline float fast_cos(float x) {
  const Angle a(x);
  const float y = a.quarter & 1 ? a.sine : a.cosine;
  return (a.quarter + 1) & 2 ? -y : y;
}
// Within 4 units in the last place.
inline float fast_tan(float x) {
  const Angle a(x);
  return (a.quarter & 1 ? -a.cosine : a.sine) / (a.quarter & 1 ? a.sine : a.cosine);
}

// x^y for finite x and y, through double precision. The exponent of x is read from float32, where
// integers are as wide as the numbers: the compiler vectorises no mixture of both here.
inline float fast_pow(float x, float y) {
  const float a = std::fabs(x);
  const float normal = a < 1.17549435e-38f ? a * 8388608.0f : a;  // 2^23
  const uint32_t shift = bits(normal) - 0x3f3504f3u;              // from the square root of 1/2 on
  const int32_t e = static_cast<int32_t>(shift) >> 23;
  const double m = from_bits(bits(normal) - (static_cast<uint32_t>(e) << 23));
  const int32_t exponent = e - (a < 1.17549435e-38f ? 23 : 0);
  // 1 / (m + 1) from a parabola by two steps of Newton's
  const double d = m + 1.0;
  double inverse = (0.116862891 * d - 0.722444113) * d + 1.477755915;
  inverse = inverse * (2.0 - d * inverse);
  inverse = inverse * (2.0 - d * inverse);
  const double s = (m - 1.0) * inverse, z = s * s;
  double p = 1.0 / 11;
  p = p * z + 1.0 / 9;
  p = p * z + 1.0 / 7;
  p = p * z + 1.0 / 5;
  p = p * z + 1.0 / 3;
  const double log2 = static_cast<double>(exponent) + (s + s * z * p) * 2.88539008177792681472;
  double w = log2 * y;  // the power of 2 wanted
  w = w < -160.0 ? -160.0 : (w > 130.0 ? 130.0 : w);
  const double t = w + 6755399441055744.0, n = t - 6755399441055744.0;
  const double r = (w - n) * 0.693147180559945309417;
  double q = 1.0 / 5040;
  q = q * r + 1.0 / 720;
  q = q * r + 1.0 / 120;
  q = q * r + 1.0 / 24;
  q = q * r + 1.0 / 6;
  q = q * r + 0.5;
  q = q * r * r + r + 1.0;
  const float size = static_cast<float>(from_bits(bits(q) + (bits(t) << 52)));
  const float zero = y > 0.0f ? 0.0f : INFINITY;
  const float value = x == 0.0f ? zero : size;
  const float half = 0.5f * y;
  const float whole = std::nearbyint(y) == y ? value : NAN;
  const float odd = std::nearbyint(half) == half ? 1.0f : x;
  const float sign = std::copysign(1.0f, std::nearbyint(y) == y ? odd : 1.0f);
  const float signed_value = (x < 0.0f ? whole : value) * sign;
  const float or_one = y == 0.0f ? 1.0f : signed_value;
  return x == 1.0f ? 1.0f : or_one;
}

// x plus x times a polynomial of x^2, further out 1 - e^-(x + a polynomial of x): least largest
// errors in units in the last place.
inline float fast_erf(float x) {
  const float a = std::fabs(x), t = a < 4.0f ? a : 4.0f, z = a < 0.92f ? a * a : 0.8464f;
  float p = -5.999406567e-4f;
  p = fused(p, z, 4.994830582e-3f);
  p = fused(p, z, -2.676771954e-2f);
  p = fused(p, z, 1.128184572e-1f);
  p = fused(p, z, -3.761249781e-1f);
  p = fused(p, z, 1.283791512e-1f);
  float q = -1.959373330e-4f;
  q = fused(q, t, 3.043218283e-3f);
  q = fused(q, t, -2.222692408e-2f);
  q = fused(q, t, 1.039316058e-1f);
  q = fused(q, t, 6.371822357e-1f);
  q = fused(q, t, 1.276756376e-1f);
  q = fused(q, t, 1.956742635e-4f);
  const Exp e(-t - q);
  const float y = a < 0.92f ? fused(p, a, a) : 1.0f - e.p * power_of_two(e.n);
  return x != x ? x : std::copysign(y, x);
}

// sin x / x, 1 at 0.
inline float fast_sinc(float x) { return x == 0.0f ? 1.0f : fast_sin(x) / x; }

// (cos x - sinc x) / x, by its series near 0 where that cancels.
inline float sinc_slope(float x) {
  const float square = x * x, z = square < 0.25f ? square : 0.25f;
  float s = 1.0f - z * (1.0f / 238.0f);
  s = 1.0f - s * z * (1.0f / 180.0f);
  s = 1.0f - s * z * (1.0f / 130.0f);
  s = 1.0f - s * z * (1.0f / 88.0f);
  s = 1.0f - s * z * (1.0f / 54.0f);
  s = 1.0f - s * z * (1.0f / 28.0f);
  s = 1.0f - s * z * (1.0f / 10.0f);
  const float divisor = x == 0.0f ? 1.0f : x;
  const float far = (fast_cos(x) - fast_sin(x) / divisor) / divisor;
  return std::fabs(x) < 0.5f ? s * x * (-1.0f / 3.0f) : far;
}

// The nearest whole number, halves away from 0.
inline float round_half_away(float x) {
  const float whole = std::trunc(x), rest = x - whole;
  const float step = std::fabs(rest) >= 0.5f ? std::copysign(1.0f, x) : 0.0f;
  return whole + step;
}

}  // namespace nnl
