// SPDX-License-Identifier: Apache-2.0
// Programs that are made in memory: what a run reads, writes, keeps and hands on.
#include <cmath>
#include <cstring>

#include "allocations.h"
#include "check.h"
#include "nnl/runner.h"

using namespace nnl;
using namespace nnl::test;

namespace {

using Role = ProgramValue::Role;

int add_value(ProgramData& p, Shape shape, Role role = Role::intermediate) {
  ProgramValue v;
  v.spec = floats(std::move(shape)), v.role = role, v.root = static_cast<int>(p.values.size());
  p.values.push_back(v);
  return v.root;
}

ProgramStep& add_step(ProgramData& p, const std::string& op, std::vector<int> in, int out,
                      std::unordered_map<std::string, Attribute> attributes = {}) {
  ProgramStep s;
  s.op = s.label = op;
  s.in = std::move(in), s.out = {out}, s.attributes = std::move(attributes);
  p.steps.push_back(s);
  return p.steps.back();
}

// h_0 = x, h_{k+1} = softmax(h_k); y = h_n.
ProgramData chain(int n) {
  ProgramData p;
  int h = add_value(p, {400, 8}, Role::input);
  for (int k = 0; k < n; ++k) {
    const int y = add_value(p, {400, 8});
    add_step(p, "softmax", {h}, y, {{"axis", int64_t{1}}});
    h = y;
  }
  p.outputs = {{"y", h}};
  return p;
}

std::vector<float> softmaxes(std::vector<float> x, int n) {
  for (int k = 0; k < n; ++k)
    for (size_t i = 0; i < x.size(); i += 8) {
      double sum = 0;
      for (size_t j = i; j < i + 8; ++j) sum += std::exp(x[j]);
      for (size_t j = i; j < i + 8; ++j) x[j] = static_cast<float>(std::exp(x[j]) / sum);
    }
  return x;
}

bool near(const float* x, const std::vector<float>& y) {
  for (size_t i = 0; i < y.size(); ++i)
    if (std::fabs(x[i] - y[i]) > 1e-6f) return false;
  return true;
}

void values_take_over_memory_of_those_that_die() {
  auto x = numbers(3200, 1), other = numbers(3200, 2);
  const auto kept = x;
  const auto given = [&](int) { return x.data(); };
  Runner one(chain(1), given), many(chain(9), given);
  // The last step has two of them: what is read after the run takes over nothing.
  const size_t bytes = 3200 * sizeof(float);
  CHECK(many.arena_bytes() < one.arena_bytes() + bytes + 1000);
  ProgramData p = chain(9);  // with a result that is small only one is alive at a time
  const int sum = add_value(p, {1, 1});
  add_step(p, "sum", {p.outputs[0].second}, sum,
           {{"axes", std::vector<int64_t>{0, 1}}, {"keep_dims", true}});
  p.outputs[0].second = sum;
  CHECK(Runner(p, given).arena_bytes() < one.arena_bytes() + 1000);
  many.run();
  CHECK(near(static_cast<float*>(many.data(many.outputs()[0].second)), softmaxes(x, 9)));
  CHECK(x == kept);
  many.bind(1, other.data());
  many.run();
  CHECK(near(static_cast<float*>(many.data(many.outputs()[0].second)), softmaxes(other, 9)));
}

void an_output_may_be_bound() {
  auto x = numbers(3200, 1);
  std::vector<float> y(3200);
  Runner r(chain(3), [&](int) { return x.data(); });
  r.bind(r.outputs()[0].second, y.data());
  r.run();
  CHECK(near(y.data(), softmaxes(x, 3)));
}

// What is given, or is two outputs, is copied, so that each has memory of its own.
void outputs_never_share_memory() {
  ProgramData p = chain(1);
  p.outputs = {{"y", 2}, {"again", 2}, {"x", 1}};
  auto x = numbers(3200, 1);
  Runner r(p, [&](int) { return x.data(); });
  r.run();
  const auto at = [&](size_t k) { return static_cast<float*>(r.data(r.outputs()[k].second)); };
  CHECK(at(0) != at(1) && at(2) != x.data());
  CHECK(near(at(0), softmaxes(x, 1)) && near(at(1), softmaxes(x, 1)) && near(at(2), x));
}

constexpr int rows = 64;  // of a network; fewer read their weights as they are

// y = softmax(affine(convolution(x, w), v)), and s becomes y.
ProgramData network() {
  ProgramData p;
  const int x = add_value(p, {rows, 16, 12, 12}, Role::input);
  const int w = add_value(p, {32, 16, 3, 3}, Role::parameter);
  const int v = add_value(p, {3200, 8}, Role::parameter), s = add_value(p, {rows, 8}, Role::state);
  const int h = add_value(p, {rows, 32, 10, 10}), a = add_value(p, {rows, 8});
  const std::vector<int64_t> zeros = {0, 0}, ones = {1, 1};
  add_step(p, "convolution", {x, w, 0}, h,
           {{"base_axis", int64_t{1}},
            {"pad", zeros},
            {"stride", ones},
            {"dilation", ones},
            {"group", int64_t{1}},
            {"channel_last", false}});
  add_step(p, "affine", {h, v, 0}, a, {{"base_axis", int64_t{1}}});
  const int y = add_value(p, {rows, 8});
  add_step(p, "softmax", {a}, y, {{"axis", int64_t{1}}});
  p.outputs = {{"y", y}}, p.carries = {{s, y}};
  return p;
}

void packed_weights_follow_the_plain_ones() {
  const ProgramData p = network();
  std::vector<std::vector<float>> given = {
      {}, numbers(rows * 2304, 1), numbers(4608, 2), numbers(25600, 3), numbers(rows * 8, 4)};
  const auto memory = [&](int i) { return given[static_cast<size_t>(i)].data(); };
  Runner plain(p, memory), packed(p, memory, true), also(p, memory, true);
  CHECK(also.prepared().size() == packed.prepared().size());
  for (size_t i = 0; i < packed.prepared().size(); ++i) {
    const auto& [key, bytes] = packed.prepared()[i];
    CHECK(also.prepared()[i].key == key && also.prepared()[i].bytes == bytes);
    const auto memory = std::make_shared<Memory>(bytes);
    for (Runner* r : {&packed, &also}) r->share_prepared(i, {memory, memory->data()});
  }
  for (int round = 0; round < 2; ++round) {
    packed.prepare();
    for (Runner* r : {&plain, &packed, &also}) r->run();
    const int y = plain.outputs()[0].second;
    const auto* want = static_cast<float*>(plain.data(y));
    CHECK(near(static_cast<float*>(packed.data(y)), {want, want + rows * 8}));
    CHECK(near(static_cast<float*>(also.data(y)), {want, want + rows * 8}));
    for (int i : {2, 3}) {  // in the same memory
      auto& weights = given[static_cast<size_t>(i)];
      const auto others = numbers(static_cast<int64_t>(weights.size()), 9);
      std::copy(others.begin(), others.end(), weights.begin());
    }
  }
  const bool packs = !packed.prepared().empty();
  CHECK(packed.prepared_from() == (packs ? std::vector<int>{2, 3} : std::vector<int>{}));
  CHECK(packed.written() == std::vector<int>{4});
}

void a_run_allocates_nothing() {
  auto memory = numbers(rows * 2304, 1);
  for (bool prepare : {false, true}) {
    Runner r(network(), [&](int) { return memory.data(); }, prepare);
    r.prepare();
    r.run();  // threads start
    const int before = allocations;
    for (int n = 0; n < 5; ++n) r.run();
    CHECK(allocations == before);
  }
  CHECK(allocations > 0);
}

// s becomes softmax(s) in a run, z becomes zeros.
void a_run_hands_on_to_the_next() {
  ProgramData p = chain(1);
  const int z = add_value(p, {3}, Role::state);
  p.kept = {2};
  p.carries = {{1, 2}, {z, 0}};
  auto state = numbers(3200, 1);
  std::vector<float> zeros = {1, 2, 3};
  Runner r(p, [&](int i) { return i == 1 ? state.data() : zeros.data(); });
  const auto before = state;
  r.run(), r.run();
  CHECK(near(state.data(), softmaxes(before, 2)) && zeros == std::vector<float>(3, 0.0f));
}

void the_two_parts_run_alone() {
  ProgramData p = chain(4);
  for (size_t k = 2; k < 4; ++k) p.steps[k].second = true;
  p.kept = {3};
  auto x = numbers(3200, 1);
  Runner r(p, [&](int) { return x.data(); });
  r.run_part(false);
  CHECK(near(static_cast<float*>(r.data(3)), softmaxes(x, 2)));
  r.run_part(true);
  CHECK(near(static_cast<float*>(r.data(5)), softmaxes(x, 4)));
  std::vector<double> seconds(4);
  r.run_timed(seconds);
  for (double s : seconds) CHECK(s > 0);
}

void wrong_programs_are_told() {
  float x[3200] = {};
  const auto given = [&](int) { return x; };
  ProgramData p = chain(1);
  p.steps[0].op = "sort_of";
  CHECK_ERROR(Runner(p, given), "softmax: this build has no kernel of sort_of for float32[400, 8]");
  p = chain(2);
  std::swap(p.steps[0], p.steps[1]);
  CHECK_ERROR(Runner(p, given), "softmax: reads a value that nothing has made");
  p = chain(1);
  p.kept = {add_value(p, {1})};
  CHECK_ERROR(Runner(p, given), "value 3 is kept, and nothing makes it");
}

}  // namespace

int main() {
  values_take_over_memory_of_those_that_die();
  an_output_may_be_bound();
  outputs_never_share_memory();
  packed_weights_follow_the_plain_ones();
  a_run_allocates_nothing();
  a_run_hands_on_to_the_next();
  the_two_parts_run_alone();
  wrong_programs_are_told();
}
