// SPDX-License-Identifier: Apache-2.0
#include "simd.h"

#include <cstring>

namespace nnl {

#ifndef __F16C__
float to_float(f16 x) {
  const uint32_t sign = static_cast<uint32_t>(x.value & 0x8000u) << 16;
  const uint32_t exponent = (x.value >> 10) & 31u, fraction = x.value & 0x3ffu;
  if (exponent == 31) return from_bits(sign | 0x7f800000u | fraction << 13);
  if (exponent) return from_bits(sign | (exponent + 112) << 23 | fraction << 13);
  const float tiny = static_cast<float>(fraction) * 5.9604644775390625e-8f;  // 2^-24
  return sign ? -tiny : tiny;
}

f16 to_f16(float x) {
  const uint32_t u = bits(x), sign = (u >> 16) & 0x8000u, a = u & 0x7fffffffu;
  if (a > 0x7f800000u) return {static_cast<uint16_t>(sign | 0x7e00u)};
  if (a >= 0x477ff000u) return {static_cast<uint16_t>(sign | 0x7c00u)};  // rounds to infinity
  if (a < 0x38800000u) {  // subnormal: adding 0.5 leaves the rounded fraction in the low bits
    return {static_cast<uint16_t>(sign | (bits(from_bits(a) + 0.5f) - 0x3f000000u))};
  }
  return {static_cast<uint16_t>(sign | ((a + 0xc8000fffu + ((a >> 13) & 1u)) >> 13))};
}
#endif

void load(const float* x, float* y, int64_t n) {
  std::memcpy(y, x, static_cast<size_t>(n) * sizeof(float));
}

void load(const bf16* x, float* y, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) y[i] = to_float(x[i]);
}

void load(const f16* x, float* y, int64_t n) {
  int64_t i = 0;
#ifdef __AVX512F__  // the forms with a mask, because gcc 12 warns of its own header in the others
  for (; i + 16 <= n; i += 16)
    _mm512_storeu_ps(
        y + i,
        _mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + i))));
#endif
  for (; i < n; ++i) y[i] = to_float(x[i]);
}

void store(const float* x, float* y, int64_t n) {
  std::memcpy(y, x, static_cast<size_t>(n) * sizeof(float));
}

void store(const float* x, bf16* y, int64_t n) {
  int64_t i = 0;
#if defined(__AVX512BF16__) && defined(__AVX512DQ__)
  for (; i + 16 <= n; i += 16) {
    const __m512 v = _mm512_loadu_ps(x + i);
    if (_mm512_fpclass_ps_mask(v, 0x20)) {  // subnormal numbers, which the instruction takes for 0
      for (int64_t j = i; j < i + 16; ++j) y[j] = to_bf16(x[j]);
      continue;
    }
    const __m256bh half = _mm512_cvtneps_pbh(v);
    std::memcpy(y + i, &half, sizeof half);
  }
#endif
#pragma omp simd
  for (int64_t j = i; j < n; ++j) y[j] = to_bf16(x[j]);
}

void store(const float* x, f16* y, int64_t n) {
  int64_t i = 0;
#ifdef __AVX512F__
  for (; i + 16 <= n; i += 16)
    _mm256_storeu_si256(
        reinterpret_cast<__m256i*>(y + i),
        _mm512_maskz_cvtps_ph(0xffff, _mm512_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT));
#endif
  for (; i < n; ++i) y[i] = to_f16(x[i]);
}

}  // namespace nnl
