// SPDX-License-Identifier: Apache-2.0
// NNabla's names, for programs written for its C++ library: include this file instead of its
// headers, and write `namespace nbla = nnl::nnabla;`.
//
// What a program holds by pointers, CgVariablePtr, is a handle here; std::make_shared<CgVariable>
// gives one too. Contexts are taken and ignored: everything runs on the processor.
#pragma once
#include <algorithm>
#include <cassert>
#include <cmath>  // float_t
#include <cstdarg>
#include <cstdio>

#include "nnl/networks.h"

namespace nnl {
namespace nnabla {

namespace functions = nnl::functions;

// Programs use these names of the standard library as NNabla's.
using std::make_shared;
using std::shared_ptr;
using std::string;
using std::vector;

using Shape_t = Shape;
using CgVariable = Variable;
using CgVariablePtr = Variable;
using VariablePtr = Variable;
using NdArray = Array;
using NdArrayPtr = Array;
using nnl::Array;
using nnl::ParameterDirectory;
using nnl::Solver;
using nnl::Variable;

struct Context {
  std::vector<std::string> backend{"cpu:float"};
  std::string array_class = "CpuCachedArray", device_id = "0";

  Context() = default;
  Context(std::vector<std::string> b, std::string array, std::string device)
      : backend(std::move(b)), array_class(std::move(array)), device_id(std::move(device)) {}
  // The form of its first versions.
  Context(std::string b, std::string array, std::string device, std::string type)
      : Context(std::vector<std::string>{b + ":" + type}, std::move(array), std::move(device)) {}
};

// ---- what there is one of ----

struct GlobalContext {
  void set_current_context(const Context& ctx) { current_ = ctx; }
  Context get_current_context() const { return current_; }

 private:
  Context current_;
};

struct AutoForward {
  void set_auto_forward(bool on) { nnl::AutoForward::set(on); }
  bool get_auto_forward() const { return nnl::AutoForward::enabled(); }
};

struct SingletonManager {
  template <class T>
  static T* get() {
    static T only;
    return &only;
  }
  static void clear() {}
};

// ---- errors ----

enum class error_code { unclassified, not_implemented, value, type, memory, io, os, runtime };

[[noreturn]] inline void fail(const char* format, ...) {
  char text[1024];
  va_list values;
  va_start(values, format);
  std::vsnprintf(text, sizeof(text), format, values);
  va_end(values);
  throw ValueError(text);
}

#define NNL_CHECK(condition, code, ...) \
  do {                                  \
    if (!(condition)) {                 \
      (void)(code);                     \
      nnl::nnabla::fail(__VA_ARGS__);   \
    }                                   \
  } while (false)
#define NNL_ERROR(code, ...) NNL_CHECK(false, code, __VA_ARGS__)

// ---- functions as objects, which connect() puts into a graph ----

using Connect = std::function<std::vector<Variable>(const std::vector<Variable>&)>;
using FunctionPtr = std::shared_ptr<Connect>;

struct CgFunction {
  explicit CgFunction(FunctionPtr f) : function(std::move(f)) {}
  FunctionPtr function;
};
using CgFunctionPtr = std::shared_ptr<CgFunction>;

inline std::vector<CgVariablePtr> connect(const CgFunctionPtr& f,
                                          const std::vector<CgVariablePtr>& inputs, int = 1) {
  return (*f->function)(inputs);
}

namespace detail {
template <class F>
FunctionPtr function(F&& f) {
  return std::make_shared<Connect>([f](const std::vector<Variable>& x) {
    const auto at = [&](size_t i) { return i < x.size() ? x[i] : Variable(); };
    return std::vector<Variable>{f(at)};
  });
}
}  // namespace detail

inline FunctionPtr create_Affine(const Context&, int base_axis) {
  return detail::function([=](auto x) { return functions::affine(x(0), x(1), x(2), base_axis); });
}
inline FunctionPtr create_ReLU(const Context&, bool) {
  return detail::function([=](auto x) { return functions::relu(x(0)); });
}
inline FunctionPtr create_Softmax(const Context&, int axis) {
  return detail::function([=](auto x) { return functions::softmax(x(0), axis); });
}
inline FunctionPtr create_BatchNormalization(const Context&, const std::vector<int>& axes,
                                             float decay_rate, float eps, bool batch_stat,
                                             bool = false, bool = false) {
  return detail::function([=](auto x) {
    return functions::batch_normalization(x(0), x(1), x(2), x(3), x(4), axes, decay_rate, eps,
                                          batch_stat);
  });
}

// ---- functions with parameters ----

namespace parametric_functions {

using namespace nnl::parametric_functions;  // what is not defined below

// NNabla's C++ library draws the weights of convolutions from wider limits than Python does, there
// and here: the kernel counts for the input maps alone, sqrt(6 / (inmaps * kernel + outmaps)).
template <class Options>
Options with_wide_weights(int64_t outmaps, Options opts) {
  if (opts.w_init_) return opts;
  return opts.w_init([outmaps, group = opts.group_](const Shape& w, float* values) {
    const auto read = static_cast<double>(Spec{w}.size() * group / outmaps);  // inmaps * kernel
    const double limit = std::sqrt(6 / (read + static_cast<double>(outmaps)));
    initializer::uniform(-limit, limit)(w, values);
  });
}

inline Variable convolution(const Variable& x, int base_axis, int outmaps, Integers kernel,
                            const ParameterDirectory& params, const ConvolutionOpts& opts = {}) {
  return nnl::parametric_functions::convolution(x, base_axis, outmaps, std::move(kernel), params,
                                                with_wide_weights(outmaps, opts));
}

inline Variable deconvolution(const Variable& x, int base_axis, int outmaps, Integers kernel,
                              const ParameterDirectory& params,
                              const DeconvolutionOpts& opts = {}) {
  return nnl::parametric_functions::deconvolution(x, base_axis, outmaps, std::move(kernel), params,
                                                  with_wide_weights(outmaps, opts));
}

}  // namespace parametric_functions

// ---- solvers ----

using SolverPtr = std::shared_ptr<Solver>;

#define NNL_SOLVER(Name)                                              \
  template <class... Values>                                          \
  SolverPtr create_##Name##Solver(const Context&, Values... values) { \
    return std::make_shared<solvers::Name>(values...);                \
  }
NNL_SOLVER(Sgd)
NNL_SOLVER(Momentum)
NNL_SOLVER(Nesterov)
NNL_SOLVER(SgdW)
NNL_SOLVER(Lars)
NNL_SOLVER(Adagrad)
NNL_SOLVER(Adadelta)
NNL_SOLVER(RMSprop)
NNL_SOLVER(RMSpropGraves)
NNL_SOLVER(Adam)
NNL_SOLVER(AdamW)
NNL_SOLVER(Adamax)
NNL_SOLVER(AdaBelief)
NNL_SOLVER(AMSGRAD)
NNL_SOLVER(AdaBound)
NNL_SOLVER(AMSBound)
NNL_SOLVER(Lamb)
NNL_SOLVER(Lion)
#undef NNL_SOLVER

// ---- files ----

namespace utils {

inline bool load_parameters(const ParameterDirectory& params, const std::string& path) {
  if (FILE* file = std::fopen(path.c_str(), "rb")) {
    std::fclose(file);
    nnl::load_parameters(params, path);
    return true;
  }
  return false;
}

inline bool save_parameters(const ParameterDirectory& params, const std::string& path) {
  nnl::save_parameters(params, path);
  return true;
}

// Networks and executors of a file, by their names in it. A variable is found by its name if the
// network begins or ends with it.
namespace nnp {

struct NamedVariable {
  std::string name;
  CgVariablePtr variable;
};

class Network {
 public:
  Network(std::string path, std::string name, ParameterDirectory params)
      : path_(std::move(path)), name_(std::move(name)), params_(std::move(params)) {}

