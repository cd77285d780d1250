// SPDX-License-Identifier: Apache-2.0
// What benchmarks/cpp.py runs in C++:
//   cpp_job start FILE    one run, then "ready"
//   cpp_job steps FILE    for each line "SECONDS" of the input, the median of a run in ms
//   cpp_job train FILE    the same of a training step of LeNet that is written here
//   cpp_job two FILE      runs in a second of one model, then of two at once, each in a thread of
//                         its own with one thread
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "nnl/model.h"
#include "nnl/networks.h"
#include "nnl/threads.h"

namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double median_ms(const std::function<void()>& step, double seconds) {
  std::vector<double> taken;
  for (const double end = now() + seconds; now() < end || taken.empty();) {
    const double start = now();
    step();
    taken.push_back((now() - start) * 1e3);
  }
  std::nth_element(taken.begin(), taken.begin() + static_cast<long>(taken.size() / 2), taken.end());
  return taken[taken.size() / 2];
}

// Runs in a second, of as many models as there are.
double throughput(std::vector<nnl::Model>& models, double seconds) {
  std::atomic<long> runs{0};
  std::vector<std::thread> threads;
  const double begin = now();
  for (nnl::Model& model : models)
    threads.emplace_back([&] {
      while (now() < begin + seconds) model.run(), ++runs;
    });
  for (std::thread& t : threads) t.join();
  return static_cast<double>(runs) / (now() - begin);
}

// Says that all is there, and for each number of seconds in the input what `measure` prints.
void answer(const std::function<void(double)>& measure) {
  std::puts("ready");
  std::fflush(stdout);
  for (double seconds; std::scanf("%lf", &seconds) == 1; std::fflush(stdout)) measure(seconds);
}

void print_median(const std::function<void()>& step) {
  step();
  answer([&](double seconds) { std::printf("%g\n", median_ms(step, seconds)); });
}

// Batch 64, with Adam, as save_step of cpp.py.
void train() {
  namespace f = nnl::f;
  namespace pf = nnl::pf;
  const nnl::ParameterDirectory params;
  const nnl::Variable x({64, 1, 28, 28}), t({64, 1});
  auto h = pf::convolution(x, 1, 16, {5, 5}, params["conv1"]);
  h = f::relu(f::max_pooling(h, {2, 2}));
  h = pf::convolution(h, 1, 16, {5, 5}, params["conv2"]);
  h = f::relu(f::max_pooling(h, {2, 2}));
  h = f::relu(pf::affine(h, 1, 50, params["affine3"]));
  const auto y = pf::affine(h, 1, 10, params["affine4"]);
  const auto loss = f::mean(f::softmax_cross_entropy(y, t));
  nnl::solvers::Adam solver;
  solver.set_parameters(params.get_parameters());
  print_median([&] {
    solver.zero_grad();
    loss.forward(false, true);
    loss.backward();
    solver.update();
  });
}

void run_two(const nnl::ModelFile& file) {
  nnl::set_threads(1);
  std::vector<nnl::Model> one, two;
  one.emplace_back(file);
  one[0].run();
  for (int i = 0; i < 2; ++i) two.emplace_back(file);
  answer([&](double seconds) {
    const double alone = throughput(one, seconds);
    std::printf("%g %g\n", alone, throughput(two, seconds));
  });
}

void run(const std::string& mode, const std::string& path) {
  if (mode == "train") return train();
  const nnl::ModelFile file(path);
  if (mode == "two") return run_two(file);
  nnl::Model model(file);
  if (mode == "steps") return print_median([&] { model.run(); });
  model.run();
  answer({});
}

}  // namespace

int main(int argc, char** argv) try {
  run(argc > 1 ? argv[1] : "", argc > 2 ? argv[2] : "");
} catch (const nnl::ValueError& e) {
  std::fprintf(stderr, "cpp_job: error: %s\n", e.what());
  return 1;
}
