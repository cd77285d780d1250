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

// Names of all ops that have a rule, sorted.
NNL_API std::vector<std::string> rule_names();

}  // namespace nnl
