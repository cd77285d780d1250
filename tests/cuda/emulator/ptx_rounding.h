// SPDX-License-Identifier: Apache-2.0
// Rounding of floating point numbers, as instructions name it.
#pragma once

#include <cfenv>

#include "ptx_code.h"

namespace emu {

// The processor's mode of rounding, for a while. What is computed passes through opaque(), or the
// compiler computes it elsewhere.
class Rounding {
 public:
  explicit Rounding(Round r) : nearest_(r == Round::kNearest) {
    constexpr int modes[] = {FE_TONEAREST, FE_TOWARDZERO, FE_DOWNWARD, FE_UPWARD};
    if (!nearest_) std::fesetround(modes[int(r)]);
  }
  ~Rounding() {
    if (!nearest_) std::fesetround(FE_TONEAREST);
  }
  Rounding(const Rounding&) = delete;

 private:
  bool nearest_;
};

template <class T>
inline T opaque(T x) {
  asm volatile("" : "+m"(x));
  return x;
}

inline constexpr u32 kNaN = 0x7fffffff;  // what float32 instructions give

inline float flushed(float x) {  // subnormal numbers become zeros with their sign
  const u32 b = std::bit_cast<u32>(x);
  return std::bit_cast<float>(b & 0x7f800000 ? b : b & 0x80000000);
}
inline float canonical(float x) { return x == x ? x : std::bit_cast<float>(kNaN); }

// A number with `mantissa` bits behind the point and the exponents of float16 or bfloat16.
template <int mantissa>
u16 rounded_to(double x, Round r) {
  constexpr int exponent_bits = 15 - mantissa, bias = (1 << (exponent_bits - 1)) - 1;
  const u64 bits = std::bit_cast<u64>(x);
  const u16 sign = u16(bits >> 63 << 15);
  const u64 magnitude = bits & ~(1ull << 63);
  constexpr u16 infinity = u16(((1 << exponent_bits) - 1) << mantissa);
  if (magnitude > 0x7ffull << 52) return 0x7fff;
  if (magnitude == 0x7ffull << 52) return sign | infinity;
  if (magnitude == 0) return sign;
  int e = int(magnitude >> 52) - 1023;
  u64 m = magnitude & ((1ull << 52) - 1);
  if (magnitude >> 52) m |= 1ull << 52;  // a subnormal double is below half of everything here
  int drop = 52 - mantissa;
  if (e < 1 - bias) drop += 1 - bias - e, e = -bias;  // subnormal
  if (drop > 62) m = m != 0, drop = 2;                // only that it is not zero counts
  u64 q = m >> drop;
  const u64 rest = m & ((1ull << drop) - 1), half = 1ull << (drop - 1);
  bool up = false;
  switch (r) {
    case Round::kNearest:
      up = rest > half || (rest == half && (q & 1));
      break;
    case Round::kZero:
      break;
    case Round::kDown:
      up = sign && rest;
      break;
    case Round::kUp:
      up = !sign && rest;
      break;
  }
  q += up;
  // q has the leading one for normal numbers: it adds one to the exponent field.
  const u64 field = e == -bias ? q : (u64(e + bias - 1) << mantissa) + q;
  if (field >= infinity) {
    const bool stays =
        r == Round::kZero || (r == Round::kDown && !sign) || (r == Round::kUp && sign);
    return sign | u16(infinity - stays);
  }
  return sign | u16(field);
}
inline Half half_of(double x, Round r = Round::kNearest) { return {rounded_to<10>(x, r)}; }
inline Brain brain_of(double x, Round r = Round::kNearest) { return {rounded_to<7>(x, r)}; }

inline float to_float(Half h) { return float(std::bit_cast<_Float16>(h.bits)); }
inline float to_float(Brain b) { return std::bit_cast<float>(u32(b.bits) << 16); }

}  // namespace emu
