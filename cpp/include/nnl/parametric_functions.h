// SPDX-License-Identifier: Apache-2.0
// Functions with parameters, which are made on the first call and shared by later ones.
//
//   nnl::ParameterDirectory params;
//   Variable h = pf::convolution(x, 1, 16, {5, 5}, params["conv1"]);  // conv1/conv/W, conv1/conv/b
#pragma once
#include <optional>

#include "nnl/functions.h"
#include "nnl/initializer.h"

namespace nnl {

using Parameters = std::vector<std::pair<std::string, Variable>>;  // in the order they were made

// A handle of a tree of parameters. Names are joined with "/", as in files.
class NNL_API ParameterDirectory {
 public:
  ParameterDirectory();
  ParameterDirectory operator[](const std::string& name) const;

  // Those below here, by their names from here on. Args: grad_only: only those that are learned.
  Parameters get_parameters(bool grad_only = true) const;

  // ValueError: it exists with another shape.
  Variable get_parameter_or_create(const std::string& name, const Shape& shape,
                                   const Initializer& initializer, bool need_grad = true) const;
  Variable get_parameter(const std::string& name) const;  // none if there is none
  // Puts a Variable there, in the place of one of that name.
  void set_parameter(const std::string& name, const Variable& value) const;

 private:
  struct Store;
  std::shared_ptr<Store> store_;
  std::string prefix_;
};

// Of files as nnl/parameter_files.h says. What is loaded becomes the value of the parameter of its
// name, as float32; others are made. ValueError: a parameter has another shape than there.
NNL_API void load_parameters(const ParameterDirectory& params, const std::string& path);
NNL_API void save_parameters(const ParameterDirectory& params, const std::string& path);

namespace parametric_functions {

// Options: each method sets one and returns them all.
#define NNL_OPTION(Options, Type, name, value) \
  Type name##_ = value;                        \
  Options& name(Type v) {                      \
    name##_ = std::move(v);                    \
    return *this;                              \
  }

struct AffineOpts {
  NNL_OPTION(AffineOpts, bool, with_bias, true)
  NNL_OPTION(AffineOpts, bool, fix_parameters, false)
  NNL_OPTION(AffineOpts, Initializer, w_init, nullptr)  // Glorot's, if none is given
  NNL_OPTION(AffineOpts, Initializer, b_init, nullptr)  // 0
};

struct ConvolutionOpts {
  NNL_OPTION(ConvolutionOpts, Integers, pad, {})
  NNL_OPTION(ConvolutionOpts, Integers, stride, {})
  NNL_OPTION(ConvolutionOpts, Integers, dilation, {})
  NNL_OPTION(ConvolutionOpts, int, group, 1)
  NNL_OPTION(ConvolutionOpts, bool, channel_last, false)
  NNL_OPTION(ConvolutionOpts, bool, with_bias, true)
  NNL_OPTION(ConvolutionOpts, bool, fix_parameters, false)
  NNL_OPTION(ConvolutionOpts, Initializer, w_init, nullptr)
  NNL_OPTION(ConvolutionOpts, Initializer, b_init, nullptr)
};

struct DeconvolutionOpts {
  NNL_OPTION(DeconvolutionOpts, Integers, pad, {})
  NNL_OPTION(DeconvolutionOpts, Integers, stride, {})
  NNL_OPTION(DeconvolutionOpts, Integers, dilation, {})
  NNL_OPTION(DeconvolutionOpts, int, group, 1)
  NNL_OPTION(DeconvolutionOpts, bool, channel_last, false)
  NNL_OPTION(DeconvolutionOpts, Integers, output_padding, {})
  NNL_OPTION(DeconvolutionOpts, bool, with_bias, true)
  NNL_OPTION(DeconvolutionOpts, bool, fix_parameters, false)
  NNL_OPTION(DeconvolutionOpts, Initializer, w_init, nullptr)
  NNL_OPTION(DeconvolutionOpts, Initializer, b_init, nullptr)
};

struct BatchNormalizationOpts {
  NNL_OPTION(BatchNormalizationOpts, Integers, axes, {1})
  NNL_OPTION(BatchNormalizationOpts, double, decay_rate, 0.9)
  NNL_OPTION(BatchNormalizationOpts, double, eps, 1e-5)
  NNL_OPTION(BatchNormalizationOpts, bool, no_scale, false)
  NNL_OPTION(BatchNormalizationOpts, bool, no_bias, false)
  NNL_OPTION(BatchNormalizationOpts, bool, fix_parameters, false)
};

struct RecurrentOpts {
  NNL_OPTION(RecurrentOpts, int, num_layers, 1)
  NNL_OPTION(RecurrentOpts, std::string, nonlinearity, "tanh")  // of rnn
  NNL_OPTION(RecurrentOpts, double, dropout, 0)
  NNL_OPTION(RecurrentOpts, bool, bidirectional, false)
  NNL_OPTION(RecurrentOpts, bool, training, true)
  NNL_OPTION(RecurrentOpts, bool, with_bias, true)
  NNL_OPTION(RecurrentOpts, bool, fix_parameters, false)
};

#undef NNL_OPTION

using functions::Variables;

NNL_API Variable affine(const Variable& x, int base_axis, int n_out,
                        const ParameterDirectory& params, const AffineOpts& opts = {});
NNL_API Variable convolution(const Variable& x, int base_axis, int outmaps, Integers kernel,
                             const ParameterDirectory& params, const ConvolutionOpts& opts = {});
NNL_API Variable depthwise_convolution(const Variable& x, int base_axis, Integers kernel,
                                       const ParameterDirectory& params,
                                       const ConvolutionOpts& opts = {}, int multiplier = 1);
NNL_API Variable deconvolution(const Variable& x, int base_axis, int outmaps, Integers kernel,
                               const ParameterDirectory& params,
                               const DeconvolutionOpts& opts = {});
NNL_API Variable batch_normalization(const Variable& x, bool batch_stat,
                                     const ParameterDirectory& params,
                                     const BatchNormalizationOpts& opts = {});
NNL_API Variable layer_normalization(const Variable& x, const ParameterDirectory& params,
                                     Integers batch_axis = {0}, double eps = 1e-5);
NNL_API Variable instance_normalization(const Variable& x, const ParameterDirectory& params,
                                        int channel_axis = 1, Integers batch_axis = {0},
                                        double eps = 1e-5);
NNL_API Variable group_normalization(const Variable& x, int num_groups,
                                     const ParameterDirectory& params, int channel_axis = 1,
                                     Integers batch_axis = {0}, double eps = 1e-5);
NNL_API Variable embed(const Variable& indices, int n_inputs, int n_features,
                       const ParameterDirectory& params, const Initializer& w_init = nullptr,
                       bool fix_parameters = false);
NNL_API Variable prelu(const Variable& x, int base_axis, bool shared,
                       const ParameterDirectory& params, double slope = 0.25);
// Layers over a sequence x (T, B, I), from the states h and c (L, D, B, H) on.
NNL_API Variables rnn(const Variable& x, const Variable& h, const ParameterDirectory& params,
                      const RecurrentOpts& opts = {});
NNL_API Variables lstm(const Variable& x, const Variable& h, const Variable& c,
                       const ParameterDirectory& params, const RecurrentOpts& opts = {});
NNL_API Variables gru(const Variable& x, const Variable& h, const ParameterDirectory& params,
                      const RecurrentOpts& opts = {});

}  // namespace parametric_functions

namespace pf = parametric_functions;

}  // namespace nnl
