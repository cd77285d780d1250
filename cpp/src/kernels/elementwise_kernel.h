// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "elementwise_reduce.h"
#include "nnl/elementwise.h"
#include "nnl/kernel.h"

namespace nnl {

// An output that is reduced.
struct Reduced {
  size_t output;
  BlockReduction reduction;
};

// A kernel that runs a program over all elements of `space`; null for element types it does not
// take, and for a program of hundreds of values that live at once. outputs: which value each output
// is. reductions: by rising output.
std::unique_ptr<Kernel> make_elementwise(const Signature& s, const Spec& space,
                                         const ElementwiseProgram& program,
                                         std::vector<int64_t> outputs,
                                         std::vector<Reduced> reductions = {});

// The same where there is one array, of 8 bits, and results have 8 bits; null for all else.
std::unique_ptr<Kernel> elementwise_table(const Signature& s, const Spec& space,
                                          ElementwiseProgram program,
                                          const std::vector<int64_t>& outputs);

}  // namespace nnl
