// SPDX-License-Identifier: Apache-2.0
// Rules of what language models are made of besides attention.
#include "rule.h"

namespace nnl {
namespace {

// Whether gamma, input i, is as large as x along the axes, with or without the others.
void check_gamma(const RuleCall& c, size_t x, size_t i) {
  const Shape& shape = c[x].shape;
  const std::vector<bool> axes = c.axes("axes", shape.size());
  if (!c.given(i)) return;
  Shape own;  // in the order that the attribute gives them
  for (int64_t a : c.attributes.integers("axes"))
    own.push_back(shape[static_cast<size_t>(a < 0 ? a + c[x].rank() : a)]);
  std::vector<bool> others = axes;
  others.flip();
  if (c[i].shape != own && c[i].shape != kept_shape(shape, others))
    c.fail(i, "the sizes of " + c.text(x) + " along the axes");
}

Specs rms_of(const RuleCall& c) {
  check_gamma(c, 0, 1);
  return {c[0]};
}
const ShapeRule rms_normalization{"rms_normalization", "x gamma?", rms_of};

Specs rms_backward_of(const RuleCall& c) {
  check_gamma(c, 1, 2);
  c.same_shape(0, 1);
  if (!c.given(2)) return {c[1]};
  return {c[1], c[2]};
}
const ShapeRule rms_backward{"rms_normalization_backward", "gy x gamma?", rms_backward_of};

Specs rotary_of(const RuleCall& c) {
  const Shape& x = c[0].shape;
  const size_t axis = c.axis("axis", x.size());
  if (axis + 1 == x.size()) c.fail(0, "an axis of features after that of positions");
  const Shape each = {x[0], x[axis]};
  if (!(axis && c[1].shape == each)) c.has_shape(1, {x[axis]});
  if (c[2].rank() != 1 || 2 * c[2].shape[0] > x.back())
    c.fail(2, "at most half the features of " + c.text(0));
  return {c[0]};
}
const ShapeRule rotary_embedding{"rotary_embedding", "x positions# frequencies", rotary_of};

Specs multinomial_of(const RuleCall& c) {
  c.rank_at_least(0, 1);
  Shape y = c[0].shape;
  const int64_t count = c.integer("count", 1);
  if (!y.back()) c.fail(0, "an element to draw");
  if (!c.attributes.flag("replace") && count > y.back())
    c.fail(0, "at least count " + std::to_string(count) + " elements in a row");
  y.back() = count;
  return {with_type(with_shape(c[0], y), DType::i64)};
}
const ShapeRule multinomial{"multinomial", "weights rng", multinomial_of};

// ---- cross entropy of products ----

Shape labels_of(const RuleCall& c, size_t x) {
  c.rank_at_least(x, 1);
  Shape label = c[x].shape;
  label.pop_back();
  if (c[x + 1].rank() != 2 || c[x + 1].shape[1] != c[x].shape.back() || !c[x + 1].shape[0])
    c.fail(x + 1, "rows, of as many features as " + c.text(x));
  c.has_shape(x + 2, label);
  c.in_range("soft_cap", c.attributes.number("soft_cap") >= 0, "at least 0");
  return label;
}
Specs linear_cross_entropy_of(const RuleCall& c) {
  const Spec y = with_shape(c[0], labels_of(c, 0));
  return {y, y};
}
const ShapeRule linear_cross_entropy{"linear_cross_entropy", "x weight label#",
                                     linear_cross_entropy_of};

Specs linear_cross_entropy_backward_of(const RuleCall& c) {
  const Shape label = labels_of(c, 1);
  for (size_t i : {0, 4, 5}) c.has_shape(i, label);
  return {c[1], c[2]};
}
const ShapeRule linear_cross_entropy_backward{"linear_cross_entropy_backward",
                                              "gy x weight label# lse glse?",
                                              linear_cross_entropy_backward_of};

// ---- experts ----

void check_rows(const RuleCall& c, size_t x, size_t index) {
  if (c[index].rank() != 2) c.fail(index, "rank 2");
  c.rank_at_least(x, 1);
  Shape rows = c[x].shape;
  rows.pop_back();
  const Shape& i = c[index].shape;
  if (rows != i && rows != Shape{i[0]}) c.fail(x, "the rows of " + c.text(index));
}

Specs expert_product_of(const RuleCall& c) {
  check_rows(c, 0, 2);
  const Shape &w = c[1].shape, &i = c[2].shape;
  if (w.size() != 3) c.fail(1, "rank 3");
  const bool transposed = c.attributes.flag("transposed");
  if (w[transposed ? 2 : 1] != c[0].shape.back()) c.fail(1, "the features of " + c.text(0));
  return {with_shape(c[0], {i[0], i[1], w[transposed ? 1 : 2]})};
}
const ShapeRule expert_product{"expert_product", "x weight index#", expert_product_of};

Specs expert_weight_of(const RuleCall& c) {
  check_rows(c, 0, 2);
  Shape rows = c[1].shape;
  if (rows.empty()) c.fail(1, "the rows of " + c.text(2));
  rows.pop_back();
  if (rows != c[2].shape) c.fail(1, "the rows of " + c.text(2));
  Shape w = {c.integer("experts", 0), c[0].shape.back(), c[1].shape.back()};
  if (c.attributes.flag("transposed")) std::swap(w[1], w[2]);
  return {with_shape(c[0], w)};
}
const ShapeRule expert_weight{"expert_weight", "x gy index#", expert_weight_of};

}  // namespace
}  // namespace nnl
