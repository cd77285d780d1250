// SPDX-License-Identifier: Apache-2.0
#include "nnl/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__) && defined(__GNUC__)
#define NNL_INSTRUCTION
#include <immintrin.h>
#endif

namespace nnl {
namespace {

constexpr uint32_t kPolynomial = 0x82F63B78;  // reflected

constexpr std::array<uint32_t, 256> make_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t b = 0; b < 256; ++b) {
    uint32_t p = b;
    for (int bit = 0; bit < 8; ++bit) p = p >> 1 ^ (p & 1 ? kPolynomial : 0);
    table[b] = p;
  }
  return table;
}

constexpr std::array<uint32_t, 256> kTable = make_table();

uint32_t by_table(const uint8_t* p, size_t size, uint32_t r) {
  for (; size; ++p, --size) r = r >> 8 ^ kTable[(r ^ *p) & 0xFF];
  return r;
}

#ifdef NNL_INSTRUCTION
__attribute__((target("sse4.2"))) uint32_t by_instruction(const uint8_t* p, size_t size,
                                                          uint32_t r) {
  uint64_t wide = r, word;
  for (; size >= sizeof word; p += sizeof word, size -= sizeof word) {
    std::memcpy(&word, p, sizeof word);
    wide = _mm_crc32_u64(wide, word);
  }
  return by_table(p, size, static_cast<uint32_t>(wide));
}
#endif

}  // namespace

uint32_t crc32c(const void* data, size_t size) {
  const auto* p = static_cast<const uint8_t*>(data);
#ifdef NNL_INSTRUCTION
  if (__builtin_cpu_supports("sse4.2")) return ~by_instruction(p, size, ~0u);
#endif
  return ~by_table(p, size, ~0u);
}

}  // namespace nnl
