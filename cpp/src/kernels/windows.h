// SPDX-License-Identifier: Apache-2.0
// Maps between images that treat every axis by itself: pooling, unpooling, interpolation.
#pragma once
#include <memory>
#include <vector>

#include "nnl/kernel.h"

namespace nnl {

// One pixel that goes into a pixel of the result; `tap` counts positions in the kernel.
struct AxisTap {
  int64_t at;
  float weight;
  int64_t tap;
};

// What goes into every position of one axis of the result.
struct Axis {
  int64_t from = 0, kernel = 1;  // sizes of the source and of the kernel
  std::vector<std::vector<AxisTap>> to;

  int64_t size() const { return static_cast<int64_t>(to.size()); }
  // The same pairs, listed for every position of the source.
  Axis transposed() const;
};

// Windows of a kernel on one axis of `size` pixels, `out` of them.
Axis window_axis(int64_t size, int64_t out, int64_t kernel, int64_t stride, int64_t pad);

// The pairs of all axes: those of the axes before the last, taken together, for every row of the
// result, and those of the last for every pixel of a row.
class Taps {
 public:
  struct One {
    int64_t at;  // in pixels of the source
    float weight;
    int32_t tap;
  };
  struct List {
    const One *begin, *end;
  };

  Taps() = default;
  explicit Taps(const std::vector<Axis>& axes);
  int64_t rows() const { return static_cast<int64_t>(row_ends_.size()); }
  int64_t columns() const { return static_cast<int64_t>(column_ends_.size()); }
  int64_t source() const { return source_; }  // pixels of a source image
  List row(int64_t i) const { return list(row_taps_, row_ends_, i); }
  List column(int64_t i) const { return list(column_taps_, column_ends_, i); }

 private:
  static List list(const std::vector<One>& taps, const std::vector<size_t>& ends, int64_t i) {
    const auto at = static_cast<size_t>(i);
    return {taps.data() + (at ? ends[at - 1] : 0), taps.data() + ends[at]};
  }
  std::vector<One> row_taps_, column_taps_;
  std::vector<size_t> row_ends_, column_ends_;
  int64_t source_ = 1;
};

// How images lie in memory: `outer` of them, each with its pixels in row-major order and `channels`
// values per pixel. Plain images are all channels of one, kept as planes, which are transposed on
// the way in and out.
struct Images {
  int64_t outer = 1, channels = 1;
  bool planes = false;
};

// Reads how s lies, whose last n axes (those before the channels if channel_last) are pixels, and
// their sizes. False where the layout does not fit.
bool as_images(const Spec& s, size_t n, bool channel_last, Images& images, Shape& size);

// f(image, row, column, first channel, last channel) for every pixel of the result, by all threads.
// `work` is what a pixel costs, in values read.
template <class F>
void for_pixels(const Images& images, const Taps& taps, int64_t work, F f);

enum class Combine { sum, maximum };
// result = sum of weight * source over all taps, or the largest source (weights unused).
std::unique_ptr<Kernel> windows_kernel(const Signature& s, const Images& images, Combine combine,
                                       const std::vector<Axis>& axes);
// dx from (dy, x): every dy goes to the first largest x of its window.
std::unique_ptr<Kernel> maximum_backward_kernel(const Images& images, DType type,
                                                const std::vector<Axis>& axes);
// (x) to (y, arg), and (dy, arg) to dx. arg is int16, the place of the maximum in its window.
std::unique_ptr<Kernel> maximum_arg_kernel(const Images& images, DType type,
                                           const std::vector<Axis>& axes);
std::unique_ptr<Kernel> maximum_scatter_kernel(const Images& images, DType type,
                                               const std::vector<Axis>& axes);

}  // namespace nnl

#include "nnl/threads.h"

namespace nnl {

template <class F>
void for_pixels(const Images& images, const Taps& taps, int64_t work, F f) {
  const int64_t rows = taps.rows(), columns = taps.columns();
  const int64_t pixels = images.outer * rows * columns;
  // few pixels of many channels: channels are shared out too
  const int64_t parts = pixels < 4 * threads() ? (images.channels + 63) / 64 : 1;
  const int64_t width = parts > 1 ? 64 : images.channels;
  const int64_t grain = 1 + (1 << 15) / (work * width + 1);
  parallel_for(pixels * parts, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t pixel = i / parts, first = i % parts * width;
      f(pixel / columns / rows, pixel / columns % rows, pixel % columns, first,
        std::min(first + width, images.channels));
    }
  });
}

}  // namespace nnl
