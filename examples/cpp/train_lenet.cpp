// SPDX-License-Identifier: Apache-2.0
// Trains LeNet on handwritten digits, written as in Python.
//
//   train_lenet FOLDER [EPOCHS]
//
// The folder has x_train.npy, y_train.npy, x_test.npy and y_test.npy, as make_files.py writes them;
// the parameters go to lenet.h5 in it, which Python's nnl and NNabla read.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>

#include "nnl/networks.h"
#include "npy.h"

namespace f = nnl::f;
namespace pf = nnl::pf;
using nnl::ParameterDirectory;
using nnl::Variable;

Variable lenet(const Variable& x, const ParameterDirectory& parameters) {
  auto h = pf::convolution(x, 1, 16, {5, 5}, parameters["conv1"]);
  h = f::max_pooling(h, {2, 2}, {2, 2}, true, {0, 0});
  h = f::relu(h, false);
  h = pf::convolution(h, 1, 16, {5, 5}, parameters["conv2"]);
  h = f::max_pooling(h, {2, 2}, {2, 2}, true, {0, 0});
  h = f::relu(h, false);
  h = pf::affine(h, 1, 50, parameters["affine3"]);
  h = f::relu(h, false);
  h = pf::affine(h, 1, 10, parameters["affine4"]);
  return h;
}

int main(int argc, char** argv) try {
  const std::string folder = argc > 1 ? argv[1] : ".";
  const int epochs = argc > 2 ? std::atoi(argv[2]) : 5;
  const auto images = read_npy<float>(folder + "/x_train.npy");
  const auto labels = read_npy<int32_t>(folder + "/y_train.npy");
  const auto test_images = read_npy<float>(folder + "/x_test.npy");
  const auto test_labels = read_npy<int32_t>(folder + "/y_test.npy");

  const int64_t batch = 64, tests = test_images.rows();
  const size_t pixels = images.row_size();
  ParameterDirectory parameters;
  Variable x({batch, 1, 28, 28}), t({batch, 1});
  const Variable loss = f::mean(f::softmax_cross_entropy(lenet(x, parameters), t));
  Variable test_x({tests, 1, 28, 28}), test_t({tests, 1});
  const Variable error = f::mean(f::top_n_error(lenet(test_x, parameters), test_t));
  std::copy(test_images.values.begin(), test_images.values.end(), test_x.data<float>());
  std::copy(test_labels.values.begin(), test_labels.values.end(), test_t.data<int32_t>());

  nnl::solvers::Adam solver(2e-3);
  solver.set_parameters(parameters.get_parameters());
  std::vector<int64_t> order(static_cast<size_t>(images.rows()));
  std::iota(order.begin(), order.end(), 0);
  std::mt19937 random(0);
  for (int epoch = 1; epoch <= epochs; ++epoch) {
    std::shuffle(order.begin(), order.end(), random);
    double sum = 0;
    const int64_t steps = images.rows() / batch;
    for (int64_t step = 0; step < steps; ++step) {
      for (int64_t i = 0; i < batch; ++i) {
        const int64_t row = order[static_cast<size_t>(step * batch + i)];
        std::copy_n(images.row(row), pixels, x.data<float>() + i * static_cast<int64_t>(pixels));
        t.data<int32_t>()[i] = *labels.row(row);
      }
      solver.zero_grad();
      loss.forward(false, true);
      loss.backward();
      solver.update();
      sum += loss.item();
    }
    error.forward(true);
    std::printf("epoch %d: loss %.4f, error on %d test images %.4f\n", epoch,
                sum / static_cast<double>(steps), static_cast<int>(tests), error.item());
  }
  nnl::save_parameters(parameters, folder + "/lenet.h5");
} catch (const std::exception& e) {
  std::fprintf(stderr, "error: %s\n", e.what());
  return 1;
}
