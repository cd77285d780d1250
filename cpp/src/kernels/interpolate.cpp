// SPDX-License-Identifier: Apache-2.0
// Resizing by nearest pixel, linear or cubic interpolation, and its gradient.
#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

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

// The nearest pixels of planes of float32, row by row; backward adds up what a pixel has become.
template <bool backward>
class Nearest : public Kernel {
 public:
  Nearest(const std::vector<Axis>& axes, int64_t planes) : planes_(planes) {
    rows_ = {0};
    for (size_t a = 0; a + 1 < axes.size(); ++a) {
      std::vector<int64_t> next;
      for (const int64_t row : rows_)
        for (const auto& taps : axes[a].to) next.push_back(row * axes[a].from + taps[0].at);
      rows_ = std::move(next);
      source_ *= axes[a].from;
    }
    width_ = axes.back().from;
    for (const auto& taps : axes.back().to) columns_.push_back(static_cast<int32_t>(taps[0].at));
    const int64_t n = out();
    doubled_ = n == 2 * width_;
    for (int64_t i = 0; i < n; ++i)
      doubled_ = doubled_ && columns_[static_cast<size_t>(i)] == static_cast<int32_t>(i / 2);
  }
  size_t workspace() const override { return 0; }
  bool may_overwrite(size_t, size_t) const override { return false; }

  void run(const Buffers& b) override {
    const int64_t big = static_cast<int64_t>(rows_.size()) * out(), small = source_ * width_;
    parallel_for(planes_, 1 + (1 << 14) / (big + 1), [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p) {
        if constexpr (backward)
          back(b.input<float>(0) + p * big, b.output<float>() + p * small);
        else
          forth(b.input<float>(0) + p * small, b.output<float>() + p * big);
      }
    });
  }

 private:
  int64_t out() const { return static_cast<int64_t>(columns_.size()); }

  void forth(const float* x, float* y) const {
    const int64_t n = out();
    for (size_t r = 0; r < rows_.size(); ++r, y += n) {
      if (r && rows_[r] == rows_[r - 1]) {
        std::copy(y - n, y, y);
        continue;
      }
      const float* from = x + rows_[r] * width_;
      if (doubled_)
        for (int64_t i = 0; i < width_; ++i) y[2 * i] = y[2 * i + 1] = from[i];
      else
        for (int64_t i = 0; i < n; ++i) y[i] = from[columns_[static_cast<size_t>(i)]];
    }
  }

  void back(const float* gy, float* gx) const {
    const int64_t n = out();
    std::fill(gx, gx + source_ * width_, 0.0f);
    for (size_t r = 0; r < rows_.size(); ++r, gy += n) {
      float* to = gx + rows_[r] * width_;
      if (doubled_)
        for (int64_t i = 0; i < width_; ++i) to[i] += gy[2 * i] + gy[2 * i + 1];
      else
        for (int64_t i = 0; i < n; ++i) to[columns_[static_cast<size_t>(i)]] += gy[i];
    }
  }

  int64_t planes_, source_ = 1, width_ = 1;
  std::vector<int64_t> rows_;
  std::vector<int32_t> columns_;
  bool doubled_ = false;
};

// By what each pixel of the result is made of along each of the last axes.
template <bool backward>
std::unique_ptr<Kernel> along_axes(const Signature& s, const Images& images,
                                   std::vector<Axis>& axes, bool nearest) {
  const Spec& x = backward ? s.out[0] : s.in[0];
  const bool floats = s.in[0].dtype == DType::f32 && s.out[0].dtype == DType::f32;
  const bool plain = s.in[0].layout == Layout::plain && s.out[0].layout == Layout::plain;
  if (nearest && floats && plain && x.size()) {
    int64_t planes = 1;
    for (size_t i = 0; i + axes.size() < x.shape.size(); ++i) planes *= x.shape[i];
    return std::make_unique<Nearest<backward>>(axes, planes);
  }
  if (backward)
    for (Axis& axis : axes) axis = axis.transposed();
  return windows_kernel(s, images, Combine::sum, axes);
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
  for (size_t i = 0; i < n; ++i) axes.push_back(axis_of(size[i], out[i], settings));
  const bool nearest = !settings.linear && !a.flag("channel_last");
  return along_axes<backward>(s, images, axes, nearest);
}

// ---- as ONNX says it ----

struct OnnxSettings {
  std::string mode, kind, rounding;
  double a;
  bool inside;
};

