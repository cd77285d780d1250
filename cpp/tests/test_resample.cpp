// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "check.h"
#include "nnl/crc32c.h"
#include "nnl/resample.h"

using nnl::Box;
using nnl::Picture;
using nnl::resample;

namespace {

using Bytes = std::vector<uint8_t>;

Bytes noise(size_t size) {
  Bytes x(size);
  uint32_t state = 1;
  for (uint8_t& b : x) b = static_cast<uint8_t>((state = state * 1664525u + 1013904223u) >> 24);
  return x;
}

Bytes resampled(const Bytes& x, size_t h, size_t w, Box box, bool mirrored, size_t to_h,
                size_t to_w) {
  Bytes y(3 * to_h * to_w);
  resample({x.data(), h, w, 3 * w}, box, mirrored, y.data(), to_h, to_w);
  return y;
}

void the_same_size_is_the_same_picture() {
  const Bytes x = noise(3 * 5 * 7);
  CHECK(resampled(x, 5, 7, {0, 0, 7, 5}, false, 5, 7) == x);
  const Bytes once = resampled(x, 5, 7, {0, 0, 7, 5}, true, 5, 7);
  CHECK(once != x && resampled(once, 5, 7, {0, 0, 7, 5}, true, 5, 7) == x);
}

// Boxes at the edges and smaller than a pixel too.
void one_colour_stays_one() {
  const Bytes x(3 * 40 * 30, 201);
  for (size_t n : {1, 2, 17, 224})
    for (const Box& box : {Box{0, 0, 30, 40}, Box{29.9, 39.9, 30, 40}, Box{0, 0, 0.1, 40}})
      CHECK(resampled(x, 40, 30, box, n % 2, n, n) == Bytes(3 * n * n, 201));
  CHECK(resampled(Bytes(3, 7), 1, 1, {0, 0, 1, 1}, false, 3, 2) == Bytes(18, 7));
}

void half_the_size_is_a_mean_under_triangles() {
  const Bytes x = {0, 0, 0, 80, 80, 80, 160, 160, 160, 240, 240, 240};
  // around 1, reaching 2: pixels at 0.5, 1.5 and 2.5 weigh 3, 3 and 1 sevenths
  const Bytes y = resampled(x, 1, 4, {0, 0, 4, 1}, false, 1, 2);
  CHECK(y[0] == 57 && y[3] == 183);
}

void boxes_outside_are_errors() {
  const Bytes x(3 * 4 * 4);
  for (const Box& box : {Box{-1, 0, 4, 4}, Box{0, 0, 5, 4}, Box{2, 0, 2, 4}, Box{0, 0, 4, 4.5}})
    CHECK_ERROR(resampled(x, 4, 4, box, false, 2, 2), "the box is empty or not inside the picture");
}

void checksums_have_the_check_value() {
  CHECK(nnl::crc32c("123456789", 9) == 0xE3069283u);
  CHECK(nnl::crc32c("", 0) == 0);
}

}  // namespace

int main() {
  the_same_size_is_the_same_picture();
  one_colour_stays_one();
  half_the_size_is_a_mean_under_triangles();
  boxes_outside_are_errors();
  checksums_have_the_check_value();
}
