// SPDX-License-Identifier: Apache-2.0
// Gradients of a graph: from its end to its leaves, by the rules of its ops.
#include <map>

#include "gradients.h"

namespace nnl::graph {
namespace {

std::map<std::string, GradientRule>& rules() {
  static std::map<std::string, GradientRule> table;
  return table;
}

void add(Variable& sum, const Variable& g) { sum = sum ? sum + g : g; }

}  // namespace

Gradient::Gradient(const char* op, GradientRule rule) { rules()[op] = rule; }

Gradient::Gradient(std::initializer_list<const char*> ops, GradientRule rule) {
  for (const char* op : ops) rules()[op] = rule;
}

std::vector<std::pair<ValuePtr, Variable>> gradients(const Variable& y, const Variable& gy) {
  std::vector<std::pair<ValuePtr, Variable>> found;
  std::map<const Value*, size_t> place;  // of leaves in found
  std::map<const Node*, Variables> pending;
  const auto arrive = [&](const ValuePtr& v, const Variable& g) {
    if (!v->node) {
      const auto [at, first] = place.emplace(v.get(), found.size());
      if (first) found.emplace_back(v, Variable());
      return add(found[at->second].second, g);
    }
    Variables& slots = pending[v->node.get()];
    slots.resize(v->node->out.size());
    add(slots[v->index], g);
  };
  arrive(y.value(), gy);
  const auto order = nodes_below(y.value());
  for (auto at = order.rbegin(); at != order.rend(); ++at) {
    const std::shared_ptr<Node>& node = *at;
    const auto arrived = pending.find(node.get());
    if (arrived == pending.end()) continue;
    Variables gys = std::move(arrived->second);
    for (size_t i = 0; i < gys.size(); ++i) {
      const ValuePtr v = node->values[i].lock();
      if (v && v->persistent && gys[i]) found.emplace_back(v, gys[i]);
    }
    const auto rule = rules().find(node->op);
    if (rule == rules().end())
      throw ValueError("backward: " + node->op + " has no gradient in C++");
    if (!gys[0]) gys[0] = Variable(node->out[0].shape);  // only a later output was used
    const Variables gxs = rule->second({node, gys, Attributes(node->attributes)});
    for (size_t i = 0; i < gxs.size() && i < node->in.size(); ++i)
      if (gxs[i] && node->in[i] && node->in[i]->need_grad) arrive(node->in[i], gxs[i]);
  }
  return found;
}

Variable as_shape(const Variable& x, const Shape& shape) {
  return x.shape() == shape ? x : functions::reshape(x, shape);
}

Variable stretched(const Variable& x, const Shape& shape) {
  return x.shape() == shape ? x : functions::broadcast(x, shape);
}

Variable sum_to(const Variable& x, const Shape& shape) {
  if (x.shape() == shape) return x;
  const size_t lead = x.shape().size() - shape.size();
  Integers axes;
  for (size_t i = 0; i < x.shape().size(); ++i)
    if (i < lead || (shape[i - lead] == 1 && x.shape()[i] != 1))
      axes.push_back(static_cast<int64_t>(i));
  return as_shape(functions::sum(x, axes, true), shape);
}

Variable spread(const Variable& gy, const Shape& shape, const std::vector<int64_t>& axes) {
  Shape kept = shape;
  for (int64_t a : axes) kept[static_cast<size_t>(a)] = 1;
  return stretched(as_shape(gy, kept), shape);
}

}  // namespace nnl::graph

namespace nnl {

std::vector<std::string> gradient_names() {
  std::vector<std::string> names;
  for (const auto& [name, rule] : graph::rules()) names.push_back(name);
  return names;
}

}  // namespace nnl
