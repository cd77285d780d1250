// SPDX-License-Identifier: Apache-2.0
// The checksum of zip archives and PNG images.
#pragma once
#include <cstddef>
#include <cstdint>

#include "nnl/errors.h"

namespace nnl {

// CRC-32 (ISO 3309) of `size` bytes that follow others whose CRC-32 is `before`, as zlib's crc32.
NNL_API uint32_t crc32(const void* data, size_t size, uint32_t before = 0);

// CRC-32 of bytes with the CRC-32 `first` and `size` others after them with the CRC-32 `second`.
NNL_API uint32_t crc32_joined(uint32_t first, uint32_t second, uint64_t size);

}  // namespace nnl
