// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "check.h"
#include "nnl/crc32.h"

using nnl::crc32;

namespace {

// One bit after the other, as ISO 3309 defines it.
uint32_t by_bits(const uint8_t* p, size_t size, uint32_t before) {
  uint32_t r = ~before;
  for (; size; ++p, --size) {
    r ^= *p;
    for (int bit = 0; bit < 8; ++bit) r = r >> 1 ^ (r & 1 ? 0xEDB88320u : 0);
  }
  return ~r;
}

std::vector<uint8_t> bytes(size_t size) {
  std::vector<uint8_t> x(size);
  uint32_t state = 1;
  for (uint8_t& b : x) b = static_cast<uint8_t>((state = state * 1664525u + 1013904223u) >> 24);
  return x;
}

void the_check_value_is_that_of_the_standard() { CHECK(crc32("123456789", 9) == 0xCBF43926u); }

// Sizes around the 64 and 256 bytes of a step, at every place within a block.
void every_size_and_place_gives_what_the_definition_gives() {
  const std::vector<uint8_t> x = bytes(1200);
  for (size_t size = 0; size <= 1100; ++size) {
    const size_t at = size % 67;
    const uint32_t before = static_cast<uint32_t>(size) * 2654435761u;
    CHECK(crc32(x.data() + at, size, before) == by_bits(x.data() + at, size, before));
  }
}

void parts_one_after_the_other_give_that_of_the_whole() {
  const std::vector<uint8_t> x = bytes(100003);
  for (size_t cut : {size_t{0}, size_t{1}, size_t{255}, size_t{4096}, x.size()}) {
    const uint32_t whole = crc32(x.data(), x.size()), first = crc32(x.data(), cut);
    CHECK(crc32(x.data() + cut, x.size() - cut, first) == whole);
    const uint32_t second = crc32(x.data() + cut, x.size() - cut);
    CHECK(nnl::crc32_joined(first, second, x.size() - cut) == whole);
  }
}

}  // namespace

int main() {
  the_check_value_is_that_of_the_standard();
  every_size_and_place_gives_what_the_definition_gives();
  parts_one_after_the_other_give_that_of_the_whole();
}
