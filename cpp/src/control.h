// SPDX-License-Identifier: Apache-2.0
// Steps that have programs inside.
#pragma once
#include <memory>

#include "nnl/kernel.h"
#include "nnl/program.h"

namespace nnl {

// The kernel of such a step, with a runner for each program.
// Args: signature: of the step's inputs and outputs.
// ValueError: the programs do not fit these, or each other; a step of one has no kernel.
std::unique_ptr<Kernel> control_kernel(const ProgramStep& step, const Signature& signature);

}  // namespace nnl
