// SPDX-License-Identifier: Apache-2.0
// What nnl.data.images does with bytes and pixels.
#include <nanobind/nanobind.h>
#include <nanobind/stl/tuple.h>

#include "nnl/crc32c.h"
#include "nnl/resample.h"

namespace nb = nanobind;
using namespace nnl;

void bind_pictures(nb::module_& m);

namespace {

// Contiguous memory of a Python object, lent while this lives.
class Memory {
 public:
  Memory(nb::handle x, int flags) {
    if (PyObject_GetBuffer(x.ptr(), &buffer_, flags) < 0) throw nb::python_error();
  }
  ~Memory() { PyBuffer_Release(&buffer_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  uint8_t* data() const { return static_cast<uint8_t*>(buffer_.buf); }
  size_t bytes() const { return static_cast<size_t>(buffer_.len); }
  // The sizes of an array of pixels: height and width.
  std::pair<size_t, size_t> pixels() const {
    if (buffer_.ndim != 3 || buffer_.itemsize != 1 || buffer_.shape[2] != 3)
      throw ValueError("resample: an array is not uint8 (height, width, 3)");
    return {static_cast<size_t>(buffer_.shape[0]), static_cast<size_t>(buffer_.shape[1])};
  }

 private:
  Py_buffer buffer_;
};

uint32_t crc32c_of(nb::handle data) {
  const Memory memory(data, PyBUF_SIMPLE);
  nb::gil_scoped_release unlock;
  return crc32c(memory.data(), memory.bytes());
}

using Region = std::tuple<size_t, size_t, size_t, size_t>;
using Edges = std::tuple<double, double, double, double>;

void resample_of(nb::handle pixels, const Region& region, const Edges& box, bool mirrored,
                 nb::handle out) {
  const Memory from(pixels, PyBUF_C_CONTIGUOUS);
  const Memory to(out, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE);
  const auto [height, width] = from.pixels();
  const auto [new_height, new_width] = to.pixels();
  const auto [left, top, right, bottom] = region;
  if (left >= right || right > width || top >= bottom || bottom > height)
    throw ValueError("resample: the region is empty or not inside the picture");
  const Picture picture{from.data() + 3 * (top * width + left), bottom - top, right - left,
                        3 * width};
  const auto [x0, y0, x1, y1] = box;
  const double x = static_cast<double>(left), y = static_cast<double>(top);
  nb::gil_scoped_release unlock;
  resample(picture, {x0 - x, y0 - y, x1 - x, y1 - y}, mirrored, to.data(), new_height, new_width);
}

}  // namespace

void bind_pictures(nb::module_& m) {
  m.def("crc32c", &crc32c_of);
  m.def("resample", &resample_of);
}
