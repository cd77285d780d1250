// SPDX-License-Identifier: Apache-2.0
// Element-wise ops as small programs, so that a chain of them becomes one kernel.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "nnl/spec.h"

namespace nnl {

// What the op "fused_elementwise" runs, as its attributes of the same names.
//
// Values are numbered: first the inputs, then the result of every instruction. An instruction is
// four integers: its code and three operands. An operand is the number of a value, or -1 - k for
// constants[k]; operands that the code does not have are 0.
struct ElementwiseProgram {
  std::vector<int64_t> code;
  std::vector<double> constants;
  // Shapes of the inputs as the kernel takes them: of the rank of the result, with sizes of 1 where
  // they stretch. Elements lie in the same order as in the op's own input.
  std::vector<Shape> shapes;
};

// (name, number of operands) of all codes, by number.
NNL_API std::vector<std::pair<std::string, int>> elementwise_codes();

}  // namespace nnl
