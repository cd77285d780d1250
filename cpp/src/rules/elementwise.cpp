// SPDX-License-Identifier: Apache-2.0
// Rules of ops that work element by element.
#include "rule.h"

namespace nnl {
namespace {

const ShapeRule of_one{{"abs",
                        "acos",
                        "acosh",
                        "add_scalar",
                        "asin",
                        "asinh",
                        "atan",
                        "atanh",
                        "binarize",
                        "binary_sigmoid",
                        "binary_tanh",
                        "ceil",
                        "clip_grad_by_norm",
                        "cos",
                        "cosh",
                        "elu",
                        "erf",
                        "exp",
                        "floor",
                        "gelu",
                        "hard_sigmoid",
                        "hard_tanh",
                        "identity",
                        "leaky_relu",
                        "log",
                        "log_sigmoid",
                        "maximum_scalar",
                        "minimum_scalar",
                        "mish",
                        "mul_scalar",
                        "pow_scalar",
                        "r_div_scalar",
                        "r_pow_scalar",
                        "r_sub_scalar",
                        "relu",
                        "relu6",
                        "round",
                        "selu",
                        "sigmoid",
                        "sign",
                        "sin",
                        "sinc",
                        "sinh",
                        "softsign",
                        "swish",
                        "tan",
                        "tanh",
                        "tanh_shrink",
                        "unlink"},
                       "x",
                       same};
const ShapeRule of_x0{
    {"equal_scalar", "greater_equal_scalar", "greater_scalar", "isinf", "isnan",
     "less_equal_scalar", "less_scalar", "logical_and_scalar", "logical_not", "logical_or_scalar",
     "logical_xor_scalar", "not_equal_scalar", "reset_inf", "reset_nan"},
    "x0",
    same};

Specs stretched(const RuleCall& c) { return {with_shape(c[0], together(c, 0, 1))}; }

const ShapeRule of_two{
    {"absolute_error", "absorbing_mul", "add2",          "atan2",    "bc_add2",    "div2",
     "equal",          "greater",       "greater_equal", "less",     "less_equal", "logical_and",
     "logical_or",     "logical_xor",   "maximum2",      "minimum2", "mul2",       "not_equal",
     "pow2",           "squared_error", "sub2"},
    "x0 x1",
    stretched};

Specs remainder_of(const RuleCall& c) {
  for (size_t i : {0, 1})
    if (c[i].dtype == DType::boolean) c.fail(i, "numbers");
  return stretched(c);
}
const ShapeRule mod2{"mod2", "x0 x1", remainder_of};

Specs huber(const RuleCall& c) {
  c.in_range("delta", c.attributes.number("delta") >= 0, "at least 0");
  return stretched(c);
}
Specs epsilon_insensitive(const RuleCall& c) {
  c.in_range("epsilon", c.attributes.number("epsilon") >= 0, "at least 0");
  return stretched(c);
}
const ShapeRule huber_loss{"huber_loss", "x0 x1", huber};
const ShapeRule epsilon_insensitive_loss{"epsilon_insensitive_loss", "x0 x1", epsilon_insensitive};

Specs as_first(const RuleCall& c) {
  for (size_t i = 1; i < c.in.size(); ++i) c.same_shape(i, 0);
  return {c[0]};
}

const ShapeRule of_any{{"add_n", "mul_n"}, "x *x", as_first};
const ShapeRule binary_cross_entropy{"binary_cross_entropy", "x target", as_first};
const ShapeRule sigmoid_cross_entropy{"sigmoid_cross_entropy", "x target#", as_first};
const ShapeRule backward_of_x{
    {"abs_backward", "gate", "leaky_relu_backward", "sinc_backward"}, "gy x", as_first};
const ShapeRule backward_of_y{{"sigmoid_backward", "tanh_backward"}, "gy y", as_first};
const ShapeRule sigmoid_cross_entropy_backward{"sigmoid_cross_entropy_backward", "gy x target#",
                                               as_first};

Specs softplus_of(const RuleCall& c) {
  c.in_range("beta", c.attributes.number("beta") != 0, "a number other than 0");
  return {c[0]};
}
const ShapeRule softplus{"softplus", "x", softplus_of};

Specs fixed_point(const RuleCall& c) {
  c.integer("n", 1 + c.attributes.flag("sign"));
  c.in_range("delta", c.attributes.number("delta") > 0, "more than 0");
  return {c[0]};
}
Specs powers(const RuleCall& c) {
  c.integer("n", 1 + c.attributes.flag("sign") + c.attributes.flag("with_zero"), 64);
  c.integer("m", -longest_axis, 127);
  return {c[0]};
}
const ShapeRule pow2_quantize{"pow2_quantize", "x", powers};
const ShapeRule fixed_point_quantize{"fixed_point_quantize", "x", fixed_point};

Specs prelu_of(const RuleCall& c) {
  const Shape channels = {c[0].shape[c.axis("base_axis", c[0].shape.size())]};
  if (c[1].size() != 1) c.has_shape(1, channels);
  return {c[0]};
}
const ShapeRule prelu{"prelu", "x0 x1", prelu_of};

Specs clip_by_value(const RuleCall& c) {
  for (size_t i : {1, 2})
    if (!stretches(c[i].shape, c[0].shape)) c.fail(i, "what stretches to " + c.text(0));
  return {c[0]};
}
const ShapeRule clip_grad_by_value{"clip_grad_by_value", "x min max", clip_by_value};

Specs masked(const RuleCall& c) {
  c.same_shape(1, 0);
  c.has_type(1, DType::boolean);
  return {c[0]};
}
const ShapeRule masked_scale{"masked_scale", "x mask", masked};

Specs where_of(const RuleCall& c) {
  c.same_shape(2, 1);
  const Shape &condition = c[0].shape, &y = c[1].shape;
  if (condition.size() > y.size() || !std::equal(condition.begin(), condition.end(), y.begin()))
    c.fail(0, "the first sizes of " + c.text(1));
  return {c[1]};
}
const ShapeRule where{"where", "condition x_true x_false", where_of};

// The shape of y at an axis of x.
Specs broadcast_to_of(const RuleCall& c) {
  const Shape &x = c[0].shape, &y = c[1].shape;
  int64_t at = c.integer("axis", -1);
  if (at < 0) at = static_cast<int64_t>(x.size()) - static_cast<int64_t>(y.size());
  const auto end = at + static_cast<int64_t>(y.size());
  if (at < 0 || end > static_cast<int64_t>(x.size()) ||
      !std::equal(y.begin(), y.end(), x.begin() + at))
    c.fail(1, "sizes of " + c.text(0) + " from the axis on");
  return {c[0]};
}
const ShapeRule broadcast_to{"broadcast_to", "x y", broadcast_to_of};

}  // namespace
}  // namespace nnl
