// SPDX-License-Identifier: Apache-2.0
// Networks that share nothing, in different threads; the thread sanitizer watches.
#include <atomic>
#include <thread>

#include "check.h"
#include "nnl/networks.h"

using namespace nnl;
using namespace nnl::test;

namespace {

// The loss after some steps, as a static network or define-by-run.
float trained(bool at_once) {
  const AutoForward scope(at_once);
  seed(7);
  ParameterDirectory parameters;
  Variable x({4, 2, 6, 6}), t({4, 1});
  const auto values = numbers(x.size(), 3);
  std::copy(values.begin(), values.end(), x.data<float>());
  std::fill_n(t.data<int32_t>(), 4, 1);
  const auto build = [&] {
    Variable h = f::relu(pf::convolution(x, 1, 3, {3, 3}, parameters["conv"]), false);
    h = pf::batch_normalization(h, true, parameters["bn"]);
    return f::mean(f::softmax_cross_entropy(pf::affine(h, 1, 5, parameters["fc"]), t));
  };
  solvers::Adam solver(0.01);
  Variable loss = build();
  solver.set_parameters(parameters.get_parameters());
  for (int i = 0; i < 3; ++i) {
    if (at_once)
      loss = build();
    else
      loss.forward(false, true);
    solver.zero_grad();
    loss.backward();
    solver.update();
  }
  return loss.item();
}

}  // namespace

int main() {
  const float want[] = {trained(false), trained(true)};
  std::vector<std::thread> threads;
  std::atomic<int> same{0};
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&, i] { same += trained(i % 2) == want[i % 2]; });
  for (std::thread& t : threads) t.join();
  CHECK(same == 4);
}
