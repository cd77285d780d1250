// SPDX-License-Identifier: Apache-2.0
// Weights in the order that a kernel likes best, made once for many runs.
#pragma once
#include <memory>
#include <string>

#include "nnl/kernel.h"

namespace nnl {

// An order of packed weights.
struct PackedOrder {
  size_t bytes = 0;    // of the packed weights; 0 where a kernel takes them only as they are
  std::string layout;  // the same for two orders that are the same
};

// Of an op with weights, input 1, that no run changes.
struct PackedKernels {
  PackedOrder order;
  std::unique_ptr<Kernel> packer;  // weights -> packed
  std::unique_ptr<Kernel> kernel;  // as that of the op, with packed in the place of the weights
};

// Of a convolution_fused with this signature (written without `packed`, with the weights themselves
// as input 1). The packer takes the inputs of pack_convolution; the kernel takes no scale.
NNL_API PackedKernels packed_convolution(const Signature& fused);

// Of affine, affine_fused and batch_matmul; none of other ops.
NNL_API PackedKernels packed_product(const std::string& op, const Signature& signature);

}  // namespace nnl
