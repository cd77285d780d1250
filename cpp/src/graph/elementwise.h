// SPDX-License-Identifier: Apache-2.0
// What element-wise ops compute, as instructions.
#pragma once
#include "graph.h"

namespace nnl::graph {

// Whether an op is element-wise; then its instructions for a step with these shapes of inputs.
bool is_elementwise(const std::string& op);
void write_code(const std::string& op, const Attributes& attributes, std::vector<Shape> shapes,
                ProgramStep& step);

}  // namespace nnl::graph
