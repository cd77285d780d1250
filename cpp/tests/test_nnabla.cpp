// SPDX-License-Identifier: Apache-2.0
// Programs in NNabla's names: pointers to variables, contexts, singletons, functions as objects.
#include <cmath>

#include "check.h"
#include "nnl/nnabla.h"

namespace nbla = nnl::nnabla;
namespace f = nbla::functions;
namespace pf = nbla::parametric_functions;
using namespace nbla;
using nnl::test::numbers;
using std::make_shared;

namespace {

const Context ctx{{"cpu:float"}, "CpuCachedArray", "0"};

void fill(CgVariablePtr x, uint32_t seed) {
  auto values = numbers(x->variable()->size(), seed);
  float* x_d = x->variable()->cast_data_and_get_pointer<float>(ctx, true);
  for (float v : values) *x_d++ = v;
}

float value_of(CgVariablePtr loss) {
  return loss->variable()->cast_data_and_get_pointer<float>(ctx, false)[0];
}

// Runs steps of training; build() is called once, or for every step.
template <class Build>
void check_training(bool at_once, int steps, ParameterDirectory params, const Build& build) {
  SingletonManager::get<GlobalContext>()->set_current_context(ctx);
  SingletonManager::get<AutoForward>()->set_auto_forward(at_once);
  auto adam = create_AdamSolver(ctx, 0.01, 0.9, 0.999, 1.0e-8);
  CgVariablePtr loss;
  float first = 0;
  for (int i = 0; i < steps; ++i) {
    if (at_once || i == 0) loss = build();
    adam->set_parameters(params.get_parameters(), false, true);
    adam->zero_grad();
    if (!at_once) loss->forward(/*clear_buffer=*/false, /*clear_no_need_grad=*/true);
    loss->variable()->grad()->fill(1.0);
    loss->backward(nullptr, /*clear_buffer=*/true);
    adam->weight_decay(1e-5f);
    adam->update();
    if (i == 0) first = value_of(loss);
  }
  CHECK(value_of(loss) < 0.6f * first);
  SingletonManager::get<AutoForward>()->set_auto_forward(false);
}

// A variational autoencoder of 16 numbers, which learns to tell large from small.
void check_autoencoder(bool at_once) {
  auto x = make_shared<CgVariable>(Shape_t({8, 1, 4, 4}), false);
  fill(x, 1);
  ParameterDirectory params;
  check_training(at_once, 150, params, [&] {
    auto h = f::elu(pf::affine(x, 1, 20, params["fc1"]), 1.0);
    auto mu = pf::affine(h, 1, 3, params["fc_mu"]);
    auto logvar = pf::affine(h, 1, 3, params["fc_logvar"]);
    auto sigma = f::exp(logvar * 0.5);
    Shape_t shape_mu = mu->variable()->shape();
    std::vector<int> shape_z(shape_mu.begin(), shape_mu.end());
    auto z = mu + 0.1f * (sigma * f::randn(0.0, 1.0, shape_z, -1));
    h = f::elu(pf::affine(z, 1, 20, params["fc2"]), 1.0);
    auto prob = f::reshape(pf::affine(h, 1, 16, params["fc3"]), std::vector<int>{8, 1, 4, 4}, true);
    auto xb = f::greater_equal_scalar(x, 0.5);
    auto logqz = 0.001 * f::sum(1.0 + logvar, {1}, false);
    auto logpz = 0.001 * f::sum(mu * mu + sigma * sigma, {1}, false);
    auto logpx = f::sum(f::sigmoid_cross_entropy(prob, xb), {1, 2, 3}, false);
    return f::mean(logpx + logpz - logqz, {0}, false);
  });
}

// Two towers that share parameters, and labels of 8 bits in arithmetic.
void check_siamese(bool at_once) {
  auto x0 = make_shared<CgVariable>(Shape_t({6, 1, 6, 6}), false);
  auto x1 = make_shared<CgVariable>(Shape_t({6, 1, 6, 6}), false);
  auto l = make_shared<CgVariable>(Shape_t({6, 1}), false);
  fill(x0, 1), fill(x1, 2);
  uint8_t* l_d = l->variable()->cast_data_and_get_pointer<uint8_t>(ctx, true);
  for (int i = 0; i < l->variable()->size(); ++i) l_d[i] = i % 2;
  ParameterDirectory params;
  auto tower = [&](CgVariablePtr x) {
    pf::ConvolutionOpts opts = pf::ConvolutionOpts().pad({1, 1}).stride({1, 1}).with_bias(false);
    auto c = f::elu(pf::convolution(x, 1, 4, {3, 3}, params["conv1"], opts), 1.0);
    return pf::affine(f::average_pooling(c, {2, 2}, {2, 2}), 1, 2, params["fc"]);
  };
  check_training(at_once, 100, params, [&] {
    auto sd = f::sum(f::squared_error(tower(x0), tower(x1)), {1}, true);
    auto apart =
        (1 - l) * f::pow_scalar(f::maximum_scalar(2.0f - f::pow_scalar(sd + 1e-4f, 0.5), 0), 2.0);
    return f::mean(l * sd + apart, {0}, false);
  });
  CHECK(params.get_parameters().size() == 3);
}

// A leaf with the data of a result, and the gradient of a value in the middle.
void check_shared_data() {
  auto x = make_shared<CgVariable>(Shape_t({3}), true);
  fill(x, 1);
  auto y = f::exp(x);
  auto copy = make_shared<CgVariable>(y->variable(), true);
  copy->set_need_grad(false);
  auto r = x / f::pow_scalar(f::sum(f::pow_scalar(x, 2), {0}, true), 0.5);
  r->set_persistent(true);
  auto loss = f::sum(copy * r);
  y->forward(false, false);
  loss->forward(false, true);
  r->variable()->grad()->fill(0.0);
  loss->variable()->grad()->fill(1.0);
  loss->backward(nullptr, true);
  float* g = r->variable()->cast_grad_and_get_pointer<float>(ctx, false);
  for (int i = 0; i < 3; ++i) CHECK(g[i] == std::exp(0.0f) * y->variable()->data<float>()[i]);
}

void check_connected_functions() {
  auto affine = make_shared<CgFunction>(create_Affine(ctx, 1));
  auto bn = make_shared<CgFunction>(create_BatchNormalization(ctx, {1}, 0, 0.0, false));
  auto relu = make_shared<CgFunction>(create_ReLU(ctx, true));
  auto x = make_shared<CgVariable>(Shape_t({2, 3}));
  auto w = make_shared<CgVariable>(Shape_t({3, 4}), true);
  auto b = make_shared<CgVariable>(Shape_t({4}), true);
  vector<CgVariablePtr> s(4);
  for (auto& v : s) v = make_shared<CgVariable>(Shape_t({1, 4}), true);
  fill(x, 1), fill(w, 2), fill(b, 3);
  for (size_t i : {1, 3}) s[i]->variable()->data()->fill(1.0);
  auto h = connect(affine, {x, w, b}, 1);
  h = connect(bn, {h[0], s[0], s[1], s[2], s[3]}, 1);
  h = connect(relu, {h[0]}, 1);
  h[0]->forward(/*clear_buffer=*/true, /*clear_no_need_grad=*/false);
  auto expected = f::relu(f::affine(x, w, b));
  expected->forward();
  auto var_h = h[0]->variable();
  for (int i = 0; i < var_h.get()->size(); ++i)
    CHECK(std::fabs(var_h->data<float>()[i] - expected->data<float>()[i]) < 1e-5);
}

}  // namespace

