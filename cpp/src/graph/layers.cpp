// SPDX-License-Identifier: Apache-2.0
// Layers, functions of shapes, and arrays from nothing.
#include <atomic>

#include "arguments.h"
#include "nnl/functions.h"

namespace nnl {
namespace functions {

using graph::apply1;
using graph::axes_of;
using graph::axis_of;
using graph::or_all;
using graph::shape_of;

namespace {

AttributeMap sliding(const char* function, const Variable& x, int base_axis, const Integers& pad,
                     const Integers& stride, const Integers& dilation, int group,
                     bool channel_last) {
  const int64_t base = axis_of(function, base_axis, x);
  const size_t n = x.shape().size() - static_cast<size_t>(base) - 1;
  return {{"base_axis", base},
          {"pad", or_all(pad, n, 0)},
          {"stride", or_all(stride, n, 1)},
          {"dilation", or_all(dilation, n, 1)},
          {"group", int64_t{group}},
          {"channel_last", channel_last}};
}

AttributeMap pooling(const Integers& kernel, const Integers& stride, bool ignore_border,
                     const Integers& pad, bool channel_last) {
  return {{"kernel", kernel},
          {"stride", stride.empty() ? kernel : stride},
          {"ignore_border", ignore_border},
          {"pad", or_all(pad, kernel.size(), 0)},
          {"channel_last", channel_last}};
}

}  // namespace

Variable affine(const Variable& x, const Variable& weight, const Variable& bias, int base_axis) {
  return apply1("affine", AttributeMap{{"base_axis", axis_of("affine", base_axis, x)}},
                {x, weight, bias});
}

Variable convolution(const Variable& x, const Variable& weight, const Variable& bias, int base_axis,
                     Integers pad, Integers stride, Integers dilation, int group,
                     bool channel_last) {
  return apply1("convolution",
                sliding("convolution", x, base_axis, pad, stride, dilation, group, channel_last),
                {x, weight, bias});
}

Variable deconvolution(const Variable& x, const Variable& weight, const Variable& bias,
                       int base_axis, Integers pad, Integers stride, Integers dilation, int group,
                       bool channel_last, Integers output_padding) {
  AttributeMap a =
      sliding("deconvolution", x, base_axis, pad, stride, dilation, group, channel_last);
  const size_t n = std::get<std::vector<int64_t>>(a["pad"]).size();
  a["output_padding"] = or_all(output_padding, n, 0);
  return apply1("deconvolution", std::move(a), {x, weight, bias});
}

Variable depthwise_convolution(const Variable& x, const Variable& weight, const Variable& bias,
                               int base_axis, Integers pad, Integers stride, Integers dilation,
                               int multiplier) {
  const int64_t base = axis_of("depthwise_convolution", base_axis, x);
  Shape shape = shape_of("depthwise_convolution", "weight", weight);
  const int64_t channels = x.shape()[static_cast<size_t>(base)];
  if (shape.empty() || shape[0] != channels * multiplier)
    throw ValueError("depthwise_convolution: weight " + weight.value()->spec.text() +
                     ", wanted the first size " + std::to_string(channels) + " x multiplier " +
                     std::to_string(multiplier));
  shape.insert(shape.begin() + 1, 1);
  return convolution(x, reshape(weight, shape), bias, base_axis, pad, stride, dilation,
                     static_cast<int>(channels));
}

Variable max_pooling(const Variable& x, Integers kernel, Integers stride, bool ignore_border,
                     Integers pad, bool channel_last) {
  return apply1("max_pooling", pooling(kernel, stride, ignore_border, pad, channel_last), {x});
}

Variable sum_pooling(const Variable& x, Integers kernel, Integers stride, bool ignore_border,
                     Integers pad, bool channel_last) {
  return apply1("sum_pooling", pooling(kernel, stride, ignore_border, pad, channel_last), {x});
}

Variable average_pooling(const Variable& x, Integers kernel, Integers stride, bool ignore_border,
                         Integers pad, bool channel_last, bool including_pad) {
  AttributeMap a = pooling(kernel, stride, ignore_border, pad, channel_last);
  a["including_pad"] = including_pad;
  return apply1("average_pooling", std::move(a), {x});
}

Variable global_average_pooling(const Variable& x) {
  return apply1("global_average_pooling", {}, {x});
}

Variable unpooling(const Variable& x, Integers kernel, bool channel_last) {
  return apply1("unpooling", AttributeMap{{"kernel", kernel}, {"channel_last", channel_last}}, {x});
}

Variable embed(const Variable& indices, const Variable& w) {
  return apply1("embed", {}, {indices, w});
}

Variable batch_matmul(const Variable& a, const Variable& b, bool transpose_a, bool transpose_b) {
  return apply1("batch_matmul",
                AttributeMap{{"transpose_a", transpose_a}, {"transpose_b", transpose_b}}, {a, b});
}

// ---- normalization ----

Variable batch_normalization(const Variable& x, const Variable& beta, const Variable& gamma,
                             const Variable& mean, const Variable& variance, Integers axes,
                             double decay_rate, double eps, bool batch_stat) {
  return apply1("batch_normalization",
                AttributeMap{{"axes", axes_of("batch_normalization", axes, x, false)},
                             {"decay_rate", decay_rate},
                             {"eps", eps},
                             {"batch_stat", batch_stat},
                             {"no_scale", !gamma},
                             {"no_bias", !beta}},
                {x, beta, gamma, mean, variance});
}

namespace {

AttributeMap like_layer(const char* function, const Variable& x, const Variable& beta,
                        const Variable& gamma, const Integers& batch_axis, double eps) {
  return {{"batch_axis", axes_of(function, batch_axis, x, false)},
          {"eps", eps},
          {"no_scale", !gamma},
          {"no_bias", !beta}};
}

}  // namespace

Variable layer_normalization(const Variable& x, const Variable& beta, const Variable& gamma,
                             Integers batch_axis, double eps) {
  return apply1("layer_normalization",
                like_layer("layer_normalization", x, beta, gamma, batch_axis, eps),
                {x, beta, gamma});
}

Variable instance_normalization(const Variable& x, const Variable& beta, const Variable& gamma,
                                int channel_axis, Integers batch_axis, double eps) {
  AttributeMap a = like_layer("instance_normalization", x, beta, gamma, batch_axis, eps);
  a["channel_axis"] = axis_of("instance_normalization", channel_axis, x);
  return apply1("instance_normalization", std::move(a), {x, beta, gamma});
}

Variable group_normalization(const Variable& x, const Variable& beta, const Variable& gamma,
                             int num_groups, int channel_axis, Integers batch_axis, double eps) {
  AttributeMap a = like_layer("group_normalization", x, beta, gamma, batch_axis, eps);
  a["channel_axis"] = axis_of("group_normalization", channel_axis, x);
  a["num_groups"] = int64_t{num_groups};
  return apply1("group_normalization", std::move(a), {x, beta, gamma});
}

// ---- recurrent layers ----

namespace {

// Args: visible: how many of the outputs are not only for the gradient.
Variables recurrent(const char* op, Variables inputs, int num_layers, double dropout,
                    bool bidirectional, bool training, size_t visible, AttributeMap a = {}) {
  a["num_layers"] = int64_t{num_layers}, a["dropout"] = dropout;
  a["bidirectional"] = bidirectional, a["training"] = training;
  inputs.push_back(graph::random_state(-1));
  Variables y = apply(op, std::move(a), inputs);
  y.resize(visible);
  return y;
}

}  // namespace

Variables rnn(const Variable& x, const Variable& h, const Variable& weight_l0,
              const Variable& weight, const Variable& bias, int num_layers,
              const std::string& nonlinearity, double dropout, bool bidirectional, bool training) {
  return recurrent("rnn", {x, h, weight_l0, weight, bias}, num_layers, dropout, bidirectional,
                   training, 2, {{"nonlinearity", nonlinearity}});
}

Variables lstm(const Variable& x, const Variable& h, const Variable& c, const Variable& weight_l0,
               const Variable& weight, const Variable& bias, int num_layers, double dropout,
               bool bidirectional, bool training) {
  return recurrent("lstm", {x, h, c, weight_l0, weight, bias}, num_layers, dropout, bidirectional,
                   training, 3);
}

Variables gru(const Variable& x, const Variable& h, const Variable& weight_l0,
              const Variable& weight, const Variable& bias, int num_layers, double dropout,
              bool bidirectional, bool training) {
  return recurrent("gru", {x, h, weight_l0, weight, bias}, num_layers, dropout, bidirectional,
                   training, 2);
}

// ---- shape ----

Variable reshape(const Variable& x, Integers shape, bool inplace) {
  const int64_t size = Spec{shape_of("reshape", "x", x)}.size();
  double rest = 1;  // which no number of elements comes near where it is not exact
  auto unknown = shape.end();
  for (auto n = shape.begin(); n != shape.end(); ++n) {
    if (*n == -1 && unknown == shape.end())
      unknown = n;
    else
      rest *= static_cast<double>(*n);
  }
  if (unknown != shape.end() && rest > 0 && rest <= static_cast<double>(size) &&
      size % static_cast<int64_t>(rest) == 0)
    *unknown = size / static_cast<int64_t>(rest);
  return apply1("reshape", AttributeMap{{"shape", shape}, {"inplace", inplace}}, {x});
}

Variable transpose(const Variable& x, Integers axes) {
  return apply1("transpose", AttributeMap{{"axes", axes_of("transpose", axes, x, false)}}, {x});
}

Variable broadcast(const Variable& x, Integers shape) {
  return apply1("broadcast", AttributeMap{{"shape", shape}}, {x});
}

Variable concatenate(const Variables& x, int axis) {
  if (x.empty()) throw ValueError("concatenate: got no array, wanted at least one");
  return apply1("concatenate", AttributeMap{{"axis", axis_of("concatenate", axis, x[0])}}, x);
}

Variable stack(const Variables& x, int axis) {
  if (x.empty()) throw ValueError("stack: got no array, wanted at least one");
  const auto places = static_cast<int64_t>(shape_of("stack", "x", x[0]).size()) + 1;
  return apply1("stack", AttributeMap{{"axis", axis < 0 ? axis + places : int64_t{axis}}}, x);
}

Variables split(const Variable& x, int axis) {
  return apply("split", AttributeMap{{"axis", axis_of("split", axis, x)}}, {x});
}

Variable slice(const Variable& x, Integers start, Integers stop, Integers step) {
  const size_t n = shape_of("slice", "x", x).size();
  return apply1("slice",
                AttributeMap{{"start", or_all(start, n, 0)},
                             {"stop", stop.empty() ? x.shape() : stop},
                             {"step", or_all(step, n, 1)}},
                {x});
}

Variable pad(const Variable& x, Integers pad_width, const std::string& mode,
             double constant_value) {
  return apply1(
      "pad",
      AttributeMap{{"pad_width", pad_width}, {"mode", mode}, {"constant_value", constant_value}},
      {x});
}

Variable flip(const Variable& x, Integers axes) {
  return apply1("flip", AttributeMap{{"axes", axes_of("flip", axes, x, false)}}, {x});
}

Variable tile(const Variable& x, Integers reps) {
  return apply1("tile", AttributeMap{{"reps", reps}}, {x});
}

Variable gather(const Variable& x, const Variable& indices, int axis, int batch_dims) {
  return apply1(
      "gather",
      AttributeMap{{"axis", axis_of("gather", axis, x)}, {"batch_dims", int64_t{batch_dims}}},
      {x, indices});
}

Variable gather_nd(const Variable& data, const Variable& indices) {
  return apply1("gather_nd", {}, {data, indices});
}

Variables sort(const Variable& x, int axis, bool reverse, bool with_index, bool only_index) {
  return apply("sort",
               AttributeMap{{"axis", axis_of("sort", axis, x)},
                            {"reverse", reverse},
                            {"with_index", with_index},
                            {"only_index", only_index}},
               {x});
}

Variable trilu(const Variable& x, int k, bool upper) {
  return apply1("trilu", AttributeMap{{"k", int64_t{k}}, {"upper", upper}}, {x});
}

Variable matrix_diag(const Variable& x) { return apply1("matrix_diag", {}, {x}); }
Variable matrix_diag_part(const Variable& x) { return apply1("matrix_diag_part", {}, {x}); }

Variable one_hot(const Variable& x, Integers shape) {
  return apply1("one_hot", AttributeMap{{"shape", shape}}, {x});
}

Variable interpolate(const Variable& x, Integers output_size, const std::string& mode,
                     bool align_corners, bool half_pixel, bool half_pixel_for_nn,
                     bool channel_last) {
  return apply1("interpolate",
                AttributeMap{{"output_size", output_size},
                             {"mode", mode},
                             {"align_corners", align_corners},
                             {"half_pixel", half_pixel},
                             {"half_pixel_for_nn", half_pixel_for_nn},
                             {"channel_last", channel_last}},
                {x});
}

// ---- arrays from nothing ----

Variable constant(double val, Integers shape) {
  Variable x((Shape(shape)));
  x.data().fill(val);
  return x;
}

Variable rand(double low, double high, Integers shape, int seed) {
  return apply1(
      "rand", AttributeMap{{"low", low}, {"high", high}, {"shape", shape}, {"seed", int64_t{seed}}},
      {graph::random_state(seed)});
}

Variable randn(double mu, double sigma, Integers shape, int seed) {
  return apply1(
      "randn",
      AttributeMap{{"mu", mu}, {"sigma", sigma}, {"shape", shape}, {"seed", int64_t{seed}}},
      {graph::random_state(seed)});
}

Variable dropout(const Variable& x, double p, int seed) {
  return apply1("dropout", AttributeMap{{"p", p}, {"seed", int64_t{seed}}},
                {x, graph::random_state(seed)});
}

Variable image_augmentation(const Variable& x, Integers shape, Integers pad, double min_scale,
                            double max_scale, double angle, double aspect_ratio, double distortion,
                            bool flip_lr, bool flip_ud, double brightness, bool brightness_each,
                            double contrast, double contrast_center, bool contrast_each,
                            double noise, int seed) {
  if (shape.empty()) shape = shape_of("image_augmentation", "x", x);
  return apply1("image_augmentation",
                AttributeMap{{"shape", shape},
                             {"pad", pad},
                             {"min_scale", min_scale},
                             {"max_scale", max_scale},
                             {"angle", angle},
                             {"aspect_ratio", aspect_ratio},
                             {"distortion", distortion},
                             {"flip_lr", flip_lr},
                             {"flip_ud", flip_ud},
                             {"brightness", brightness},
                             {"brightness_each", brightness_each},
                             {"contrast", contrast},
                             {"contrast_center", contrast_center},
                             {"contrast_each", contrast_each},
                             {"noise", noise},
                             {"seed", int64_t{seed}}},
                {x, graph::random_state(seed)});
}

}  // namespace functions

namespace graph {
namespace {

// (key, counter) of a stream of random words.
Variable stream(uint64_t key) {
  Variable state(Shape{2});
  Spec spec{{2}, DType::u64, Layout::plain};
  state.value()->spec = spec, state.value()->data = Array(spec);
  state.data<uint64_t>()[0] = key;
  return state;
}

// Of this thread; the streams of threads differ.
Variable& common_stream() {
  static std::atomic<uint64_t> threads{0};
  thread_local Variable common = stream(313 + (threads++ << 32));
  return common;
}

}  // namespace

Variable random_state(int seed) {
  return seed < 0 ? common_stream() : stream(static_cast<uint64_t>(seed));
}

void seed_functions(uint64_t value) {
  auto* state = common_stream().data<uint64_t>();
  state[0] = value, state[1] = 0;
}

}  // namespace graph
}  // namespace nnl
