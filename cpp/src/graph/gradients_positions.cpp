// SPDX-License-Identifier: Apache-2.0
// Gradients of running sums and products, of elements at positions, and of recurrent layers.
#include <algorithm>
#include <functional>
#include <numeric>

#include "gradients.h"

namespace nnl::graph {
namespace {

using namespace nnl::functions;
using B = Backward;

// ---- running sums and products ----

AttributeMap along(int64_t axis, bool reverse) { return {{"axis", axis}, {"reverse", reverse}}; }

const Gradient cumsum_rule("cumsum", [](const B& b) -> Variables {
  AttributeMap back = b.node->attributes;
  back["reverse"] = !b.attributes.flag("reverse");
  return {apply1("cumsum", back, {b.gy()})};
});
Variable absorbing(const Variable& x0, const Variable& x1) {
  return apply1("absorbing_mul", {}, {x0, x1});
}
// gx_i = (product before i) (gy_i + x_{i+1} (gy_{i+1} + x_{i+2} (...))), so exact where x is 0
const Gradient cumprod_rule("cumprod", [](const B& b) -> Variables {
  const int64_t axis = b.attributes.integer("axis");
  const bool reverse = b.attributes.flag("reverse");
  const AttributeMap back{{"axis", axis}, {"reverse", !reverse}};
  const Variable g = b.attributes.flag("exclusive") ? apply1("delay", back, {b.gy()}) : b.gy();
  const Variable before = apply1("product_before", along(axis, reverse), {b.x()});
  return {absorbing(before, apply1("transposed_recurrence", back, {g, b.x()}))};
});
// In one line, the product of all others is what is before times what is after.
const Gradient prod_rule("prod", [](const B& b) -> Variables {
  const std::vector<int64_t>& axes = b.attributes.integers("axes");
  const Shape& x = b.shape();
  Shape order, back(x.size()), shape, row;
  for (int64_t i = 0; i < static_cast<int64_t>(x.size()); ++i)
    if (std::find(axes.begin(), axes.end(), i) == axes.end()) order.push_back(i);
  const auto last = static_cast<int64_t>(order.size());
  order.insert(order.end(), axes.begin(), axes.end());
  for (size_t i = 0; i < order.size(); ++i) {
    shape.push_back(x[static_cast<size_t>(order[i])]);
    back[static_cast<size_t>(order[i])] = static_cast<int64_t>(i);
  }
  row.assign(shape.begin(), shape.begin() + last);
  row.push_back(
      std::accumulate(shape.begin() + last, shape.end(), int64_t{1}, std::multiplies<>()));
  const Variable line = reshape(transpose(b.x(), order), row);
  const Variable others = absorbing(apply1("product_before", along(last, false), {line}),
                                    apply1("product_before", along(last, true), {line}));
  return {spread(b.gy(), x, axes) * transpose(reshape(others, shape), back)};
});

// ---- elements at positions ----

const Gradient gather_rule("gather", [](const B& b) -> Variables {
  return {apply1("gather_backward", b.with_shape(b.shape()), {b.gy(), b.x(1)})};
});
const Gradient gather_nd_rule("gather_nd", [](const B& b) -> Variables {
  return {apply1("scatter_nd", {{"shape", b.shape()}, {"add", true}}, {b.gy(), b.x(1)})};
});
const Gradient sort_rule("sort", [](const B& b) -> Variables {
  if (b.attributes.flag("only_index")) return {Variable()};
  AttributeMap a = b.node->attributes;
  a["only_index"] = true;
  const Variable index = apply1("sort", a, {b.x()});
  return {apply1("scatter_along", {{"shape", b.shape()}, {"axis", b.attributes.integer("axis")}},
                 {b.gy(), index})};
});
const Gradient tile_rule("tile", [](const B& b) -> Variables {
  Shape shape = b.shape(), reps = b.attributes.integers("reps");
  while (shape.size() < reps.size()) shape.insert(shape.begin(), 1);
  while (reps.size() < shape.size()) reps.insert(reps.begin(), 1);
  Shape pairs;  // every axis as which copy, and where in it
  Integers copies;
  for (size_t i = 0; i < shape.size(); ++i) {
    copies.push_back(static_cast<int64_t>(pairs.size()));
    pairs.push_back(reps[i]), pairs.push_back(shape[i]);
  }
  if (pairs.empty()) return {b.gy()};
  return {as_shape(sum(as_shape(b.gy(), pairs), copies), b.shape())};
});
const Gradient trilu_rule("trilu", [](const B& b) -> Variables {
  return {apply1("trilu", b.node->attributes, {b.gy()})};
});
const Gradient matrix_diag_rule("matrix_diag",
                                [](const B& b) -> Variables { return {matrix_diag_part(b.gy())}; });
const Gradient matrix_diag_part_rule("matrix_diag_part",
                                     [](const B& b) -> Variables { return {matrix_diag(b.gy())}; });

// ---- recurrent layers ----

// One kernel does all of it, from what the layers have kept in outputs that users do not see.
Variables recurrent(const B& b, const std::string& cell) {
  const size_t c = cell == "lstm" ? 1 : 0;  // arrays of the cell's state: one after each of h
  const auto given = [&](size_t i) { return b.given(i) ? b.x(i) : Variable(); };
  Variables in{b.gy(), b.gy_or_zero(1), c ? b.gy_or_zero(2) : Variable(),
               b.x(0), b.x(1),          c ? b.x(2) : Variable()};
  for (size_t i = 2 + c; i < 5 + c; ++i) in.push_back(given(i));
  in.push_back(b.y(0));
  for (size_t i = 2 + c; i < 6 + c; ++i) in.push_back(b.y(i));
  Variables g =
      apply("recurrent_backward",
            {{"cell", cell}, {"dropout", b.number("dropout")}, {"need_x", b.need(0)}}, in);
  if (!c) g.erase(g.begin() + 2);
  return g;
}

const Gradient rnn_rule("rnn",
                        [](const B& b) { return recurrent(b, b.attributes.text("nonlinearity")); });
const Gradient gru_rule("gru", [](const B& b) { return recurrent(b, "gru"); });
const Gradient lstm_rule("lstm", [](const B& b) { return recurrent(b, "lstm"); });

}  // namespace
}  // namespace nnl::graph
