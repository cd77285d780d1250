// SPDX-License-Identifier: Apache-2.0
// Networks as C++ programs write them: values, gradients, what stays readable, and errors.
#include <cmath>

#include "allocations.h"
#include "graphs.h"

using namespace nnl;
using namespace nnl::test;

namespace {

// The gradient of a graph against central differences, element by element of x.
template <class F>
void check_gradient(Variable x, const F& network) {
  const Variable loss = network();
  loss.forward();
  x.grad().zero();
  loss.backward();
  const auto g = values_of(x.grad());
  for (int64_t i = 0; i < x.size(); ++i) {
    float* at = x.data<float>() + i;
    const float before = *at;
    const auto moved = [&](float by) {
      *at = before + by;
      loss.forward(true);
      return static_cast<double>(loss.item());
    };
    const double slope = (moved(1e-2f) - moved(-1e-2f)) / 2e-2;
    *at = before;
    CHECK(close(g[static_cast<size_t>(i)], slope));
  }
}

Variable lenet(const Variable& x, const ParameterDirectory& params) {
  auto h = pf::convolution(x, 1, 4, {3, 3}, params["conv1"]);
  h = f::max_pooling(h, {2, 2}, {2, 2}, true, {0, 0});
  h = f::relu(h, false);
  h = pf::affine(h, 1, 5, params["affine2"]);
  return h;
}

// Eight images of two kinds, by the sign of their mean.
void fill_batch(Variable x, Variable t) {
  const auto noise = numbers(x.size(), 5);
  for (int64_t i = 0; i < x.size(); ++i)
    x.data<float>()[i] = noise[static_cast<size_t>(i)] + (i / 64 % 2 ? 0.7f : -0.7f);
  for (int64_t i = 0; i < t.size(); ++i) t.data<uint8_t>()[i] = static_cast<uint8_t>(i % 2);
}

template <class Step>
void check_training(Step&& step) {
  const double first = step();
  double last = first;
  for (int i = 0; i < 60; ++i) last = step();
  CHECK(last < 0.2 * first);
}

void a_static_network_learns() {
  Variable x({8, 1, 8, 8}), t({8, 1});
  ParameterDirectory params;
  const auto loss = f::mean(f::softmax_cross_entropy(lenet(x, params), t));
  solvers::Adam solver(0.05);
  solver.set_parameters(params.get_parameters());
  fill_batch(x, t);
  check_training([&] {
    solver.zero_grad();
    loss.forward(false, true);
    loss.backward();
    solver.update();
    return loss.item();
  });
}

void a_network_that_runs_at_once_learns() {
  const AutoForward on;
  Variable x({8, 1, 8, 8}), t({8, 1});
  fill_batch(x, t);
  ParameterDirectory params;
  solvers::Momentum solver(0.05);
  check_training([&] {
    const auto loss = f::mean(f::softmax_cross_entropy(lenet(x, params), t));
    solver.set_parameters(params.get_parameters(), false, true);
    solver.zero_grad();
    loss.backward();
    solver.update();
    return loss.item();
  });
}

void a_step_of_a_static_network_allocates_nothing() {
  Variable x = leaf({4, 6}, 1, false), t({4, 1});
  ParameterDirectory params;
  const auto h = f::tanh(pf::affine(x, 1, 5, params["a"]));
  const auto loss = f::mean(f::softmax_cross_entropy(pf::affine(h, 1, 3, params["b"]), t));
  solvers::Adam solver;
  solver.set_parameters(params.get_parameters());
  const auto step = [&] {
    solver.zero_grad();
    loss.forward(false, true);
    loss.backward();
    solver.update();
  };
  step();
  const int before = allocations;
  for (int i = 0; i < 3; ++i) step();
  CHECK(allocations == before);
}

void long_graphs_are_taken_apart_without_recursion() {
  Variable x = leaf({1}, 1);
  for (int i = 0; i < 200000; ++i) x = x * 1.0;
  x = f::sum(x);
}

void both_modes_give_the_same() {
  Variable x = leaf({2, 3}, 1), w = leaf({3, 4}, 2), b = leaf({4}, 3);
  const auto network = [&] { return f::mean(f::tanh(f::affine(x, w, b)) * 3.0); };
  const Variable y = network();
  y.forward();
  y.backward();
  const auto planned = values_of(w.grad());
  w.grad().zero();
  const AutoForward on;
  const Variable z = network();
  z.backward();
  CHECK(z.item() == y.item());
  CHECK(values_of(w.grad()) == planned);
}

void gradients_are_those_of_central_differences() {
  const Variable x = leaf({2, 2, 5, 5}, 1), w = leaf({3, 2, 3, 3}, 2), b = leaf({3}, 3);
  const auto network = [&] {
    const auto h = f::convolution(x, w, b, 1, {1, 1}, {2, 2});
    return f::sum(f::elu(f::average_pooling(h, {2, 2}, {1, 1})) * 0.5 + 1.0);
  };
  check_gradient(w, network);
  check_gradient(b, network);
  // one value in several places, one leaf twice
  const Variable v = leaf({3, 3}, 4);
  check_gradient(v, [&] {
    const auto h = f::sigmoid(v);
    return f::sum(h * h + f::batch_matmul(v, f::transpose(v, {1, 0})) - h / 2.0);
  });
}

void gradients_add_up_until_they_are_zeroed() {
  const Variable x = leaf({3}, 1);
  const Variable y = f::sum(x * 2.0);
  y.forward();
  y.backward();
  y.backward(2.0);
  CHECK(values_of(x.grad()) == std::vector<float>(3, 6.0f));
  x.grad().zero();
  y.backward();
  CHECK(values_of(x.grad()) == std::vector<float>(3, 2.0f));
}

void what_is_held_or_persistent_stays_readable() {
  const Variable x = leaf({3}, 1);
  Variable h = x * 2.0;
  const Variable y = f::sum(h + 1.0);
  CHECK_ERROR(h.data<float>(), "the result of mul_scalar, float32[3], has no value");
  y.forward();
  CHECK(h.data<float>()[1] == 2 * x.data<float>()[1]);
  h.set_persistent();
  y.forward(false, true);
  y.backward();
  CHECK(values_of(h.grad()) == std::vector<float>(3, 1.0f));
}

void a_leaf_of_other_data_follows_it() {
  const Variable x = leaf({4}, 1);
  const Variable y = f::exp(x);
  const Variable end = f::sum(Variable(y, false) * x);  // the gradient does not reach y
  CHECK_ERROR(end.forward(), "shares the data of a result that has no value yet");
  y.forward();
  end.forward();
  end.backward();
  CHECK(values_of(x.grad()) == values_of(y.data()));
}

void variables_may_be_empty() {
  Variable x({0}), y({0, 3}, true);
  const Variable z = f::sum(f::exp(y)) + f::sum(x);
  z.forward();
  z.backward();
  CHECK(z.item() == 0 && y.size() == 0 && y.grad().size() == 0);
}

// What a program does with arrays between forward() and backward().
void arrays_may_change_their_type() {
  const Variable x = leaf({3}, 1);
  const Variable h = f::exp(x), y = f::sum(h * 2.0);
  y.forward();
  const float first = y.item();
  CHECK(h.data<uint8_t>() && y.data<double>()[0] == first);
  y.forward();  // and back to float32
  CHECK(y.item() == first && std::fabs(h.data<float>()[0] - std::exp(x.data<float>()[0])) < 1e-5);
  y.backward();
  const double g = x.grad<double>()[1];
  y.backward();
  CHECK(close(x.grad<float>()[1], 2 * g));
  x.grad().zero();
  CHECK(x.grad<double>()[1] == 0);
  x.grad().zero();
  y.backward();
  CHECK(close(x.grad<float>()[1], g));
  const std::vector<float> values = values_of(x.data());
  x.data<uint8_t>();
  CHECK_ERROR(y.backward(),
              "backward: a leaf has become uint8[3] since forward(), which took "
              "float32: call forward() again");
  Array a = x.data();
  a.copy_from(x.data());  // itself
  CHECK(x.data<uint8_t>()[0] == static_cast<uint8_t>(values[0]));
  CHECK_ERROR(a.copy_from(f::exp(x).data()), "copy_from: float32[3] has no value");
  CHECK_ERROR(Variable(f::exp(x), false).data<float>(),
              "data: the result of another graph, float32[3], has no value");
  CHECK_ERROR(Variable({int64_t{1} << 40, int64_t{1} << 40}), "is larger than any memory");
}

void leaves_may_share_a_gradient() {
  const Variable x = leaf({3}, 1), same(x, true);
  const Variable y = f::sum(x * 2.0 + same * 3.0);
  y.forward();
  y.backward();
  CHECK(values_of(x.grad()) == std::vector<float>(3, 5.0f));
  y.backward();
  CHECK(values_of(x.grad()) == std::vector<float>(3, 10.0f));
}

void errors_name_function_and_argument() {
  const Variable x = leaf({2, 3}, 1);
  CHECK_ERROR(f::affine(x, leaf({4, 2}, 2), Variable()), "affine: ");
  CHECK_ERROR(x + leaf({3, 2}, 2), "add2: ");
  CHECK_ERROR(f::softmax(x, 2), "softmax: axis 2 is outside [-2, 2) for x float32[2, 3]");
  CHECK_ERROR(f::relu(Variable()), "relu: x is missing");
  CHECK_ERROR(apply("batch_normalization", {}, {x}), "batch_normalization: ");
  CHECK_ERROR(apply("dropout", {{"p", 0.5}, {"seed", int64_t{0}}}, {x, x}),
              "dropout: rng float32[2, 3], wanted uint64[2]");
  CHECK_ERROR(apply("no_such_function", {}, {x}), "no_such_function: ");
  CHECK_ERROR(apply("leaky_relu", {}, {x})[0].forward(),
              "leaky_relu: attribute 'alpha' is missing");
  CHECK_ERROR(f::convolution(x, leaf({1, 1, 2, 2}, 1), Variable()), "convolution: ");
  CHECK_ERROR(pf::affine(x, 1, 0, ParameterDirectory()), "affine: n_out is 0, wanted at least 1");
  const Variable y = f::sum(x);
  CHECK_ERROR(y.backward(), "backward: call forward() first");
  y.forward(true);
  CHECK_ERROR(y.backward(), "backward: forward(true) has cleared what it needs: call forward()");
  CHECK_ERROR(x.item(), "item: got float32[2, 3], wanted one element");
  // without mean and variance there is nothing to change
  apply("batch_normalization",
        {{"axes", Shape{1}}, {"decay_rate", 0.9}, {"eps", 1e-5}, {"batch_stat", true}}, {x})[0]
      .forward();
  ParameterDirectory params;
  pf::affine(x, 1, 4, params["fc"]);
  CHECK_ERROR(pf::affine(x, 1, 5, params["fc"]),
              "parameter 'fc/affine/W' is float32[3, 4], wanted the shape of float32[3, 5]");
  CHECK_ERROR(solvers::Adam(-1), "Adam: alpha is -1, wanted a finite number >= 0");
  CHECK_ERROR(solvers::Lamb(1e-3, 0.9, 0.999, 3, 2), "Lamb: gamma_l is 3, wanted at most");
  solvers::Sgd sgd;
  CHECK_ERROR(sgd.weight_decay(-1), "Sgd.weight_decay: rate is -1, wanted a finite number >= 0");
  Variable t({2, 1});
  const Variable loss = f::softmax_cross_entropy(x, t);
  t.data<uint8_t>()[1] = 3;
  CHECK_ERROR(loss.forward(), "target has the label 3");
}

}  // namespace

int main() {
  a_static_network_learns();
  a_network_that_runs_at_once_learns();
  a_step_of_a_static_network_allocates_nothing();
  long_graphs_are_taken_apart_without_recursion();
  both_modes_give_the_same();
  gradients_are_those_of_central_differences();
  gradients_add_up_until_they_are_zeroed();
  what_is_held_or_persistent_stays_readable();
  a_leaf_of_other_data_follows_it();
  variables_may_be_empty();
  arrays_may_change_their_type();
  leaves_may_share_a_gradient();
  errors_name_function_and_argument();
}
