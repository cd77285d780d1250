// SPDX-License-Identifier: Apache-2.0
// The checksum of TensorFlow's files.
#pragma once
#include <cstddef>
#include <cstdint>

#include "nnl/errors.h"

namespace nnl {

// CRC-32C (RFC 3720, appendix B.4) of `size` bytes.
NNL_API uint32_t crc32c(const void* data, size_t size);

}  // namespace nnl