// The largest weight is just below NNabla's limit, sqrt(6 / (inmaps * kernel + outmaps)).
void check_initial_weights() {
  ParameterDirectory params;
  auto x = make_shared<CgVariable>(Shape_t({1, 2, 9, 9}), false);
  const auto check = [&](const char* name, double limit) {
    const CgVariablePtr w = params.get_parameter(name);
    float most = 0;
    for (int64_t i = 0; i < w->variable()->size(); ++i)
      most = std::max(most, std::fabs(w->variable()->data<float>()[i]));
    CHECK(most <= limit && most > 0.98 * limit);
  };
  pf::convolution(x, 1, 20, {5, 5}, params["a"]);
  check("a/conv/W", std::sqrt(6.0 / (2 * 25 + 20)));
  pf::convolution(x, 1, 40, {3, 3}, params["b"], pf::ConvolutionOpts().group(2).with_bias(false));
  check("b/conv/W", std::sqrt(6.0 / (2 * 9 + 40)));
  pf::deconvolution(x, 1, 30, {3, 3}, params["c"]);
  check("c/deconv/W", std::sqrt(6.0 / (2 * 9 + 30)));
  auto opts = pf::ConvolutionOpts().w_init(nnl::initializer::constant(0.5));
  pf::convolution(x, 1, 4, {3, 3}, params["d"], opts);
  CHECK(params.get_parameter("d/conv/W").data<float>()[7] == 0.5f);
}

int main() {
  check_initial_weights();
  for (bool at_once : {false, true}) {
    check_autoencoder(at_once);
    check_siamese(at_once);
  }
  check_shared_data();
  check_connected_functions();
  CHECK_ERROR(NNL_CHECK(1 == 2, error_code::value, "wanted %d, got %s", 1, "two"),
              "wanted 1, got two");
  ParameterDirectory params;
  CHECK(!utils::load_parameters(params, "no_such_file.protobuf"));
  SingletonManager::clear();
}
