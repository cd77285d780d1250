// SPDX-License-Identifier: Apache-2.0
// Steps with programs inside: which one runs, on what, and which ones are refused.
#include <cmath>

#include "allocations.h"
#include "check.h"
#include "nnl/runner.h"

using namespace nnl;
using namespace nnl::test;

namespace {

using Role = ProgramValue::Role;

int add_value(ProgramData& p, Role role, Shape shape = {500, 8}, DType type = DType::f32) {
  ProgramValue v;
  v.spec = {std::move(shape), type}, v.role = role, v.root = static_cast<int>(p.values.size());
  p.values.push_back(v);
  return v.root;
}

ProgramStep step_of(const std::string& op, std::vector<int> in, int out) {
  ProgramStep s;
  s.op = s.label = op;
  s.in = std::move(in), s.out = {out};
  return s;
}

// y = softmax(x) over the last axis.
ProgramData softmax() {
  ProgramData p;
  const int x = add_value(p, Role::input), y = add_value(p, Role::intermediate);
  p.steps = {step_of("softmax", {x}, y)};
  p.steps[0].attributes = {{"axis", int64_t{1}}};
  p.outputs = {{"y", y}};
  return p;
}

// y = x.
ProgramData same() {
  ProgramData p;
  p.outputs = {{"y", add_value(p, Role::input)}};
  return p;
}

// y = switch(i, x) of these two.
ProgramData branches() {
  ProgramData p;
  const int i = add_value(p, Role::input, {}, DType::i64), x = add_value(p, Role::input);
  const int y = add_value(p, Role::intermediate);
  p.steps = {step_of("switch", {i, x}, y)};
  p.steps[0].programs["branches"] = {same(), softmax()};
  p.outputs = {{"y", y}};
  return p;
}

double sum_of_a_row(const Runner& r) {
  const auto* y = static_cast<float*>(r.data(r.outputs()[0].second));
  double sum = 0;
  for (int k = 0; k < 8; ++k) sum += static_cast<double>(y[k]);
  return sum;
}

void one_branch_runs() {
  int64_t i = 0;
  auto x = numbers(4000, 1);
  Runner r(branches(), [&](int n) { return n == 1 ? static_cast<void*>(&i) : x.data(); });
  r.run();
  double sum = 0;
  for (size_t k = 0; k < 8; ++k) sum += static_cast<double>(x[k]);
  CHECK(std::fabs(sum_of_a_row(r) - sum) < 1e-6);
  i = 1;
  r.run();
  CHECK(std::fabs(sum_of_a_row(r) - 1) < 1e-6);
  const int before = allocations;
  for (int n = 0; n < 6; ++n) i = n % 2, r.run();
  CHECK(allocations == before);
  for (int64_t wrong : {-1, 2}) {
    i = wrong;
    CHECK_ERROR(r.run(), "switch: index holds " + std::to_string(wrong) + ", and there are 2");
  }
}

void branches_must_fit() {
  const auto refused = [](const ProgramData& p, const std::string& text) {
    std::vector<float> x(4000);
    CHECK_ERROR(Runner(p, [&](int) { return x.data(); }), text);
  };
  const auto damaged = [](auto&& change) {
    ProgramData p = branches();
    change(p, p.steps[0].programs["branches"][1]);
    return p;
  };
  using P = ProgramData;
  refused(damaged([](P& p, P&) { p.steps[0].in = {2, 2}; }), "index is not one number of int64");
  refused(damaged([](P& p, P&) { p.steps[0].in = {1}; }), "switch: the inputs are others");
  refused(damaged([](P& p, P&) { p.steps[0].in = {1, 0}; }), "switch: it lacks an input");
  refused(damaged([](P& p, P&) { p.values[3].spec.shape = {8, 500}; }), "the outputs are others");
  refused(damaged([](P& p, P&) { p.values[3].root = 2; }), "value 3 is other values' memory");
  refused(damaged([](P& p, P&) { p.steps[0].programs = {{"body", {same()}}}; }), "no branches");
  refused(damaged([](P& p, P&) { p.steps[0].op = "relu"; }), "no programs inside of relu");
  refused(damaged([](P&, P& b) { b.outputs.clear(); }), "switch: the outputs are others");
  refused(damaged([](P&, P& b) { b.values[1].role = Role::state; }), "inside keeps value 1");
  refused(damaged([](P&, P& b) { b.carries = {{1, 2}}; }), "values on to its next run");
  refused(damaged([](P&, P& b) { b.steps[0].writes = {0}; }), "writes what the step does not");
  refused(damaged([](P&, P& b) { b.steps[0].op = "?"; }), "switch: softmax: this build has no");
}

}  // namespace

int main() {
  one_branch_runs();
  branches_must_fit();
}
