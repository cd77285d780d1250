// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <memory>

#include "nnl/kernel.h"

namespace nnl {

bool is_byte(DType type);

// max_pooling of int8 or uint8; null where there is no kernel.
std::unique_ptr<Kernel> largest_byte(const Signature& s);

}  // namespace nnl
