// SPDX-License-Identifier: Apache-2.0
// Networks that share nothing, in different threads; the thread sanitizer watches.
#include <atomic>
#include <thread>

#ifdef __unix__
#include <sys/wait.h>
#include <unistd.h>
#endif

#include "check.h"
#include "nnl/networks.h"
#include "nnl/threads.h"

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

// The helpers of this thread are not in it; the thread sanitizer takes none after a fork.
void a_copy_of_the_process_computes() {
#if defined __unix__ && !defined __SANITIZE_THREAD__
  set_threads(2);
  const auto product = [] {
    Variable x({1, 256, 256}), w({1, 256, 256});
    std::fill_n(x.data<float>(), x.size(), 1.0f);
    std::fill_n(w.data<float>(), w.size(), 2.0f);
    Variable y = f::mean(f::tanh(f::batch_matmul(x, w)));
    y.forward();
    return y.item();
  };
  CHECK(product() == 1);
  const pid_t child = fork();
  CHECK(child >= 0);
  if (!child) {
    alarm(30);
    _exit(product() == 1 ? 0 : 1);
  }
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  CHECK(product() == 1);
#endif
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
  a_copy_of_the_process_computes();
}
