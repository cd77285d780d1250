// SPDX-License-Identifier: Apache-2.0
// The checksum of zip archives and PNG images.
#pragma once
#include <cstddef>
#include <cstdint>

namespace nnl {

// CRC-32 (ISO 3309) of `size` bytes that follow others whose CRC-32 is `before`, as zlib's crc32.
uint32_t crc32(const void* data, size_t size, uint32_t before = 0);

}  // namespace nnl
