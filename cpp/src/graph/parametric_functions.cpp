// SPDX-License-Identifier: Apache-2.0
#include "nnl/parametric_functions.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "arguments.h"

namespace nnl {

struct ParameterDirectory::Store {
  Parameters all;  // by whole names

  Variable* find(const std::string& name) {
    for (auto& [known, v] : all)
      if (known == name) return &v;
    return nullptr;
  }
};

ParameterDirectory::ParameterDirectory() : store_(std::make_shared<Store>()) {}

ParameterDirectory ParameterDirectory::operator[](const std::string& name) const {
  if (name.empty()) throw ValueError("ParameterDirectory: the name of a part of it is empty");
  ParameterDirectory below = *this;
  below.prefix_ += name + "/";
  return below;
}

Parameters ParameterDirectory::get_parameters(bool grad_only) const {
  Parameters found;
  for (const auto& [name, v] : store_->all)
    if (name.compare(0, prefix_.size(), prefix_) == 0 && (v.need_grad() || !grad_only))
      found.emplace_back(name.substr(prefix_.size()), v);
  return found;
}

Variable ParameterDirectory::get_parameter(const std::string& name) const {
  const Variable* known = store_->find(prefix_ + name);
  return known ? *known : Variable();
}

void ParameterDirectory::set_parameter(const std::string& name, const Variable& value) const {
  if (!value) throw ValueError("set_parameter: '" + prefix_ + name + "' is no Variable");
  if (Variable* known = store_->find(prefix_ + name))
    *known = value;
  else
    store_->all.emplace_back(prefix_ + name, value);
}

Variable ParameterDirectory::get_parameter_or_create(const std::string& name, const Shape& shape,
                                                     const Initializer& initializer,
                                                     bool need_grad) const {
  if (const Variable known = get_parameter(name)) {
    if (known.shape() != shape)
      throw ValueError("parameter '" + prefix_ + name + "' is " + known.data().spec().text() +
                       ", wanted the shape of " + Spec{shape}.text());
    return known;
  }
  Variable made(shape, need_grad);
  if (initializer) initializer(shape, made.data<float>(true));
  set_parameter(name, made);
  return made;
}

namespace parametric_functions {
namespace {

using graph::axis_of;
using graph::shape_of;

Variable learned(const ParameterDirectory& params, const char* name, const Shape& shape,
                 const Initializer& initializer, bool fix = false) {
  const Variable v = params.get_parameter_or_create(name, shape, initializer, true);
  return fix ? Variable(v, false) : v;  // the same arrays, of which no gradient is asked for
}

template <class Options>
Variable weight_of(const ParameterDirectory& params, const Shape& shape, int64_t inmaps,
                   int64_t outmaps, const Integers& kernel, const Options& opts) {
  const bool there = static_cast<bool>(params.get_parameter("W"));
  const Initializer init =
      opts.w_init_ || there ? opts.w_init_ : initializer::glorot(inmaps, outmaps, kernel);
  return learned(params, "W", shape, init, opts.fix_parameters_);
}

template <class Options>
Variable bias_of(const ParameterDirectory& params, int64_t n, const Options& opts) {
  if (!opts.with_bias_) return {};
  return learned(params, "b", {n}, opts.b_init_, opts.fix_parameters_);
}

void check_at_least_one(const char* function, const char* name, int64_t value) {
  if (value < 1)
    throw ValueError(std::string(function) + ": " + name + " is " + std::to_string(value) +
                     ", wanted at least 1");
}

void check_rank(const char* function, const Variable& x, int64_t base, const Integers& kernel) {
  const int64_t rank = base + 1 + static_cast<int64_t>(kernel.size());
  if (x.ndim() != rank)
    throw ValueError(std::string(function) + ": x " + x.value()->spec.text() + ", wanted " +
                     std::to_string(rank) + " axes for base_axis " + std::to_string(base) +
                     " and " + std::to_string(kernel.size()) + " sizes of kernel");
}

int64_t divided(const char* function, const char* what, int64_t n, int64_t group) {
  check_at_least_one(function, "group", group);
  if (n % group)
    throw ValueError(std::string(function) + ": " + std::to_string(n) + " " + what +
                     " do not divide into group " + std::to_string(group));
  return n / group;
}

// How many maps x has.
template <class Options>
int64_t maps_of(const char* function, const Variable& x, int base_axis, int outmaps,
                const Integers& kernel, const Options& opts) {
  const int64_t base = axis_of(function, base_axis, x);
  check_rank(function, x, base, kernel);
  check_at_least_one(function, "outmaps", outmaps);
  return opts.channel_last_ ? x.shape().back() : x.shape()[static_cast<size_t>(base)];
}

// (maps, channels, *kernel), or channels last.
Shape weight_shape(int64_t maps, int64_t channels, const Integers& kernel, bool channel_last) {
  Shape shape{maps};
  if (!channel_last) shape.push_back(channels);
  shape.insert(shape.end(), kernel.begin(), kernel.end());
  if (channel_last) shape.push_back(channels);
  return shape;
}

}  // namespace

Variable affine(const Variable& x, int base_axis, int n_out, const ParameterDirectory& params,
                const AffineOpts& opts) {
  const auto base = static_cast<ptrdiff_t>(axis_of("affine", base_axis, x));
  check_at_least_one("affine", "n_out", n_out);
  const int64_t inmaps =
      std::accumulate(x.shape().begin() + base, x.shape().end(), int64_t{1}, std::multiplies<>());
  const ParameterDirectory own = params["affine"];
  const Variable w = weight_of(own, {inmaps, n_out}, inmaps, n_out, {1}, opts);
  return functions::affine(x, w, bias_of(own, n_out, opts), static_cast<int>(base));
}

Variable convolution(const Variable& x, int base_axis, int outmaps, Integers kernel,
                     const ParameterDirectory& params, const ConvolutionOpts& opts) {
  const int64_t inmaps = maps_of("convolution", x, base_axis, outmaps, kernel, opts);
  const int64_t read = divided("convolution", "input channels", inmaps, opts.group_);
  const ParameterDirectory own = params["conv"];
  const Variable w = weight_of(own, weight_shape(outmaps, read, kernel, opts.channel_last_), inmaps,
                               outmaps, kernel, opts);
  return functions::convolution(x, w, bias_of(own, outmaps, opts), base_axis, opts.pad_,
                                opts.stride_, opts.dilation_, opts.group_, opts.channel_last_);
}

Variable depthwise_convolution(const Variable& x, int base_axis, Integers kernel,
                               const ParameterDirectory& params, const ConvolutionOpts& opts,
                               int multiplier) {
  const int64_t base = axis_of("depthwise_convolution", base_axis, x);
  check_rank("depthwise_convolution", x, base, kernel);
  check_at_least_one("depthwise_convolution", "multiplier", multiplier);
  const int64_t inmaps = x.shape()[static_cast<size_t>(base)], outmaps = inmaps * multiplier;
  Shape shape{outmaps};
  shape.insert(shape.end(), kernel.begin(), kernel.end());
  const ParameterDirectory own = params["depthwise_conv"];
  const Variable w = weight_of(own, shape, inmaps, outmaps, kernel, opts);
  return functions::depthwise_convolution(x, w, bias_of(own, outmaps, opts), base_axis, opts.pad_,
                                          opts.stride_, opts.dilation_, multiplier);
}

Variable deconvolution(const Variable& x, int base_axis, int outmaps, Integers kernel,
                       const ParameterDirectory& params, const DeconvolutionOpts& opts) {
  const int64_t inmaps = maps_of("deconvolution", x, base_axis, outmaps, kernel, opts);
  const int64_t made = divided("deconvolution", "output channels", outmaps, opts.group_);
  const ParameterDirectory own = params["deconv"];
  const Variable w = weight_of(own, weight_shape(inmaps, made, kernel, opts.channel_last_), inmaps,
                               outmaps, kernel, opts);
  return functions::deconvolution(x, w, bias_of(own, outmaps, opts), base_axis, opts.pad_,
                                  opts.stride_, opts.dilation_, opts.group_, opts.channel_last_,
                                  opts.output_padding_);
}

Variable batch_normalization(const Variable& x, bool batch_stat, const ParameterDirectory& params,
                             const BatchNormalizationOpts& opts) {
  Shape shape(shape_of("batch_normalization", "x", x).size(), 1);
  for (int64_t a : opts.axes_) {
    const auto axis = static_cast<size_t>(axis_of("batch_normalization", a, x));
    shape[axis] = x.shape()[axis];
  }
  const ParameterDirectory own = params["bn"];
  const bool fix = opts.fix_parameters_;
  const Initializer one = initializer::constant(1);
  const Variable beta = opts.no_bias_ ? Variable() : learned(own, "beta", shape, nullptr, fix);
  const Variable gamma = opts.no_scale_ ? Variable() : learned(own, "gamma", shape, one, fix);
  const Variable mean = own.get_parameter_or_create("mean", shape, nullptr, false);
  const Variable variance = own.get_parameter_or_create("var", shape, one, false);
  return functions::batch_normalization(x, beta, gamma, mean, variance, opts.axes_,
                                        opts.decay_rate_, opts.eps_, batch_stat);
}

namespace {

std::pair<Variable, Variable> beta_and_gamma(const ParameterDirectory& own, const Shape& shape) {
  const Variable beta = learned(own, "beta", shape, nullptr);
  return {beta, learned(own, "gamma", shape, initializer::constant(1))};
}

Shape channel_shape(const char* function, const Variable& x, int channel_axis) {
  const auto axis = static_cast<size_t>(axis_of(function, channel_axis, x));
  Shape shape(x.shape().size(), 1);
  shape[axis] = x.shape()[axis];
  return shape;
}

}  // namespace

Variable layer_normalization(const Variable& x, const ParameterDirectory& params,
                             Integers batch_axis, double eps) {
  Shape shape = shape_of("layer_normalization", "x", x);
  for (int64_t a : batch_axis) shape[static_cast<size_t>(axis_of("layer_normalization", a, x))] = 1;
  const auto [beta, gamma] = beta_and_gamma(params["layer_normalization"], shape);
  return functions::layer_normalization(x, beta, gamma, batch_axis, eps);
}

Variable instance_normalization(const Variable& x, const ParameterDirectory& params,
                                int channel_axis, Integers batch_axis, double eps) {
  const auto [beta, gamma] = beta_and_gamma(
      params["instance_normalization"], channel_shape("instance_normalization", x, channel_axis));
  return functions::instance_normalization(x, beta, gamma, channel_axis, batch_axis, eps);
}

Variable group_normalization(const Variable& x, int num_groups, const ParameterDirectory& params,
                             int channel_axis, Integers batch_axis, double eps) {
  const auto [beta, gamma] = beta_and_gamma(params["group_normalization"],
                                            channel_shape("group_normalization", x, channel_axis));
  return functions::group_normalization(x, beta, gamma, num_groups, channel_axis, batch_axis, eps);
}

Variable embed(const Variable& indices, int n_inputs, int n_features,
               const ParameterDirectory& params, const Initializer& w_init, bool fix_parameters) {
  const Initializer init = w_init ? w_init : initializer::uniform(-std::sqrt(3.0), std::sqrt(3.0));
  return functions::embed(
      indices, learned(params["embed"], "W", {n_inputs, n_features}, init, fix_parameters));
}

Variable prelu(const Variable& x, int base_axis, bool shared, const ParameterDirectory& params,
               double slope) {
  const auto axis = static_cast<size_t>(axis_of("prelu", base_axis, x));
  const Shape shape = shared ? Shape{} : Shape{x.shape()[axis]};
  return functions::prelu(x, learned(params["prelu"], "slope", shape, initializer::constant(slope)),
                          base_axis);
}

// ---- recurrent layers ----

namespace {

// Columns of the inputs, then those of the states: each part with Glorot's limits of its own, one
// drawn after the other.
Initializer beside(int64_t inputs, int64_t hidden) {
  return [=](const Shape& shape, float* w) {
    const int64_t width = inputs + hidden, rows = Spec{shape}.size() / width;
    int64_t first = 0;
    for (int64_t n : {inputs, hidden}) {
      std::vector<float> part(static_cast<size_t>(rows * n));
      initializer::glorot(n, hidden)({rows, n}, part.data());
      for (int64_t i = 0; i < rows; ++i)
        std::copy_n(part.begin() + i * n, n, w + i * width + first);
      first += n;
    }
  };
}

struct RecurrentParameters {
  Variable weight_l0, weight, bias;

