// SPDX-License-Identifier: Apache-2.0
// Element-wise ops as small programs, so that a chain of them becomes one kernel.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "nnl/attributes.h"
#include "nnl/spec.h"

namespace nnl {

// What the kernel-only op "fused_elementwise" runs, as its attributes of the same names.
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

// The program of an op; its last instruction gives the result. None for an op that is not
// element-wise, or computes with more than float32.
std::optional<ElementwiseProgram> elementwise_program(const std::string& op,
                                                      const Attributes& attributes,
                                                      const std::vector<Shape>& in);

// Names of all ops that have a program.
std::vector<std::string> elementwise_names();

}  // namespace nnl