// In pixels of x. Where no scale is given, it is out / size, and a ratio of whole numbers is
// rounded once.
double position(int64_t i, int64_t size, int64_t out, std::optional<double> scale,
                const std::string& kind) {
  const auto at = static_cast<double>(i), n = static_cast<double>(size);
  const auto m = static_cast<double>(out);
  if (kind == "align_corners") return at * (n - 1) / std::max(m - 1, 1.0);
  if (kind == "pytorch_half_pixel" && out == 1) return 0;
  if (kind == "asymmetric") return scale ? at / *scale : at * n / m;
  const double middle = scale ? (at + 0.5) / *scale : (2 * at + 1) * n / (2 * m);
  return kind == "tf_half_pixel_for_nn" ? middle : middle - 0.5;
}

double rounded(double at, const std::string& how) {
  if (how == "floor") return std::floor(at);
  if (how == "ceil") return std::ceil(at);
  return how == "round_prefer_floor" ? std::ceil(at - 0.5) : std::floor(at + 0.5);
}

// Of the pixels at -1, 0, 1 and 2 for a position after 0: Keys' kernel.
std::array<double, 4> cubic_weights(double part, double a) {
  const auto near = [a](double t) { return ((a + 2) * t - (a + 3)) * t * t + 1; };
  const auto far = [a](double t) { return ((a * t - 5 * a) * t + 8 * a) * t - 4 * a; };
  return {far(part + 1), near(part), near(1 - part), far(2 - part)};
}

Axis onnx_axis(int64_t size, int64_t out, std::optional<double> scale, const OnnxSettings& s) {
  Axis axis;
  axis.from = size;
  axis.to.resize(static_cast<size_t>(out));
  const bool stays = scale ? *scale == 1.0 : size == out;
  for (int64_t i = 0; i < out; ++i) {
    auto& taps = axis.to[static_cast<size_t>(i)];
    const auto tap = [&](double at, double weight) {
      const double inside = std::clamp(at, 0.0, static_cast<double>(size - 1));
      taps.push_back({static_cast<int64_t>(inside), static_cast<float>(weight), 0});
    };
    if (stays) {
      taps.push_back({i, 1.0f, 0});
      continue;
    }
    const double at = position(i, size, out, scale, s.kind);
    const double low = std::floor(at), part = at - low;
    if (s.mode == "nearest") {
      tap(rounded(at, s.rounding), 1);
    } else if (s.mode == "linear") {
      tap(low, 1 - part), tap(low + 1, part);
    } else {
      std::array<double, 4> weights = cubic_weights(part, s.a);
      double sum = 0;
      for (size_t k = 0; k < 4; ++k) {
        const double pixel = low - 1 + static_cast<double>(k);
        if (s.inside && (pixel < 0 || pixel >= static_cast<double>(size))) weights[k] = 0;
        sum += weights[k];
      }
      for (size_t k = 0; k < 4; ++k)
        tap(low - 1 + static_cast<double>(k), s.inside ? weights[k] / sum : weights[k]);
    }
  }
  return axis;
}

template <bool backward>
std::unique_ptr<Kernel> onnx_resize(const Signature& s) {
  const Attributes& a = s.attributes;
  const OnnxSettings settings{a.text("mode"), a.text("coordinate_transformation_mode"),
                              a.text("nearest_mode"), a.number("cubic_coeff_a"),
                              a.integer("exclude_outside") != 0};
  if (settings.kind == "tf_crop_and_resize") return nullptr;  // other functions say it
  const Spec &x = backward ? s.out[0] : s.in[0], &y = backward ? s.in[0] : s.out[0];
  const std::vector<double> scales = a.numbers("scales");
  const size_t rank = x.shape.size();
  size_t first = std::min<size_t>(2, rank ? rank - 1 : 0);  // axes that stay lead
  for (size_t i = first; i-- > 0;)
    if (scales.empty() ? x.shape[i] != y.shape[i] : scales[i] != 1) first = i;
  Images images, other;
  Shape size, out;
  if (!as_images(x, rank - first, false, images, size) ||
      !as_images(y, rank - first, false, other, out) || images.planes != other.planes)
    return nullptr;
  std::vector<Axis> axes;
  for (size_t i = 0; i < size.size(); ++i) {
    const auto scale = scales.empty() ? std::nullopt : std::optional<double>(scales[first + i]);
    axes.push_back(onnx_axis(size[i], out[i], scale, settings));
  }
  return along_axes<backward>(s, images, axes, settings.mode == "nearest");
}

template <std::unique_ptr<Kernel> (*make)(const Signature&)>
std::unique_ptr<Kernel> setup(const Signature& s) {
  if (auto kernel = make(s)) return kernel;
  return converted(s, Convert::halves, make);
}

const Registration registrations[] = {
    {"interpolate", setup<resize<false>>},
    {"interpolate_backward", setup<resize<true>>},
    {"onnx_resize", setup<onnx_resize<false>>},
    {"onnx_resize_backward", setup<onnx_resize<true>>},
};

}  // namespace
}  // namespace nnl
