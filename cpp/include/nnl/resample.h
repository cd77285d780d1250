// SPDX-License-Identifier: Apache-2.0
// A part of a picture, made another size.
#pragma once
#include <cstddef>
#include <cstdint>

#include "nnl/errors.h"

namespace nnl {

// Pixels of three bytes, row by row.
struct Picture {
  const uint8_t* pixels;
  size_t height, width;
  size_t row_bytes;  // from the start of a row to that of the next
};

// In pixels from the left and the upper edge of a picture.
struct Box {
  double x0, y0, x1, y1;
};

// Writes the box, made `height` x `width`, to `out`, row by row without gaps. A new pixel is the
// mean of those under a triangle around its middle, which reaches from the middle of one new pixel
// to that of the next, but at least as far in old ones. Pixels outside the picture do not count.
// ValueError: the box is empty or not inside the picture.
NNL_API void resample(const Picture& picture, const Box& box, bool mirrored, uint8_t* out,
                      size_t height, size_t width);

}  // namespace nnl
