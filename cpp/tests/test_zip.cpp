// SPDX-License-Identifier: Apache-2.0
// What zlib has packed is unpacked; whatever else comes ends in an error, and nothing is overrun.
#include <vector>

#include "../src/zip.h"
#include "check.h"
#include "damage.h"

using namespace nnl;
using namespace nnl::test;

namespace {

// Of zlib, level 9: a block with codes of its own.
const std::string packed(
    "\x9d\xd2\xcb\x0d\xc3\x30\x08\x06\xe0\x7b\xa6\x60\x80\x1e\x8c\x6d\xfc\xe8\x36\x96\x42\xd4"
    "\x48\x96\x5d\x35\x1c\x3a\x7e\x5b\xe1\x2e\xc0\x19\x7d\x02\x7e\xe8\xe7\x60\x70\x30\x0f\x68"
    "\x20\xfc\x16\x90\x47\x13\x78\xf1\x93\x9b\x5c\x70\xca\xc5\xfd\xb8\x41\x1b\xfb\xb7\xc0\x03"
    "\xf6\xc9\x17\x8c\x29\x77\x70\x5b\xff\x51\x34\xd0\x8a\x55\x71\x34\xe0\x12\x8a\xe2\x6a\xc0"
    "\x99\xf2\x1a\x3b\x19\x74\xca\x49\xb5\x27\x83\xa6\x4a\xaa\x83\xa5\x37\x61\x5c\x99\x59\xf6"
    "\x8e\x21\xa8\x4e\x96\xc8\x03\x79\xd5\xc5\x72\x6d\x9f\x71\x65\xee\x2c\x7f\x86\xf5\xff\x69"
    "\xde\xd2\x1d\x5d\xdd\x3e",
    138);

std::string text() {
  std::string out;
  for (int i = 0; i < 12; ++i)
    out += "line " + std::to_string(i * i) +
           " of a text that repeats itself, and then does not: " + std::to_string(i * 7919 % 1000) +
           "\n";
  return out;
}

void good_data_are_unpacked() {
  std::vector<char> out(text().size());
  inflate(packed, out.data(), out.size());
  CHECK(std::string(out.begin(), out.end()) == text());
  CHECK_ERROR(inflate(packed, out.data(), out.size() - 1), "the packed data are damaged");
}

void damaged_data_are_refused() {
  Draw draw;
  int refused = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string bytes = packed;
    if (round % 2) {
      bytes[draw(bytes.size())] ^= static_cast<char>(1 << draw(8));
    } else {
      for (char& c : bytes) c = static_cast<char>(draw(256));
    }
    bytes.resize(draw(4) ? bytes.size() : draw(bytes.size()));
    std::vector<char> out(draw(2) ? text().size() : draw(100));
    try {
      inflate(bytes, out.data(), out.size());
    } catch (const ValueError&) {
      ++refused;
    }
  }
  CHECK(refused > 15000);
}

}  // namespace

int main() {
  good_data_are_unpacked();
  damaged_data_are_refused();
}
