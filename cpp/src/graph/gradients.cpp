// SPDX-License-Identifier: Apache-2.0
// Gradients of functions element by element: arithmetic, mathematics, activation, losses.
#include "gradients.h"

#include <cmath>
#include <limits>

namespace nnl::graph {
namespace {

using namespace nnl::functions;
using B = Backward;

Variable backward_op(const char* op, const Variable& gy, const Variable& x) {
  return apply1(op, {}, {gy, x});
}

// gy where x is between the bounds, 0 elsewhere.
Variable gate(const Variable& gy, const Variable& x, Attribute low, Attribute high,
              bool closed = false) {
  return apply1("gate", {{"low", low}, {"high", high}, {"closed", closed}}, {gy, x});
}

const Attribute none;

// Both gradients of a function of x0 - x1, from one.
Variables of_difference(const B& b, const Variable& slope) {
  const Variable g = b.gy() * slope;
  return {b.need(0) ? sum_to(g, b.shape(0)) : Variable(),
          b.need(1) ? sum_to(g * -1.0, b.shape(1)) : Variable()};
}

// ---- arithmetic ----

const Gradient add_rule({"add2", "bc_add2"}, [](const B& b) -> Variables {
  return {b.need(0) ? sum_to(b.gy(), b.shape(0)) : Variable(),
          b.need(1) ? sum_to(b.gy(), b.shape(1)) : Variable()};
});
const Gradient sub_rule("sub2", [](const B& b) -> Variables {
  return {b.need(0) ? sum_to(b.gy(), b.shape(0)) : Variable(),
          b.need(1) ? sum_to(b.gy() * -1.0, b.shape(1)) : Variable()};
});
const Gradient mul_rule("mul2", [](const B& b) -> Variables {
  return {b.need(0) ? sum_to(b.gy() * b.x(1), b.shape(0)) : Variable(),
          b.need(1) ? sum_to(b.gy() * b.x(0), b.shape(1)) : Variable()};
});
const Gradient div_rule("div2", [](const B& b) -> Variables {
  const Variable g0 = b.gy() / b.x(1);
  return {b.need(0) ? sum_to(g0, b.shape(0)) : Variable(),
          b.need(1) ? sum_to(g0 * b.y() * -1.0, b.shape(1)) : Variable()};
});
const Gradient pow_rule("pow2", [](const B& b) -> Variables {
  Variables g(2);
  if (b.need(0)) {
    const Variable less = b.x(1) - 1.0 + equal_scalar(b.x(1), 0);  // 0 x0^0 is 0 at 0, too
    g[0] = sum_to(b.gy() * (b.x(1) * pow2(b.x(0), less)), b.shape(0));
  }
  if (b.need(1)) {
    const Variable base = b.x(0) + equal_scalar(b.x(0), 0);  // 1 for 0, so that the log is 0
    g[1] = sum_to(b.gy() * (b.y() * log(base)), b.shape(1));
  }
  return g;
});
const Gradient add_n_rule("add_n", [](const B& b) { return Variables(b.node->in.size(), b.gy()); });
const Gradient mul_n_rule("mul_n", [](const B& b) -> Variables {
  if (b.node->in.size() == 1) return {b.gy()};
  Variables g(b.node->in.size());
  for (size_t i = 0; i < g.size(); ++i) {
    if (!b.need(i)) continue;
    Variables others;
    for (size_t j = 0; j < g.size(); ++j)
      if (j != i) others.push_back(b.x(j));
    Variable all = others[0];
    for (size_t j = 1; j < others.size(); ++j) all = apply1("absorbing_mul", {}, {all, others[j]});
    g[i] = b.gy() * all;
  }
  return g;
});
// Functions with steps pass it straight through.
const Gradient add_scalar_rule({"add_scalar", "identity", "sign", "round", "ceil", "floor"},
                               [](const B& b) -> Variables { return {b.gy()}; });
const Gradient mul_scalar_rule("mul_scalar",
                               [](const B& b) -> Variables { return {b.gy() * b.number("val")}; });
const Gradient pow_scalar_rule("pow_scalar", [](const B& b) -> Variables {
  const double p = b.number("val");
  if (p == 0) return {b.gy() * 0.0};
  if (p == 1) return {b.gy()};
  return {b.gy() * pow_scalar(b.x(), p - 1) * p};
});
const Gradient r_sub_rule("r_sub_scalar", [](const B& b) -> Variables { return {b.gy() * -1.0}; });
const Gradient r_div_rule("r_div_scalar", [](const B& b) -> Variables {
  return {b.gy() * (b.y() / b.x()) * -1.0};
});
const Gradient r_pow_rule("r_pow_scalar", [](const B& b) -> Variables {
  const double v = b.number("val");
  return {b.gy() * b.y() * (v > 0 ? std::log(v) : v == 0 ? 0.0 : std::nan(""))};
});
const Gradient maximum_rule("maximum2", [](const B& b) -> Variables {
  return {b.need(0) ? sum_to(b.gy() * greater(b.x(0), b.x(1)), b.shape(0)) : Variable(),
          b.need(1) ? sum_to(b.gy() * less_equal(b.x(0), b.x(1)), b.shape(1)) : Variable()};
});
const Gradient minimum_rule("minimum2", [](const B& b) -> Variables {
  return {b.need(0) ? sum_to(b.gy() * less(b.x(0), b.x(1)), b.shape(0)) : Variable(),
          b.need(1) ? sum_to(b.gy() * greater_equal(b.x(0), b.x(1)), b.shape(1)) : Variable()};
});
const Gradient maximum_scalar_rule("maximum_scalar", [](const B& b) -> Variables {
  return {gate(b.gy(), b.x(), b.number("val"), none)};
});
const Gradient minimum_scalar_rule("minimum_scalar", [](const B& b) -> Variables {
  return {gate(b.gy(), b.x(), none, b.number("val"))};
});
const Gradient where_rule("where", [](const B& b) -> Variables {
  Shape shape = b.shape(0);
  shape.resize(b.shape(1).size(), 1);
  const Variable c = as_shape(b.x(0), shape);
  return {Variable(), b.need(1) ? b.gy() * not_equal_scalar(c, 0) : Variable(),
          b.need(2) ? b.gy() * equal_scalar(c, 0) : Variable()};
});

// ---- mathematics ----

Variable one_minus_square(const Variable& x) { return (1.0 - x) * (x + 1.0); }

const Gradient abs_rule("abs", [](const B& b) -> Variables {
  return {backward_op("abs_backward", b.gy(), b.x())};
});
const Gradient exp_rule("exp", [](const B& b) -> Variables { return {b.gy() * b.y()}; });
const Gradient log_rule("log", [](const B& b) -> Variables { return {b.gy() / b.x()}; });
const Gradient sin_rule("sin", [](const B& b) -> Variables { return {b.gy() * cos(b.x())}; });
const Gradient cos_rule("cos",
                        [](const B& b) -> Variables { return {b.gy() * sin(b.x()) * -1.0}; });
const Gradient tan_rule("tan",
                        [](const B& b) -> Variables { return {b.gy() * (b.y() * b.y() + 1.0)}; });
const Gradient sinh_rule("sinh", [](const B& b) -> Variables { return {b.gy() * cosh(b.x())}; });
const Gradient cosh_rule("cosh", [](const B& b) -> Variables { return {b.gy() * sinh(b.x())}; });
const Gradient asin_rule("asin", [](const B& b) -> Variables {
  return {b.gy() * pow_scalar(one_minus_square(b.x()), -0.5)};
});
const Gradient acos_rule("acos", [](const B& b) -> Variables {
  return {b.gy() * pow_scalar(one_minus_square(b.x()), -0.5) * -1.0};
});
const Gradient atan_rule("atan",
                         [](const B& b) -> Variables { return {b.gy() / (b.x() * b.x() + 1.0)}; });
const Gradient asinh_rule("asinh", [](const B& b) -> Variables {
  return {b.gy() * pow_scalar(b.x() * b.x() + 1.0, -0.5)};
});
const Gradient acosh_rule("acosh", [](const B& b) -> Variables {
  return {b.gy() * pow_scalar((b.x() - 1.0) * (b.x() + 1.0), -0.5)};
});
const Gradient atanh_rule("atanh", [](const B& b) -> Variables {
  return {b.gy() / one_minus_square(b.x())};
});

const Gradient atan2_rule("atan2", [](const B& b) -> Variables {
  // x1 / r^2 and -x0 / r^2 in units of the larger side, whose square may be no number
  const Variable side = maximum2(abs(b.x(0)), abs(b.x(1))), is_zero = equal_scalar(side, 0);
  const Variable unit = minimum_scalar(side, std::numeric_limits<float>::max()) + is_zero;
  const Variable height = b.x(0) / unit, width = b.x(1) / unit;
  const Variable square = height * height + width * width + is_zero;
  const auto part = [&](const Variable& s) { return b.gy() * (s / square) / unit; };
  return {b.need(0) ? sum_to(part(width), b.shape(0)) : Variable(),
          b.need(1) ? sum_to(part(height) * -1.0, b.shape(1)) : Variable()};
});
const Gradient erf_rule("erf", [](const B& b) -> Variables {
  return {b.gy() * (exp(b.x() * b.x() * -1.0) * 1.1283791670955126)};  // 2 / sqrt(pi)
});

// ---- activation ----

const Gradient tanh_rule("tanh", [](const B& b) -> Variables {
  return {backward_op("tanh_backward", b.gy(), b.y())};
});
const Gradient sigmoid_rule("sigmoid", [](const B& b) -> Variables {
  return {backward_op("sigmoid_backward", b.gy(), b.y())};
});
const Gradient relu_rule("relu",
                         [](const B& b) -> Variables { return {gate(b.gy(), b.y(), 0.0, none)}; });
const Gradient relu6_rule("relu6",
                          [](const B& b) -> Variables { return {gate(b.gy(), b.y(), 0.0, 6.0)}; });
const Gradient hard_sigmoid_rule("hard_sigmoid", [](const B& b) -> Variables {
  return {gate(b.gy(), b.x(), -2.5, 2.5, true) * 0.2};
});
const Gradient hard_tanh_rule("hard_tanh", [](const B& b) -> Variables {
  return {gate(b.gy(), b.x(), -1.0, 1.0, true)};
});
const Gradient leaky_relu_rule("leaky_relu", [](const B& b) -> Variables {
  return {apply1("leaky_relu_backward", {{"alpha", b.number("alpha")}}, {b.gy(), b.x()})};
});
const Gradient prelu_rule("prelu", [](const B& b) -> Variables {
  const auto axis = static_cast<size_t>(b.attributes.integer("base_axis"));
  Shape shape(b.shape(0).size(), 1);
  if (b.shape(1) == Shape{b.shape(0)[axis]}) shape[axis] = b.shape(0)[axis];
  Variables g(2);
  if (b.need(0)) g[0] = where(less_scalar(b.x(0), 0), b.gy() * as_shape(b.x(1), shape), b.gy());
  if (b.need(1)) g[1] = as_shape(sum_to(b.gy() * minimum_scalar(b.x(0), 0), shape), b.shape(1));
  return g;
});

// 1 where x > 0 (or also at 0), alpha e^x elsewhere.
Variable exponential_slope(const Variable& x, double alpha, bool one_at_zero) {
  const Variable slope = exp(minimum_scalar(x, 0));
  if (alpha == 1) return slope;
  const Variable positive = one_at_zero ? greater_equal_scalar(x, 0) : greater_scalar(x, 0);
  return slope * alpha * logical_not(positive) + positive;
}

const Gradient elu_rule("elu", [](const B& b) -> Variables {
  return {b.gy() * exponential_slope(b.x(), b.number("alpha"), true)};
});
const Gradient selu_rule("selu", [](const B& b) -> Variables {
  return {b.gy() * exponential_slope(b.x(), b.number("alpha"), false) * b.number("scale")};
});
const Gradient log_sigmoid_rule("log_sigmoid", [](const B& b) -> Variables {
  return {b.gy() * sigmoid(b.x() * -1.0)};
});
const Gradient softplus_rule("softplus", [](const B& b) -> Variables {
  return {b.gy() * sigmoid(b.x() * b.number("beta"))};
});
const Gradient softsign_rule("softsign", [](const B& b) -> Variables {
  return {b.gy() / pow_scalar(abs(b.x()) + 1.0, 2)};
});
const Gradient swish_rule("swish", [](const B& b) -> Variables {
  const Variable s = sigmoid(b.x());
  return {b.gy() * (s * (b.x() * (1.0 - s) + 1.0))};
});
const Gradient gelu_rule("gelu", [](const B& b) -> Variables {
  const double linear = std::sqrt(2 / M_PI), cubic = 0.044715 * linear;
  // from 100 on t is 1, and its slope 0; x^2 must not be infinite there
  const Variable x = b.x(), square = minimum_scalar(x * x, 1e4),
                 t = tanh(x * (square * cubic + linear));
  const Variable inner = square * (3 * cubic) + linear;
  return {b.gy() * ((t + 1.0) + backward_op("tanh_backward", x, t) * inner) * 0.5};
});
const Gradient mish_rule("mish", [](const B& b) -> Variables {
  const Variable t = tanh(softplus(b.x()));
  return {b.gy() * (t + backward_op("tanh_backward", b.x() * sigmoid(b.x()), t))};
});
const Gradient tanh_shrink_rule("tanh_shrink", [](const B& b) -> Variables {
  const Variable t = tanh(b.x());
  return {b.gy() * (t * t)};
});

// ---- losses ----

constexpr double tiny = 0x1p-126;  // the smallest probability whose logarithm is taken

const Gradient squared_error_rule("squared_error", [](const B& b) {
  return of_difference(b, (b.x(0) - b.x(1)) * 2.0);
});
const Gradient absolute_error_rule("absolute_error", [](const B& b) {
  return of_difference(b, greater_scalar(b.x(0) - b.x(1), 0) * 2.0 + -1.0);
});
const Gradient huber_rule("huber_loss", [](const B& b) {
  const double d = b.number("delta");
  return of_difference(b, minimum_scalar(maximum_scalar(b.x(0) - b.x(1), -d), d) * 2.0);
});
const Gradient epsilon_insensitive_rule("epsilon_insensitive_loss", [](const B& b) {
  const double e = b.number("epsilon");
  const Variable d = b.x(0) - b.x(1);
  return of_difference(b, greater_scalar(d, e) - less_scalar(d, -e));
});
const Gradient sigmoid_cross_entropy_rule("sigmoid_cross_entropy", [](const B& b) -> Variables {
  return {apply1("sigmoid_cross_entropy_backward", {}, {b.gy(), b.x(0), b.x(1)})};
});
const Gradient binary_cross_entropy_rule("binary_cross_entropy", [](const B& b) -> Variables {
  const Variable x = b.x(0), t = b.x(1), other = x * -1.0 + 1.0;
  Variables g(2);
  if (b.need(0)) g[0] = b.gy() * ((x - t) / maximum_scalar(x * other, tiny));
  if (b.need(1)) g[1] = b.gy() * (log(maximum_scalar(other, tiny)) - log(maximum_scalar(x, tiny)));
  return g;
});

}  // namespace
}  // namespace nnl::graph
