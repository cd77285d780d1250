// SPDX-License-Identifier: Apache-2.0
// Resizing by nearest pixel or linear interpolation, and its gradient.
#include <algorithm>
#include <cmath>

#include "converted.h"
#include "windows.h"

namespace nnl {
namespace {

struct Settings {
  bool linear, align, half, half_nearest;
};

// Which pixels every pixel of the result is made of. Positions are computed in double: float would
// round some to the pixel before.
Axis axis_of(int64_t size, int64_t out, const Settings& s) {
  Axis axis;
  axis.from = size;
  axis.to.resize(static_cast<size_t>(out));
  for (int64_t i = 0; i < out; ++i) {
    auto& taps = axis.to[static_cast<size_t>(i)];
    if (size == out) {
      taps.push_back({i, 1.0f, 0});
      continue;
    }
    if (!s.linear && s.half_nearest) {
      taps.push_back({(2 * i + 1) * size / (2 * out), 1.0f, 0});
      continue;
    }
    const auto at_i = static_cast<double>(i), n = static_cast<double>(size);
    const auto m = static_cast<double>(out);
    double at = 0.0;
    if (out > 1) {
      if (s.align)
        at = at_i * (n - 1.0) / (m - 1.0);
      else if (s.half)
        at = std::max((2.0 * at_i + 1.0) * n / (2.0 * m) - 0.5, 0.0);
      else
        at = at_i * n / m;
    }
    const int64_t low = std::min(static_cast<int64_t>(at), size - 1);
    if (!s.linear) {
      taps.push_back({low, 1.0f, 0});
      continue;
    }
    const double part = at - static_cast<double>(low);
    taps.push_back({low, static_cast<float>(1.0 - part), 0});
    taps.push_back({std::min(low + 1, size - 1), static_cast<float>(part), 0});
  }
  return axis;
}

// The resizing of `small` to `big`; backward goes the other way.
template <bool backward>
std::unique_ptr<Kernel> resize(const Signature& s) {
  const Attributes& a = s.attributes;
  const Spec &x = backward ? s.out[0] : s.in[0], &y = backward ? s.in[0] : s.out[0];
  const size_t n = a.integers("output_size").size();
  Images images, other;
  Shape size, out;
  if (!as_images(x, n, a.flag("channel_last"), images, size) ||
      !as_images(y, n, a.flag("channel_last"), other, out) || images.planes != other.planes)
    return nullptr;
  const Settings settings{a.text("mode") == "linear", a.flag("align_corners"), a.flag("half_pixel"),
                          a.flag("half_pixel_for_nn")};
  std::vector<Axis> axes;
  for (size_t i = 0; i < n; ++i) {
    axes.push_back(axis_of(size[i], out[i], settings));
    if (backward) axes.back() = axes.back().transposed();
  }
  return windows_kernel(s, images, Combine::sum, axes);
}

template <bool backward>
std::unique_ptr<Kernel> setup(const Signature& s) {
  if (auto kernel = resize<backward>(s)) return kernel;
  return converted(s, Convert::halves, resize<backward>);
}

const Registration registrations[] = {
    {"interpolate", setup<false>},
    {"interpolate_backward", setup<true>},
};

}  // namespace
}  // namespace nnl
