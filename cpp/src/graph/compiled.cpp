// SPDX-License-Identifier: Apache-2.0
#include "compiled.h"

#include <algorithm>
#include <set>

#include "elementwise.h"

namespace nnl::graph {
namespace {

void add_to(float* sum, const float* x, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) sum[i] += x[i];
}

}  // namespace

Compiled::Compiled(const ValuePtr& y, bool backward, bool held)
    : root_(y.get()), has_backward_(backward), held_(held) {
  direct_.push_back(false);
  for (const auto& node : nodes_below(y)) add_node(*node, false);
  if (backward) add_gradients(y);
  check(program_);
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
  leaves_.push_back({n, v, spec.dtype, v->need_grad});
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
        ProgramStep change = cast_step(node, i, wanted);
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
    results_.push_back({result_of(step.out[i], false), node.data[i], node.out[i].dtype});
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
    const Array sum = Variable(of).grad();
    const bool again = std::any_of(gradients_.begin(), gradients_.end(), [&](const Gradient& g) {
      return &Storage::of(g.array) == &Storage::of(sum);
    });
    gradients_.push_back({n, sum, !of->node, again, nullptr});
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

void Compiled::bind_leaves(const char* function) {
  for (const Leaf& leaf : leaves_) {
    Storage& s = Storage::of(leaf.value->data);
    if (s.spec.dtype != leaf.type)
      throw ValueError(std::string(function) + ": a leaf has become " + s.spec.text() +
                       " since forward(), which took " + name_of(leaf.type) +
                       ": call forward() again");
    if (!s.value)
      throw ValueError(std::string(function) + ": a leaf of " + s.spec.text() +
                       " shares the data of a result that has no value yet");
    runner_->bind(leaf.number, s.readable());
  }
}

void Compiled::run_forward() {
  bind_leaves("forward");
  for (const Result& r : results_) runner_->bind(r.number, Storage::of(r.array).allocated(r.type));
  runner_->run_part(false);
  for (const Result& r : results_)
    Storage::of(r.array).zero = false, Storage::of(r.array).value = true;
}

void Compiled::run_backward(const Array& seed) {
  bind_leaves("backward");
  runner_->bind(seed_, seed.data<float>());
  for (Gradient& g : gradients_) {
    Storage& s = Storage::of(g.array);
    g.adds = g.added && (!s.zero || g.again);
    if (g.adds && !s.zero) g.array.data<float>();
    if (g.adds && !g.scratch) g.scratch = std::make_unique<Memory>(Spec{s.spec.shape}.bytes());
    runner_->bind(g.number, g.adds ? g.scratch->data() : s.allocated(DType::f32));
  }
  runner_->run_part(true);
  for (Gradient& g : gradients_) {
    Storage& s = Storage::of(g.array);
    if (g.adds)
      add_to(reinterpret_cast<float*>(s.memory->data()),
             reinterpret_cast<const float*>(g.scratch->data()), s.spec.size());
    s.zero = false;
  }
}

// ---- one function at once ----

namespace {

constexpr size_t most_runners = 4096;  // of a thread; programs whose shapes vary meet ever new ones

std::string key_of(const Node& node, const std::vector<Spec>& in) {
  std::string key = node.op;
  const std::map<std::string, Attribute> sorted(node.attributes.begin(), node.attributes.end());
  for (const auto& [name, value] : sorted) {
    key += '|' + std::to_string(value.index());
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
            key += std::to_string(v.size()) + ':', raw(v.data(), v.size() * sizeof(v[0]));
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
    ProgramStep change = cast_step(node, i, wanted);
    Spec spec = in[i];
    spec.dtype = wanted;
    change.in = {step.in[i]}, change.out = {add(spec, ProgramValue::Role::intermediate)};
    step.in[i] = change.out[0];
    p.steps.push_back(change);
  }
  p.steps.push_back(step);
  check(p);
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
  if (runners.size() >= most_runners) runners.clear();
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
  if (!value_) throw ValueError("backward: there is no Variable");
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
        to = from;
      } else {
        Array(sum).copy_from(gradient.data());
      }
      continue;
    }
    graph::add_to(sum.data<float>(), gradient.data<float>(), sum.size());
  }
}

}  // namespace nnl
