// SPDX-License-Identifier: Apache-2.0
// Every element-wise op as a program.
#include <cmath>
#include <map>

#include "elementwise_codes.h"
#include "nnl/elementwise.h"

namespace nnl {
namespace {

// Writes a program. Operands and results are plain numbers, as in ElementwiseProgram.
class Writer {
 public:
  Writer(const Attributes& attributes, const std::vector<Shape>& in)
      : attributes(attributes), inputs(static_cast<int64_t>(in.size())) {
    program.shapes = in;
  }

  int64_t number(double value) {
    program.constants.push_back(value);
    return -static_cast<int64_t>(program.constants.size());
  }
  int64_t attribute(const char* name) { return number(attributes.number(name)); }
  int64_t flag(const char* name) { return number(attributes.flag(name) ? 1.0 : 0.0); }

  int64_t operator()(Code code, int64_t a, int64_t b = 0, int64_t c = 0) {
    const int64_t result = inputs + static_cast<int64_t>(program.code.size() / 4);
    program.code.insert(program.code.end(), {static_cast<int64_t>(code), a, b, c});
    return result;
  }

  const Attributes& attributes;
  const int64_t inputs;
  ElementwiseProgram program;
};

using Write = void (*)(Writer&);

// Ops of one instruction whose operands are the inputs.
const std::map<std::string, Code>& plain() {
  static const std::map<std::string, Code> table = {
      {"abs", Code::absolute},
      {"abs_backward", Code::absolute_backward},
      {"acos", Code::acos},
      {"acosh", Code::acosh},
      {"add2", Code::add},
      {"asin", Code::asin},
      {"asinh", Code::asinh},
      {"atan", Code::atan},
      {"atan2", Code::atan2},
      {"atanh", Code::atanh},
      {"bc_add2", Code::add},
      {"ceil", Code::ceil},
      {"clip_grad_by_norm", Code::copy},
      {"clip_grad_by_value", Code::copy},
      {"cos", Code::cos},
      {"cosh", Code::cosh},
      {"div2", Code::divide},
      {"equal", Code::equal},
      {"erf", Code::erf},
      {"exp", Code::exp},
      {"floor", Code::floor},
      {"gelu", Code::gelu},
      {"greater", Code::greater},
      {"greater_equal", Code::greater_equal},
      {"identity", Code::copy},
      {"isinf", Code::is_inf},
      {"isnan", Code::is_nan},
      {"less", Code::less},
      {"less_equal", Code::less_equal},
      {"log", Code::log},
      {"log_sigmoid", Code::log_sigmoid},
      {"logical_and", Code::logical_and},
      {"logical_not", Code::logical_not},
      {"logical_or", Code::logical_or},
      {"logical_xor", Code::logical_xor},
      {"maximum2", Code::larger},
      {"minimum2", Code::smaller},
      {"mish", Code::mish},
      {"mod2", Code::fmod},
      {"mul2", Code::multiply},
      {"not_equal", Code::not_equal},
      {"pow2", Code::power},
      {"relu", Code::relu},
      {"round", Code::round},
      {"sigmoid", Code::sigmoid},
      {"sigmoid_backward", Code::sigmoid_backward},
      {"sin", Code::sin},
      {"sinc", Code::sinc},
      {"sinc_backward", Code::sinc_backward},
      {"sinh", Code::sinh},
      {"softsign", Code::softsign},
      {"squared_error", Code::squared_difference},
      {"sub2", Code::subtract},
      {"swish", Code::swish},
      {"tan", Code::tan},
      {"tanh", Code::tanh},
      {"tanh_backward", Code::tanh_backward},
      {"tanh_shrink", Code::tanh_shrink},
      {"unlink", Code::copy},
  };
  return table;
}

// Ops of one instruction: the input, then the attribute of the given name.
struct WithNumber {
  Code code;
  const char* attribute;
};
const std::map<std::string, WithNumber>& with_number() {
  static const std::map<std::string, WithNumber> table = {
      {"add_scalar", {Code::add, "val"}},
      {"binarize", {Code::signs, "quantize_zero_to"}},
      {"elu", {Code::elu, "alpha"}},
      {"equal_scalar", {Code::equal, "val"}},
      {"greater_equal_scalar", {Code::greater_equal, "val"}},
      {"greater_scalar", {Code::greater, "val"}},
      {"leaky_relu", {Code::leaky_relu, "alpha"}},
      {"less_equal_scalar", {Code::less_equal, "val"}},
      {"less_scalar", {Code::less, "val"}},
      {"maximum_scalar", {Code::larger, "val"}},
      {"minimum_scalar", {Code::smaller, "val"}},
      {"mul_scalar", {Code::multiply, "val"}},
      {"not_equal_scalar", {Code::not_equal, "val"}},
      {"sign", {Code::sign, "alpha"}},
      {"softplus", {Code::softplus, "beta"}},
  };
  return table;
}

void pow_scalar(Writer& w) {
  const double p = w.attributes.number("val");
  if (p == 2.0)
    w(Code::square, 0);
  else if (p == 1.0)
    w(Code::copy, 0);
  else if (p == 0.5)
    w(Code::root, 0);
  else if (p == -1.0)
    w(Code::inverse, 0);
  else if (p == -0.5)
    w(Code::inverse_root, 0);
  else if (p == 3.0)
    w(Code::cube, 0);
  else
    w(Code::power, 0, w.number(p));
}

void gate(Writer& w) {
  const bool closed = w.attributes.flag("closed");
  int64_t g = 0;
  if (w.attributes.has("low"))
    g = w(closed ? Code::gate_greater_equal : Code::gate_greater, g, 1, w.attribute("low"));
  if (w.attributes.has("high"))
    g = w(closed ? Code::gate_less_equal : Code::gate_less, g, 1, w.attribute("high"));
  if (g == 0) w(Code::copy, 0);
}

template <Code code>
void over_all(Writer& w) {
  int64_t y = 0;
  for (int64_t i = 1; i < w.inputs; ++i) y = w(code, y, i);
  if (w.inputs == 1) w(Code::copy, 0);
}

void prelu(Writer& w) {
  Shape &x = w.program.shapes[0], &slope = w.program.shapes[1];
  const auto axis = static_cast<size_t>(w.attributes.integer("base_axis"));
  const Shape own = slope;
  slope.assign(x.size(), 1);
  if (own == Shape{x[axis]}) slope[axis] = x[axis];
  w(Code::leaky_relu, 0, 1);
}

void where(Writer& w) {
  Shape& condition = w.program.shapes[0];
  condition.resize(w.program.shapes[1].size(), 1);  // one element for all that lie after it
  w(Code::where, 0, 1, 2);
}

void broadcast(Writer& w) {
  Shape& x = w.program.shapes[0];
  x.insert(x.begin(), w.attributes.integers("shape").size() - x.size(), 1);
  w(Code::copy, 0);
}

void broadcast_to(Writer& w) {
  const Shape& x = w.program.shapes[0];
  Shape& y = w.program.shapes[1];
  const int64_t axis = w.attributes.has("axis") ? w.attributes.integer("axis") : -1;
  const size_t start = axis == -1 ? x.size() - y.size() : static_cast<size_t>(axis);
  y.insert(y.begin(), start, 1);
  y.resize(x.size(), 1);
  w(Code::copy, 1);
}

void fixed_point_quantize(Writer& w) {
  const int64_t bits = w.attributes.integer("n") - (w.attributes.flag("sign") ? 1 : 0);
  const double delta = w.attributes.number("delta"), high = (std::exp2(bits) - 1.0) * delta;
  const int64_t y =
      w(Code::multiply, w(Code::round, w(Code::divide, 0, w.number(delta))), w.number(delta));
  w(Code::clip, y, w.number(w.attributes.flag("sign") ? -high : 0.0), w.number(high));
}

// ln(1 + e^-|x|) + max(x, 0) - x t
void sigmoid_cross_entropy(Writer& w) {
  w(Code::subtract, w(Code::softplus, 0, w.number(1.0)), w(Code::multiply, 0, 1));
}

void binary_cross_entropy(Writer& w) {
  const int64_t one = w.number(1.0), tiny = w.number(std::ldexp(1.0, -126));
  const int64_t near = w(Code::log, w(Code::maximum, 0, tiny));
  const int64_t far = w(Code::log, w(Code::maximum, w(Code::subtract, one, 0), tiny));
  const int64_t rest = w(Code::multiply, w(Code::subtract, one, 1), far);
  w(Code::negative, w(Code::multiply_add, 1, near, rest));
}

void huber_loss(Writer& w) {
  const int64_t d = w(Code::absolute, w(Code::subtract, 0, 1));
  const int64_t near = w(Code::minimum, d, w.attribute("delta"));
  w(Code::multiply, w(Code::subtract, w(Code::multiply, d, w.number(2.0)), near), near);
}

void epsilon_insensitive_loss(Writer& w) {
  const int64_t d = w(Code::absolute, w(Code::subtract, 0, 1));
  w(Code::maximum, w(Code::subtract, d, w.attribute("epsilon")), w.number(0.0));
}

const std::map<std::string, Write>& composed() {
  static const std::map<std::string, Write> table = {
      {"absolute_error", [](Writer& w) { w(Code::absolute, w(Code::subtract, 0, 1)); }},
      {"add_n", over_all<Code::add>},
      {"binary_cross_entropy", binary_cross_entropy},
      {"binary_sigmoid", [](Writer& w) { w(Code::greater, 0, w.number(0.0)); }},
      {"binary_tanh",
       [](Writer& w) {
         w(Code::where, w(Code::greater, 0, w.number(0.0)), w.number(1.0), w.number(-1.0));
       }},
      {"broadcast", broadcast},
      {"broadcast_to", broadcast_to},
      {"epsilon_insensitive_loss", epsilon_insensitive_loss},
      {"fixed_point_quantize", fixed_point_quantize},
      {"gate", gate},
      {"hard_sigmoid",
       [](Writer& w) {
         w(Code::clip, w(Code::multiply_add, 0, w.number(0.2), w.number(0.5)), w.number(0.0),
           w.number(1.0));
       }},
      {"hard_tanh", [](Writer& w) { w(Code::clip, 0, w.number(-1.0), w.number(1.0)); }},
      {"huber_loss", huber_loss},
      {"leaky_relu_backward",
       [](Writer& w) { w(Code::leaky_relu_backward, 0, 1, w.attribute("alpha")); }},
      {"logical_and_scalar", [](Writer& w) { w(Code::logical_and, 0, w.flag("val")); }},
      {"logical_or_scalar", [](Writer& w) { w(Code::logical_or, 0, w.flag("val")); }},
      {"logical_xor_scalar", [](Writer& w) { w(Code::logical_xor, 0, w.flag("val")); }},
      {"masked_scale",
       [](Writer& w) { w(Code::multiply, w(Code::multiply, 0, 1), w.attribute("scale")); }},
      {"mul_n", over_all<Code::multiply>},
      {"pow_scalar", pow_scalar},
      {"prelu", prelu},
      {"r_div_scalar", [](Writer& w) { w(Code::divide, w.attribute("val"), 0); }},
      {"r_pow_scalar", [](Writer& w) { w(Code::power, w.attribute("val"), 0); }},
      {"r_sub_scalar", [](Writer& w) { w(Code::subtract, w.attribute("val"), 0); }},
      {"relu6", [](Writer& w) { w(Code::clip, 0, w.number(0.0), w.number(6.0)); }},
      {"reset_inf", [](Writer& w) { w(Code::where, w(Code::is_inf, 0), w.attribute("val"), 0); }},
      {"reset_nan", [](Writer& w) { w(Code::where, w(Code::is_nan, 0), w.attribute("val"), 0); }},
      {"selu",
       [](Writer& w) {
         w(Code::multiply, w(Code::elu, 0, w.attribute("alpha")), w.attribute("scale"));
       }},
      {"sigmoid_cross_entropy", sigmoid_cross_entropy},
      {"sigmoid_cross_entropy_backward",
       [](Writer& w) { w(Code::multiply, w(Code::subtract, w(Code::sigmoid, 1), 2), 0); }},
      {"where", where},
  };
  return table;
}

}  // namespace

std::optional<ElementwiseProgram> elementwise_program(const std::string& op,
                                                      const Attributes& attributes,
                                                      const std::vector<Shape>& in) {
  Writer w(attributes, in);
  if (auto it = plain().find(op); it != plain().end()) {
    const int n = operands_of(it->second);
    w(it->second, 0, n > 1 ? 1 : 0, n > 2 ? 2 : 0);
  } else if (auto number = with_number().find(op); number != with_number().end()) {
    w(number->second.code, 0, w.attribute(number->second.attribute));
  } else if (auto any = composed().find(op); any != composed().end()) {
    any->second(w);
  } else {
    return std::nullopt;
  }
  return std::move(w.program);
}

std::vector<std::string> elementwise_names() {
  std::vector<std::string> names;
  for (auto& [name, code] : plain()) names.push_back(name);
  for (auto& [name, code] : with_number()) names.push_back(name);
  for (auto& [name, write] : composed()) names.push_back(name);
  return names;
}

}  // namespace nnl
