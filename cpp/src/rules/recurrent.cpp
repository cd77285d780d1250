// SPDX-License-Identifier: Apache-2.0
// Rules of recurrent layers: x (T, B, I), states (L, D, B, H).
#include "rule.h"

namespace nnl {
namespace {

struct Cell {
  int64_t gates, bias_rows, saved;
  bool has_cell;
};
Cell cell_of(const std::string& name) {
  if (name == "lstm") return {4, 4, 4, true};
  if (name == "gru") return {3, 4, 4, false};
  return {1, 1, 0, false};
}

// Where the inputs lie; 99: the op has none.
struct Places {
  size_t x, h, c, weight_l0, weight, bias;
};
constexpr size_t nowhere = 99;

struct Layers {
  Spec y, inner, saved, cells;

  Layers(const RuleCall& c, const Cell& cell, const Places& at, int64_t layers,
         int64_t directions) {
    if (c[at.x].rank() != 3) c.fail(at.x, "rank 3");
    if (c[at.h].rank() != 4) c.fail(at.h, "rank 4");
    const int64_t steps = c[at.x].shape[0], batch = c[at.x].shape[1], size = c[at.x].shape[2];
    const int64_t hidden = c[at.h].shape[3];
    if (layers > 1 && !c.given(at.weight)) c.fail("weight is missing, wanted those of all layers");
    const auto rows = [&](Shape front, int64_t n, std::initializer_list<int64_t> back) {
      if (n > 1) front.push_back(n);
      front.insert(front.end(), back);
      return front;
    };
    c.has_shape(at.h, {layers, directions, batch, hidden});
    c.has_shape(at.c, {layers, directions, batch, hidden});
    c.has_shape(at.weight_l0, rows({directions}, cell.gates, {hidden, size + hidden}));
    c.has_shape(at.weight,
                rows({layers - 1, directions}, cell.gates, {hidden, (directions + 1) * hidden}));
    c.has_shape(at.bias, rows({layers, directions}, cell.bias_rows, {hidden}));
    y = with_shape(c[at.x], {steps, batch, directions * hidden});
    inner = with_shape(y, {layers - 1, steps, batch, directions * hidden});
    const auto kept = [&](int64_t n) {
      return with_shape(y, {layers, directions, steps, batch, n});
    };
    saved = kept(cell.saved * hidden), cells = kept(cell.has_cell ? hidden : 0);
  }
};

Specs forward(const RuleCall& c, const std::string& name) {
  const Cell cell = cell_of(name);
  const size_t more = cell.has_cell ? 1 : 0;
  const double p = c.attributes.number("dropout");
  c.in_range("dropout", p >= 0 && p < 1, "0 <= dropout < 1");
  const int64_t layers = c.integer("num_layers", 1, largest_step);
  const Places at = {0, 1, more ? 2 : nowhere, 2 + more, 3 + more, 4 + more};
  const Layers l(c, cell, at, layers, c.attributes.flag("bidirectional") ? 2 : 1);
  const bool dropped = p > 0 && c.attributes.flag("training") && layers > 1;
  if (dropped && !c.given(5 + more)) c.fail("rng is missing, wanted it for dropout");
  const Spec mask =
      with_type(with_shape(l.inner, dropped ? l.inner.shape : Shape{0}), DType::boolean);
  Specs out = {l.y, c[1], l.inner, l.saved, l.cells, mask};
  if (more) out.insert(out.begin() + 2, c[1]);
  return out;
}

Specs rnn_of(const RuleCall& c) {
  c.one_of("nonlinearity", {"tanh", "relu"});
  return forward(c, "tanh");
}
Specs gru_of(const RuleCall& c) { return forward(c, "gru"); }
Specs lstm_of(const RuleCall& c) { return forward(c, "lstm"); }
const ShapeRule rnn{"rnn", "x h weight_l0 weight? bias? rng?", rnn_of};
const ShapeRule gru{"gru", "x h weight_l0 weight? bias? rng?", gru_of};
const ShapeRule lstm{"lstm", "x h c weight_l0 weight? bias? rng?", lstm_of};

Specs backward(const RuleCall& c) {
  c.one_of("cell", {"tanh", "relu", "lstm", "gru"});
  const Cell cell = cell_of(c.attributes.text("cell"));
  const Places at = {3, 4, cell.has_cell ? 5 : nowhere, 6, 7, 8};
  if (c.given(5) != cell.has_cell) c.fail("c is for lstm, which needs it");
  if (c[4].rank() != 4) c.fail(4, "rank 4");
  const int64_t layers = c[4].shape[0], directions = c[4].shape[1];
  if (layers < 1 || directions < 1 || directions > 2) c.fail(4, "layers, and 1 or 2 directions");
  const Layers l(c, cell, at, layers, directions);
  c.has_shape(0, l.y.shape);
  c.same_shape(1, 4);
  c.same_shape(2, 4);
  c.has_shape(9, l.y.shape);
  c.has_shape(10, l.inner.shape);
  c.has_shape(11, l.saved.shape);
  c.has_shape(12, l.cells.shape);
  c.has_type(13, DType::boolean);
  if (c.given(13) && c[13].shape != Shape{0}) c.has_shape(13, l.inner.shape);
  Specs out;
  for (size_t i : {3, 4, 5, 6, 7, 8}) {
    const bool wanted = c.given(i) && (i != 3 || c.attributes.flag("need_x"));
    out.push_back(wanted ? c[i] : with_shape(c[3], {0}));
  }
  return out;
}
const ShapeRule recurrent_backward{
    "recurrent_backward", "gy gh_n gc_n? x h c? weight_l0 weight? bias? y inner saved cells mask",
    backward};

}  // namespace
}  // namespace nnl
