// SPDX-License-Identifier: Apache-2.0
// Rules of pooling, resizing and parts in boxes: data (*batch, *S), or (*batch, *S, C).
#include <cmath>

#include "rule.h"

namespace nnl {
namespace {

// The first of n spatial axes of an input.
size_t first_pixel(const RuleCall& c, size_t i, size_t n) {
  const size_t last = c.attributes.flag("channel_last") ? 1 : 0;
  c.rank_at_least(i, static_cast<int>(n + last));
  return c[i].shape.size() - n - last;
}

Shape pooled(const RuleCall& c, size_t i) {
  const std::vector<int64_t> kernel = c.integers("kernel", 1, largest_step);
  const std::vector<int64_t> stride = c.integers("stride", 1, largest_step);
  const std::vector<int64_t> pad = c.integers("pad", 0, largest_step);
  const size_t n = kernel.size();
  if (!n || stride.size() != n || pad.size() != n)
    c.fail("kernel, stride and pad must have one number of entries, at least 1");
  const size_t at = first_pixel(c, i, n);
  Shape y = c[i].shape;
  for (size_t k = 0; k < n; ++k) {
    int64_t& size = y[at + k];
    if (pad[k] >= kernel[k]) c.fail("pad must be below kernel");
    if (size == 0) c.fail(i, "pixels");
    if (!c.attributes.flag("ignore_border")) {
      size = (size + pad[k] + stride[k] - 1) / stride[k];
      continue;
    }
    if (size + 2 * pad[k] < kernel[k])
      c.fail(i, std::to_string(kernel[k]) + " pixels with the pad on spatial axis " +
                    std::to_string(k));
    size = (size + 2 * pad[k] - kernel[k]) / stride[k] + 1;
  }
  return y;
}

Specs pooling(const RuleCall& c) { return {with_shape(c[0], pooled(c, 0))}; }
const ShapeRule average_pooling{{"average_pooling", "max_pooling", "sum_pooling"}, "x", pooling};

Specs pooling_arg(const RuleCall& c) {
  const Spec y = pooling(c)[0];
  return {y, with_type(y, DType::i16)};
}
const ShapeRule max_pooling_arg{"max_pooling_arg", "x", pooling_arg};

// The gradient of what has this shape.
Specs pooling_backward(const RuleCall& c) {
  RuleCall of_x = c;
  of_x.in[0].shape = c.shape();
  c.has_shape(0, pooled(of_x, 0));
  return {with_shape(c[0], c.shape())};
}
const ShapeRule average_pooling_backward{
    {"average_pooling_backward", "sum_pooling_backward"}, "gy", pooling_backward};

Specs pooling_arg_backward(const RuleCall& c) {
  c.same_shape(1, 0);
  c.has_type(1, DType::i16);
  return pooling_backward(c);
}
const ShapeRule max_pooling_arg_backward{"max_pooling_arg_backward", "gy place",
                                         pooling_arg_backward};

Specs max_backward(const RuleCall& c) {
  c.has_shape(0, pooled(c, 1));
  return {c[1]};
}
const ShapeRule max_pooling_backward{"max_pooling_backward", "dy x", max_backward};

Specs global_pooling(const RuleCall& c) {
  c.rank_at_least(0, 2);
  const Shape& x = c[0].shape;
  if (product(x.begin() + 2, x.end()) == 0) c.fail(0, "pixels");
  return {with_shape(c[0], {x[0], x[1], 1, 1})};
}
const ShapeRule global_average_pooling{"global_average_pooling", "x", global_pooling};

Specs unpooled(const RuleCall& c) {
  const std::vector<int64_t> kernel = c.integers("kernel", 1, largest_step);
  if (kernel.empty()) c.fail("kernel is empty");
  const size_t at = first_pixel(c, 0, kernel.size());
  Shape y = c[0].shape;
  for (size_t k = 0; k < kernel.size(); ++k) {
    if (y[at + k] == 0) c.fail(0, "pixels");
    y[at + k] *= kernel[k];
  }
  return {with_shape(c[0], y)};
}
const ShapeRule unpooling{"unpooling", "x", unpooled};

// x resized to output_size.
Shape resized(const RuleCall& c, size_t i) {
  c.one_of("mode", {"linear", "nearest"});
  if (c.attributes.flag("align_corners") && c.attributes.flag("half_pixel"))
    c.fail("align_corners and half_pixel exclude each other");
  const std::vector<int64_t> size = c.integers("output_size", 1, longest_axis);
  if (size.empty()) c.fail("output_size is empty");
  const size_t at = first_pixel(c, i, size.size());
  Shape y = c[i].shape;
  for (size_t k = 0; k < size.size(); ++k) {
    if (y[at + k] == 0) c.fail(i, "pixels");
    y[at + k] = size[k];
  }
  return y;
}
Specs interpolated(const RuleCall& c) { return {with_shape(c[0], resized(c, 0))}; }
const ShapeRule interpolate{"interpolate", "x", interpolated};

Specs interpolated_backward(const RuleCall& c) {
  RuleCall of_x = c;
  of_x.in[0].shape = c.shape();
  c.has_shape(0, resized(of_x, 0));
  return {with_shape(c[0], c.shape())};
}
const ShapeRule interpolate_backward{"interpolate_backward", "gy", interpolated_backward};

// x resized along all axes: to `sizes`, or by `scales`.
Shape onnx_resized(const RuleCall& c, size_t i) {
  const std::vector<int64_t> sizes = c.integers("sizes", 0, longest_axis);
  const std::vector<double> scales = c.attributes.numbers("scales");
  c.one_of("mode", {"nearest", "linear", "cubic"});
  c.one_of("coordinate_transformation_mode",
           {"half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric",
            "tf_half_pixel_for_nn", "tf_crop_and_resize"});
  c.one_of("nearest_mode", {"round_prefer_floor", "round_prefer_ceil", "floor", "ceil"});
  Shape y = c[i].shape;
  if (sizes.empty() == scales.empty()) c.fail("wanted either scales or sizes");
  if ((sizes.empty() ? scales.size() : sizes.size()) != y.size())
    c.fail("wanted a size or a scale for each axis of " + c.text(i));
  for (size_t k = 0; k < y.size(); ++k) {
    const int64_t n = y[k];
    if (sizes.empty()) {
      const double m = std::floor(static_cast<double>(n) * scales[k]);
      if (!(scales[k] > 0 && m <= static_cast<double>(longest_axis)))
        c.fail("scales are out of range");
      y[k] = static_cast<int64_t>(m);
    } else {
      y[k] = sizes[k];
    }
    if (n != y[k] && (!n || !y[k])) c.fail("an axis of " + c.text(i) + " has no pixels");
  }
  if (c.attributes.text("coordinate_transformation_mode") != "tf_crop_and_resize") return y;
  const std::vector<double> roi = c.attributes.numbers("roi");
  if (roi.size() != 2 * y.size()) c.fail("wanted two numbers of roi for each axis of " + c.text(i));
  for (size_t k = 0; k < y.size(); ++k) {
    const bool stays = sizes.empty() ? scales[k] == 1 : c[i].shape[k] == y[k];
    if (stays && (roi[k] != 0 || roi[k + y.size()] != 1)) c.fail("roi crops an axis that stays");
  }
  return y;
}
Specs resized_by_onnx(const RuleCall& c) { return {with_shape(c[0], onnx_resized(c, 0))}; }
const ShapeRule onnx_resize{"onnx_resize", "x", resized_by_onnx};

Specs resized_by_onnx_backward(const RuleCall& c) {
  RuleCall of_x = c;
  of_x.in[0].shape = c.shape();
  c.has_shape(0, onnx_resized(of_x, 0));
  return {with_shape(c[0], c.shape())};
}
const ShapeRule onnx_resize_backward{"onnx_resize_backward", "gy", resized_by_onnx_backward};

// Parts of x that boxes give.
Shape resampled(const RuleCall& c, const Spec& x) {
  const bool last = c.attributes.flag("channel_last");
  if (x.rank() != 4) c.fail("the images " + x.text() + " have not rank 4");
  if (product(x.shape.begin() + (last ? 1 : 2), x.shape.end() - (last ? 1 : 0)) == 0)
    c.fail("the images " + x.text() + " have no pixels");
  if (c[1].rank() != 2 || c[1].shape[1] != 5) c.fail(1, "the shape (K, 5)");
  const std::vector<int64_t> size = c.integers("output_size", 1, longest_axis);
  if (size.size() != 2 || c.attributes.numbers("spatial_scale").size() != 2)
    c.fail("output_size and spatial_scale must have two entries");
  const int64_t ratio = c.attributes.integer("sampling_ratio");
  if (ratio > 1024) c.fail("sampling_ratio is " + std::to_string(ratio) + ", wanted at most 1024");
  const int64_t boxes = c[1].shape[0];
  if (last) return {boxes, size[0], size[1], x.shape[3]};
  return {boxes, x.shape[1], size[0], size[1]};
}
Specs parts(const RuleCall& c) { return {with_shape(c[0], resampled(c, c[0]))}; }
const ShapeRule roi_align{"roi_align", "input boxes", parts};

Specs parts_backward(const RuleCall& c) {
  const Spec x = with_shape(c[0], c.shape());
  c.has_shape(0, resampled(c, x));
  return {x};
}
const ShapeRule roi_align_backward{"roi_align_backward", "gy boxes", parts_backward};

}  // namespace
}  // namespace nnl
