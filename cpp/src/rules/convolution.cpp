// SPDX-License-Identifier: Apache-2.0
// Rules of convolutions: data (*batch, C, *S) or (*batch, *S, C), weights alike.
#include "convolution.h"

namespace nnl {
namespace {

// How a kernel slides over an image, and the parts of its shape.
struct Window {
  size_t base, n;  // the axis of channels or of the first pixels, and the number of spatial axes
  bool last;
  std::vector<int64_t> pad, stride, dilation;

  Window(const RuleCall& c, size_t i, bool channel_last) : last(channel_last) {
    const size_t rank = c[i].shape.size();
    base = static_cast<size_t>(c.integer("base_axis", 0, 64));
    if (rank < base + 2) c.fail(i, "a spatial axis after base_axis " + std::to_string(base));
    n = rank - base - 1;
    pad = entries(c, "pad", 0), stride = entries(c, "stride", 1);
    dilation = entries(c, "dilation", 1);
  }
  std::vector<int64_t> entries(const RuleCall& c, const char* name, int64_t least) const {
    std::vector<int64_t> values = c.integers(name, least, largest_step);
    if (values.size() != n)
      c.fail(std::string(name) + " has " + std::to_string(values.size()) + " entries, wanted " +
             std::to_string(n) + " for " + c.text(0));
    return values;
  }
  int64_t channels(const Shape& x) const { return last ? x.back() : x[base]; }
  int64_t pixels(const Shape& x, size_t i) const { return x[base + i + (last ? 0 : 1)]; }
  int64_t kernel(const Shape& w, size_t i) const { return w[i + (last ? 1 : 2)]; }
  // The shape of a result with these maps, its spatial sizes still those of x.
  Shape with_maps(Shape x, int64_t maps) const {
    (last ? x.back() : x[base]) = maps;
    return x;
  }
  int64_t& pixels(Shape& x, size_t i) const { return x[base + i + (last ? 0 : 1)]; }
};

void check_weight(const RuleCall& c, const std::string& what, const Shape& w, size_t n,
                  int64_t group) {
  if (w.size() != n + 2)
    c.fail(what + " has rank " + std::to_string(w.size()) + ", wanted " + std::to_string(n + 2));
  if (product(w.begin(), w.end()) == 0) c.fail(what + " is empty");
  if (group < 1 || w[0] % group)
    c.fail(what + " has " + std::to_string(w[0]) + " maps, no multiple of group " +
           std::to_string(group));
}

Shape convolved(const RuleCall& c, size_t i, const Shape& x, const Shape& w, int64_t group,
                bool last, const std::string& what) {
  const Window at(c, i, last);
  check_weight(c, what, w, at.n, group);
  const int64_t takes = last ? w.back() : w[1];
  if (at.channels(x) % group || at.channels(x) / group != takes)
    c.fail(i,
           std::to_string(takes) + " x group " + std::to_string(group) + " channels for " + what);
  Shape y = at.with_maps(x, w[0]);
  for (size_t k = 0; k < at.n; ++k) {
    const int64_t reach = at.dilation[k] * (at.kernel(w, k) - 1) + 1;
    const int64_t room = at.pixels(x, k) + 2 * at.pad[k];
    if (room < reach)
      c.fail(i, "at least " + std::to_string(reach) + " pixels with the pad on spatial axis " +
                    std::to_string(k));
    at.pixels(y, k) = (room - reach) / at.stride[k] + 1;
  }
  return y;
}

Shape deconvolved(const RuleCall& c, const Shape& w, int64_t group, bool last,
                  const std::vector<int64_t>& more) {
  const Window at(c, 0, last);
  const Shape& x = c[0].shape;
  check_weight(c, c.text(1), w, at.n, group);
  if (at.channels(x) != w[0]) c.fail(0, std::to_string(w[0]) + " channels for " + c.text(1));
  if (more.size() != at.n) c.fail("output_padding has another number of entries than pad");
  Shape y = at.with_maps(x, group * (last ? w.back() : w[1]));
  for (size_t k = 0; k < at.n; ++k) {
    if (more[k] >= at.stride[k]) c.fail("output_padding is not below stride");
    if (at.pixels(x, k) == 0) c.fail(0, "pixels");
    at.pixels(y, k) = (at.pixels(x, k) - 1) * at.stride[k] +
                      at.dilation[k] * (at.kernel(w, k) - 1) + 1 - 2 * at.pad[k] + more[k];
    if (at.pixels(y, k) < 1) c.fail(0, "a result with pixels for " + c.text(1) + " and the pad");
  }
  return y;
}

bool last_of(const RuleCall& c) { return c.attributes.flag("channel_last"); }
int64_t group_of(const RuleCall& c) { return c.integer("group", 1, largest_step); }

// ---- and their gradients ----

Specs data_of(const RuleCall& c) {
  const Spec x = with_shape(c[0], c.shape());
  RuleCall of_x = c;
  of_x.in[0] = x;
  c.has_shape(0, convolved(of_x, 0, x.shape, c[1].shape, group_of(c), last_of(c), c.text(1)));
  return {x};
}
const ShapeRule convolution_data{"convolution_data", "gy w", data_of};

Specs weight_of(const RuleCall& c) {
  const Spec w = with_shape(c[1], c.shape());
  c.has_shape(
      1, convolved(c, 0, c[0].shape, w.shape, group_of(c), last_of(c), "the weight " + w.text()));
  return {w};
}
const ShapeRule convolution_weight{"convolution_weight", "x gy", weight_of};

Specs weight_bias_of(const RuleCall& c) {
  const Spec w = weight_of(c)[0];
  return {w, with_shape(w, {w.shape[0]})};
}
const ShapeRule convolution_weight_bias{"convolution_weight_bias", "x gy", weight_bias_of};

// ---- the ops ----

Specs convolution_of(const RuleCall& c) {
  const Spec y = convolved_spec(c, 0, c[1].shape);
  c.has_shape(2, {c[1].shape[0]});
  return {y};
}
const ShapeRule convolution{"convolution", "x weight bias?", convolution_of};

Specs deconvolution_of(const RuleCall& c) {
  const std::vector<int64_t> more = c.integers("output_padding", 0, largest_step);
  const Spec y = with_shape(c[0], deconvolved(c, c[1].shape, group_of(c), last_of(c), more));
  c.has_shape(
      2, {last_of(c) ? y.shape.back() : y.shape[static_cast<size_t>(c.integer("base_axis", 0))]});
  return {y};
}
const ShapeRule deconvolution{"deconvolution", "x weight bias?", deconvolution_of};

// Weights (C, *K) as those of a convolution with groups.
Shape grouped(const RuleCall& c) {
  Shape w = c[1].shape;
  w.insert(w.begin() + 1, 1);
  return w;
}

Specs depthwise_of(const RuleCall& c) {
  c.rank_at_least(1, 1);
  const int64_t channels = c[0].shape[c.axis("base_axis", c[0].shape.size())];
  if (c[1].shape[0] != channels * c.integer("multiplier", 0, largest_step))
    c.fail(1, std::to_string(channels) + " x multiplier maps");
  const Shape y = convolved(c, 0, c[0].shape, grouped(c), channels, false, c.text(1));
  c.has_shape(2, {c[1].shape[0]});
  return {with_shape(c[0], y)};
}
const ShapeRule depthwise_convolution{"depthwise_convolution", "x weight bias?", depthwise_of};

Specs depthwise_transposed(const RuleCall& c) {
  c.rank_at_least(1, 1);
  const int64_t channels = c[0].shape[c.axis("base_axis", c[0].shape.size())];
  const int64_t divisor = c.integer("divisor", 1, largest_step);
  if (channels % divisor) c.fail(0, "a multiple of divisor " + std::to_string(divisor));
  if (c[1].shape[0] != channels) c.fail(1, std::to_string(channels) + " maps");
  const std::vector<int64_t> none(c.attributes.integers("stride").size());
  const Shape y = deconvolved(c, grouped(c), channels / divisor, false, none);
  c.has_shape(2, {channels / divisor});
  return {with_shape(c[0], y)};
}
const ShapeRule depthwise_deconvolution{"depthwise_deconvolution", "x weight bias?",
                                        depthwise_transposed};

}  // namespace

Spec convolved_spec(const RuleCall& c, size_t x, const Shape& weight) {
  return with_shape(c[x], convolved(c, x, c[x].shape, weight, group_of(c), last_of(c),
                                    "weight " + with_shape(c[x], weight).text()));
}

}  // namespace nnl
