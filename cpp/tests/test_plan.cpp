// SPDX-License-Identifier: Apache-2.0
// Plans: order of steps, memory, errors, and different plans in different threads.
#include <atomic>
#include <cmath>
#include <functional>
#include <memory>
#include <thread>

#include "check.h"
#include "nnl/executor.h"
#include "nnl/plan.h"

using namespace nnl;
using namespace nnl::test;

namespace {

// A step that calls what it is given.
class Calls : public Kernel {
 public:
  explicit Calls(std::function<void(const Buffers&)> f) : f_(std::move(f)) {}
  void run(const Buffers& b) override { f_(b); }

 private:
  std::function<void(const Buffers&)> f_;
};

std::unique_ptr<Kernel> calls(std::function<void(const Buffers&)> f) {
  return std::make_unique<Calls>(std::move(f));
}

void steps_run_in_order_and_within_the_range() {
  Plan plan({Plan::outside}, 0);
  std::vector<int> order;
  for (int i = 0; i < 4; ++i)
    plan.add("step", calls([&order, i](const Buffers&) { order.push_back(i); }), {}, {},
             Plan::outside);
  CHECK(plan.size() == 4);
  plan.run(1, 3);
  CHECK((order == std::vector<int>{1, 2}));
  plan.run_timed(0, 4);
  CHECK((order == std::vector<int>{1, 2, 0, 1, 2, 3}));
  for (size_t i = 0; i < 4; ++i) CHECK(plan.times()[i] >= 0);
  for (size_t i = 1; i < 4; ++i) CHECK(plan.starts()[i] >= plan.starts()[i - 1]);
}

void slots_are_null_in_the_arena_or_bound() {
  float outside = 3.0f, another = 4.0f;
  Plan plan({Plan::outside, 64, Plan::outside}, 128);
  plan.add("copy", calls([](const Buffers& b) {
             CHECK(b.in[0] == nullptr);
             *b.output<float>() = *b.input<float>(1);
             CHECK(b.workspace == nullptr);
           }),
           {0, 2}, {1}, Plan::outside);
  plan.bind(2, &outside);
  plan.run(0, 1);
  const auto* y = static_cast<float*>(plan.data(1));
  CHECK(reinterpret_cast<const std::byte*>(y) == plan.arena()->data() + 64);
  CHECK(*y == 3.0f);
  plan.bind(2, &another);
  plan.run(0, 1);
  CHECK(*y == 4.0f);
}

void an_error_of_a_step_carries_its_name() {
  Plan plan({Plan::outside}, 0);
  int after = 0;
  plan.add("conv1/embed", calls([](const Buffers&) { throw ValueError("label 7 is too large"); }),
           {}, {}, Plan::outside);
  plan.add("later", calls([&](const Buffers&) { ++after; }), {}, {}, Plan::outside);
  CHECK_ERROR(plan.run(0, 2), "conv1/embed: label 7 is too large");
  CHECK_ERROR(plan.run_timed(0, 2), "conv1/embed: label 7 is too large");
  CHECK(after == 0);
  plan.run(1, 2);  // the plan can be used further
  CHECK(after == 1);
}

void a_step_needs_a_kernel() {
  Plan plan({Plan::outside}, 0);
  CHECK_ERROR(plan.add("conv1", nullptr, {}, {}, Plan::outside), "conv1: there is no kernel");
  CHECK(plan.size() == 0);
}

void memory_is_aligned() {
  for (size_t bytes : {size_t{0}, size_t{1}, size_t{100}, size_t{3} << 20}) {
    const Memory memory(bytes);
    const auto at = reinterpret_cast<uintptr_t>(memory.data());
    CHECK(at % 64 == 0);
    CHECK(memory.bytes() == bytes);
    if (bytes >= size_t{2} << 20) CHECK(at % (size_t{2} << 20) == 0);
  }
}

void a_workspace_lies_at_its_offset_aligned() {
  Plan plan({Plan::outside}, 1024);
  void* seen = nullptr;
  plan.add("step", calls([&](const Buffers& b) { seen = b.workspace; }), {}, {}, 192);
  plan.run(0, 1);
  CHECK(seen == plan.arena()->data() + 192);
  CHECK(reinterpret_cast<uintptr_t>(seen) % 64 == 0);
}

// y = relu(x w + b), kept in one arena, with the scratch memory that the kernel asks for.
struct Network {
  Network(int64_t m, int64_t k, int64_t n, uint32_t seed)
      : m_(m),
        k_(k),
        n_(n),
        x(numbers(m * k, seed)),
        w(numbers(k * n, seed + 1)),
        b(numbers(n, seed + 2)) {
    auto affine = make_kernel(
        "affine", signature({{"base_axis", int64_t{1}}},
                            {floats({m, k}), floats({k, n}), floats({n})}, {floats({m, n})}));
    using Integers = std::vector<int64_t>;
    const Integers relu_of_0 = {code_of("relu"), 0, 0, 0};
    auto relu = make_kernel("fused_elementwise", signature({{"code", relu_of_0},
                                                            {"outputs", Integers{1}},
                                                            {"constants", std::vector<double>{}}},
                                                           {floats({m, n})}, {floats({m, n})}));
    CHECK(affine && relu);
    CHECK(relu->may_overwrite(0, 0));
    const auto bytes = static_cast<int64_t>((floats({m, n}).bytes() + 63) / 64 * 64);
    const auto scratch = affine->workspace();
    plan = std::make_unique<Plan>(
        std::vector<int64_t>{Plan::outside, Plan::outside, Plan::outside, Plan::outside, 0},
        static_cast<size_t>(bytes) + scratch);
    plan->add("affine", std::move(affine), {1, 2, 3}, {4}, scratch ? bytes : Plan::outside);
    plan->add("relu", std::move(relu), {4}, {4}, Plan::outside);
    plan->bind(1, x.data());
    plan->bind(2, w.data());
    plan->bind(3, b.data());
  }

