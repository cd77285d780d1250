// SPDX-License-Identifier: Apache-2.0
// Rules of reductions, and of what works along axes.
#include <cmath>

#include "rule.h"

namespace nnl {
namespace {

Specs reduced(const RuleCall& c) {
  const std::vector<bool> axes = c.axes("axes", c[0].shape.size());
  const bool keep = c.attributes.flag("keep_dims");
  return {with_shape(c[0], keep ? kept_shape(c[0].shape, axes) : dropped_shape(c[0].shape, axes))};
}
const ShapeRule sum{{"sum", "mean", "prod"}, "x", reduced};

Specs extreme(const RuleCall& c) {
  const Spec y = reduced(c)[0];
  if (y.size() && !c[0].size()) c.fail(0, "an element along the axes");
  const Spec index = with_type(y, DType::u64);
  if (c.attributes.flag("only_index")) return {index};
  if (c.attributes.flag("with_index")) return {y, index};
  return {y};
}
const ShapeRule max_min{{"max", "min"}, "x", extreme};

Specs norm_of(const RuleCall& c) {
  const double p = c.attributes.number("p");
  c.in_range("p", p >= 1 && std::isfinite(p), "a finite number of at least 1");
  return reduced(c);
}
const ShapeRule norm{"norm", "x", norm_of};

Specs scalar(const RuleCall& c) { return {with_shape(c[0], {})}; }
const ShapeRule reduce_all{{"reduce_sum", "reduce_mean"}, "x", scalar};

Specs along_axis(const RuleCall& c) {
  c.axis("axis", c[0].shape.size());
  return {c[0]};
}
const ShapeRule softmax{{"softmax", "log_softmax"}, "x", along_axis};

Specs along_axis_backward(const RuleCall& c) {
  c.same_shape(0, 1);
  c.axis("axis", c[1].shape.size());
  return {c[1]};
}
const ShapeRule softmax_backward{
    {"softmax_backward", "log_softmax_backward"}, "gy y", along_axis_backward};

Specs masked_softmax(const RuleCall& c) {
  if (c[0].shape.empty()) c.fail(0, "an axis");
  if (c.given(1) && !stretches(c[1].shape, c[0].shape)) c.fail(1, "what stretches to " + c.text(0));
  return {c[0]};
}
const ShapeRule softmax_fused{"softmax_fused", "x mask?", masked_softmax};

Specs masked_softmax_backward(const RuleCall& c) {
  c.same_shape(0, 1);
  c.rank_at_least(1, 1);
  return {c[1]};
}
const ShapeRule softmax_fused_backward{"softmax_fused_backward", "gy y", masked_softmax_backward};

// ---- labels ----

// One label where x has an axis of classes.
Spec at_labels(const RuleCall& c, size_t x, size_t target) {
  std::vector<bool> axes(c[x].shape.size());
  axes[c.axis("axis", axes.size())] = true;
  const Shape wanted = kept_shape(c[x].shape, axes);
  c.has_shape(target, wanted);
  return with_shape(c[x], wanted);
}
Specs labelled(const RuleCall& c) { return {at_labels(c, 0, 1)}; }
const ShapeRule categorical_cross_entropy{
    {"categorical_cross_entropy", "top_n_error"}, "x target#", labelled};

Specs cross_entropy(const RuleCall& c) {
  const Spec y = at_labels(c, 0, 1);
  return {y, y, y};
}
const ShapeRule softmax_cross_entropy{"softmax_cross_entropy", "x target#", cross_entropy};

Specs cross_entropy_backward(const RuleCall& c) {
  const Spec y = at_labels(c, 1, 2);
  for (size_t i : {0, 3, 4}) c.has_shape(i, y.shape);
  return {c[1]};
}
const ShapeRule softmax_cross_entropy_backward{
    "softmax_cross_entropy_backward", "gy x target# largest total", cross_entropy_backward};

Specs divergence(const RuleCall& c) {
  c.same_shape(1, 0);
  const int64_t base = c.integer("base_axis", 0, c[0].rank());
  Shape y(c[0].shape.begin(), c[0].shape.begin() + base);
  y.push_back(1);
  return {with_shape(c[0], y)};
}
const ShapeRule kl_multinomial{"kl_multinomial", "p q", divergence};

// ---- elements that indices choose ----

// Indices have the shape of x with these axes left out, or of size 1.
void check_choice(const RuleCall& c, size_t index, const Spec& x, const std::vector<bool>& axes) {
  if (c[index].shape != dropped_shape(x.shape, axes)) c.has_shape(index, kept_shape(x.shape, axes));
}
Specs picked(const RuleCall& c) {
  check_choice(c, 1, c[0], c.axes("axes", c[0].shape.size()));
  return {with_shape(c[0], c[1].shape)};
}
Specs placed(const RuleCall& c) {
  const Spec x = with_shape(c[0], c.shape());
  check_choice(c, 1, x, c.axes("axes", x.shape.size()));
  c.same_shape(0, 1);
  return {x};
}
const ShapeRule pick{"pick", "x index#", picked};
const ShapeRule place{"place", "gy index#", placed};

}  // namespace
}  // namespace nnl
