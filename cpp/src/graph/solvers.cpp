// SPDX-License-Identifier: Apache-2.0
#include "nnl/solvers.h"

#include <cmath>
#include <deque>
#include <iterator>
#include <limits>
#include <regex>
#include <sstream>

#include "graph.h"
#include "nnl/runner.h"

namespace nnl {

using graph::Storage;

namespace {

constexpr double infinite = std::numeric_limits<double>::infinity();

std::string shown(double value) {
  std::ostringstream s;
  s << value;
  return s.str();
}

void check_range(const std::string& where, const std::string& name, double x) {
  const bool up_to_one = name == "momentum" || name == "decay";
  const bool below_one = name == "beta1" || name == "beta2";
  const bool positive = name == "gamma";
  const bool holds = up_to_one   ? x >= 0 && x <= 1
                     : below_one ? x >= 0 && x < 1
                     : positive  ? x > 0 && x < infinite
                                 : x >= 0 && x < infinite;
  if (holds) return;
  throw ValueError(where + ": " + name + " is " + shown(x) + ", wanted " +
                   (up_to_one   ? "a number in [0, 1]"
                    : below_one ? "a number in [0, 1)"
                    : positive  ? "a finite number > 0"
                                : "a finite number >= 0"));
}

}  // namespace

struct Solver::Impl {
  struct Rule {
    std::string op;
    std::vector<std::string> states;
    AttributeMap attributes;
    double decay;  // of that of the solver
    std::function<bool(const std::string&, const Shape&)> takes;
  };

  struct Entry {
    std::string name;
    Variable w;
    const Rule* rule;
    std::vector<Array> states;
    Array t{Spec{{}, DType::i64}};
    std::unique_ptr<Runner> runner;
    std::optional<double> decay;  // that the runner was made for
  };

  std::string name;
  std::deque<Rule> rules;  // the first one takes what no other does
  bool fused;
  Array rate{Spec{{}, DType::f64}};
  std::optional<double> next_decay;
  std::vector<Entry> entries;

  Entry* find(const std::string& key) {
    for (Entry& e : entries)
      if (e.name == key) return &e;
    return nullptr;
  }

  const Rule* rule_of(const std::string& key, const Variable& w) const {
    for (const Rule& r : rules)
      if (r.takes && r.takes(key, w.shape())) return &r;
    return &rules.front();
  }

  // Values of a rule by the names of its attributes.
  static AttributeMap attributes_of(const std::string& solver, const Values& values) {
    AttributeMap found;
    for (const auto& [key, value] : values) {
      const bool flag = key == "bias_correction" || key == "fixed_decay" || key == "rectify" ||
                        key == "nesterov" || key == "match" || key == "half";
      if (flag) {
        found[key] = value != 0;
      } else if (key == "steps") {
        found[key] = static_cast<int64_t>(value);
      } else {
        check_range(solver, key, value);
        found[key] = value;
      }
    }
    return found;
  }

  static std::vector<std::string> words_of(const char* text) {
    std::istringstream stream(text);
    return {std::istream_iterator<std::string>(stream), {}};
  }

  // The op over one parameter: w, g, the states, t and the rate, as the rule names them.
  std::unique_ptr<Runner> runner_of(const Entry& e) {
    ProgramData p;
    ProgramStep step;
    step.op = e.rule->op, step.label = name + " of " + e.name;
    step.attributes = e.rule->attributes, step.view = true;
    if (next_decay) step.attributes["wd"] = *next_decay * e.rule->decay;
    const auto add = [&](const Spec& spec) {
      ProgramValue v;
      v.spec = spec, v.role = ProgramValue::Role::state;
      v.root = static_cast<int>(p.values.size());
      p.values.push_back(v);
      step.in.push_back(v.root);
    };
    const Spec spec{e.w.shape()};
    add(spec), add(spec);
    step.writes.push_back(0);
    for (size_t i = 0; i < e.states.size(); ++i) {
      step.writes.push_back(static_cast<int>(step.in.size()));
      add(spec);
    }
    step.writes.push_back(static_cast<int>(step.in.size()));
    add(e.t.spec()), add(rate.spec());
    if (step.op == "adabelief_update") {  // its third state follows t and the rate, or is left out
      const size_t at = 4;
      if (e.states.size() > 2) {
        const int maximum = step.in[at];
        step.in.erase(step.in.begin() + at);
        step.in.push_back(maximum);
        step.writes = {0, 2, 3, 6, 4};
      } else {
        step.in.push_back(0);
      }
    }
    ProgramValue updated;
    updated.spec = spec, updated.root = 1;
    p.values.push_back(updated);
    step.out = {static_cast<int>(p.values.size()) - 1};
    p.steps.push_back(step);
    check(p);
    return std::make_unique<Runner>(p, [](int) { return nullptr; });
  }

