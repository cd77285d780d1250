// SPDX-License-Identifier: Apache-2.0
// Functions element by element, reductions and losses.
#include "nnl/functions.h"

#include <cmath>
#include <numeric>

#include "arguments.h"

namespace nnl {
namespace graph {

const Shape& shape_of(const char* function, const char* name, const Variable& x) {
  if (!x) throw ValueError(std::string(function) + ": " + name + " is no Variable");
  return x.shape();
}

int64_t axis_of(const char* function, int64_t axis, const Variable& x) {
  const auto rank = static_cast<int64_t>(shape_of(function, "x", x).size());
  if (axis < -rank || axis >= rank)
    throw ValueError(std::string(function) + ": axis " + std::to_string(axis) + " is outside [" +
                     std::to_string(-rank) + ", " + std::to_string(rank) + ") for x " +
                     x.value()->spec.text());
  return axis < 0 ? axis + rank : axis;
}

std::vector<int64_t> axes_of(const char* function, const Integers& axes, const Variable& x,
                             bool none_is_all) {
  std::vector<int64_t> all(shape_of(function, "x", x).size());
  std::iota(all.begin(), all.end(), 0);
  if (axes.empty() && none_is_all) return all;
  std::vector<int64_t> found;
  for (int64_t a : axes) found.push_back(axis_of(function, a, x));
  return found;
}

std::vector<int64_t> or_all(const Integers& given, size_t n, int64_t value) {
  if (given.empty()) return std::vector<int64_t>(n, value);
  return given;
}

void check_positive(const char* function, const char* name, double value) {
  if (!(value >= 0))
    throw ValueError(std::string(function) + ": " + name + " is " + std::to_string(value) +
                     ", wanted a number >= 0");
}

}  // namespace graph

namespace functions {

using graph::apply1;
using graph::axes_of;
using graph::axis_of;

#define NNL_BINARY(name)                                                \
  Variable name(const Variable& x0, const Variable& x1, bool inplace) { \
    return apply1(#name, AttributeMap{{"inplace", inplace}}, {x0, x1}); \
  }
NNL_BINARY(add2)
NNL_BINARY(sub2)
NNL_BINARY(mul2)
NNL_BINARY(div2)
NNL_BINARY(pow2)

#define NNL_PAIR(name) \
  Variable name(const Variable& x0, const Variable& x1) { return apply1(#name, {}, {x0, x1}); }
NNL_PAIR(atan2)
NNL_PAIR(maximum2)
NNL_PAIR(minimum2)
NNL_PAIR(equal)
NNL_PAIR(not_equal)
NNL_PAIR(greater)
NNL_PAIR(greater_equal)
NNL_PAIR(less)
NNL_PAIR(less_equal)
NNL_PAIR(squared_error)
NNL_PAIR(absolute_error)
NNL_PAIR(binary_cross_entropy)
NNL_PAIR(sigmoid_cross_entropy)

#define NNL_DEFINE(name) \
  Variable name(const Variable& x) { return apply1(#name, {}, {x}); }
NNL_FUNCTIONS_OF_ONE(NNL_DEFINE)
#undef NNL_DEFINE

#define NNL_NUMBER(name, argument)                                  \
  Variable name(const Variable& x, double argument) {               \
    return apply1(#name, AttributeMap{{#argument, argument}}, {x}); \
  }
NNL_NUMBER(r_sub_scalar, val)
NNL_NUMBER(r_div_scalar, val)
NNL_NUMBER(r_pow_scalar, val)
NNL_NUMBER(maximum_scalar, val)
NNL_NUMBER(minimum_scalar, val)
NNL_NUMBER(equal_scalar, val)
NNL_NUMBER(not_equal_scalar, val)
NNL_NUMBER(greater_scalar, val)
NNL_NUMBER(greater_equal_scalar, val)
NNL_NUMBER(less_scalar, val)
NNL_NUMBER(less_equal_scalar, val)
NNL_NUMBER(sign, alpha)
NNL_NUMBER(elu, alpha)
NNL_NUMBER(softplus, beta)

#define NNL_NUMBER_INPLACE(name, argument)                                                \
  Variable name(const Variable& x, double argument, bool inplace) {                       \
    return apply1(#name, AttributeMap{{#argument, argument}, {"inplace", inplace}}, {x}); \
  }
NNL_NUMBER_INPLACE(add_scalar, val)
NNL_NUMBER_INPLACE(mul_scalar, val)
NNL_NUMBER_INPLACE(pow_scalar, val)
NNL_NUMBER_INPLACE(leaky_relu, alpha)

#define NNL_REDUCTION(name)                                                                        \
  Variable name(const Variable& x, Integers axes, bool keep_dims) {                                \
    return apply1(#name,                                                                           \
                  AttributeMap{{"axes", axes_of(#name, axes, x)}, {"keep_dims", keep_dims}}, {x}); \
  }
NNL_REDUCTION(sum)
NNL_REDUCTION(mean)
NNL_REDUCTION(prod)

#define NNL_CUMULATIVE(name)                                                                    \
  Variable name(const Variable& x, int axis, bool exclusive, bool reverse) {                    \
    return apply1(                                                                              \
        #name,                                                                                  \
        AttributeMap{                                                                           \
            {"axis", axis_of(#name, axis, x)}, {"exclusive", exclusive}, {"reverse", reverse}}, \
        {x});                                                                                   \
  }
NNL_CUMULATIVE(cumsum)
NNL_CUMULATIVE(cumprod)

namespace {

Variable extreme(const char* op, const Variable& x, const Integers& axes, bool keep_dims) {
  return apply1(op,
                AttributeMap{{"axes", axes_of(op, axes, x)},
                             {"keep_dims", keep_dims},
                             {"with_index", false},
                             {"only_index", false}},
                {x});
}

}  // namespace

Variable max(const Variable& x, Integers axes, bool keep_dims) {
  return extreme("max", x, axes, keep_dims);
}

Variable min(const Variable& x, Integers axes, bool keep_dims) {
  return extreme("min", x, axes, keep_dims);
}

Variable norm(const Variable& x, double p, Integers axes, bool keep_dims) {
  return apply1(
      "norm", AttributeMap{{"p", p}, {"axes", axes_of("norm", axes, x)}, {"keep_dims", keep_dims}},
      {x});
}

Variable add_n(const Variables& x) { return apply1("add_n", {}, x); }
Variable mul_n(const Variables& x) { return apply1("mul_n", {}, x); }

Variable where(const Variable& condition, const Variable& x_true, const Variable& x_false) {
  return apply1("where", {}, {condition, x_true, x_false});
}

Variable relu(const Variable& x, bool inplace) {
  return apply1("relu", AttributeMap{{"inplace", inplace}}, {x});
}

Variable prelu(const Variable& x, const Variable& slope, int base_axis) {
  return apply1("prelu", AttributeMap{{"base_axis", axis_of("prelu", base_axis, x)}}, {x, slope});
}

Variable selu(const Variable& x, double scale, double alpha) {
  return apply1("selu", AttributeMap{{"scale", scale}, {"alpha", alpha}}, {x});
}

Variable crelu(const Variable& x, int axis) {
  const Variable y = relu(x);  // its gradient at 0 is 0: the second half has gradient -1 there
  return concatenate({y, y - x}, static_cast<int>(axis_of("crelu", axis, x)));
}

Variable celu(const Variable& x, double alpha, int axis) {
  return concatenate({elu(x, alpha), elu(-x, alpha)}, static_cast<int>(axis_of("celu", axis, x)));
}

Variable softmax(const Variable& x, int axis) {
  return apply1("softmax", AttributeMap{{"axis", axis_of("softmax", axis, x)}}, {x});
}

Variable log_softmax(const Variable& x, int axis) {
  return apply1("log_softmax", AttributeMap{{"axis", axis_of("log_softmax", axis, x)}}, {x});
}

Variable softmax_cross_entropy(const Variable& x, const Variable& target, int axis) {
  return apply1("softmax_cross_entropy",
                AttributeMap{{"axis", axis_of("softmax_cross_entropy", axis, x)}}, {x, target});
}

Variable categorical_cross_entropy(const Variable& x, const Variable& target, int axis) {
  return apply1("categorical_cross_entropy",
                AttributeMap{{"axis", axis_of("categorical_cross_entropy", axis, x)}}, {x, target});
}

Variable top_n_error(const Variable& x, const Variable& target, int axis, int n) {
  const int64_t along = axis_of("top_n_error", axis, x);
  graph::shape_of("top_n_error", "target", target);
  const std::vector<int64_t> axes{along};
  const Variable chosen = apply1("pick", AttributeMap{{"axes", axes}}, {x, target});
  const Variable as_large = sum(greater_equal(x, chosen), axes, true);
  return greater_scalar(as_large, n) * greater_equal_scalar(target, 0);
}

Variable binary_error(const Variable& x, const Variable& target) {
  return not_equal(greater_equal_scalar(x, 0.5), greater_equal_scalar(target, 0.5));
}

Variable huber_loss(const Variable& x0, const Variable& x1, double delta) {
  graph::check_positive("huber_loss", "delta", delta);
  return apply1("huber_loss", AttributeMap{{"delta", delta}}, {x0, x1});
}

Variable epsilon_insensitive_loss(const Variable& x0, const Variable& x1, double epsilon) {
  graph::check_positive("epsilon_insensitive_loss", "epsilon", epsilon);
  return apply1("epsilon_insensitive_loss", AttributeMap{{"epsilon", epsilon}}, {x0, x1});
}

Variable kl_multinomial(const Variable& p, const Variable& q, int base_axis) {
  return apply1("kl_multinomial",
                AttributeMap{{"base_axis", axis_of("kl_multinomial", base_axis, p)}}, {p, q});
}

}  // namespace functions
}  // namespace nnl
