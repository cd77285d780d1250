// SPDX-License-Identifier: Apache-2.0
// Pooling, its gradients, and unpooling.
//
// Ops without a definition in Python, emitted by plans:
//
//   max_pooling_arg(x) -> y, arg             max_pooling that remembers where the maxima are.
//   max_pooling_arg_backward(dy, arg) -> dx  Its gradient, without reading x again.
//       Attributes of max_pooling. arg is int16 with the shape and layout of y; what it holds is
//       known to these two ops only.
#include <algorithm>

#include "converted.h"
#include "pooling_bytes.h"
#include "windows.h"

namespace nnl {
namespace {

bool channel_last_of(const Attributes& a) {
  return a.has("channel_last") && a.flag("channel_last");
}

bool all_of_type(const Signature& s, DType type) {
  for (size_t i = 0; i < s.in.size(); ++i)
    if (s.given(i) && s.in[i].dtype != type) return false;
  for (const Spec& spec : s.out)
    if (spec.dtype != type) return false;
  return true;
}

// Kernels are for one type; half types that are mixed run in float32.
template <Setup make>
std::unique_ptr<Kernel> setup(const Signature& s) {
  if (all_of_type(s, DType::f32) || all_of_type(s, DType::bf16)) return make(s);
  return converted(s, Convert::halves, setup<make>);
}

// For ops that have an integer array as well: as they are, else in float32.
template <Setup make>
std::unique_ptr<Kernel> converted_or(const Signature& s) {
  if (auto kernel = make(s)) return kernel;
  return converted(s, Convert::halves, make);
}

// The order of an image of one pixel is that of the other array.
Layout order(const Spec& s, const Spec& other, bool channel_last) {
  const bool one_pixel = s.rank() > 2 && !channel_last && s.size() == s.shape[0] * s.shape[1];
  return one_pixel ? other.layout : s.layout;
}

// The windows of pooling x to y along every axis.
bool read(const Attributes& a, Spec x, Spec y, Images& images, std::vector<Axis>& axes) {
  const Layout of_x = order(x, y, channel_last_of(a));
  y.layout = order(y, x, channel_last_of(a)), x.layout = of_x;
  const auto &kernel = a.integers("kernel"), &stride = a.integers("stride"),
             &pad = a.integers("pad");
  Shape size, out;
  Images other;
  if (!as_images(x, kernel.size(), channel_last_of(a), images, size) ||
      !as_images(y, kernel.size(), channel_last_of(a), other, out) || images.planes != other.planes)
    return false;
  for (size_t i = 0; i < size.size(); ++i)
    axes.push_back(window_axis(size[i], out[i], kernel[i], stride[i], pad[i]));
  return true;
}

// Every window's sum becomes a mean; `with_pad` counts the pixels of the padding.
void weigh(const Attributes& a, bool with_pad, std::vector<Axis>& axes) {
  const auto &stride = a.integers("stride"), &pad = a.integers("pad");
  for (size_t i = 0; i < axes.size(); ++i)
    for (size_t j = 0; j < axes[i].to.size(); ++j) {
      const int64_t start = static_cast<int64_t>(j) * stride[i] - pad[i];
      const int64_t before = with_pad ? -pad[i] : 0;
      const int64_t after = axes[i].from + (with_pad ? pad[i] : 0);
      const int64_t n = std::min(start + axes[i].kernel, after) - std::max(start, before);
      for (AxisTap& tap : axes[i].to[j]) tap.weight = 1.0f / static_cast<float>(n);
    }
}

std::vector<Axis> transposed(const std::vector<Axis>& axes) {
  std::vector<Axis> t;
  for (const Axis& axis : axes) t.push_back(axis.transposed());
  return t;
}

template <Combine combine, bool mean>
std::unique_ptr<Kernel> pool(const Signature& s) {
  Images images;
  std::vector<Axis> axes;
  if (!read(s.attributes, s.in[0], s.out[0], images, axes)) return nullptr;
  if (mean) weigh(s.attributes, s.attributes.flag("including_pad"), axes);
  return windows_kernel(s, images, combine, axes);
}

template <bool mean>
std::unique_ptr<Kernel> spread(const Signature& s) {
  Images images;
  std::vector<Axis> axes;
  if (!read(s.attributes, s.out[0], s.in[0], images, axes)) return nullptr;
  if (mean) weigh(s.attributes, s.attributes.flag("including_pad"), axes);
  return windows_kernel(s, images, Combine::sum, transposed(axes));
}

std::unique_ptr<Kernel> max_backward(const Signature& s) {
  Images images;
  std::vector<Axis> axes;
  if (s.in[1].layout != s.out[0].layout || !read(s.attributes, s.in[1], s.in[0], images, axes))
    return nullptr;
  return maximum_backward_kernel(images, s.in[0].dtype, axes);
}

std::unique_ptr<Kernel> max_arg(const Signature& s) {
  Images images;
  std::vector<Axis> axes;
  if (s.in[0].dtype != s.out[0].dtype || s.out[1].dtype != DType::i16 ||
      !read(s.attributes, s.in[0], s.out[0], images, axes))
    return nullptr;
  return maximum_arg_kernel(images, s.in[0].dtype, axes);
}

std::unique_ptr<Kernel> max_arg_backward(const Signature& s) {
  Images images;
  std::vector<Axis> axes;
  if (s.in[0].dtype != s.out[0].dtype || s.in[1].dtype != DType::i16 ||
      !read(s.attributes, s.out[0], s.in[0], images, axes))
    return nullptr;
  return maximum_scatter_kernel(images, s.in[0].dtype, axes);
}

std::unique_ptr<Kernel> unpool(const Signature& s) {
  const auto& kernel = s.attributes.integers("kernel");
  Images images, other;
  Shape size, big;
  if (!as_images(s.in[0], kernel.size(), channel_last_of(s.attributes), images, size) ||
      !as_images(s.out[0], kernel.size(), channel_last_of(s.attributes), other, big) ||
      images.planes != other.planes)
    return nullptr;
  std::vector<Axis> axes;
  for (size_t i = 0; i < size.size(); ++i)
    axes.push_back(window_axis(big[i], size[i], kernel[i], kernel[i], 0).transposed());
  return windows_kernel(s, images, Combine::sum, axes);
}

std::unique_ptr<Kernel> largest(const Signature& s) {
  const DType type = s.in[0].dtype;
  if (is_byte(type)) return type == s.out[0].dtype ? largest_byte(s) : nullptr;
  return setup<pool<Combine::maximum, false>>(s);
}

const Registration registrations[] = {
    {"max_pooling", largest},
    {"max_pooling_backward", setup<max_backward>},
    {"max_pooling_arg", converted_or<max_arg>},
    {"max_pooling_arg_backward", converted_or<max_arg_backward>},
    {"sum_pooling", setup<pool<Combine::sum, false>>},
    {"sum_pooling_backward", setup<spread<false>>},
    {"average_pooling", setup<pool<Combine::sum, true>>},
    {"average_pooling_backward", setup<spread<true>>},
    {"unpooling", setup<unpool>},
};

}  // namespace
}  // namespace nnl
