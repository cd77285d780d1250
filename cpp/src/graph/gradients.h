// SPDX-License-Identifier: Apache-2.0
// Rules of gradients: a few lines for each op, in functions.
#pragma once
#include "graph.h"
#include "nnl/functions.h"

namespace nnl::graph {

using Variables = std::vector<Variable>;

// A node as its rule sees it.
struct Backward {
  const std::shared_ptr<Node>& node;
  const Variables& gys;
  Attributes attributes;

  const Variable& gy() const { return gys[0]; }
  Variable gy_or_zero(size_t i) const { return gys[i] ? gys[i] : Variable(node->out[i].shape); }
  Variable x(size_t i = 0) const { return Variable(node->in[i]); }
  Variable y(size_t i = 0) const { return node->output(node, i); }
  bool given(size_t i) const { return i < node->in.size() && node->in[i]; }
  bool need(size_t i) const { return given(i) && node->in[i]->need_grad; }
  const Shape& shape(size_t i = 0) const { return node->in[i]->spec.shape; }
  double number(const char* name) const { return attributes.number(name); }
  // What a gradient takes over from its function.
  AttributeMap with_shape(const Shape& shape) const {
    AttributeMap a = node->attributes;
    a["shape"] = shape;
    return a;
  }
};

// Gradients of the inputs; none where there is none, and fewer than inputs if the rest has none.
using GradientRule = Variables (*)(const Backward&);

struct Gradient {
  Gradient(const char* op, GradientRule rule);
  Gradient(std::initializer_list<const char*> ops, GradientRule rule);
};

Variable sum_to(const Variable& x, const Shape& shape);
Variable as_shape(const Variable& x, const Shape& shape);
Variable stretched(const Variable& x, const Shape& shape);
// The gradient of a reduced array, in the shape of what was reduced.
Variable spread(const Variable& gy, const Shape& shape, const std::vector<int64_t>& axes);

}  // namespace nnl::graph
