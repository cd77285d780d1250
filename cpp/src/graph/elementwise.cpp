// SPDX-License-Identifier: Apache-2.0
#include "elementwise.h"

#include <map>

#include "nnl/elementwise.h"

namespace nnl::graph {
namespace {

int64_t code_named(const std::string& name) {
  static const std::map<std::string, int64_t> numbers = [] {
    std::map<std::string, int64_t> all;
    for (const auto& [code, operands] : elementwise_codes())
      all.emplace(code, static_cast<int64_t>(all.size()));
    return all;
  }();
  const auto found = numbers.find(name);
  if (found == numbers.end()) throw ValueError("there is no instruction '" + name + "'");
  return found->second;
}

// Appends instructions. Operands are numbers of values, inputs first, or below 0 constants.
struct Writer {
  ProgramStep& step;
  const Attributes& attributes;
  int64_t inputs;

  int64_t operator()(const std::string& code, int64_t a = 0, int64_t b = 0, int64_t c = 0) {
    step.code.insert(step.code.end(), {code_named(code), a, b, c});
    return inputs + static_cast<int64_t>(step.code.size() / 4) - 1;
  }
  int64_t number(double value) {
    step.constants.push_back(value);
    return -static_cast<int64_t>(step.constants.size());
  }
  int64_t attribute(const char* name) { return number(attributes.number(name)); }
  Shape& shape(size_t i) { return step.shapes[i]; }
};

using Program = void (*)(Writer&);

constexpr double tiny = 0x1p-126;  // the smallest probability whose logarithm is taken

void over_all(Writer& w, const char* code) {
  int64_t y = 0;
  for (int64_t i = 1; i < w.inputs; ++i) y = w(code, y, i);
  if (w.step.code.empty()) w("copy");
}

void power(Writer& w) {
  const double p = w.attributes.number("val");
  const std::map<double, const char*> names = {{2.0, "square"},        {1.0, "copy"},
                                               {0.5, "root"},          {-1.0, "inverse"},
                                               {-0.5, "inverse_root"}, {3.0, "cube"}};
  if (const auto known = names.find(p); known != names.end())
    w(known->second);
  else
    w("power", 0, w.number(p));
}

void gate(Writer& w) {
  const std::string end = w.attributes.flag("closed") ? "_equal" : "";
  int64_t g = 0;
  if (w.attributes.has("low")) g = w("gate_greater" + end, g, 1, w.attribute("low"));
  if (w.attributes.has("high")) g = w("gate_less" + end, g, 1, w.attribute("high"));
  if (!g) w("copy");
}

void clip(Writer& w, int64_t x, double low, double high) {
  w("clip", x, w.number(low), w.number(high));
}

void binary_cross_entropy(Writer& w) {
  const int64_t one = w.number(1), least = w.number(tiny);
  const int64_t near = w("log", w("maximum", 0, least));
  const int64_t far = w("log", w("maximum", w("subtract", one, 0), least));
  const int64_t rest = w("multiply", w("subtract", one, 1), far);
  w("negative", w("multiply_add", 1, near, rest));
}

void huber(Writer& w) {
  const int64_t d = w("absolute", w("subtract", 0, 1));
  const int64_t near = w("minimum", d, w.attribute("delta"));
  w("multiply", w("subtract", w("multiply", d, w.number(2)), near), near);
}

void prelu(Writer& w) {
  const auto axis = static_cast<size_t>(w.attributes.integer("base_axis"));
  const Shape x = w.shape(0);
  Shape slopes(x.size(), 1);
  if (w.shape(1) == Shape{x[axis]}) slopes[axis] = x[axis];
  w.shape(1) = slopes;
  w("leaky_relu", 0, 1);
}

// Ops of one instruction: its name, and the attribute that follows the inputs.
struct Single {
  const char *code, *attribute;
};

const std::map<std::string, Single>& singles() {
  static const std::map<std::string, Single> table = {
      {"add2", {"add", nullptr}},
      {"bc_add2", {"add", nullptr}},
      {"sub2", {"subtract", nullptr}},
      {"mul2", {"multiply", nullptr}},
      {"div2", {"divide", nullptr}},
      {"pow2", {"power", nullptr}},
      {"atan2", {"atan2", nullptr}},
      {"add_scalar", {"add", "val"}},
      {"mul_scalar", {"multiply", "val"}},
      {"equal", {"equal", nullptr}},
      {"not_equal", {"not_equal", nullptr}},
      {"greater", {"greater", nullptr}},
      {"greater_equal", {"greater_equal", nullptr}},
      {"less", {"less", nullptr}},
      {"less_equal", {"less_equal", nullptr}},
      {"equal_scalar", {"equal", "val"}},
      {"not_equal_scalar", {"not_equal", "val"}},
      {"greater_scalar", {"greater", "val"}},
      {"greater_equal_scalar", {"greater_equal", "val"}},
      {"less_scalar", {"less", "val"}},
      {"less_equal_scalar", {"less_equal", "val"}},
      {"logical_and", {"logical_and", nullptr}},
      {"logical_or", {"logical_or", nullptr}},
      {"logical_xor", {"logical_xor", nullptr}},
      {"logical_not", {"logical_not", nullptr}},
      {"isnan", {"is_nan", nullptr}},
      {"isinf", {"is_inf", nullptr}},
      {"identity", {"copy", nullptr}},
      {"abs", {"absolute", nullptr}},
      {"abs_backward", {"absolute_backward", nullptr}},
      {"exp", {"exp", nullptr}},
      {"log", {"log", nullptr}},
      {"sin", {"sin", nullptr}},
      {"cos", {"cos", nullptr}},
      {"tan", {"tan", nullptr}},
      {"sinh", {"sinh", nullptr}},
      {"cosh", {"cosh", nullptr}},
      {"tanh", {"tanh", nullptr}},
      {"tanh_backward", {"tanh_backward", nullptr}},
      {"asin", {"asin", nullptr}},
      {"acos", {"acos", nullptr}},
      {"atan", {"atan", nullptr}},
      {"asinh", {"asinh", nullptr}},
      {"acosh", {"acosh", nullptr}},
      {"atanh", {"atanh", nullptr}},
      {"sign", {"sign", "alpha"}},
      {"maximum2", {"larger", nullptr}},
      {"minimum2", {"smaller", nullptr}},
      {"maximum_scalar", {"larger", "val"}},
      {"minimum_scalar", {"smaller", "val"}},
      {"relu", {"relu", nullptr}},
      {"leaky_relu", {"leaky_relu", "alpha"}},
      {"leaky_relu_backward", {"leaky_relu_backward", "alpha"}},
      {"elu", {"elu", "alpha"}},
      {"sigmoid", {"sigmoid", nullptr}},
      {"sigmoid_backward", {"sigmoid_backward", nullptr}},
      {"log_sigmoid", {"log_sigmoid", nullptr}},
      {"softplus", {"softplus", "beta"}},
      {"softsign", {"softsign", nullptr}},
      {"swish", {"swish", nullptr}},
      {"gelu", {"gelu", nullptr}},
      {"mish", {"mish", nullptr}},
      {"tanh_shrink", {"tanh_shrink", nullptr}},
      {"round", {"round", nullptr}},
      {"ceil", {"ceil", nullptr}},
      {"floor", {"floor", nullptr}},
      {"erf", {"erf", nullptr}},
      {"squared_error", {"squared_difference", nullptr}},
  };
  return table;
}

const std::map<std::string, Program>& programs() {
  static const std::map<std::string, Program> table = {
      {"add_n", [](Writer& w) { over_all(w, "add"); }},
      {"mul_n", [](Writer& w) { over_all(w, "multiply"); }},
      {"absorbing_mul",
       [](Writer& w) {
         const int64_t y = w("multiply", 0, 1), both = w("add", 0, 1);
         w("where", w("is_nan", y), w("where", w("is_nan", both), both, w.number(0)), y);
       }},
      {"pow_scalar", power},
      {"r_sub_scalar", [](Writer& w) { w("subtract", w.attribute("val"), 0); }},
      {"r_div_scalar", [](Writer& w) { w("divide", w.attribute("val"), 0); }},
      {"r_pow_scalar", [](Writer& w) { w("power", w.attribute("val"), 0); }},
      {"gate", gate},
      {"where",
       [](Writer& w) {
         w.shape(0).resize(w.shape(1).size(), 1);
         w("where", 0, 1, 2);
       }},
      {"prelu", prelu},
      {"selu",
       [](Writer& w) { w("multiply", w("elu", 0, w.attribute("alpha")), w.attribute("scale")); }},
      {"relu6", [](Writer& w) { clip(w, 0, 0, 6); }},
      {"hard_tanh", [](Writer& w) { clip(w, 0, -1, 1); }},
      {"hard_sigmoid",
       [](Writer& w) {
         const int64_t slope = w.number(0.2), middle = w.number(0.5);
         clip(w, w("multiply_add", 0, slope, middle), 0, 1);
       }},
      {"masked_scale", [](Writer& w) { w("multiply", w("multiply", 0, 1), w.attribute("scale")); }},
      {"sigmoid_cross_entropy",
       [](Writer& w) {
         const int64_t soft = w("softplus", 0, w.number(1));
         w("subtract", soft, w("multiply", 0, 1));
       }},
      {"sigmoid_cross_entropy_backward",
       [](Writer& w) { w("multiply", w("subtract", w("sigmoid", 1), 2), 0); }},
      {"binary_cross_entropy", binary_cross_entropy},
      {"absolute_error", [](Writer& w) { w("absolute", w("subtract", 0, 1)); }},
      {"huber_loss", huber},
      {"epsilon_insensitive_loss",
       [](Writer& w) {
         const int64_t d = w("absolute", w("subtract", 0, 1));
         const int64_t above = w("subtract", d, w.attribute("epsilon"));
         w("maximum", above, w.number(0));
       }},
  };
  return table;
}

}  // namespace

bool is_elementwise(const std::string& op) { return singles().count(op) || programs().count(op); }

void write_code(const std::string& op, const Attributes& attributes, std::vector<Shape> shapes,
                ProgramStep& step) {
  step.shapes = std::move(shapes);
  Writer w{step, attributes, static_cast<int64_t>(step.shapes.size())};
  const auto single = singles().find(op);
  if (single == singles().end()) return programs().at(op)(w);
  int64_t operands[3] = {0, 1, 2};
  if (single->second.attribute) operands[w.inputs] = w.attribute(single->second.attribute);
  for (int64_t i = w.inputs + (single->second.attribute ? 1 : 0); i < 3; ++i) operands[i] = 0;
  w(single->second.code, operands[0], operands[1], operands[2]);
}

}  // namespace nnl::graph
