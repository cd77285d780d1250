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
    CHECK_ERROR((check(p), Runner(p, [&](int) { return x.data(); })), text);
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
  refused(damaged([](P& p, P&) { p.steps[0].op = "?"; }), "there are no programs inside of ?");
  refused(damaged([](P&, P& b) { b.outputs.clear(); }), "switch: the outputs are others");
  refused(damaged([](P&, P& b) { b.values[1].role = Role::state; }), "inside keeps value 1");
  refused(damaged([](P&, P& b) { b.carries = {{1, 2}}; }), "values on to its next run");
  refused(damaged([](P&, P& b) { b.steps[0].writes = {0}; }), "writes what the step does not");
  refused(damaged([](P&, P& b) { b.steps[0].op = "?"; }), "switch: softmax: this build has no");
}

// y, rows, row, count = while(trips, x, r, goes_on): x becomes softmax(x) and leaves a row, of r
// only the last row is seen, as long as goes_on is true.
ProgramData loop(bool backwards = false) {
  ProgramData p, body, condition;
  for (ProgramData* one : {&body, &condition}) {
    add_value(*one, Role::input), add_value(*one, Role::input, {2});
    if (one == &body) add_value(*one, Role::input, {2});
    add_value(*one, Role::input, {}, DType::boolean);
  }
  const int y = add_value(body, Role::intermediate);
  body.steps = {step_of("softmax", {1}, y)};
  body.steps[0].attributes = {{"axis", int64_t{1}}};
  body.outputs = {{"y0", y}, {"y1", 3}, {"y2", 1}};
  condition.outputs = {{"y0", 3}};
  const int trips = add_value(p, Role::input, {}, DType::i64), x = add_value(p, Role::input);
  const int last = add_value(p, Role::input, {2}), r = add_value(p, Role::input, {5, 2});
  const int goes_on = add_value(p, Role::input, {}, DType::boolean);
  p.steps = {step_of("while", {trips, x, last, r, goes_on}, 0)};
  p.steps[0].attributes = {{"carried", int64_t{2}},
                           {"scanned", int64_t{1}},
                           {"rows", int64_t{5}},
                           {"backwards", backwards}};
  p.steps[0].out = {add_value(p, Role::intermediate), add_value(p, Role::intermediate, {2}),
                    add_value(p, Role::intermediate, {5, 500, 8}),
                    add_value(p, Role::intermediate, {}, DType::i64)};
  p.steps[0].programs["body"] = {body};
  if (!backwards) p.steps[0].programs["condition"] = {condition};
  for (size_t k = 0; k < 4; ++k) p.outputs.emplace_back("y" + std::to_string(k), p.steps[0].out[k]);
  return p;
}

void loops_run_as_often_as_values_say() {
  int64_t trips = 0;
  bool goes_on = true;
  auto x = numbers(4000, 1), r = numbers(10, 2), last = numbers(2, 3);
  for (bool backwards : {false, true}) {
    Runner one(loop(backwards), [&](int n) {
      const std::vector<void*> given = {nullptr, &trips, x.data(), last.data(), r.data(), &goes_on};
      return given[static_cast<size_t>(n)];
    });
    const auto at = [&](size_t k) { return one.data(one.outputs()[k].second); };
    const auto *y = static_cast<float*>(at(0)), *seen = static_cast<float*>(at(1)),
               *rows = static_cast<float*>(at(2));
    const auto run = [&](int64_t n, bool flag) {
      trips = n, goes_on = flag;
      one.run();
      return *static_cast<int64_t*>(at(3));
    };
    CHECK(run(-3, true) == 0 && y[0] == x[0] && seen[0] == last[0] && rows[0] == 0);
    for (int64_t n : {1, 2, 5, 9}) {
      const int64_t most = std::min<int64_t>(n, 5);
      CHECK(run(n, true) == most);
      const auto row = [&](int64_t k) { return rows + (backwards ? most - 1 - k : k) * 4000; };
      CHECK(row(0)[7] == x[7] && seen[0] == r[backwards ? 0 : static_cast<size_t>(most - 1) * 2]);
      for (int64_t k = most; k < 5; ++k) CHECK(rows[k * 4000] == 0 && rows[k * 4000 + 3999] == 0);
      if (most > 1) CHECK(row(1)[0] > 0 && row(1)[0] < 1);
      double sum = 0;
      for (int k = 0; k < 8; ++k) sum += static_cast<double>(y[k]);
      CHECK(std::fabs(sum - 1) < 1e-6);
    }
    CHECK(run(4, false) == (backwards ? 4 : 0));
    const int before = allocations;
    run(4, true), run(3, true);
    CHECK(allocations == before);
  }
}

void loops_must_fit() {
  using P = ProgramData;
  const auto refused = [](auto&& change, const std::string& text) {
    ProgramData p = loop();
    change(p.steps[0], p.steps[0].programs["body"][0]);
    std::vector<float> x(4000);
    CHECK_ERROR(Runner(p, [&](int) { return x.data(); }), text);
  };
  using S = ProgramStep;
  refused([](S& s, P&) { s.in[0] = 2; }, "while: trips is not one int64");
  refused([](S& s, P&) { s.out.pop_back(); }, "while: it gives no count of trips");
  refused([](S& s, P&) { s.attributes["carried"] = int64_t{-1}; }, "carries or scans more");
  refused([](S& s, P&) { s.attributes["scanned"] = int64_t{9}; }, "carries or scans more");
  refused([](S& s, P&) { s.attributes["carried"] = int64_t{3}; }, "carries other values");
  refused([](S& s, P&) { s.attributes["carried"] = int64_t{1}; }, "has not a row for each trip");
  refused([](S& s, P&) { s.attributes["rows"] = int64_t{4}; }, "has not a row for each trip");
  refused([](S& s, P&) { s.attributes["rows"] = {}; }, "has not a row for each trip");
  refused([](S& s, P&) { s.attributes.erase("scanned"); }, "attribute 'scanned' is missing");
  refused([](S& s, P&) { s.attributes["backwards"] = true; }, "backwards has a condition");
  refused([](S& s, P&) { s.programs.erase("body"); }, "while: it has no body");
  refused([](S& s, P& b) { s.programs["body"] = {b, b}; }, "while: it has several of body");
  refused([](S& s, P& b) { s.programs["condition"] = {b}; }, "while: the inputs are others");
  refused([](S&, P& b) { b.outputs.pop_back(); }, "while: the outputs are others");
  refused([](S& s, P& b) { b.steps[0].writes = {0}, s.writes = {1}; }, "what the step does not");
}

}  // namespace

int main() {
  one_branch_runs();
  branches_must_fit();
  loops_run_as_often_as_values_say();
  loops_must_fit();
}
