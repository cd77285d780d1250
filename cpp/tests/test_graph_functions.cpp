// SPDX-License-Identifier: Apache-2.0
// Networks as C++ programs write them: what each function and layer does.
#include "graphs.h"

using namespace nnl;
using namespace nnl::test;

namespace {

void labels_may_have_any_type() {
  const Variable x = leaf({3, 4}, 1);
  Variable t({3, 1});
  const Variable loss = f::mean(f::softmax_cross_entropy(x, t));
  for (int i = 0; i < 3; ++i) t.data<float>()[i] = static_cast<float>(i);
  loss.forward();
  const float first = loss.item();
  CHECK(t.data<uint8_t>()[2] == 2);  // converted
  loss.forward();
  CHECK(loss.item() == first);
  // 8 bits also where floating point is wanted
  const Variable sum = f::sum(1.0 - t);
  sum.forward();
  CHECK(sum.item() == 0);
}

void recurrent_layers_draw_what_they_drop() {
  const Variable x = leaf({4, 3, 2}, 1), state({2, 1, 3, 5});
  ParameterDirectory params;
  const auto opts = pf::RecurrentOpts().num_layers(2).dropout(0.5);
  const Variable y = pf::lstm(x, state, state, params, opts)[0];
  const Variable loss = f::sum(y * y);
  y.forward();
  const auto before = values_of(y.data());
  loss.forward();
  CHECK(values_of(y.data()) != before);
  loss.backward();
  bool any = false;
  for (float g : values_of(x.grad())) any = any || g != 0;
  CHECK(any);
  CHECK_ERROR(pf::gru(x, state, params),
              "gru: h float32[2, 1, 3, 5], wanted the shape (1, 1, 3, 5)");
  CHECK_ERROR(apply("rnn",
                    {{"nonlinearity", std::string("tanh")},
                     {"num_layers", int64_t{2}},
                     {"dropout", 0.5},
                     {"bidirectional", false},
                     {"training", true}},
                    {x, state, leaf({1, 5, 7}, 2), leaf({1, 1, 5, 10}, 3)}),
              "rnn: rng is missing, wanted it for dropout");
  CHECK_ERROR(pf::rnn(leaf({3}, 1), state, params),
              "rnn: x float32[3] and h float32[2, 1, 3, 5], "
              "wanted (T, B, I) and (L, D, B, H)");
}

void errors_of_classes_are_counted() {
  Variable x({2, 3}), t({2, 1});
  const float scores[] = {0.1f, 0.7f, 0.2f, 0.5f, 0.4f, 0.1f};
  std::copy(scores, scores + 6, x.data<float>());
  t.data<uint8_t>()[0] = 1, t.data<uint8_t>()[1] = 1;
  const Variable first = f::top_n_error(x, t), second = f::top_n_error(x, t, 1, 2);
  first.forward(), second.forward();
  CHECK(values_of(first.data()) == (std::vector<float>{0, 1}));
  CHECK(values_of(second.data()) == (std::vector<float>{0, 0}));
  const Variable y = f::binary_error(x, f::constant(1, {2, 3}));
  y.forward();
  CHECK(values_of(y.data()) == (std::vector<float>{1, 0, 1, 0, 1, 1}));
}

void running_statistics_follow_the_batches() {
  ParameterDirectory params;
  const Variable x = leaf({4, 3}, 1);
  const Variable y = f::sum(pf::batch_normalization(x, true, params["a"]));
  CHECK(params.get_parameters().size() == 2);
  CHECK(params.get_parameters(false).size() == 4);
  y.forward();
  double mean = 0;
  for (int i = 0; i < 4; ++i) mean += x.data<float>()[3 * i] / 4;
  CHECK(close(params["a"]["bn"].get_parameter("mean").data<float>()[0], 0.1 * mean));
}

// Every function with its default arguments, and those with two values or more of one.
void every_function_runs() {
  const Variable x = leaf({2, 4, 6, 6}, 1), y = leaf({2, 4, 6, 6}, 2), m = leaf({3, 4}, 3);
  Variable t({3, 1});
  const Variable steps = leaf({5, 3, 2}, 5), state({2, 1, 3, 4}), w0 = leaf({1, 4, 6}, 6),
                 w = leaf({1, 1, 4, 8}, 7);
  const Variable c = leaf({1, 4, 1, 1}, 4), positive = f::exp(m), in01 = f::sigmoid(m);
  std::vector<Variable> all = {f::add2(x, y),
                               f::sub2(x, y),
                               f::mul2(x, y),
                               f::div2(x, y),
                               f::pow2(positive, m),
                               f::add_n({x, y}),
                               f::mul_n({x, y}),
                               f::add_scalar(x),
                               f::mul_scalar(x),
                               f::pow_scalar(x),
                               f::r_sub_scalar(x),
                               f::r_div_scalar(x),
                               f::r_pow_scalar(x),
                               f::maximum2(x, y),
                               f::minimum2(x, y),
                               f::maximum_scalar(x),
                               f::minimum_scalar(x),
                               f::equal(x, y),
                               f::not_equal(x, y),
                               f::greater(x, y),
                               f::greater_equal(x, y),
                               f::less(x, y),
                               f::less_equal(x, y),
                               f::equal_scalar(x),
                               f::not_equal_scalar(x),
                               f::greater_scalar(x),
                               f::greater_equal_scalar(x),
                               f::less_scalar(x),
                               f::less_equal_scalar(x),
                               f::logical_not(x),
                               f::isnan(x),
                               f::isinf(x),
                               f::where(f::greater_scalar(x, 0), x, y),
                               f::abs(x),
                               f::exp(x),
                               f::log(positive),
                               f::sin(x),
                               f::cos(x),
                               f::tan(x),
                               f::sinh(x),
                               f::cosh(x),
                               f::erf(x),
                               f::round(x),
                               f::ceil(x),
                               f::floor(x),
                               f::atan2(x, y),
                               f::asin(in01),
                               f::acos(in01),
                               f::atan(x),
                               f::asinh(x),
                               f::acosh(positive + 1.0),
                               f::atanh(in01),
                               f::sign(x),
                               f::identity(x),
                               f::unlink(x),
                               f::relu(x),
                               f::leaky_relu(x),
                               f::prelu(x, leaf({4}, 1)),
                               f::relu6(x),
                               f::elu(x),
                               f::selu(x),
                               f::crelu(x),
                               f::celu(x),
                               f::sigmoid(x),
                               f::hard_sigmoid(x),
                               f::log_sigmoid(x),
                               f::tanh(x),
                               f::hard_tanh(x),
                               f::tanh_shrink(x),
                               f::softplus(x),
                               f::softsign(x),
                               f::swish(x),
                               f::gelu(x),
                               f::mish(x),
                               f::softmax(x),
                               f::log_softmax(x),
                               f::affine(m, leaf({4, 2}, 1), leaf({2}, 2)),
                               f::convolution(x, leaf({3, 4, 3, 3}, 1), leaf({3}, 2)),
                               f::deconvolution(x, leaf({4, 3, 3, 3}, 1), leaf({3}, 2)),
                               f::depthwise_convolution(x, leaf({4, 3, 3}, 1), Variable()),
                               f::max_pooling(x, {2, 2}),
                               f::average_pooling(x, {2, 2}),
                               f::sum_pooling(x, {2, 2}),
                               f::global_average_pooling(x),
                               f::unpooling(x, {2, 2}),
                               f::embed(t, m),
                               f::batch_matmul(x, y),
                               f::rnn(steps, state, w0, w, Variable(), 2, "relu")[0],
                               f::dropout(x),
                               f::batch_normalization(x, c, c, Variable(), Variable()),
                               f::layer_normalization(m, Variable(), Variable()),
                               f::instance_normalization(x, c, c),
                               f::group_normalization(x, c, c, 2),
                               f::sum(x),
                               f::mean(x, {-1}),
                               f::max(x),
                               f::min(x, {0, 1}, true),
                               f::norm(x),
                               f::prod(m),
                               f::cumsum(x),
                               f::cumprod(m, 1, true, true),
                               f::reshape(x, {-1, 8}),
                               f::transpose(m, {1, 0}),
                               f::broadcast(c, {2, 4, 6, 6}),
                               f::concatenate({x, y}),
                               f::stack({x, y}),
                               f::split(x)[1],
                               f::slice(x, {1, 0, 2, 0}),
                               f::pad(x, {1, 1, 2, 2}),
                               f::flip(x),
                               f::one_hot(t, {5}),
                               f::tile(m, {2, 1, 3}),
                               f::gather(x, t, -1),
                               f::gather_nd(m, f::constant(1, {2, 5})),
                               f::sort(x)[0],
                               f::trilu(m, 1),
                               f::matrix_diag(m),
                               f::matrix_diag_part(x),
                               f::interpolate(x, {3, 9}),
                               f::softmax_cross_entropy(m, t),
                               f::categorical_cross_entropy(f::softmax(m), t),
                               f::sigmoid_cross_entropy(m, positive * 0.0),
                               f::binary_cross_entropy(in01, in01),
                               f::squared_error(x, y),
                               f::absolute_error(x, y),
                               f::huber_loss(x, y),
                               f::epsilon_insensitive_loss(x, y, 0.1),
                               f::kl_multinomial(in01, in01),
                               f::constant(2, {3, 4}) * m,
                               f::rand(0, 1, {3, 4}) * m,
                               f::randn(0, 1, {3, 4}) * m};
  Variable total;
  for (const Variable& v : all) total = total ? total + f::mean(v) : f::mean(v);
  total.forward(false, true);
  CHECK(std::isfinite(total.item()));
  total.backward();
  for (const Variable& v : {x, y, m, steps})
    for (float g : values_of(v.grad())) CHECK(std::isfinite(g));
}

void positions_pass_no_gradient_on() {
  const Variable x = leaf({2, 3}, 1);
  const Variable total = f::sum(x * f::sort(x, -1, false, false, true)[0]);
  total.forward(false, true);
  total.backward();
  const std::vector<float> g = values_of(x.grad());
  for (size_t row : {0, 3}) CHECK(g[row] + g[row + 1] + g[row + 2] == 0 + 1 + 2);
}

void parameters_have_the_names_that_python_gives_them() {
  ParameterDirectory params;
  const Variable x = leaf({2, 4, 6, 6}, 1);
  Variable t({2, 3});
  pf::deconvolution(x, 1, 2, {3, 3}, params["a"], pf::DeconvolutionOpts().with_bias(false));
  pf::depthwise_convolution(x, 1, {3, 3}, params["b"]);
  pf::layer_normalization(x, params["c"]);
  pf::instance_normalization(x, params["d"]);
  pf::group_normalization(x, 2, params["e"]);
  pf::embed(t, 5, 2, params["f"]);
  pf::prelu(x, 1, false, params["g"]);
  const Variable steps({5, 3, 2}), state({2, 2, 3, 4});
  const auto deep = pf::RecurrentOpts().num_layers(2).bidirectional(true);
  pf::rnn(steps, state, params["h"], deep);
  pf::lstm(steps, state, state, params["i"], deep);
  CHECK(params["i"].get_parameter("lstm/weight_l0").shape() == (Shape{2, 4, 4, 6}));
  CHECK(params["i"].get_parameter("lstm/weight").shape() == (Shape{1, 2, 4, 4, 12}));
  pf::gru(steps, Variable({1, 1, 3, 4}), params["j"], pf::RecurrentOpts().with_bias(false));
  std::string names;
  for (const auto& [name, v] : params.get_parameters()) names += name + " ";
  CHECK(names ==
        "a/deconv/W b/depthwise_conv/W b/depthwise_conv/b c/layer_normalization/beta "
        "c/layer_normalization/gamma d/instance_normalization/beta d/instance_normalization/gamma "
        "e/group_normalization/beta e/group_normalization/gamma f/embed/W g/prelu/slope "
        "h/rnn/weight_l0 h/rnn/weight h/rnn/bias i/lstm/weight_l0 i/lstm/weight i/lstm/bias "
        "j/gru/weight_l0 ");
}

}  // namespace

int main() {
  labels_may_have_any_type();
  recurrent_layers_draw_what_they_drop();
  errors_of_classes_are_counted();
  running_statistics_follow_the_batches();
  every_function_runs();
  positions_pass_no_gradient_on();
  parameters_have_the_names_that_python_gives_them();
}
