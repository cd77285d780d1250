// SPDX-License-Identifier: Apache-2.0
// Gradients of layers, normalizations, reductions and functions of shapes.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "gradients.h"

namespace nnl::graph {
namespace {

using namespace nnl::functions;
using B = Backward;
using Numbers = std::vector<int64_t>;

int64_t product(const Shape& shape, size_t from, size_t to) {
  return std::accumulate(shape.begin() + static_cast<ptrdiff_t>(from),
                         shape.begin() + static_cast<ptrdiff_t>(to), int64_t{1},
                         std::multiplies<>());
}

// ---- products ----

const Gradient affine_rule("affine", [](const B& b) -> Variables {
  const auto base = static_cast<size_t>(b.attributes.integer("base_axis"));
  const Shape &x = b.shape(0), &w = b.shape(1);
  const int64_t rows = product(x, 0, base), inner = w[0], columns = product(w, 1, w.size());
  const Variable gy = as_shape(b.gy(), {rows, columns});
  Variables g(3);
  if (b.need(0))
    g[0] = as_shape(batch_matmul(gy, as_shape(b.x(1), {inner, columns}), false, true), x);
  if (b.need(1))
    g[1] = as_shape(apply1("affine_weight", {}, {as_shape(b.x(0), {rows, inner}), gy}), w);
  if (b.need(2)) g[2] = as_shape(sum(gy, {0}), b.shape(2));
  return g;
});

const Gradient batch_matmul_rule("batch_matmul", [](const B& b) -> Variables {
  const bool ta = b.attributes.flag("transpose_a"), tb = b.attributes.flag("transpose_b");
  Variables g(2);
  if (b.need(0))
    g[0] = sum_to(
        ta ? batch_matmul(b.x(1), b.gy(), tb, true) : batch_matmul(b.gy(), b.x(1), false, !tb),
        b.shape(0));
  if (b.need(1))
    g[1] = sum_to(
        tb ? batch_matmul(b.gy(), b.x(0), true, ta) : batch_matmul(b.x(0), b.gy(), !ta, false),
        b.shape(1));
  return g;
});

const Gradient embed_rule("embed", [](const B& b) -> Variables {
  return {Variable(), apply1("embed_backward", {{"shape", b.shape(1)}}, {b.x(0), b.gy()})};
});

// ---- convolution ----

AttributeMap window_of(const B& b) {
  AttributeMap a = b.node->attributes;
  a.erase("output_padding");
  return a;
}

AttributeMap window_for(const B& b, const Shape& shape) {
  AttributeMap a = window_of(b);
  a["shape"] = shape;
  return a;
}

// The sum over all axes but the channels.
Variable bias_gradient(const B& b) {
  const int64_t rank = b.gy().ndim();
  const int64_t channel =
      b.attributes.flag("channel_last") ? rank - 1 : b.attributes.integer("base_axis");
  Integers axes;
  for (int64_t i = 0; i < rank; ++i)
    if (i != channel) axes.push_back(i);
  return sum(b.gy(), axes);
}

const Gradient convolution_rule("convolution", [](const B& b) -> Variables {
  Variables g(3);
  if (b.need(0)) g[0] = apply1("convolution_data", window_for(b, b.shape(0)), {b.gy(), b.x(1)});
  if (b.need(1)) g[1] = apply1("convolution_weight", window_for(b, b.shape(1)), {b.x(0), b.gy()});
  if (b.need(2)) g[2] = bias_gradient(b);
  return g;
});
const Gradient deconvolution_rule("deconvolution", [](const B& b) -> Variables {
  Variables g(3);
  if (b.need(0)) g[0] = apply1("convolution", window_of(b), {b.gy(), b.x(1), Variable()});
  if (b.need(1)) g[1] = apply1("convolution_weight", window_for(b, b.shape(1)), {b.gy(), b.x(0)});
  if (b.need(2)) g[2] = bias_gradient(b);
  return g;
});

// ---- pooling ----

const Gradient max_pooling_rule("max_pooling", [](const B& b) -> Variables {
  return {apply1("max_pooling_backward", b.node->attributes, {b.gy(), b.x()})};
});
const Gradient sum_pooling_rule("sum_pooling", [](const B& b) -> Variables {
  return {apply1("sum_pooling_backward", b.with_shape(b.shape()), {b.gy()})};
});
const Gradient average_pooling_rule("average_pooling", [](const B& b) -> Variables {
  return {apply1("average_pooling_backward", b.with_shape(b.shape()), {b.gy()})};
});
const Gradient global_average_pooling_rule("global_average_pooling", [](const B& b) -> Variables {
  const Shape& x = b.shape();
  const int64_t pixels = product(x, 2, x.size());
  const Variable g = b.gy() * (1.0 / static_cast<double>(pixels));
  return {as_shape(stretched(as_shape(g, {x[0], x[1], 1, 1}), {x[0], x[1], 1, pixels}), x)};
});
const Gradient unpooling_rule("unpooling", [](const B& b) -> Variables {
  const bool last = b.attributes.flag("channel_last");
  return {sum_pooling(b.gy(), b.attributes.integers("kernel"), {}, true, {}, last)};
});
const Gradient interpolate_rule("interpolate", [](const B& b) -> Variables {
  return {apply1("interpolate_backward", b.with_shape(b.shape()), {b.gy()})};
});

// ---- softmax and its losses ----

const Gradient softmax_rule("softmax", [](const B& b) -> Variables {
  return {apply1("softmax_backward", b.node->attributes, {b.gy(), b.y()})};
});
const Gradient log_softmax_rule("log_softmax", [](const B& b) -> Variables {
  return {apply1("log_softmax_backward", b.node->attributes, {b.gy(), b.y()})};
});
const Gradient softmax_cross_entropy_rule("softmax_cross_entropy", [](const B& b) -> Variables {
  return {apply1("softmax_cross_entropy_backward", b.node->attributes,
                 {b.gy(), b.x(0), b.x(1), b.y(1), b.y(2)})};
});

Variable place(const Variable& gy, const Variable& index, const Shape& shape, const Numbers& axes) {
  return apply1("place", {{"shape", shape}, {"axes", axes}}, {gy, index});
}

const Gradient categorical_cross_entropy_rule(
    "categorical_cross_entropy", [](const B& b) -> Variables {
      const Numbers axes{b.attributes.integer("axis")};
      const Variable chosen =
          maximum_scalar(apply1("pick", {{"axes", axes}}, {b.x(0), b.x(1)}), 0x1p-126);
      return {place(b.gy() / chosen, b.x(1), b.shape(0), axes) * -1.0};
    });
const Gradient kl_rule("kl_multinomial", [](const B& b) -> Variables {
  Numbers axes(b.shape(0).size() - static_cast<size_t>(b.attributes.integer("base_axis")));
  std::iota(axes.begin(), axes.end(), b.attributes.integer("base_axis"));
  const Variable g = spread(b.gy(), b.shape(0), axes), p = b.x(0) + 1e-8, q = b.x(1) + 1e-8;
  return {b.need(0) ? g * (log(p) - log(q) + 1.0) : Variable(),
          b.need(1) ? g * (b.x(0) / q) * -1.0 : Variable()};
});

// ---- reductions ----

const Gradient sum_rule("sum", [](const B& b) -> Variables {
  return {spread(b.gy(), b.shape(), b.attributes.integers("axes"))};
});
const Gradient mean_rule("mean", [](const B& b) -> Variables {
  const Numbers& axes = b.attributes.integers("axes");
  double n = 1;
  for (int64_t a : axes) n *= static_cast<double>(b.shape()[static_cast<size_t>(a)]);
  return {spread(b.gy() * (n ? 1 / n : std::nan("")), b.shape(), axes)};
});
const Gradient extremum_rule({"max", "min"}, [](const B& b) -> Variables {
  if (b.attributes.flag("only_index")) return {Variable()};
  AttributeMap a = b.node->attributes;
  a["only_index"] = true;
  const Variable index = apply1(b.node->op, a, {b.x()});
  return {place(b.gy(), index, b.shape(), b.attributes.integers("axes"))};
});
const Gradient norm_rule("norm", [](const B& b) -> Variables {
  const Numbers& axes = b.attributes.integers("axes");
  const double p = b.number("p");
  const Variable x = b.x(), signs = greater_equal_scalar(x, 0) * 2.0 + -1.0;
  if (p == 1) return {spread(b.gy(), b.shape(), axes) * signs};
  const Variable safe = b.y() + equal_scalar(b.y(), 0);
  const Variable g = spread(b.gy() * pow_scalar(safe, 1 - p), b.shape(), axes);
  if (p == 2) return {g * x};
  return {g * (pow_scalar(x * signs, p - 1) * signs)};
});

// ---- shape ----

const Gradient reshape_rule("reshape",
                            [](const B& b) -> Variables { return {reshape(b.gy(), b.shape())}; });
const Gradient broadcast_rule("broadcast",
                              [](const B& b) -> Variables { return {sum_to(b.gy(), b.shape())}; });
const Gradient transpose_rule("transpose", [](const B& b) -> Variables {
  const Numbers& axes = b.attributes.integers("axes");
  Numbers back(axes.size());
  for (size_t i = 0; i < axes.size(); ++i) back[static_cast<size_t>(axes[i])] = int64_t(i);
  return {transpose(b.gy(), back)};
});
const Gradient concatenate_rule("concatenate", [](const B& b) -> Variables {
  const auto axis = static_cast<size_t>(b.attributes.integer("axis"));
  Variables g(b.node->in.size());
  Shape start(b.shape(0).size(), 0), stop = b.gy().shape();
  for (size_t i = 0; i < g.size(); ++i) {
    stop[axis] = start[axis] + b.shape(i)[axis];
    if (b.need(i)) g[i] = slice(b.gy(), start, stop);
    start[axis] = stop[axis];
  }
  return g;
});
const Gradient stack_rule("stack", [](const B& b) -> Variables {
  return split(b.gy(), static_cast<int>(b.attributes.integer("axis")));
});
const Gradient split_rule("split", [](const B& b) -> Variables {
  Variables gys;
  for (size_t i = 0; i < b.gys.size(); ++i) gys.push_back(b.gy_or_zero(i));
  return {stack(gys, static_cast<int>(b.attributes.integer("axis")))};
});
const Gradient slice_rule("slice", [](const B& b) -> Variables {
  return {apply1("slice_backward", b.with_shape(b.shape()), {b.gy()})};
});
const Gradient flip_rule("flip", [](const B& b) -> Variables {
  return {flip(b.gy(), b.attributes.integers("axes"))};
});
const Gradient pad_rule("pad", [](const B& b) -> Variables {
  if (b.attributes.text("mode") != "constant")
    return {apply1("pad_backward",
                   {{"shape", b.shape()},
                    {"pad_width", b.attributes.integers("pad_width")},
                    {"mode", b.attributes.text("mode")}},
                   {b.gy()})};
  const Numbers& widths = b.attributes.integers("pad_width");  // of the last axes
  const size_t rank = b.shape().size(), first = rank - widths.size() / 2;
  Shape start(rank, 0), stop = b.shape();
  for (size_t i = first; i < rank; ++i) {
    start[i] = widths[2 * (i - first)];
    stop[i] += start[i];
  }
  return {slice(b.gy(), start, stop)};
});
const Gradient dropout_rule("dropout", [](const B& b) -> Variables {
  return {apply1("masked_scale", {{"scale", 1 / (1 - b.number("p"))}}, {b.gy(), b.y(1)})};
});

// ---- normalization ----

// Args: x: the shape in which it is normalized, over these axes; parameter: that of beta and gamma
// there.
Variables normalization(const B& b, const Shape& x, const Numbers& axes, const Shape& parameter) {
  const bool any = b.given(1) || b.given(2);
  const Variable gamma = b.given(2) ? as_shape(b.x(2), parameter) : Variable();
  const auto g = apply(
      "normalization_backward",
      {{"axes", axes},
       {"eps", b.number("eps")},
       {"parameter", any ? Attribute(parameter) : Attribute()}},
      {as_shape(b.gy(), x), Variable(), Variable(), as_shape(b.x(), x), b.y(1), b.y(2), gamma});
  return {as_shape(g[0], b.shape()), b.given(1) ? as_shape(g[1], b.shape(1)) : Variable(),
          b.given(2) ? as_shape(g[2], b.shape(2)) : Variable()};
}

Numbers others(size_t rank, const Numbers& axes) {
  Numbers rest;
  for (int64_t i = 0; i < static_cast<int64_t>(rank); ++i)
    if (!std::count(axes.begin(), axes.end(), i)) rest.push_back(i);
  return rest;
}

Shape kept_shape(const Shape& shape, const Numbers& axes) {
  Shape kept(shape.size(), 1);
  for (int64_t a : axes) kept[static_cast<size_t>(a)] = shape[static_cast<size_t>(a)];
  return kept;
}

const Gradient batch_normalization_rule("batch_normalization", [](const B& b) -> Variables {
  const Shape& x = b.shape();
  const Numbers& axes = b.attributes.integers("axes");
  const Shape parameter = kept_shape(x, axes);
  if (b.attributes.flag("batch_stat"))
    return normalization(b, x, others(x.size(), axes), parameter);
  const Variable inverse = pow_scalar(b.y(2) + b.number("eps"), -0.5);
  Variables g{b.gy() * (b.given(2) ? b.x(2) * inverse : inverse), Variable(), Variable()};
  if (b.need(1)) g[1] = sum_to(b.gy(), parameter);
  if (b.need(2)) g[2] = sum_to(b.gy() * (b.x(0) - b.y(1)), parameter) * inverse;
  return g;
});

const Gradient layer_normalization_rule("layer_normalization", [](const B& b) -> Variables {
  const Numbers rest = others(b.shape().size(), b.attributes.integers("batch_axis"));
  return normalization(b, b.shape(), rest, kept_shape(b.shape(), rest));
});

const Gradient instance_normalization_rule("instance_normalization", [](const B& b) -> Variables {
  Numbers kept = b.attributes.integers("batch_axis");
  kept.push_back(b.attributes.integer("channel_axis"));
  const size_t p = b.given(2) ? 2 : 1;
  return normalization(b, b.shape(), others(b.shape().size(), kept),
                       b.given(p) ? b.shape(p) : Shape{});
});

// The groups get an axis of their own, before the rest of the channels.
const Gradient group_normalization_rule("group_normalization", [](const B& b) -> Variables {
  const int64_t channel = b.attributes.integer("channel_axis");
  const int64_t groups = b.attributes.integer("num_groups");
  const auto fold = [&](Shape shape) {
    int64_t& n = shape[static_cast<size_t>(channel)];
    const int64_t lead = n == 1 ? 1 : groups;
    n /= lead;
    shape.insert(shape.begin() + channel, lead);
    return shape;
  };
  Numbers kept{channel};
  for (int64_t a : b.attributes.integers("batch_axis")) kept.push_back(a + (a > channel));
  const Shape x = fold(b.shape());
  const size_t p = b.given(2) ? 2 : 1;
  return normalization(b, x, others(x.size(), kept), b.given(p) ? fold(b.shape(p)) : Shape{});
});

}  // namespace
}  // namespace nnl::graph
