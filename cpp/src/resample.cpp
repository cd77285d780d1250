// SPDX-License-Identifier: Apache-2.0
// Rows are made first: there a step takes whole lines. Then four floats at a time are one pixel and
// a neighbour's first byte, which nobody looks at.
#include "nnl/resample.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

namespace nnl {
namespace {

constexpr size_t kColours = 3;
using v4 = float __attribute__((vector_size(16)));

// What the new pixels along an axis are made of: `count` old ones from first[i] on, with weights.
struct Taps {
  std::vector<size_t> first;
  std::vector<float> weights;  // (new pixels, count)
  size_t count;
};

// `begin` and `end` in an axis of `size` old pixels become `n` new ones.
Taps make_taps(size_t size, double begin, double end, size_t n) {
  const double scale = (end - begin) / static_cast<double>(n);
  const double reach = std::max(scale, 1.0);
  Taps taps;
  taps.count = std::min(size, static_cast<size_t>(std::ceil(2 * reach)) + 1);
  taps.first.resize(n);
  taps.weights.assign(n * taps.count, 0.0f);
  for (size_t i = 0; i < n; ++i) {
    const double middle = begin + (static_cast<double>(i) + 0.5) * scale;
    const double low = std::floor(middle - reach + 0.5);
    const size_t first = std::min(static_cast<size_t>(std::max(low, 0.0)), size - taps.count);
    float* w = taps.weights.data() + i * taps.count;
    double sum = 0;
    for (size_t k = 0; k < taps.count; ++k) {
      const double away = (static_cast<double>(first + k) + 0.5 - middle) / reach;
      const double weight = std::max(0.0, 1.0 - std::abs(away));
      w[k] = static_cast<float>(weight);
      sum += weight;
    }
    for (size_t k = 0; k < taps.count; ++k) w[k] = static_cast<float>(w[k] / sum);
    taps.first[i] = first;
  }
  return taps;
}

// line = sum over the rows of a new row, n bytes each
void add_rows(const uint8_t* row, size_t row_bytes, const float* weights, size_t count, float* line,
              size_t n) {
  for (size_t k = 0; k < count; ++k, row += row_bytes) {
    const float w = weights[k];
    if (k == 0) {
#pragma omp simd
      for (size_t j = 0; j < n; ++j) line[j] = w * static_cast<float>(row[j]);
    } else if (w != 0) {
#pragma omp simd
      for (size_t j = 0; j < n; ++j) line[j] += w * static_cast<float>(row[j]);
    }
  }
}

}  // namespace

void resample(const Picture& picture, const Box& box, bool mirrored, uint8_t* out, size_t height,
              size_t width) {
  const auto w = static_cast<double>(picture.width), h = static_cast<double>(picture.height);
  if (!(0 <= box.x0 && box.x0 < box.x1 && box.x1 <= w && 0 <= box.y0 && box.y0 < box.y1 &&
        box.y1 <= h && height && width))
    throw ValueError("the box is empty or not inside the picture");
  const Taps rows = make_taps(picture.height, box.y0, box.y1, height);
  const Taps columns = make_taps(picture.width, box.x0, box.x1, width);
  const size_t begin = columns.first.front(), end = columns.first.back() + columns.count;
  std::vector<float> line(kColours * (end - begin) + 1);
  for (size_t y = 0; y < height; ++y) {
    add_rows(picture.pixels + rows.first[y] * picture.row_bytes + kColours * begin,
             picture.row_bytes, &rows.weights[y * rows.count], rows.count, line.data(),
             kColours * (end - begin));
    for (size_t x = 0; x < width; ++x) {
      const float* from = line.data() + kColours * (columns.first[x] - begin);
      const float* weight = &columns.weights[x * columns.count];
      v4 sum = {0.5f, 0.5f, 0.5f, 0.5f};
      for (size_t k = 0; k < columns.count; ++k, from += kColours) {
        v4 pixel;
        std::memcpy(&pixel, from, sizeof pixel);
        sum += weight[k] * pixel;
      }
      uint8_t* to = out + kColours * (y * width + (mirrored ? width - 1 - x : x));
      for (size_t c = 0; c < kColours; ++c)
        to[c] = static_cast<uint8_t>(std::min(static_cast<int>(sum[c]), 255));
    }
  }
}

}  // namespace nnl
