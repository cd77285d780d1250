// SPDX-License-Identifier: Apache-2.0
// Rules of steps that passes make of several.
#include "convolution.h"
#include "nnl/elementwise.h"

namespace nnl {
namespace {

Specs convolution_and_more(const RuleCall& c) {
  c.one_of("activation", {"identity", "relu", "relu6", "sigmoid", "tanh", "swish", "hard_sigmoid",
                          "gelu", "leaky_relu", "elu"});
  const Shape weight = c.attributes.flag("packed") ? c.shape("w_shape") : c[1].shape;
  const Spec y = convolved_spec(c, 0, weight);
  for (size_t i : {2, 4}) c.has_shape(i, {weight[0]});
  c.has_shape(3, y.shape);
  return {y};
}
const ShapeRule convolution_fused{"convolution_fused", "x weight bias? z? scale?",
                                  convolution_and_more};

Specs packed(const RuleCall& c) { return {{{c.integer("nbytes", 0)}, DType::u8}}; }
const ShapeRule pack_convolution{"pack_convolution", "x? weight? bias? z? scale? y?", packed};

// ---- a convolution of NNabla's, with padding, normalization and a nonlinearity ----

Signature part(const RuleCall& c, std::unordered_map<std::string, Attribute> attributes,
               std::initializer_list<size_t> inputs) {
  Signature s;
  s.attributes = Attributes(std::move(attributes));
  for (size_t i : inputs) {
    s.in.push_back(c.given(i) ? c[i] : Spec{});
    s.in_given.push_back(c.given(i));
  }
  return s;
}

Specs padded_convolution(const RuleCall& c) {
  const Attributes& a = c.attributes;
  c.one_of("nonlinearity", {"elu", "identity", "leaky_relu", "relu", "relu6", "sigmoid", "tanh"});
  const std::string& word = a.text("nonlinearity");
  if (a.numbers("nonlinearity_args").size() != (word == "elu" || word == "leaky_relu" ? 1u : 0u))
    c.fail("nonlinearity_args has another number of values than '" + word + "' takes");
  const auto base = static_cast<size_t>(c.integer("base_axis", 0, 64));
  const size_t rank = c[0].shape.size(), n = rank < base + 2 ? 0 : rank - base - 1;
  std::vector<int64_t> widths = c.integers("pad", 0, largest_step);
  if (!n || (widths.size() != n && widths.size() != 2 * n))
    c.fail("pad has " + std::to_string(widths.size()) + " entries, wanted one or two for each " +
           "spatial axis of " + c.text(0));
  if (widths.size() == n)  // both sides alike
    for (size_t i = 0; i < n; ++i)
      widths.insert(widths.begin() + static_cast<std::ptrdiff_t>(2 * i), widths[2 * i]);
  const bool last = a.flag("channel_last");
  if (last) widths.resize(2 * n + 2);
  c.one_of("pad_mode", {"constant", "reflect", "repeat"});
  Signature s = part(c,
                     {{"base_axis", static_cast<int64_t>(base)},
                      {"pad", std::vector<int64_t>(n)},
                      {"stride", a.integers("stride")},
                      {"dilation", a.integers("dilation")},
                      {"group", a.integer("group")},
                      {"channel_last", last}},
                     {0, 1, 2});
  s.in[0] = infer("pad", part(c, {{"pad_width", widths}, {"mode", a.text("pad_mode")}}, {0}))[0];
  const Spec y = infer("convolution", s)[0];
  int given = 0;
  for (size_t i : {3, 4, 5, 6}) given += c.given(i);
  if (given != 0 && given != 4) c.fail("beta, gamma, mean and variance: wanted all or none");
  if (given) {
    Signature normalization =
        part(c,
             {{"axes", std::vector<int64_t>{static_cast<int64_t>(last ? base + n : base)}},
              {"batch_stat", a.flag("batch_stat")}},
             {0, 3, 4, 5, 6});
    normalization.in[0] = y;
    infer("batch_normalization", normalization);
  }
  c.has_shape(7, y.shape);
  return {y};
}
const ShapeRule fused_convolution{
    "fused_convolution", "x weight bias? beta? gamma? mean? variance? z?", padded_convolution};

// ---- element-wise programs ----

// Every instruction reads constants and values before it.
int64_t check_code(const RuleCall& c) {
  static const auto known = elementwise_codes();
  const std::vector<int64_t>& code = c.attributes.integers("code");
  const auto constants = static_cast<int64_t>(c.attributes.numbers("constants").size());
  auto values = static_cast<int64_t>(c.in.size());
  if (code.size() % 4) c.fail("code has an instruction that is cut off");
  for (size_t k = 0; k < code.size(); k += 4, ++values) {
    if (code[k] < 0 || code[k] >= static_cast<int64_t>(known.size()))
      c.fail("code has the unknown instruction " + std::to_string(code[k]));
    const auto& [name, operands] = known[static_cast<size_t>(code[k])];
    for (int o = 1; o <= operands; ++o)
      if (const int64_t v = code[k + static_cast<size_t>(o)]; v < -constants || v >= values)
        c.fail(name + " reads the value " + std::to_string(v) + " of " + std::to_string(values));
  }
  return values;
}

// What all shapes stretch to.
void stretch(const RuleCall& c, Shape& space, const Shape& shape) {
  if (space.size() < shape.size()) space.insert(space.begin(), shape.size() - space.size(), 1);
  for (size_t k = 0; k < shape.size(); ++k) {
    int64_t& n = space[space.size() - shape.size() + k];
    if (n != shape[k] && n != 1 && shape[k] != 1) c.fail("the inputs do not stretch to one shape");
    if (n == 1) n = shape[k];
  }
}

std::vector<int64_t> for_each(const RuleCall& c, const char* name, size_t n, int64_t most) {
  std::vector<int64_t> found = c.integers(name, 0, most);
  if (found.empty()) found.resize(n);
  if (found.size() != n) c.fail(std::string(name) + " has no entry for each of the outputs");
  return found;
}

Specs elementwise(const RuleCall& c) {
  if (c.in.empty()) c.fail("got no array, wanted at least one");
  const int64_t values = check_code(c);
  const Shape seen = c.shape("shapes");
  const size_t rank = seen.size() / c.in.size();
  if (seen.size() % c.in.size()) c.fail("shapes has no shape for each of the inputs");
  Shape space = c.shape();
  for (size_t i = 0; i < c.in.size(); ++i) {
    Shape own = c[i].shape;
    if (!seen.empty()) {
      const auto begin = seen.begin() + static_cast<std::ptrdiff_t>(i * rank);
      own.assign(begin, begin + static_cast<std::ptrdiff_t>(rank));
      Signature same_size = {Attributes({{"shape", own}}), {c[i]}, {true}, {}};
      infer("reshape", same_size);
    }
    stretch(c, space, own);
  }
  const std::vector<bool> axes = c.axes("axes", space.size());
  const size_t n = c.integers("outputs", 0, values - 1).size();
  if (!n) c.fail("outputs is empty");
  const std::vector<int64_t> reductions = for_each(c, "reductions", n, 3);
  const std::vector<int64_t> stays = for_each(c, "keep_dims", n, 1);
  const size_t scales = c.attributes.numbers("scales").size();
  if (scales && scales != n) c.fail("scales has no entry for each of the outputs");
  Specs out;
  for (size_t o = 0; o < n; ++o) {
    out.push_back(with_shape(c[0], space));
    if (reductions[o])
      out[o].shape = stays[o] ? kept_shape(space, axes) : dropped_shape(space, axes);
  }
  return out;
}
const ShapeRule fused_elementwise{"fused_elementwise", "*x", elementwise};

}  // namespace
}  // namespace nnl
