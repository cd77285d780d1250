// SPDX-License-Identifier: Apache-2.0
// Weights in the order that a kernel likes best, made once for many runs.
#pragma once
#include "nnl/kernel.h"

namespace nnl {

// Bytes of the packed weights of a convolution_fused with this signature (written without `packed`,
// with the weights themselves as input 1); 0 where its kernel takes weights only as they are.
NNL_API size_t packed_convolution_bytes(const Signature& fused);

}  // namespace nnl