  // Args: gates, rows: sizes that weights and bias have for the parts of a cell; none for rnn.
  RecurrentParameters(const char* function, const Variable& x, const Variable& h,
                      const ParameterDirectory& params, const RecurrentOpts& opts,
                      const Shape& gates, const Shape& rows) {
    if (shape_of(function, "x", x).size() != 3 || shape_of(function, "h", h).size() != 4)
      throw ValueError(std::string(function) + ": x " + x.value()->spec.text() + " and h " +
                       h.value()->spec.text() + ", wanted (T, B, I) and (L, D, B, H)");
    check_at_least_one(function, "num_layers", opts.num_layers_);
    const int64_t layers = opts.num_layers_, directions = opts.bidirectional_ ? 2 : 1;
    const int64_t size = x.shape()[2], hidden = h.shape()[3];
    check_at_least_one(function, "the number of states", hidden);
    const auto shaped = [&](Shape front, const Shape& middle, std::initializer_list<int64_t> back) {
      front.insert(front.end(), middle.begin(), middle.end());
      front.insert(front.end(), back);
      return front;
    };
    const ParameterDirectory own = params[function];
    weight_l0 = learned(own, "weight_l0", shaped({directions}, gates, {hidden, size + hidden}),
                        beside(size, hidden), opts.fix_parameters_);
    const int64_t below = directions * hidden;  // what a layer reads of the one before
    if (layers > 1)
      weight =
          learned(own, "weight", shaped({layers - 1, directions}, gates, {hidden, below + hidden}),
                  beside(below, hidden), opts.fix_parameters_);
    if (opts.with_bias_)
      bias = learned(own, "bias", shaped({layers, directions}, rows, {hidden}), nullptr,
                     opts.fix_parameters_);
  }
};

}  // namespace

Variables rnn(const Variable& x, const Variable& h, const ParameterDirectory& params,
              const RecurrentOpts& opts) {
  const RecurrentParameters p("rnn", x, h, params, opts, {}, {});
  return functions::rnn(x, h, p.weight_l0, p.weight, p.bias, opts.num_layers_, opts.nonlinearity_,
                        opts.dropout_, opts.bidirectional_, opts.training_);
}

Variables lstm(const Variable& x, const Variable& h, const Variable& c,
               const ParameterDirectory& params, const RecurrentOpts& opts) {
  const RecurrentParameters p("lstm", x, h, params, opts, {4}, {4});
  return functions::lstm(x, h, c, p.weight_l0, p.weight, p.bias, opts.num_layers_, opts.dropout_,
                         opts.bidirectional_, opts.training_);
}

Variables gru(const Variable& x, const Variable& h, const ParameterDirectory& params,
              const RecurrentOpts& opts) {
  const RecurrentParameters p("gru", x, h, params, opts, {3}, {4});
  return functions::gru(x, h, p.weight_l0, p.weight, p.bias, opts.num_layers_, opts.dropout_,
                        opts.bidirectional_, opts.training_);
}

}  // namespace parametric_functions
}  // namespace nnl
