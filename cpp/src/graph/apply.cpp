// SPDX-License-Identifier: Apache-2.0
// Applying ops: nodes for a graph, or results at once.
#include <set>
#include <unordered_set>

#include "elementwise.h"
#include "graph.h"
#include "nnl/rules.h"
#include "nnl/runner.h"

namespace nnl {
namespace {

thread_local bool running_now = false;
thread_local bool recording_gradients = true;

}  // namespace

bool AutoForward::enabled() { return running_now; }
void AutoForward::set(bool on) { running_now = on; }

namespace graph {

Mode::Mode(bool run, bool need_grad) : run_before_(running_now), grad_before_(recording_gradients) {
  running_now = run, recording_gradients = need_grad;
}

Mode::~Mode() { running_now = run_before_, recording_gradients = grad_before_; }

Value::~Value() = default;

Node::~Node() {
  for (const ValuePtr& v : in)
    if (v) --v->uses;
  // A long chain is taken apart link by link, not by calls within calls.
  std::vector<std::shared_ptr<Node>> last;
  const auto take = [&](std::vector<ValuePtr>& values) {
    for (ValuePtr& v : values)
      if (v && v.use_count() == 1 && v->node && v->node.use_count() == 1)
        last.push_back(std::move(v->node));
    values.clear();
  };
  take(in);
  while (!last.empty()) {
    const std::shared_ptr<Node> node = std::move(last.back());
    last.pop_back();
    for (const ValuePtr& v : node->in)
      if (v) --v->uses;
    take(node->in);
  }
}

Variable Node::output(const std::shared_ptr<Node>& self, size_t i) {
  if (ValuePtr known = values[i].lock()) return Variable(known);
  auto v = std::make_shared<Value>();
  v->spec = out[i], v->data = data[i], v->node = self, v->index = i;
  v->need_grad = need_grad && out[i].dtype == DType::f32;
  values[i] = v;
  return Variable(v);
}

Traits traits_of(const std::string& op, const AttributeMap& attributes) {
  // without gradient
  static const std::set<std::string> constant = {"equal",
                                                 "not_equal",
                                                 "greater",
                                                 "greater_equal",
                                                 "less",
                                                 "less_equal",
                                                 "equal_scalar",
                                                 "not_equal_scalar",
                                                 "greater_scalar",
                                                 "greater_equal_scalar",
                                                 "less_scalar",
                                                 "less_equal_scalar",
                                                 "logical_and",
                                                 "logical_or",
                                                 "logical_xor",
                                                 "logical_not",
                                                 "isnan",
                                                 "isinf",
                                                 "unlink",
                                                 "one_hot",
                                                 "rand",
                                                 "randn",
                                                 "randint",
                                                 "image_augmentation",
                                                 "cast"};
  Traits t;
  t.view = op == "reshape" || op == "unlink";
  t.differentiable = !constant.count(op);
  const std::vector<RuleInput>& inputs = rule_inputs(op);
  if (!inputs.empty() && inputs.back().name == "rng")
    t.writes = {static_cast<int>(inputs.size()) - 1};
  if (op == "batch_normalization" && std::get<bool>(attributes.at("batch_stat"))) t.writes = {3, 4};
  return t;
}

Variable apply1(const std::string& op, AttributeMap attributes,
                const std::vector<Variable>& inputs) {
  return apply(op, std::move(attributes), inputs)[0];
}

DType read_as(const Node& node, size_t i, DType actual) {
  const std::vector<RuleInput>& inputs = rule_inputs(node.op);
  const bool is_float = actual <= DType::bf16;
  if (i < inputs.size() && inputs[i].whole) return is_float ? DType::i64 : actual;
  return node.in[i]->spec.dtype;
}

ProgramStep cast_step(const Node& node, size_t i, DType to) {
  ProgramStep step;
  step.op = "cast", step.label = node.op;
  step.attributes["dtype"] = std::string(name_of(to));
  const bool whole = to == DType::i64;
  step.attributes["whole"] = whole ? node.op + ": " + rule_inputs(node.op)[i].name : std::string();
  return step;
}

ProgramStep step_of(const Node& node) {
  ProgramStep step;
  step.op = step.label = node.op, step.attributes = node.attributes;
  const Traits traits = traits_of(node.op, node.attributes);
  step.view = traits.view;
  for (int w : traits.writes)
    if (static_cast<size_t>(w) < node.in.size() && node.in[static_cast<size_t>(w)])
      step.writes.push_back(w);
  if (is_elementwise(node.op)) {
    std::vector<Shape> shapes;
    for (const ValuePtr& v : node.in) shapes.push_back(v->spec.shape);
    try {
      write_code(node.op, Attributes(node.attributes), std::move(shapes), step);
    } catch (const ValueError& e) {  // of an attribute, which shapes do not depend on
      throw ValueError(node.op + ": " + e.what());
    }
  }
  return step;
}

std::vector<std::shared_ptr<Node>> nodes_below(const ValuePtr& y) {
  std::vector<std::shared_ptr<Node>> order;
  std::unordered_set<const Node*> seen;
  struct Visit {
    std::shared_ptr<Node> node;
    size_t next = 0;
  };
  std::vector<Visit> path;
  const auto enter = [&](const std::shared_ptr<Node>& node) {
    if (node && seen.insert(node.get()).second) path.push_back({node});
  };
  enter(y->node);
  while (!path.empty()) {
    Visit& top = path.back();
    if (top.next == top.node->in.size()) {
      order.push_back(top.node);
      path.pop_back();
      continue;
    }
    const ValuePtr& v = top.node->in[top.next++];
    if (v) enter(v->node);
  }
  return order;
}

}  // namespace graph

std::vector<Variable> apply(const std::string& op, AttributeMap attributes,
                            const std::vector<Variable>& inputs) {
  Signature s;
  auto node = std::make_shared<graph::Node>();
  for (const Variable& x : inputs) {
    s.in_given.push_back(static_cast<bool>(x));
    s.in.push_back(x ? x.value()->spec : Spec{});
    node->need_grad = node->need_grad || (x && x.need_grad());
  }
  s.attributes = Attributes(attributes);
  node->out = infer(op, s);
  const graph::Traits traits = graph::traits_of(op, attributes);
  node->op = op, node->attributes = std::move(attributes);
  node->need_grad = node->need_grad && traits.differentiable && recording_gradients;
  for (const Variable& x : inputs) {
    node->in.push_back(x.value());
    if (x) ++x.value()->uses;
  }
  for (const Spec& spec : node->out) {
    node->data.emplace_back(spec);
    graph::Storage::of(node->data.back()).value = false;
    graph::Storage::of(node->data.back()).zero = false;
  }
  node->values.resize(node->out.size());
  if (running_now) graph::run_now(node);
  std::vector<Variable> outputs;
  for (size_t i = 0; i < node->out.size(); ++i) {
    outputs.push_back(node->output(node, i));
    // what has run and needs no gradient does not hold what it was made of
    if (running_now && !node->need_grad) outputs.back().value()->node = nullptr;
  }
  return outputs;
}

}  // namespace nnl
