// SPDX-License-Identifier: Apache-2.0
// What benchmarks/cpp.py runs in C++:
//   cpp_job start FILE [PROGRAM]     one run, then "ready"
//   cpp_job steps FILE [PROGRAM]     for each line "SECONDS" of the input, the median of a run in
//   ms cpp_job two FILE [PROGRAM]       the same with the runs in a second of one model, then of
//   two at
//                                    once, each in a thread of its own with one thread
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "nnl/model.h"
#include "nnl/threads.h"

namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double median_ms(nnl::Model& model, double seconds) {
  std::vector<double> taken;
  for (const double end = now() + seconds; now() < end || taken.empty();) {
    const double start = now();
    model.run();
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

int run(const std::string& mode, const std::string& path, const std::string& program) {
  if (mode == "two") nnl::set_threads(1);
  const nnl::ModelFile file(path);
  std::vector<nnl::Model> one, two;
  one.emplace_back(file, program);
  one[0].run();
  std::puts("ready");
  std::fflush(stdout);
  if (mode == "start") return 0;
  for (int i = 0; mode == "two" && i < 2; ++i) two.emplace_back(file, program);
  for (double seconds; std::scanf("%lf", &seconds) == 1; std::fflush(stdout)) {
    if (mode == "two") {
      const double alone = throughput(one, seconds);
      std::printf("%g %g\n", alone, throughput(two, seconds));
    } else {
      std::printf("%g\n", median_ms(one[0], seconds));
    }
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) try {
  return run(argc > 1 ? argv[1] : "", argc > 2 ? argv[2] : "", argc > 3 ? argv[3] : "");
} catch (const nnl::ValueError& e) {
  std::fprintf(stderr, "cpp_job: error: %s\n", e.what());
  return 1;
}
