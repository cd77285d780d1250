// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <cstdio>
#include <vector>

#include "check.h"
#include "nnl/crc32.h"
#include "nnl/read.h"
#include "nnl/threads.h"

namespace {

constexpr size_t kSize = 11 * (size_t{1} << 20) + 77;  // some parts, and no whole number of them

uint32_t read(int file, uint64_t offset, const std::vector<nnl::Span>& spans, bool checked) {
  return nnl::Reading(file, offset, spans, checked).wait();
}

std::vector<uint8_t> content() {
  std::vector<uint8_t> x(kSize);
  for (size_t i = 0; i < kSize; ++i) x[i] = static_cast<uint8_t>(i * 2654435761u >> 13);
  return x;
}

void spans_get_their_bytes_and_gaps_count_for_the_checksum() {
  const std::vector<uint8_t> x = content();
  std::FILE* file = std::tmpfile();
  CHECK(file && std::fwrite(x.data(), 1, kSize, file) == kSize && !std::fflush(file));
  const int fd = ::fileno(file);
  std::vector<uint8_t> a(5), b(kSize - 5 - 6000000);
  const std::vector<nnl::Span> spans = {
      {a.data(), a.size()}, {nullptr, 6000000}, {nullptr, 0}, {b.data(), b.size()}};
  for (bool checked : {true, false}) {
    std::fill(a.begin(), a.end(), 0);
    std::fill(b.begin(), b.end(), 0);
    const uint32_t found = read(fd, 0, spans, checked);
    CHECK(found == (checked ? nnl::crc32(x.data(), kSize) : 0));
    CHECK(std::equal(a.begin(), a.end(), x.begin()));
    CHECK(std::equal(b.begin(), b.end(), x.begin() + 5 + 6000000));
  }
  CHECK_ERROR(read(fd, 1, spans, true), "ends 1 bytes too early");
  std::fclose(file);
  CHECK_ERROR(read(-1, 0, spans, true), "cannot be read");
}

// Some of them are read elsewhere first, see read.cpp.
void every_place_within_a_page_gets_the_same() {
  const std::vector<uint8_t> x = content();
  std::FILE* file = std::tmpfile();
  CHECK(file && std::fwrite(x.data(), 1, kSize, file) == kSize && !std::fflush(file));
  std::vector<uint8_t> y((size_t{1} << 20) + 6000);
  for (size_t from : {0, 3, 70})
    for (size_t to = 0; to < 200; ++to) {
      const size_t n = to % 50 ? 5000 : (size_t{1} << 20) + 5000;
      std::fill(y.begin(), y.end(), 0);
      const std::vector<nnl::Span> spans = {{y.data() + to, n}};
      CHECK(read(::fileno(file), from, spans, true) == nnl::crc32(x.data() + from, n));
      CHECK(std::equal(y.begin() + to, y.begin() + to + n, x.begin() + from));
      CHECK(to == 0 || y[to - 1] == 0);
      CHECK(y[to + n] == 0);
    }
  std::fclose(file);
}

void a_file_may_be_closed_and_a_reading_forgotten() {
  const std::vector<uint8_t> x = content();
  std::FILE* file = std::tmpfile();
  CHECK(file && std::fwrite(x.data(), 1, kSize, file) == kSize && !std::fflush(file));
  std::vector<uint8_t> y(kSize), z(kSize);
  nnl::Reading kept(::fileno(file), 0, {{y.data(), kSize}}, true);
  {
    nnl::Reading forgotten(::fileno(file), 0, {{z.data(), kSize}}, true);
  }
  std::fclose(file);
  for (int again = 0; again < 2; ++again) CHECK(kept.wait() == nnl::crc32(x.data(), kSize));
  CHECK(x == y);
}

}  // namespace

int main() {
  nnl::set_threads(4);
  spans_get_their_bytes_and_gaps_count_for_the_checksum();
  every_place_within_a_page_gets_the_same();
  a_file_may_be_closed_and_a_reading_forgotten();
}