  void check() const {
    const auto* y = static_cast<const float*>(plan->data(4));
    for (int64_t i = 0; i < m_; ++i)
      for (int64_t j = 0; j < n_; ++j) {
        double sum = b[static_cast<size_t>(j)];
        for (int64_t p = 0; p < k_; ++p)
          sum += static_cast<double>(x[static_cast<size_t>(i * k_ + p)]) *
                 w[static_cast<size_t>(p * n_ + j)];
        CHECK(std::fabs(y[i * n_ + j] - std::max(sum, 0.0)) < 1e-4);
      }
  }

  int64_t m_, k_, n_;
  std::vector<float> x, w, b;
  std::unique_ptr<Plan> plan;
};

void plans_of_one_thread_each_do_not_disturb_each_other() {
  const int64_t sizes[][3] = {{33, 47, 65}, {70, 64, 96}, {4, 4, 4}};
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 3; ++t)
    threads.emplace_back([&sizes, t] {
      Network net(sizes[t][0], sizes[t][1], sizes[t][2], t);
      for (int i = 0; i < 30; ++i) {
        net.x = numbers(net.m_ * net.k_, t * 100 + static_cast<uint32_t>(i));
        net.plan->bind(1, net.x.data());
        net.plan->run(0, 2);
        net.check();
      }
    });
  for (std::thread& t : threads) t.join();
}

void a_plan_may_move_to_another_thread() {
  Network net(40, 40, 40, 9);
  std::thread([&net] { net.plan->run(0, 2); }).join();
  net.check();
}

void an_executor_runs_a_plan_meanwhile() {
  std::atomic<bool> go{false};
  int value = 0;
  Plan plan({Plan::outside}, 0);
  plan.add("waits", calls([&](const Buffers&) {
             while (!go) std::this_thread::yield();
             ++value;
           }),
           {}, {}, Plan::outside);
  plan.add("fails", calls([](const Buffers&) { throw ValueError("no"); }), {}, {}, Plan::outside);
  Executor executor;
  executor.wait();
  for (int i = 0; i < 100; ++i) {
    go = false;
    executor.start(plan, 0, 1);
    CHECK(executor.is_running());
    CHECK_ERROR(executor.start(plan, 0, 1), "this executor runs a plan already");
    go = true;
    executor.wait();
    CHECK(!executor.is_running() && value == i + 1);
  }
  executor.start(plan, 0, 2);
  for (int i = 0; i < 2; ++i) CHECK_ERROR(executor.wait(), "fails: no");
  executor.start(plan, 0, 1);
  executor.wait();
  CHECK(value == 102);
}

void a_run_in_an_executor_stops_between_steps() {
  std::atomic<bool> begun{false}, go{false};
  bool more = false;
  Plan plan({Plan::outside}, 0);
  plan.add("waits", calls([&](const Buffers&) {
             begun = true;
             while (!go) std::this_thread::yield();
           }),
           {}, {}, Plan::outside);
  plan.add("more", calls([&](const Buffers&) { more = true; }), {}, {}, Plan::outside);
  Executor executor;
  const int from[] = {3, 5};
  int to[] = {0, 0};
  executor.start(plan, 0, 2, {{to, from, sizeof(int)}, {to + 1, from + 1, sizeof(int)}});
  while (!begun) std::this_thread::yield();
  CHECK(to[0] == 3 && to[1] == 5);
  executor.stop();
  go = true;
  executor.wait();
  CHECK(!more);
  executor.start(plan, 0, 2);
  executor.wait();
  CHECK(more);
}

}  // namespace

int main() {
  steps_run_in_order_and_within_the_range();
  slots_are_null_in_the_arena_or_bound();
  an_error_of_a_step_carries_its_name();
  a_step_needs_a_kernel();
  memory_is_aligned();
  a_workspace_lies_at_its_offset_aligned();
  plans_of_one_thread_each_do_not_disturb_each_other();
  a_plan_may_move_to_another_thread();
  an_executor_runs_a_plan_meanwhile();
  a_run_in_an_executor_stops_between_steps();
}
