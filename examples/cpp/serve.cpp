// SPDX-License-Identifier: Apache-2.0
// Threads that serve one model: each has a runner of its own, and all share the parameters.
//
//   serve lenet.nnlp FOLDER_OF_ARRAYS [THREADS]
//
// Answers a request for every test image, with one thread and then with several.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <thread>
#include <vector>

#include "nnl/model.h"
#include "nnl/threads.h"
#include "npy.h"

namespace {

// Takes requests until there are no more, and writes down the answers.
void serve(nnl::Model& model, const Array<float>& images, std::atomic<int64_t>& next,
           std::vector<int32_t>& answers) {
  nnl::Tensor& x = model.input("x");
  const float* y = model.output("y").data<float>();
  for (int64_t i; (i = next++) < images.rows();) {
    x.copy_from(images.row(i), images.row_size());
    model.run();
    const auto best = std::max_element(y, y + model.output("y").size()) - y;
    answers[static_cast<size_t>(i)] = static_cast<int32_t>(best);
  }
}

std::vector<int32_t> serve_all(const nnl::ModelFile& file, const Array<float>& images, int n) {
  std::vector<nnl::Model> models;
  for (int i = 0; i < n; ++i) models.emplace_back(file, "classify");
  std::vector<int32_t> answers(static_cast<size_t>(images.rows()));
  std::atomic<int64_t> next{0};
  const auto start = std::chrono::steady_clock::now();
  std::vector<std::thread> threads;
  for (nnl::Model& model : models)
    threads.emplace_back([&] { serve(model, images, next, answers); });
  for (std::thread& thread : threads) thread.join();
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  std::printf("%d thread%s: %.0f images a second\n", n, n == 1 ? "" : "s",
              static_cast<double>(images.rows()) / taken.count());
  return answers;
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 3) {
    std::fprintf(stderr, "usage: serve FILE.nnlp FOLDER_OF_ARRAYS [THREADS]\n");
    return 2;
  }
  const auto images = read_npy<float>(argv[2] + std::string("/x_test.npy"));
  const auto labels = read_npy<int32_t>(argv[2] + std::string("/y_test.npy"));
  nnl::set_threads(1);  // in each runner: the threads here are enough
  const nnl::ModelFile file(argv[1]);
  const auto one = serve_all(file, images, 1);
  const auto several = serve_all(file, images, argc > 3 ? std::atoi(argv[3]) : 2);
  int64_t right = 0;
  for (int64_t i = 0; i < images.rows(); ++i) {
    const auto answer = several[static_cast<size_t>(i)];
    if (answer != one[static_cast<size_t>(i)]) throw std::runtime_error("threads disagree");
    right += answer == *labels.row(i);
  }
  std::printf("%d of %d digits recognised, the same by both\n", static_cast<int>(right),
              static_cast<int>(images.rows()));
  return 0;
} catch (const std::exception& e) {
  std::fprintf(stderr, "serve: error: %s\n", e.what());
  return 1;
}
