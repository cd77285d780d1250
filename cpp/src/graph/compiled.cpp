// SPDX-License-Identifier: Apache-2.0
#include "compiled.h"

#include <set>

#include "elementwise.h"

namespace nnl::graph {
namespace {

void add_to(float* sum, const float* x, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) sum[i] += x[i];
}

std::string input_name(const std::string& op) {
  return op == "embed" || op == "embed_backward" ? "x0"
         : op.rfind("gather", 0) == 0            ? "Indices"
         : op == "pick" || op == "place"         ? "index"
         : op == "one_hot"                       ? "x"
                                                 : "target";
}

}  // namespace

Compiled::Compiled(const ValuePtr& y, bool backward, bool held)
    : root_(y.get()), has_backward_(backward), held_(held) {
  direct_.push_back(false);
  for (const auto& node : nodes_below(y)) add_node(*node, false);
  if (backward) add_gradients(y);
  runner_ = std::make_unique<Runner>(program_, [](int) { return nullptr; });
  program_ = {};
  numbers_.clear(), leaf_numbers_.clear(), casts_.clear();
}

int Compiled::new_value(const Spec& spec) {
  ProgramValue v;
  v.spec = spec, v.root = static_cast<int>(program_.values.size());
  program_.values.push_back(v);
  direct_.push_back(false);
  return v.root;
}

int Compiled::leaf_of(const ValuePtr& v) {
  const auto known = leaf_numbers_.find(v.get());
  if (known != leaf_numbers_.end()) return known->second;
  Spec spec = v->spec;
  spec.dtype = v->data.spec().dtype;
  const int n = new_value(spec);
  program_.values.back().role = ProgramValue::Role::input;
  leaf_numbers_[v.get()] = n;
  leaves_.push_back({n, v, spec.dtype, v->need_grad, false});
  return n;
}

int Compiled::number_of(const ValuePtr& v) {
  return v->node ? numbers_.at({v->node.get(), v->index}) : leaf_of(v);
}

// Whether an output stays readable after forward().
bool Compiled::is_kept(const Node& node, size_t i) const {
  const ValuePtr v = node.values[i].lock();
  if (!v) return false;
  const size_t holders = static_cast<size_t>(v.use_count()) - 1;
  return v.get() == root_ || v->persistent || (held_ && holders > v->uses);
}

// The same value in memory that is given to the program.
int Compiled::result_of(int number, bool second) {
  if (direct_[static_cast<size_t>(number)]) {
    direct_[static_cast<size_t>(number)] = false;
    program_.values[static_cast<size_t>(number)].role = ProgramValue::Role::state;
    return number;
  }
  ProgramStep copy;
  copy.op = copy.label = "identity", copy.second = second;
  const Spec spec = program_.values[static_cast<size_t>(number)].spec;
  copy.in = {number}, copy.out = {new_value(spec)};
  program_.values.back().role = ProgramValue::Role::state;
  program_.steps.push_back(copy);
  return copy.out[0];
}

void Compiled::add_node(const Node& node, bool second) {
  ProgramStep step = step_of(node);
  step.second = second;
  for (size_t i = 0; i < node.in.size(); ++i) {
    if (!node.in[i]) {
      step.in.push_back(0);
      continue;
    }
    int n = number_of(node.in[i]);
    const DType actual = program_.values[static_cast<size_t>(n)].spec.dtype;
    const DType wanted = read_as(node, i, actual);
    if (wanted != actual) {
      int& cast = casts_[{n, wanted}];
      if (!cast) {
        ProgramStep change = cast_step(wanted, node.op, input_name(node.op).c_str());
        Spec spec = program_.values[static_cast<size_t>(n)].spec;
        spec.dtype = wanted;
        change.second = second, change.in = {n}, change.out = {new_value(spec)};
        program_.steps.push_back(change);
        cast = change.out[0];
      }
      n = cast;
    }
    step.in.push_back(n);
  }
  for (int w : step.writes)
    for (Leaf& leaf : leaves_)
      if (leaf.number == step.in[static_cast<size_t>(w)]) leaf.written = true;
  for (size_t i = 0; i < node.out.size(); ++i) {
    const int n = new_value(node.out[i]);
    numbers_[{&node, i}] = n;
    step.out.push_back(n);
    if (step.view)
      program_.values.back().root = program_.values[static_cast<size_t>(step.in[0])].root;
    else
      direct_.back() = true;
  }
  program_.steps.push_back(step);
  if (second) return;
  for (size_t i = 0; i < node.out.size(); ++i) {
    if (!is_kept(node, i)) continue;
    results_.push_back({result_of(step.out[i], false), node.data[i]});
    if (const ValuePtr v = node.values[i].lock(); v.get() != root_)
      persistent_.push_back({v, v->persistent});
  }
}

