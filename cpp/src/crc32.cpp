// SPDX-License-Identifier: Apache-2.0
// CRC-32 by carry-less multiplication, where the processor has it, or by tables.
//
// A message is a polynomial over GF(2), its CRC-32 the remainder modulo P. A block of 128 bits that
// lies d bits before another one may be added to it once it is multiplied by x^d modulo P: so the
// message is folded into ever fewer blocks. Source: Gopal et al., Fast CRC Computation for Generic
// Polynomials Using PCLMULQDQ Instruction, Intel 2009.
#include "nnl/crc32.h"

#include <array>

#if defined(__x86_64__) && defined(__GNUC__)
#define NNL_CARRYLESS
#include <immintrin.h>
#endif

namespace nnl {
namespace {

constexpr uint32_t kPolynomial = 0xEDB88320;  // P without x^32; the lowest bit is x^31

// x p modulo P
constexpr uint32_t times_x(uint32_t p) { return p >> 1 ^ (p & 1 ? kPolynomial : 0); }

// x^n modulo P
constexpr uint32_t power_of_x(int n) {
  uint32_t p = 0x80000000;
  for (int i = 0; i < n; ++i) p = times_x(p);
  return p;
}

// a b modulo P
uint32_t product(uint32_t a, uint32_t b) {
  uint32_t p = 0;
  for (; a; a <<= 1, b = times_x(b))
    if (a & 0x80000000) p ^= b;
  return p;
}

// table[k][b] is the remainder of the byte b with k bytes of zeros after it.
using Tables = std::array<std::array<uint32_t, 256>, 8>;

constexpr Tables make_tables() {
  Tables t{};
  for (uint32_t b = 0; b < 256; ++b) {
    uint32_t p = b;
    for (int bit = 0; bit < 8; ++bit) p = times_x(p);
    t[0][b] = p;
  }
  for (size_t k = 1; k < t.size(); ++k)
    for (size_t b = 0; b < 256; ++b) t[k][b] = t[k - 1][b] >> 8 ^ t[0][t[k - 1][b] & 0xFF];
  return t;
}

constexpr Tables kTables = make_tables();

// The remainder `r` of what came before, and of eight bytes at a time after it.
uint32_t by_tables(const uint8_t* p, size_t size, uint32_t r) {
  for (; size >= 8; p += 8, size -= 8) {
    uint32_t next = 0;
    for (size_t i = 0; i < 8; ++i) next ^= kTables[7 - i][p[i] ^ (i < 4 ? r >> (8 * i) & 0xFF : 0)];
    r = next;
  }
  for (; size; ++p, --size) r = r >> 8 ^ kTables[0][(r ^ *p) & 0xFF];
  return r;
}

#ifdef NNL_CARRYLESS
#define NNL_NARROW __attribute__((target("pclmul,sse2")))
#define NNL_WIDE __attribute__((target("vpclmulqdq,avx512f")))

// What carries the two halves of a block over `bits` bits; the half that comes first lies 64 bits
// further. With the lowest power in the highest bit, a product of two halves, which is 127 bits
// long, reads as one power too high: hence one less.
NNL_NARROW inline __m128i factors(int bits) {
  return _mm_set_epi64x(static_cast<int64_t>(power_of_x(bits - 1)) << 32,
                        static_cast<int64_t>(power_of_x(bits + 63)) << 32);
}

NNL_NARROW inline __m128i load(const uint8_t* p) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}

NNL_NARROW inline __m128i fold(__m128i block, __m128i by, __m128i onto) {
  const __m128i first = _mm_clmulepi64_si128(block, by, 0x00);
  const __m128i second = _mm_clmulepi64_si128(block, by, 0x11);
  return _mm_xor_si128(_mm_xor_si128(first, second), onto);
}

constexpr size_t kBlock = 16, kStep = 4 * kBlock;  // bytes

// At least kStep bytes.
NNL_NARROW uint32_t by_blocks(const uint8_t* p, size_t size, uint32_t r) {
  static const __m128i over_step = factors(8 * kStep), over_block = factors(8 * kBlock);
  __m128i a = _mm_xor_si128(load(p), _mm_cvtsi32_si128(static_cast<int>(r)));
  __m128i b = load(p + kBlock), c = load(p + 2 * kBlock), d = load(p + 3 * kBlock);
  for (p += kStep, size -= kStep; size >= kStep; p += kStep, size -= kStep) {
    a = fold(a, over_step, load(p));
    b = fold(b, over_step, load(p + kBlock));
    c = fold(c, over_step, load(p + 2 * kBlock));
    d = fold(d, over_step, load(p + 3 * kBlock));
  }
  a = fold(fold(fold(a, over_block, b), over_block, c), over_block, d);
  for (; size >= kBlock; p += kBlock, size -= kBlock) a = fold(a, over_block, load(p));
  alignas(kBlock) uint8_t left[kBlock];
  _mm_store_si128(reinterpret_cast<__m128i*>(left), a);
  return by_tables(p, size, by_tables(left, kBlock, 0));
}

NNL_WIDE inline __m512i fold(__m512i blocks, __m512i by, const uint8_t* onto) {
  const __m512i first = _mm512_clmulepi64_epi128(blocks, by, 0x00);
  const __m512i second = _mm512_clmulepi64_epi128(blocks, by, 0x11);
  return _mm512_ternarylogic_epi64(first, second, _mm512_loadu_si512(onto), 0x96);  // xor of all
}

constexpr size_t kWide = 4 * kBlock, kWideStep = 4 * kWide;  // bytes

// The same with four blocks in a register, four times as fast. At least kWideStep bytes.
NNL_WIDE uint32_t by_wide_blocks(const uint8_t* p, size_t size, uint32_t r) {
  static const __m512i over_step = _mm512_maskz_broadcast_i32x4(0xFFFF, factors(8 * kWideStep));
  __m512i a = _mm512_xor_si512(_mm512_loadu_si512(p),
                               _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(r))));
  __m512i b = _mm512_loadu_si512(p + kWide), c = _mm512_loadu_si512(p + 2 * kWide),
          d = _mm512_loadu_si512(p + 3 * kWide);
  for (p += kWideStep, size -= kWideStep; size >= kWideStep; p += kWideStep, size -= kWideStep) {
    a = fold(a, over_step, p);
    b = fold(b, over_step, p + kWide);
    c = fold(c, over_step, p + 2 * kWide);
    d = fold(d, over_step, p + 3 * kWide);
  }
  alignas(kWide) uint8_t left[kWideStep];
  _mm512_store_si512(left, a);
  _mm512_store_si512(left + kWide, b);
  _mm512_store_si512(left + 2 * kWide, c);
  _mm512_store_si512(left + 3 * kWide, d);
  r = by_blocks(left, kWideStep, 0);
  return size >= kStep ? by_blocks(p, size, r) : by_tables(p, size, r);
}
#undef NNL_NARROW
#undef NNL_WIDE

bool has_blocks() {
  static const bool has = __builtin_cpu_supports("pclmul");
  return has;
}

bool has_wide_blocks() {
  static const bool has =
      __builtin_cpu_supports("vpclmulqdq") && __builtin_cpu_supports("avx512f") && has_blocks();
  return has;
}
#endif

}  // namespace

uint32_t crc32(const void* data, size_t size, uint32_t before) {
  const auto* p = static_cast<const uint8_t*>(data);
#ifdef NNL_CARRYLESS
  if (size >= kWideStep && has_wide_blocks()) return ~by_wide_blocks(p, size, ~before);
  if (size >= kStep && has_blocks()) return ~by_blocks(p, size, ~before);
#endif
  return ~by_tables(p, size, ~before);
}

// Bytes of zeros after a message multiply it by a power of x; what stands in their place is added.
uint32_t crc32_joined(uint32_t first, uint32_t second, uint64_t size) {
  uint32_t power = power_of_x(8);
  for (; size; size >>= 1, power = product(power, power))
    if (size & 1) first = product(first, power);
  return first ^ second;
}

}  // namespace nnl
