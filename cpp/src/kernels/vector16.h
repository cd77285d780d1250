// SPDX-License-Identifier: Apache-2.0
// 16 floats at a time, by the compiler's own vectors: loops over arrays of them stay in registers,
// which loops over arrays of float do not.
#pragma once
#include <cstring>
#include <utility>

#include "simd.h"

namespace nnl {

using v16 = float __attribute__((vector_size(64)));
using i16x = int32_t __attribute__((vector_size(64)));
using u16x = uint32_t __attribute__((vector_size(64)));

// Results come by reference: returning such vectors changes the calling convention on processors
// without AVX-512.
inline void load16(const float* p, v16& v) { std::memcpy(&v, p, 64); }
inline void load16(const bf16* p, v16& v) {
  uint16_t __attribute__((vector_size(32))) half;
  std::memcpy(&half, p, 32);
  const u16x wide = __builtin_convertvector(half, u16x) << 16;
  std::memcpy(&v, &wide, 64);
}
inline void store16(float* p, const v16& v) { std::memcpy(p, &v, 64); }
inline void store16(bf16* p, const v16& v) {
  u16x u;
  std::memcpy(&u, &v, 64);
  const u16x rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  const u16x nan = (u >> 16) | 0x40u;
  const u16x wide = (u & 0x7fffffffu) > 0x7f800000u ? nan : rounded;
  using u16h = uint16_t __attribute__((vector_size(32)));
  const u16h half = __builtin_convertvector(wide, u16h);
  std::memcpy(p, &half, 32);
}

inline void load16(const int16_t* p, i16x& v) {
  int16_t __attribute__((vector_size(32))) half;
  std::memcpy(&half, p, 32);
  v = __builtin_convertvector(half, i16x);
}
inline void store16(int16_t* p, const i16x& v) {
  using i16h = int16_t __attribute__((vector_size(32)));
  const i16h half = __builtin_convertvector(v, i16h);
  std::memcpy(p, &half, 32);
}

// The first n < 16 of them; the others read as 0.
template <class T, class V>
inline void load_some(const T* p, int64_t n, V& v) {
  T buffer[16] = {};
  std::memcpy(buffer, p, static_cast<size_t>(n) * sizeof(T));
  load16(buffer, v);
}
template <class T, class V>
inline void store_some(T* p, int64_t n, const V& v) {
  T buffer[16];
  store16(buffer, v);
  std::memcpy(p, buffer, static_cast<size_t>(n) * sizeof(T));
}

// Rows become columns: 4 rounds that exchange elements at distance 1, 2, 4 and 8.
template <int distance, int... j>
inline void exchange(v16* rows, std::integer_sequence<int, j...>) {
  for (int i = 0; i < 16; ++i) {
    if (i & distance) continue;
    const v16 a = rows[i], b = rows[i + distance];
    rows[i] = NNL_SHUFFLE(a, b, (j & distance ? 16 + j - distance : j)...);
    rows[i + distance] = NNL_SHUFFLE(a, b, (j & distance ? 16 + j : j + distance)...);
  }
}

inline void transpose16(v16* rows) {
  v16 r[16];
  for (int i = 0; i < 16; ++i) r[i] = rows[i];
  const std::make_integer_sequence<int, 16> columns;
  exchange<1>(r, columns);
  exchange<2>(r, columns);
  exchange<4>(r, columns);
  exchange<8>(r, columns);
  for (int i = 0; i < 16; ++i) rows[i] = r[i];
}

// K vectors from p on; where `part`, K is 1 and only n values are there.
template <int K, bool part, class T, class V>
inline void load_block(const T* p, int64_t n, V (&v)[K]) {
  if constexpr (part)
    load_some(p, n, v[0]);
  else
    for (int k = 0; k < K; ++k) load16(p + 16 * k, v[k]);
}
template <int K, bool part, class T, class V>
inline void store_block(T* p, int64_t n, const V (&v)[K]) {
  if constexpr (part)
    store_some(p, n, v[0]);
  else
    for (int k = 0; k < K; ++k) store16(p + 16 * k, v[k]);
}

template <int K>
struct Wide {
  static constexpr int vectors = K;
  static constexpr bool part = false;
};
struct Part {
  static constexpr int vectors = 1;
  static constexpr bool part = true;
};

// f(kind, first channel, how many) in blocks of 64, 16 and what is left of [begin, end).
template <class F>
inline void for_blocks(int64_t begin, int64_t end, F&& f) {
  int64_t c = begin;
  for (; c + 64 <= end; c += 64) f(Wide<4>{}, c, 64);
  for (; c + 16 <= end; c += 16) f(Wide<1>{}, c, 16);
  if (c < end) f(Part{}, c, end - c);
}

}  // namespace nnl
