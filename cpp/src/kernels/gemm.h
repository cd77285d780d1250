// SPDX-License-Identifier: Apache-2.0
// Matrix products in registers, on one thread: the piece that attention, recurrent layers, small
// matrices and builds without oneDNN are made of. All sums are kept in float32.
#pragma once
#include <cstdint>
#include <type_traits>

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

// Products of bfloat16, sums in float32: two neighbours in a row of a times two in a column of b,
// for which some processors have one instruction.
using Pair = uint32_t;

// What packed b is made of, for an a of type T.
template <class T>
using Packed = std::conditional_t<std::is_same_v<T, bf16>, Pair, float>;

// Pairs that a packed k x n matrix takes: an odd k is filled up with zeros.
constexpr int64_t packed_pairs(int64_t k, int64_t n) { return (k + 1) / 2 * padded(n); }

// As above, with pairs in place of floats. The columns of a must be side by side: col is 1.
void pack(const bf16* b, int64_t row, int64_t col, int64_t k, int64_t n, Pair* out);
void multiply(const bf16* a, int64_t row, int64_t col, const Pair* packed, float* c, int64_t ldc,
              int64_t m, int64_t n, int64_t k, bool add);

}  // namespace nnl::gemm