void Compiled::add_gradients(const ValuePtr& y) {
  const Mode recording(false, false);
  Variable seed(y->spec.shape);
  std::set<const Node*> seen;
  for (const auto& [edge, number] : numbers_) seen.insert(edge.first);
  seed_ = new_value(y->spec);
  program_.values.back().role = ProgramValue::Role::input;
  leaf_numbers_[seed.value().get()] = seed_;
  const auto found = gradients(Variable(y), seed);
  for (const auto& [of, gradient] : found)
    for (const auto& node : nodes_below(gradient.value()))
      if (seen.insert(node.get()).second) add_node(*node, true);
  for (const auto& [of, gradient] : found) {
    const int n = result_of(number_of(gradient.value()), true);
    gradients_.push_back({n, Variable(of).grad(), !of->node, nullptr});
  }
}

bool Compiled::fits() const {
  for (const Leaf& leaf : leaves_)
    if (leaf.value->data.spec().dtype != leaf.type || leaf.value->need_grad != leaf.need_grad)
      return false;
  for (const auto& [value, flag] : persistent_)
    if (const ValuePtr v = value.lock(); v && v->persistent != flag) return false;
  return true;
}

void Compiled::bind_leaves() {
  for (const Leaf& leaf : leaves_) {
    Storage& s = Storage::of(leaf.value->data);
    if (!s.value)
      throw ValueError("forward: a leaf of " + s.spec.text() +
                       " shares the data of a result that has no value yet");
    runner_->bind(leaf.number, s.readable());
  }
}

void Compiled::run_forward() {
  bind_leaves();
  for (const Result& r : results_) {
    Storage& s = Storage::of(r.array);
    runner_->bind(r.number, s.allocated());
    s.zero = false, s.value = true;
  }
  runner_->run_part(false);
}

void Compiled::run_backward(const Array& seed) {
  bind_leaves();
  runner_->bind(seed_, seed.data<float>());
  for (Gradient& g : gradients_) {
    Storage& s = Storage::of(g.array);
    const bool adds = g.added && !s.zero;
    if (adds && !g.scratch) g.scratch = std::make_unique<Memory>(s.spec.bytes());
    if (s.spec.dtype != DType::f32) g.array.data<float>(true);
    runner_->bind(g.number, adds ? g.scratch->data() : s.allocated());
  }
  runner_->run_part(true);
  for (Gradient& g : gradients_) {
    Storage& s = Storage::of(g.array);
    if (g.added && !s.zero)
      add_to(reinterpret_cast<float*>(s.memory->data()),
             reinterpret_cast<const float*>(g.scratch->data()), s.spec.size());
    s.zero = false;
  }
}

// ---- one function at once ----

namespace {

std::string key_of(const Node& node, const std::vector<Spec>& in) {
  std::string key = node.op;
  const std::map<std::string, Attribute> sorted(node.attributes.begin(), node.attributes.end());
  for (const auto& [name, value] : sorted) {
    key += '|';
    std::visit(
        [&](const auto& v) {
          using T = std::decay_t<decltype(v)>;
          const auto raw = [&](const void* p, size_t n) {
            key.append(static_cast<const char*>(p), n);
          };
          if constexpr (std::is_same_v<T, std::string>)
            key += v;
          else if constexpr (std::is_arithmetic_v<T>)
            raw(&v, sizeof(v));
          else if constexpr (!std::is_same_v<T, std::monostate>)
            raw(v.data(), v.size() * sizeof(v[0]));
        },
        value);
  }
  for (const Spec& s : in) {
    key += '/' + std::to_string(static_cast<int>(s.dtype));
    for (int64_t n : s.shape) key += ',' + std::to_string(n);
  }
  return key;
}

// A program of one function; all its values are given.
std::unique_ptr<Runner> runner_of(const Node& node, const std::vector<Spec>& in) {
  ProgramData p;
  ProgramStep step = step_of(node);
  const auto add = [&](const Spec& spec, ProgramValue::Role role) {
    ProgramValue v;
    v.spec = spec, v.role = role, v.root = static_cast<int>(p.values.size());
    p.values.push_back(v);
    return v.root;
  };
  for (size_t i = 0; i < in.size(); ++i) step.in.push_back(add(in[i], ProgramValue::Role::input));
  for (const Spec& spec : node.out) step.out.push_back(add(spec, ProgramValue::Role::state));
  for (size_t i = 0; i < in.size(); ++i) {
    if (!node.in[i]) {
      step.in[i] = 0;
      continue;
    }
    const DType wanted = read_as(node, i, in[i].dtype);
    if (wanted == in[i].dtype) continue;
    ProgramStep change = cast_step(wanted, node.op, input_name(node.op).c_str());
    Spec spec = in[i];
    spec.dtype = wanted;
    change.in = {step.in[i]}, change.out = {add(spec, ProgramValue::Role::intermediate)};
    step.in[i] = change.out[0];
    p.steps.push_back(change);
  }
  p.steps.push_back(step);
  return std::make_unique<Runner>(p, [](int) { return nullptr; });
}

}  // namespace

