// SPDX-License-Identifier: Apache-2.0
// The functions of which networks are written, with NNabla's names, arguments and defaults.
//
// What one computes stands in Python's documentation of nnl.functions. Arguments that do not fit
// end in a ValueError that names function and argument.
#pragma once
#include <unordered_map>

#include "nnl/attributes.h"
#include "nnl/variable.h"

namespace nnl {

using AttributeMap = std::unordered_map<std::string, Attribute>;

// Any op by its name, with all its attributes: its outputs, hidden ones too.
NNL_API std::vector<Variable> apply(const std::string& op, AttributeMap attributes,
                                    const std::vector<Variable>& inputs);
// Names of the ops that have a gradient, sorted.
NNL_API std::vector<std::string> gradient_names();

namespace functions {

using Variables = std::vector<Variable>;

// ---- of one array, element by element: Variable exp(const Variable& x) ----
// clang-format off
#define NNL_FUNCTIONS_OF_ONE(F)                                                              \
  F(abs) F(exp) F(log) F(sin) F(cos) F(tan) F(sinh) F(cosh) F(asin) F(acos) F(atan) F(asinh) \
  F(acosh) F(atanh) F(erf) F(round) F(ceil) F(floor) F(logical_not) F(isnan) F(isinf)        \
  F(identity) F(unlink) F(relu6) F(sigmoid) F(hard_sigmoid) F(log_sigmoid) F(tanh)           \
  F(hard_tanh) F(tanh_shrink) F(softsign) F(swish) F(gelu) F(mish)
// clang-format on
#define NNL_DECLARE(name) NNL_API Variable name(const Variable& x);
NNL_FUNCTIONS_OF_ONE(NNL_DECLARE)
#undef NNL_DECLARE
NNL_API Variable sign(const Variable& x, double alpha = 1);

// ---- arithmetic; sizes of 1 stretch ----
NNL_API Variable add2(const Variable& x0, const Variable& x1, bool inplace = false);
NNL_API Variable sub2(const Variable& x0, const Variable& x1, bool inplace = false);
NNL_API Variable mul2(const Variable& x0, const Variable& x1, bool inplace = false);
NNL_API Variable div2(const Variable& x0, const Variable& x1, bool inplace = false);
NNL_API Variable pow2(const Variable& x0, const Variable& x1, bool inplace = false);
NNL_API Variable add_n(const Variables& x);
NNL_API Variable mul_n(const Variables& x);
NNL_API Variable add_scalar(const Variable& x, double val = 1, bool inplace = false);
NNL_API Variable mul_scalar(const Variable& x, double val = 1, bool inplace = false);
NNL_API Variable pow_scalar(const Variable& x, double val = 1, bool inplace = false);
NNL_API Variable r_sub_scalar(const Variable& x, double val = 1);
NNL_API Variable r_div_scalar(const Variable& x, double val = 1);
NNL_API Variable r_pow_scalar(const Variable& x, double val = 1);
NNL_API Variable atan2(const Variable& x0, const Variable& x1);
NNL_API Variable maximum2(const Variable& x0, const Variable& x1);
NNL_API Variable minimum2(const Variable& x0, const Variable& x1);
NNL_API Variable maximum_scalar(const Variable& x, double val = 1);
NNL_API Variable minimum_scalar(const Variable& x, double val = 1);

// ---- comparison: 0 and 1, without gradient ----
NNL_API Variable equal(const Variable& x0, const Variable& x1);
NNL_API Variable not_equal(const Variable& x0, const Variable& x1);
NNL_API Variable greater(const Variable& x0, const Variable& x1);
NNL_API Variable greater_equal(const Variable& x0, const Variable& x1);
NNL_API Variable less(const Variable& x0, const Variable& x1);
NNL_API Variable less_equal(const Variable& x0, const Variable& x1);
NNL_API Variable equal_scalar(const Variable& x, double val = 1);
NNL_API Variable not_equal_scalar(const Variable& x, double val = 1);
NNL_API Variable greater_scalar(const Variable& x, double val = 1);
NNL_API Variable greater_equal_scalar(const Variable& x, double val = 1);
NNL_API Variable less_scalar(const Variable& x, double val = 1);
NNL_API Variable less_equal_scalar(const Variable& x, double val = 1);
NNL_API Variable where(const Variable& condition, const Variable& x_true, const Variable& x_false);

// ---- activation ----
NNL_API Variable relu(const Variable& x, bool inplace = false);
NNL_API Variable leaky_relu(const Variable& x, double alpha = 0.1, bool inplace = false);
NNL_API Variable prelu(const Variable& x, const Variable& slope, int base_axis = 1);
NNL_API Variable elu(const Variable& x, double alpha = 1);
NNL_API Variable selu(const Variable& x, double scale = 1.05070098735548,
                      double alpha = 1.673263242354377);
NNL_API Variable crelu(const Variable& x, int axis = 1);
NNL_API Variable celu(const Variable& x, double alpha = 1, int axis = 1);
NNL_API Variable softplus(const Variable& x, double beta = 1);
NNL_API Variable softmax(const Variable& x, int axis = -1);
NNL_API Variable log_softmax(const Variable& x, int axis = -1);

// ---- layers; a bias may be Variable(), none ----
NNL_API Variable affine(const Variable& x, const Variable& weight, const Variable& bias,
                        int base_axis = 1);
NNL_API Variable convolution(const Variable& x, const Variable& weight, const Variable& bias,
                             int base_axis = 1, Integers pad = {}, Integers stride = {},
                             Integers dilation = {}, int group = 1, bool channel_last = false);
NNL_API Variable deconvolution(const Variable& x, const Variable& weight, const Variable& bias,
                               int base_axis = 1, Integers pad = {}, Integers stride = {},
                               Integers dilation = {}, int group = 1, bool channel_last = false,
                               Integers output_padding = {});
NNL_API Variable depthwise_convolution(const Variable& x, const Variable& weight,
                                       const Variable& bias, int base_axis = 1, Integers pad = {},
                                       Integers stride = {}, Integers dilation = {},
                                       int multiplier = 1);
NNL_API Variable max_pooling(const Variable& x, Integers kernel, Integers stride = {},
                             bool ignore_border = true, Integers pad = {},
                             bool channel_last = false);
NNL_API Variable average_pooling(const Variable& x, Integers kernel, Integers stride = {},
                                 bool ignore_border = true, Integers pad = {},
                                 bool channel_last = false, bool including_pad = true);
NNL_API Variable sum_pooling(const Variable& x, Integers kernel, Integers stride = {},
                             bool ignore_border = true, Integers pad = {},
                             bool channel_last = false);
NNL_API Variable global_average_pooling(const Variable& x);
NNL_API Variable unpooling(const Variable& x, Integers kernel, bool channel_last = false);
NNL_API Variable embed(const Variable& indices, const Variable& w);
NNL_API Variable batch_matmul(const Variable& a, const Variable& b, bool transpose_a = false,
                              bool transpose_b = false);
NNL_API Variable dropout(const Variable& x, double p = 0.5, int seed = -1);

// ---- recurrent layers; weight, of the layers after the first, and bias may be none ----
// x (T, B, I); h and c (L, D, B, H). They give y (T, B, D H), then h and c after the last step.
NNL_API Variables rnn(const Variable& x, const Variable& h, const Variable& weight_l0,
                      const Variable& weight, const Variable& bias, int num_layers = 1,
                      const std::string& nonlinearity = "tanh", double dropout = 0,
                      bool bidirectional = false, bool training = true);
NNL_API Variables lstm(const Variable& x, const Variable& h, const Variable& c,
                       const Variable& weight_l0, const Variable& weight, const Variable& bias,
                       int num_layers = 1, double dropout = 0, bool bidirectional = false,
                       bool training = true);
NNL_API Variables gru(const Variable& x, const Variable& h, const Variable& weight_l0,
                      const Variable& weight, const Variable& bias, int num_layers = 1,
                      double dropout = 0, bool bidirectional = false, bool training = true);

// ---- normalization; beta and gamma may be none ----
// With batch_stat, mean and variance are changed at every forward().
NNL_API Variable batch_normalization(const Variable& x, const Variable& beta, const Variable& gamma,
                                     const Variable& mean, const Variable& variance,
                                     Integers axes = {1}, double decay_rate = 0.9,
                                     double eps = 1e-5, bool batch_stat = true);
NNL_API Variable layer_normalization(const Variable& x, const Variable& beta, const Variable& gamma,
                                     Integers batch_axis = {0}, double eps = 1e-5);
NNL_API Variable instance_normalization(const Variable& x, const Variable& beta,
                                        const Variable& gamma, int channel_axis = 1,
                                        Integers batch_axis = {0}, double eps = 1e-5);
NNL_API Variable group_normalization(const Variable& x, const Variable& beta, const Variable& gamma,
                                     int num_groups, int channel_axis = 1,
                                     Integers batch_axis = {0}, double eps = 1e-5);

// ---- reduction; no axes are all of them ----
NNL_API Variable sum(const Variable& x, Integers axes = {}, bool keep_dims = false);
NNL_API Variable mean(const Variable& x, Integers axes = {}, bool keep_dims = false);
NNL_API Variable max(const Variable& x, Integers axes = {}, bool keep_dims = false);
NNL_API Variable min(const Variable& x, Integers axes = {}, bool keep_dims = false);
NNL_API Variable prod(const Variable& x, Integers axes = {}, bool keep_dims = false);
NNL_API Variable norm(const Variable& x, double p = 2, Integers axes = {}, bool keep_dims = false);
NNL_API Variable cumsum(const Variable& x, int axis = 0, bool exclusive = false,
                        bool reverse = false);
NNL_API Variable cumprod(const Variable& x, int axis = 0, bool exclusive = false,
                         bool reverse = false);

// ---- shape ----
NNL_API Variable reshape(const Variable& x, Integers shape, bool inplace = true);
NNL_API Variable transpose(const Variable& x, Integers axes);
NNL_API Variable broadcast(const Variable& x, Integers shape);
NNL_API Variable concatenate(const Variables& x, int axis = -1);
NNL_API Variable stack(const Variables& x, int axis = 0);
NNL_API Variables split(const Variable& x, int axis = 0);
NNL_API Variable slice(const Variable& x, Integers start = {}, Integers stop = {},
                       Integers step = {});
NNL_API Variable pad(const Variable& x, Integers pad_width, const std::string& mode = "constant",
                     double constant_value = 0);
NNL_API Variable flip(const Variable& x, Integers axes = {-1});
NNL_API Variable tile(const Variable& x, Integers reps);
NNL_API Variable gather(const Variable& x, const Variable& indices, int axis = 0,
                        int batch_dims = 0);
NNL_API Variable gather_nd(const Variable& data, const Variable& indices);
// Elements in order, then their indices, if these are asked for.
NNL_API Variables sort(const Variable& x, int axis = -1, bool reverse = false,
                       bool with_index = false, bool only_index = false);
NNL_API Variable trilu(const Variable& x, int k = 0, bool upper = true);
NNL_API Variable matrix_diag(const Variable& x);
NNL_API Variable matrix_diag_part(const Variable& x);
NNL_API Variable one_hot(const Variable& x, Integers shape);
NNL_API Variable interpolate(const Variable& x, Integers output_size,
                             const std::string& mode = "linear", bool align_corners = false,
                             bool half_pixel = false, bool half_pixel_for_nn = false,
                             bool channel_last = false);

// ---- loss ----
NNL_API Variable softmax_cross_entropy(const Variable& x, const Variable& target, int axis = -1);
NNL_API Variable categorical_cross_entropy(const Variable& x, const Variable& target,
                                           int axis = -1);
NNL_API Variable sigmoid_cross_entropy(const Variable& x, const Variable& target);
NNL_API Variable binary_cross_entropy(const Variable& x, const Variable& target);
NNL_API Variable squared_error(const Variable& x0, const Variable& x1);
NNL_API Variable absolute_error(const Variable& x0, const Variable& x1);
NNL_API Variable huber_loss(const Variable& x0, const Variable& x1, double delta = 1);
NNL_API Variable epsilon_insensitive_loss(const Variable& x0, const Variable& x1, double epsilon);
NNL_API Variable kl_multinomial(const Variable& p, const Variable& q, int base_axis = 1);
NNL_API Variable top_n_error(const Variable& x, const Variable& target, int axis = -1, int n = 1);
NNL_API Variable binary_error(const Variable& x, const Variable& target);

// ---- arrays from nothing; seed -1: the stream that nnl::seed() starts ----
NNL_API Variable constant(double val, Integers shape);
NNL_API Variable rand(double low = 0, double high = 1, Integers shape = {}, int seed = -1);
NNL_API Variable randn(double mu = 0, double sigma = 1, Integers shape = {}, int seed = -1);
NNL_API Variable image_augmentation(const Variable& x, Integers shape = {}, Integers pad = {0, 0},
                                    double min_scale = 1, double max_scale = 1, double angle = 0,
                                    double aspect_ratio = 1, double distortion = 0,
                                    bool flip_lr = false, bool flip_ud = false,
                                    double brightness = 0, bool brightness_each = false,
                                    double contrast = 1, double contrast_center = 0,
                                    bool contrast_each = false, double noise = 0, int seed = -1);

}  // namespace functions

namespace f = functions;

// Starts the random numbers of functions and of initial parameters.
NNL_API void seed(uint64_t value);

}  // namespace nnl
