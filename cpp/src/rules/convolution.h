// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "rule.h"

namespace nnl {

// What convolving input x with weights of this shape gives, with the attributes of a convolution.
Spec convolved_spec(const RuleCall& c, size_t x, const Shape& weight);

}  // namespace nnl
