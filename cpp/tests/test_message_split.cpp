// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <vector>

#include "check.h"
#include "damage.h"
#include "nnl/message_split.h"

namespace {

const std::vector<uint32_t> kPath = {7, 5, 9};

std::string number(uint64_t value) {
  std::string out;
  for (; value > 0x7F; value >>= 7) out += static_cast<char>((value & 0x7F) | 0x80);
  return out + static_cast<char>(value);
}

std::string bytes(uint32_t field, const std::string& content) {
  return number(field << 3 | 2) + number(content.size()) + content;
}

nnl::Split split(const std::string& x) {
  return nnl::split_message({reinterpret_cast<const uint8_t*>(x.data()), -1, 0, x.size()}, kPath);
}

const std::string kShort(10, 's'), kLong(1000, 'l'), kHead = "\x08\x03";

std::string model(const std::vector<std::string>& tensors) {
  std::string graph = bytes(1, kLong);
  for (const std::string& t : tensors) graph += bytes(5, t);
  return kHead + bytes(7, graph) + bytes(7, "");
}

void long_strings_are_taken_out() {
  const std::string x = model({kHead + bytes(9, kLong) + kHead, bytes(9, kShort), bytes(9, kLong)});
  const nnl::Split found = split(x);
  CHECK(found.rest == model({kHead + kHead, bytes(9, kShort), ""}));
  CHECK(found.runs.size() == 2 && found.runs[0].index == 0 && found.runs[1].index == 2);
  for (const nnl::Split::Run& run : found.runs)
    CHECK(x.substr(run.begin, run.end - run.begin) == kLong);
}

void all_others_stay() {
  for (const std::string& x :
       {std::string(), model({}), model({bytes(9, kLong) + bytes(9, kLong)}),
        model({bytes(8, kLong)}), model({bytes(9, kLong) + number(9 << 3 | 5) + "abcd"})}) {
    CHECK(split(x).rest == x);
    CHECK(split(x).runs.empty());
  }
}

void what_does_not_fit_is_an_error() {
  CHECK_ERROR(split(bytes(7, kLong).substr(0, 900)), "field 7 at byte 0 has 1000 bytes");
  CHECK_ERROR(split(std::string(11, '\xff')), "a number at byte 0 does not end");
  CHECK_ERROR(split("\x08\x80"), "a number at byte 0 does not end");
  CHECK_ERROR(split("\x0b"), "wire type 3 at byte 0");
  CHECK_ERROR(split(std::string("\0\0", 2)), "field number 0 at byte 0");
  CHECK_ERROR(split("\x09\x01"), "field 1 at byte 0 has 8 bytes");
  CHECK_ERROR(split("\x0a" + number(~uint64_t{0})), "its message ends at byte");
}

// What the sanitizers watch.
void any_bytes_are_split_or_an_error() {
  const std::string good = model({kHead + bytes(9, kLong), bytes(9, kShort)});
  nnl::test::Draw any;
  int read = 0;
  for (int round = 0; round < 50000; ++round) {
    std::string x = good;
    for (size_t k = 0; k <= any(4); ++k) {
      const size_t at = any(4) ? 1000 + any(30) : any(x.size());
      x[at] = static_cast<char>(any(2) ? any(256) : x[at] ^ (1 << any(8)));
    }
    if (any(8) == 0) x.resize(any(x.size()));
    try {
      const nnl::Split found = split(x);
      for (const nnl::Split::Run& run : found.runs)
        CHECK(run.begin < run.end && run.end <= x.size());
      ++read;
    } catch (const nnl::ValueError&) {
    }
  }
  CHECK(read > 1000);
}

}  // namespace

int main() {
  long_strings_are_taken_out();
  all_others_stay();
  what_does_not_fit_is_an_error();
  any_bytes_are_split_or_an_error();
}
