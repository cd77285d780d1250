// SPDX-License-Identifier: Apache-2.0
// Matrix products in registers, on one thread: the piece that attention, recurrent layers, small
// matrices and builds without oneDNN are made of. All sums are kept in float32.
#pragma once
#include <cstdint>

#include "simd.h"

namespace nnl::gemm {

#ifdef __AVX512F__
constexpr int64_t kLanes = 16;  // floats of one vector
constexpr int kVectors = 4;     // vectors of one row of a tile: 6 x 4 sums of 32 registers
#else
constexpr int64_t kLanes = 8;
constexpr int kVectors = 2;
#endif
constexpr int kRows = 6;
constexpr int64_t kPanel = kLanes * kVectors;

constexpr int64_t padded(int64_t n) { return (n + kLanes - 1) / kLanes * kLanes; }

// Floats that a packed k x n matrix takes.
constexpr int64_t packed_size(int64_t k, int64_t n) { return k * padded(n); }

// Rearranges b, k x n with element (i, j) at b[i * row + j * col], into panels of kPanel columns,
// each (k, width) with the width filled up with zeros to whole vectors.
template <class T>
void pack(const T* b, int64_t row, int64_t col, int64_t k, int64_t n, float* out);

// c = a b, or c += a b if add: a is m x k with element (i, j) at a[i * row + j * col], b packed,
// c m x n with rows ldc apart.
void multiply(const float* a, int64_t row, int64_t col, const float* packed, float* c, int64_t ldc,
              int64_t m, int64_t n, int64_t k, bool add);

}  // namespace nnl::gemm