  void set_batch_size(int size) { size_ = size, built_.reset(); }
  CgVariablePtr get_variable(const std::string& name) {
    for (const auto& [known, v] : built().inputs())
      if (known == name) return v;
    return built().output(name);
  }

  // ---- executors ----
  std::vector<NamedVariable> get_data_variables() { return named(built().inputs()); }
  std::vector<NamedVariable> get_output_variables() { return named(built().outputs()); }
  void execute() {
    for (const auto& [name, y] : built().outputs()) y.forward(true);
  }

 private:
  const nnl::Network& built() {
    if (!built_) built_ = std::make_shared<nnl::Network>(path_, name_, params_, size_);
    return *built_;
  }
  static std::vector<NamedVariable> named(
      const std::vector<std::pair<std::string, Variable>>& all) {
    std::vector<NamedVariable> found;
    for (const auto& [name, v] : all) found.push_back({name, v});
    return found;
  }

  std::string path_, name_;
  ParameterDirectory params_;
  int64_t size_ = 0;
  std::shared_ptr<nnl::Network> built_;
};
using Executor = Network;

class Nnp {
 public:
  explicit Nnp(const Context&) {}

  bool add(const std::string& path) {
    if (FILE* file = std::fopen(path.c_str(), "rb")) {
      std::fclose(file);
      path_ = path;
      return true;
    }
    return false;
  }
  std::shared_ptr<Network> get_network(const std::string& name) {
    return std::make_shared<Network>(path_, name, params_);
  }
  std::shared_ptr<Executor> get_executor(const std::string& name) { return get_network(name); }
  // Those of the networks that were asked for a variable.
  std::vector<std::pair<std::string, VariablePtr>> get_parameters() {
    return params_.get_parameters();
  }
  bool save_parameters(const std::string& path) { return utils::save_parameters(params_, path); }

 private:
  std::string path_;
  ParameterDirectory params_;
};

}  // namespace nnp
}  // namespace utils
}  // namespace nnabla
}  // namespace nnl