  void update(Entry& e) {
    if (!e.runner || e.decay != next_decay) {
      e.runner = runner_of(e);
      e.decay = next_decay;
    }
    int n = 0;
    e.runner->bind(++n, e.w.data<float>());
    e.runner->bind(++n, e.w.grad<float>());
    for (const Array& s : e.states) e.runner->bind(++n, s.data<float>());
    e.runner->bind(++n, e.t.data<int64_t>());
    e.runner->bind(++n, rate.data<double>());
    e.runner->run();
  }

  // Replaces each gradient that is not lazily zero by op(g), or op(g, w).
  void map_gradients(const char* function, const char* argument, double value, bool with_weight) {
    const graph::Mode now(true, false);
    for (Entry& e : entries) {
      const Array g = e.w.grad();
      if (g.is_zero()) continue;
      Variable v(g.shape());
      Storage::of(v.data()) = Storage::of(g);
      std::vector<Variable> inputs{v};
      if (with_weight) inputs.push_back(e.w);
      const Variable y = graph::apply1(function, {{argument, value}}, inputs);
      Storage::of(g) = Storage::of(y.data());
    }
  }
};

Solver::Solver(const char* name, const char* op, const char* states, const char* rate,
               const Values& values, bool fused)
    : impl_(std::make_unique<Impl>()) {
  impl_->name = name, impl_->fused = fused;
  AttributeMap attributes = Impl::attributes_of(name, values);
  attributes.erase(rate);
  set_learning_rate(values.at(rate));
  attributes["lr0"] = values.at(rate);
  if (!fused || !attributes.count("wd")) attributes["wd"] = 0.0;
  impl_->rules.push_back({op, Impl::words_of(states), std::move(attributes), 1, {}});
}

void Solver::add_rule(const char* op, const char* states, const Values& values, double decay,
                      std::function<bool(const std::string&, const Shape&)> takes) {
  impl_->rules.push_back({op, Impl::words_of(states), Impl::attributes_of(impl_->name, values),
                          decay, std::move(takes)});
}

Solver::~Solver() = default;

void Solver::set_parameters(const Parameters& parameters, bool reset, bool retain_state) {
  std::vector<Impl::Entry> kept;
  if (!reset) kept = std::move(impl_->entries);
  impl_->entries = std::move(kept);
  for (const auto& [key, w] : parameters) {
    if (!w) throw ValueError(impl_->name + ".set_parameters: '" + key + "' is no Variable");
    Impl::Entry* known = impl_->find(key);
    if (known && retain_state) {
      if (known->w.shape() != w.shape())
        throw ValueError(impl_->name + ".set_parameters: '" + key + "' is " +
                         Spec{w.shape()}.text() + ", the states to keep " +
                         Spec{known->w.shape()}.text());
      known->w = w;
      continue;
    }
    Impl::Entry made;
    made.name = key, made.w = w, made.rule = impl_->rule_of(key, w);
    for (size_t i = 0; i < made.rule->states.size(); ++i) made.states.emplace_back(Spec{w.shape()});
    if (known)
      *known = std::move(made);
    else
      impl_->entries.push_back(std::move(made));
  }
}

void Solver::clear_parameters() { impl_->entries.clear(); }

Parameters Solver::get_parameters() const {
  Parameters all;
  for (const auto& e : impl_->entries) all.emplace_back(e.name, e.w);
  return all;
}

double Solver::learning_rate() const { return *impl_->rate.data<double>(); }

void Solver::set_learning_rate(double rate) {
  check_range(impl_->name + ".set_learning_rate", "learning_rate", rate);
  *impl_->rate.data<double>() = rate;
}

void Solver::zero_grad() {
  for (auto& e : impl_->entries) e.w.grad().zero();
}

void Solver::weight_decay(double rate) {
  check_range(impl_->name + ".weight_decay", "rate", rate);
  if (impl_->fused)
    impl_->next_decay = rate;
  else if (rate != 0)
    impl_->map_gradients("decay_gradient", "rate", rate, true);
}

void Solver::clip_grad_by_norm(double norm) {
  if (!(norm >= 0))
    throw ValueError(impl_->name + ".clip_grad_by_norm: norm is " + shown(norm) +
                     ", wanted a number >= 0");
  impl_->map_gradients("clip_gradient", "clip_norm", norm, false);
}

void Solver::scale_grad(double scale) {
  if (!std::isfinite(scale))
    throw ValueError(impl_->name + ".scale_grad: scale is " + shown(scale) +
                     ", wanted a finite number");
  impl_->map_gradients("scale_gradient", "scale", scale, false);
}

bool Solver::check_inf_or_nan_grad() const {
  for (const auto& e : impl_->entries) {
    const Array g = e.w.grad();
    if (g.is_zero()) continue;
    const float* x = g.data<float>();
    for (int64_t i = 0; i < g.size(); ++i)
      if (!std::isfinite(x[i])) return true;
  }
  return false;
}

void Solver::update() {
  for (auto& e : impl_->entries)
    if (!e.w.grad().is_zero()) impl_->update(e);
  impl_->next_decay.reset();
}

namespace solvers {

Sgd::Sgd(double lr) : Solver("Sgd", "sgd_update", "", "lr", {{"lr", lr}}) {}

Momentum::Momentum(double lr, double momentum)
    : Solver("Momentum", "momentum_update", "m", "lr", {{"lr", lr}, {"momentum", momentum}}) {}

Nesterov::Nesterov(double lr, double momentum)
    : Solver("Nesterov", "nesterov_update", "m", "lr", {{"lr", lr}, {"momentum", momentum}}) {}

SgdW::SgdW(double lr, double momentum, double wd)
    : Solver("SgdW", "momentum_update", "m", "lr", {{"lr", lr}, {"momentum", momentum}, {"wd", wd}},
             true) {}

Lars::Lars(double lr, double momentum, double coefficient, double eps)
    : Solver("Lars", "lars_update", "v", "lr",
             {{"lr", lr}, {"momentum", momentum}, {"coefficient", coefficient}, {"eps", eps}},
             true) {}

Adagrad::Adagrad(double lr, double eps)
    : Solver("Adagrad", "adagrad_update", "v", "lr", {{"lr", lr}, {"eps", eps}}) {}

Adadelta::Adadelta(double lr, double decay, double eps)
    : Solver("Adadelta", "adadelta_update", "e_sqr_grad e_sqr_delta", "lr",
             {{"lr", lr}, {"decay", decay}, {"eps", eps}}) {}

RMSprop::RMSprop(double lr, double decay, double eps)
    : Solver("RMSprop", "rmsprop_update", "v", "lr", {{"lr", lr}, {"decay", decay}, {"eps", eps}}) {
}

RMSpropGraves::RMSpropGraves(double lr, double decay, double momentum, double eps)
    : Solver("RMSpropGraves", "rmsprop_graves_update", "n g d", "lr",
             {{"lr", lr}, {"decay", decay}, {"momentum", momentum}, {"eps", eps}}) {}

Adam::Adam(double alpha, double beta1, double beta2, double eps)
    : Solver("Adam", "adam_update", "mean var", "alpha",
             {{"alpha", alpha}, {"beta1", beta1}, {"beta2", beta2}, {"eps", eps}}) {}

AdamW::AdamW(double alpha, double beta1, double beta2, double eps, double wd)
    : Solver("AdamW", "adam_update", "mean var", "alpha",
             {{"alpha", alpha}, {"beta1", beta1}, {"beta2", beta2}, {"eps", eps}, {"wd", wd}},
             true) {}

Adamax::Adamax(double alpha, double beta1, double beta2, double eps)
    : Solver("Adamax", "adamax_update", "m u", "alpha",
             {{"alpha", alpha}, {"beta1", beta1}, {"beta2", beta2}, {"eps", eps}}) {}

AdaBelief::AdaBelief(double alpha, double beta1, double beta2, double eps, double wd, bool amsgrad,
                     bool weight_decouple, bool fixed_decay, bool rectify)
    : Solver("AdaBelief", "adabelief_update", amsgrad ? "mean var s_max" : "mean var", "alpha",
             {{"alpha", alpha},
              {"beta1", beta1},
              {"beta2", beta2},
              {"eps", eps},
              {"wd", wd},
              {"fixed_decay", fixed_decay},
              {"rectify", rectify}},
             weight_decouple) {}

AMSGRAD::AMSGRAD(double alpha, double beta1, double beta2, double eps, bool bias_correction)
    : Solver("AMSGRAD", "amsgrad_update", "m v v_hat", "alpha",
             {{"alpha", alpha},
              {"beta1", beta1},
              {"beta2", beta2},
              {"eps", eps},
              {"bias_correction", bias_correction}}) {}

AdaBound::AdaBound(double alpha, double beta1, double beta2, double eps, double final_lr,
                   double gamma)
    : Solver("AdaBound", "adabound_update", "mean var", "alpha",
             {{"alpha", alpha},
              {"beta1", beta1},
              {"beta2", beta2},
              {"eps", eps},
              {"final_lr", final_lr},
              {"gamma", gamma}}) {}

AMSBound::AMSBound(double alpha, double beta1, double beta2, double eps, double final_lr,
                   double gamma, bool bias_correction)
    : Solver("AMSBound", "amsbound_update", "m v v_hat", "alpha",
             {{"alpha", alpha},
              {"beta1", beta1},
              {"beta2", beta2},
              {"eps", eps},
              {"final_lr", final_lr},
              {"gamma", gamma},
              {"bias_correction", bias_correction}}) {}

Lamb::Lamb(double eta, double beta1, double beta2, double gamma_l, double gamma_u, double eps,
           bool bias_correction)
    : Solver("Lamb", "lamb_update", "mean var", "eta",
             {{"eta", eta},
              {"beta1", beta1},
              {"beta2", beta2},
              {"gamma_l", gamma_l},
              {"gamma_u", gamma_u},
              {"eps", eps},
              {"bias_correction", bias_correction}},
             true) {
  if (gamma_l > gamma_u)
    throw ValueError("Lamb: gamma_l is " + shown(gamma_l) + ", wanted at most gamma_u " +
                     shown(gamma_u));
}

Lion::Lion(double lr, double beta1, double beta2)
    : Solver("Lion", "lion_update", "m", "lr", {{"lr", lr}, {"beta1", beta1}, {"beta2", beta2}},
             true) {}

Muon::Muon(double lr, double momentum, double wd, bool nesterov, int steps, bool match,
           double beta1, double beta2, double eps, const std::string& adam)
    : Solver("Muon", "muon_update", "m", "lr",
             {{"lr", lr},
              {"momentum", momentum},
              {"wd", wd},
              {"nesterov", nesterov},
              {"steps", steps},
              {"match", match},
              {"half", 0},
              {"eps", 1e-7}},
             true) {
  if (steps < 1 || steps > 99)
    throw ValueError("Muon: steps is " + std::to_string(steps) + ", wanted 1 to 99");
  std::regex names;
  try {
    names = std::regex(adam);
  } catch (const std::regex_error& e) {
    throw ValueError("Muon: adam is '" + adam + "', which is no expression: " + e.what());
  }
  const bool any = !adam.empty();
  add_rule("adam_update", "mean var",
           {{"beta1", beta1}, {"beta2", beta2}, {"eps", eps}, {"wd", wd * lr}, {"lr0", lr}}, lr,
           [names, any](const std::string& name, const Shape& shape) {
             return shape.size() != 2 || (any && std::regex_search(name, names));
           });
}

}  // namespace solvers
}  // namespace nnl
