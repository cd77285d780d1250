// SPDX-License-Identifier: Apache-2.0
// Goes on with a training that Python has begun: the whole step, solver included, is in the file.
//
//   continue_training lenet.nnlp FOLDER_OF_ARRAYS [EPOCHS]
//
// Says what part of the test images the network knows before and after, and writes trained.h5.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "nnl/model.h"
#include "npy.h"

namespace {

double accuracy(nnl::Model& test, const Array<float>& images, const Array<int32_t>& labels) {
  test.input("x").copy_from(images.values.data(), images.values.size());
  test.run();
  const float* y = test.output("y").data<float>();
  const int64_t classes = test.output("y").size() / labels.rows();
  int64_t right = 0;
  for (int64_t i = 0; i < labels.rows(); ++i, y += classes)
    right += std::max_element(y, y + classes) - y == *labels.row(i);
  return 100.0 * static_cast<double>(right) / static_cast<double>(labels.rows());
}

double epoch(nnl::Model& step, const Array<float>& images, const Array<int32_t>& labels,
             std::mt19937& random) {
  std::vector<int64_t> rows(static_cast<size_t>(images.rows()));
  std::iota(rows.begin(), rows.end(), 0);
  std::shuffle(rows.begin(), rows.end(), random);
  const auto batch = static_cast<size_t>(step.input("x").spec().shape.at(0));
  float* x = step.input("x").data<float>();
  int32_t* t = step.input("t").data<int32_t>();
  double sum = 0;
  size_t steps = 0;
  for (; (steps + 1) * batch <= rows.size(); ++steps) {
    for (size_t i = 0; i < batch; ++i) {
      const int64_t row = rows[steps * batch + i];
      std::copy_n(images.row(row), images.row_size(), x + i * images.row_size());
      t[i] = *labels.row(row);
    }
    step.run();
    sum += static_cast<double>(*step.output("loss").data<float>());
  }
  return sum / static_cast<double>(steps);
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 3) {
    std::fprintf(stderr, "usage: continue_training FILE.nnlp FOLDER_OF_ARRAYS [EPOCHS]\n");
    return 2;
  }
  const std::string folder = argv[2] + std::string("/");
  const auto x_train = read_npy<float>(folder + "x_train.npy");
  const auto y_train = read_npy<int32_t>(folder + "y_train.npy");
  const auto x_test = read_npy<float>(folder + "x_test.npy");
  const auto y_test = read_npy<int32_t>(folder + "y_test.npy");

  const nnl::ModelFile file(argv[1]);  // its programs share the parameters
  nnl::Model step(file, "step"), test(file, "test");
  std::printf("%.2f %% of the test images are recognised\n", accuracy(test, x_test, y_test));
  std::mt19937 random(0);
  for (int i = 1; i <= (argc > 3 ? std::atoi(argv[3]) : 5); ++i) {
    std::printf("epoch %d: loss %.4f\n", i, epoch(step, x_train, y_train, random));
  }
  std::printf("%.2f %% of the test images are recognised\n", accuracy(test, x_test, y_test));
  file.save_parameters("trained.h5");
  std::printf("nnl.load_parameters(\"trained.h5\") reads them in Python\n");
  return 0;
} catch (const std::exception& e) {
  std::fprintf(stderr, "continue_training: error: %s\n", e.what());
  return 1;
}
