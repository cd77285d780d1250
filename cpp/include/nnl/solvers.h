// SPDX-License-Identifier: Apache-2.0
// Solvers: what turns gradients into updates of parameters.
//
//   nnl::solvers::Adam solver(1e-3);
//   solver.set_parameters(params.get_parameters());
//   solver.zero_grad(); loss.forward(); loss.backward(); solver.update();
#pragma once
#include <functional>
#include <map>

#include "nnl/parametric_functions.h"

namespace nnl {

class NNL_API Solver {
 public:
  virtual ~Solver();
  Solver(const Solver&) = delete;
  Solver& operator=(const Solver&) = delete;

  // Args: reset: forget those set so far. retain_state: without reset, names that are known keep
  // their states.
  void set_parameters(const Parameters& parameters, bool reset = true, bool retain_state = false);
  void clear_parameters();
  Parameters get_parameters() const;

  double learning_rate() const;
  void set_learning_rate(double rate);

  void zero_grad();
  // Adds rate x weight to each gradient; solvers with decay of their own take it for one update.
  void weight_decay(double rate);
  void clip_grad_by_norm(double norm);  // each gradient by itself
  void scale_grad(double scale);
  bool check_inf_or_nan_grad() const;
  // Parameters whose gradient is lazily zero stay as they are.
  void update();

 protected:
  using Values = std::map<std::string, double>;  // truth values are 0 and 1
  // Args: op: what updates one parameter. states: names of its arrays, "m v". rate: what the
  // learning rate is called. fused: whether the op knows weight decay.
  Solver(const char* name, const char* op, const char* states, const char* rate,
         const Values& values, bool fused = false);
  // Lets another op update the parameters that `takes` says, by name and shape. Its weight decay is
  // `decay` x that of the solver.
  void add_rule(const char* op, const char* states, const Values& values, double decay,
                std::function<bool(const std::string&, const Shape&)> takes);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

namespace solvers {

struct NNL_API Sgd : Solver {
  explicit Sgd(double lr = 1e-3);
};
struct NNL_API Momentum : Solver {
  explicit Momentum(double lr = 1e-3, double momentum = 0.9);
};
struct NNL_API Nesterov : Solver {
  explicit Nesterov(double lr = 1e-3, double momentum = 0.9);
};
struct NNL_API SgdW : Solver {
  explicit SgdW(double lr = 1e-3, double momentum = 0.9, double wd = 1e-4);
};
struct NNL_API Lars : Solver {
  explicit Lars(double lr = 1e-3, double momentum = 0.9, double coefficient = 1e-3,
                double eps = 1e-6);
};
struct NNL_API Adagrad : Solver {
  explicit Adagrad(double lr = 1e-2, double eps = 1e-8);
};
struct NNL_API Adadelta : Solver {
  explicit Adadelta(double lr = 1, double decay = 0.95, double eps = 1e-6);
};
struct NNL_API RMSprop : Solver {
  explicit RMSprop(double lr = 1e-3, double decay = 0.9, double eps = 1e-8);
};
struct NNL_API RMSpropGraves : Solver {
  explicit RMSpropGraves(double lr = 1e-4, double decay = 0.95, double momentum = 0.9,
                         double eps = 1e-4);
};
struct NNL_API Adam : Solver {
  explicit Adam(double alpha = 1e-3, double beta1 = 0.9, double beta2 = 0.999, double eps = 1e-8);
};
struct NNL_API AdamW : Solver {
  explicit AdamW(double alpha = 1e-3, double beta1 = 0.9, double beta2 = 0.999, double eps = 1e-8,
                 double wd = 1e-4);
};
struct NNL_API Adamax : Solver {
  explicit Adamax(double alpha = 2e-3, double beta1 = 0.9, double beta2 = 0.999, double eps = 1e-8);
};
struct NNL_API AdaBelief : Solver {
  explicit AdaBelief(double alpha = 1e-3, double beta1 = 0.9, double beta2 = 0.999,
                     double eps = 1e-8, double wd = 0, bool amsgrad = false,
                     bool weight_decouple = false, bool fixed_decay = false, bool rectify = false);
};
struct NNL_API AMSGRAD : Solver {
  explicit AMSGRAD(double alpha = 1e-3, double beta1 = 0.9, double beta2 = 0.999, double eps = 1e-8,
                   bool bias_correction = false);
};
struct NNL_API AdaBound : Solver {
  explicit AdaBound(double alpha = 1e-3, double beta1 = 0.9, double beta2 = 0.999,
                    double eps = 1e-8, double final_lr = 0.1, double gamma = 1e-3);
};
struct NNL_API AMSBound : Solver {
  explicit AMSBound(double alpha = 1e-3, double beta1 = 0.9, double beta2 = 0.999,
                    double eps = 1e-8, double final_lr = 0.1, double gamma = 1e-3,
                    bool bias_correction = false);
};
struct NNL_API Lamb : Solver {
  explicit Lamb(double eta = 1e-3, double beta1 = 0.9, double beta2 = 0.999, double gamma_l = 0,
                double gamma_u = 10, double eps = 1e-6, bool bias_correction = false);
};
struct NNL_API Lion : Solver {
  explicit Lion(double lr = 1e-4, double beta1 = 0.9, double beta2 = 0.99);
};

// Of the matrices; what else there is, and matrices whose names have the expression `adam`, have
// the rule of AdamW with the same rate and decay lr x wd. match: steps are as long as AdamW's.
struct NNL_API Muon : Solver {
  explicit Muon(double lr = 1e-3, double momentum = 0.95, double wd = 0.1, bool nesterov = true,
                int steps = 5, bool match = true, double beta1 = 0.9, double beta2 = 0.95,
                double eps = 1e-8, const std::string& adam = "embed|tokens|positions|head");
};

}  // namespace solvers
}  // namespace nnl
