// SPDX-License-Identifier: Apache-2.0
// Shape rules: what an op gives, from its attributes and the specs of its inputs.
#pragma once
#include <string>
#include <vector>

#include "nnl/kernel.h"

namespace nnl {

// The specs of all outputs of an op, hidden ones too, in the plain order. Of the signature only the
// attributes, which must be complete, and the inputs are read, whatever order these lie in.
//
// ValueError: there is no rule for the op, or an input or an attribute does not fit; the text names
// the op, the input, what came and what was wanted.
NNL_API std::vector<Spec> infer(const std::string& op, const Signature& signature);

struct RuleInput {
  std::string name;  // "rng", the last one of random functions, is the state of a stream: uint64[2]
  bool optional = false;
  bool whole = false;     // taken as whole numbers
  bool variadic = false;  // stands for any number of inputs; the last one
};

// The inputs of an op in their order. ValueError: there is no rule for it.
NNL_API const std::vector<RuleInput>& rule_inputs(const std::string& op);

// Names of all ops that have a rule, sorted.
NNL_API std::vector<std::string> rule_names();

}  // namespace nnl
