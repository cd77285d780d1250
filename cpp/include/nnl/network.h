// SPDX-License-Identifier: Apache-2.0
// Networks from files as graphs, to be trained or built upon.
//
//   nnl::ParameterDirectory params;
//   nnl::Network net("net.nnlp", "", params);
//   nnl::Variable loss = nnl::f::mean(nnl::f::softmax_cross_entropy(net.output("y"), t));
#pragma once
#include "nnl/parametric_functions.h"

namespace nnl {

class NNL_API Network {
 public:
  // Args: program: its name in the file, of a .nnp that of an executor or a network; may be left
  // out where there is one. params: where its parameters are, or are made with the values of the
  // file. batch_size: the first size of its inputs instead of the file's; functions that name sizes
  // themselves must fit.
  // ValueError: there is no such program, it updates parameters (nnl::Model runs those), or a
  // function has no shape rule; the text says which.
  explicit Network(const std::string& path, const std::string& program = "",
                   const ParameterDirectory& params = ParameterDirectory(), int64_t batch_size = 0);

  const std::vector<std::pair<std::string, Variable>>& inputs() const { return inputs_; }
  const std::vector<std::pair<std::string, Variable>>& outputs() const { return outputs_; }
  // By name. ValueError: there is none.
  Variable input(const std::string& name) const;
  Variable output(const std::string& name) const;

 private:
  std::vector<std::pair<std::string, Variable>> inputs_, outputs_;
};

}  // namespace nnl