void run_now(const std::shared_ptr<Node>& node) {
  thread_local std::unordered_map<std::string, std::unique_ptr<Runner>> runners;
  std::vector<Spec> in;
  for (const ValuePtr& v : node->in) {
    in.push_back(v ? v->data.spec() : Spec{});
    if (v && !v->data.has_value())
      throw ValueError(node->op + ": an input, " + v->spec.text() +
                       ", has no value yet: call its forward(), or use AutoForward from its "
                       "beginning");
  }
  if (traits_of(node->op, node->attributes).view && in[0].dtype == node->out[0].dtype) {
    Storage &from = Storage::of(node->in[0]->data), &to = Storage::of(node->data[0]);
    from.readable();
    to.memory = from.memory, to.value = true;
    return;
  }
  auto& runner = runners[key_of(*node, in)];
  if (!runner) runner = runner_of(*node, in);
  int n = 0;
  for (const ValuePtr& v : node->in) {
    ++n;
    if (v) runner->bind(n, Storage::of(v->data).readable());
  }
  for (const Array& a : node->data) {
    Storage& s = Storage::of(a);
    runner->bind(++n, s.allocated());
    s.value = true;
  }
  runner->run_part(false);
}

}  // namespace nnl::graph

namespace nnl {

using graph::Compiled;
using graph::Storage;

void Variable::forward(bool clear_buffer, bool clear_no_need_grad) const {
  if (!value_) throw ValueError("forward: there is no Variable");
  graph::Value& v = *value_;
  if (!v.node) return;
  const bool backward = v.need_grad && !clear_buffer, held = !clear_buffer && !clear_no_need_grad;
  auto& all = v.compiled;
  v.latest = nullptr;
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i]->backward() != backward || all[i]->held() != held) continue;
    if (all[i]->fits())
      v.latest = all[i].get();
    else
      all.erase(all.begin() + static_cast<ptrdiff_t>(i));
    break;
  }
  if (!v.latest) {
    all.push_back(std::make_shared<Compiled>(value_, backward, held));
    v.latest = all.back().get();
  }
  v.latest->run_forward();
}

void Variable::backward(double value, bool clear_buffer) const {
  Array start = grad();
  start.fill(value);
  backward(start, clear_buffer);
}

void Variable::backward(const Array& given, bool) const {
  const Array seed = given ? given : grad();
  graph::Value& v = *value_;
  if (seed.shape() != shape())
    throw ValueError("backward: grad is " + seed.spec().text() + ", wanted the shape of " +
                     v.spec.text());
  if (!v.need_grad) throw ValueError("backward: nothing below needs a gradient");
  if (v.latest) {
    if (!v.latest->backward())
      throw ValueError("backward: forward(true) has cleared what it needs: call forward()");
    return v.latest->run_backward(seed);
  }
  if (!v.data.has_value()) throw ValueError("backward: call forward() first");
  const graph::Mode now(true, false);
  Variable start(shape());
  start.data().copy_from(seed);
  for (const auto& [of, gradient] : graph::gradients(*this, start)) {
    const Array sum = Variable(of).grad();
    Storage &to = Storage::of(sum), &from = Storage::of(gradient.data());
    if (to.zero || of->node) {
      // whoever else has this array keeps it
      if (from.memory.use_count() == 1) {
        to.memory = from.memory, to.zero = false;
      } else {
        Array(sum).copy_from(gradient.data());
      }
      continue;
    }
    graph::add_to(sum.data<float>(), gradient.data<float>(), sum.size());
  }
}

}  // namespace nnl
