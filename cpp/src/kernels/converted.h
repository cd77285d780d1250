// SPDX-License-Identifier: Apache-2.0
// Lets a kernel for float32 take arrays of other float types, converted through the workspace.
#pragma once
#include "nnl/kernel.h"

namespace nnl {

enum class Convert { float16, halves };  // which arrays: those of float16, or of bfloat16 as well

// The kernel that `setup` makes for the signature with float32 in place of the types named; null
// where there is nothing to convert or setup declines. Only for kernels that write no input.
std::unique_ptr<Kernel> converted(const Signature& s, Convert which, Setup setup);

// n elements to and from float32, by all threads.
void to_float32(const void* x, DType type, float* y, int64_t n);
void from_float32(const float* x, void* y, DType type, int64_t n);

}  // namespace nnl
