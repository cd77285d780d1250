// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "nnl/program.h"

namespace nnl {

// Compares every step with the rule of its op, so that kernels need not: they read and write as far
// as these shapes say.
//
// ValueError: a step gives something else, or writes where others read; the text names the step.
NNL_API void check(const ProgramData& program);

}  // namespace nnl
