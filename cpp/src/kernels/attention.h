// SPDX-License-Identifier: Apache-2.0
// What attention and its gradient share: sizes, masks, and one block of scores.
#pragma once
#include <vector>

#include "nnl/kernel.h"
#include "real.h"
#include "space.h"

namespace nnl::attention {

constexpr int64_t kQueries = 48;  // rows of one block: 8 tiles of 6
constexpr int64_t kKeys = 256;    // columns of one block; scores of 48 KiB
// Floats from one row of scores to the next: columns of 1 KiB steps would share four cache sets.
constexpr int64_t kScores = kKeys + 16;

struct Sizes {
  int64_t batch, heads, key_heads, queries, keys, depth, value_depth;
  float scale;
  bool causal, keys_transposed;
  int64_t offset;  // query i sees the keys up to i + offset if causal
  Spec mask;       // (batch, heads, queries, keys), each of them or 1; rank 0 where there is none
  bool has_mask;

  // Keys that some query in [begin, end) sees.
  int64_t seen(int64_t end) const {
    if (!causal) return keys;
    const int64_t n = end + offset;
    return n < 0 ? 0 : (n < keys ? n : keys);
  }
};

// Sizes of the op's attributes and inputs q, k, v; false to decline.
bool sizes_of(const Signature& s, size_t q, size_t mask, Sizes* out);

// Elements [begin, begin + n) of head `h` (of batch * heads), packed for gemm::multiply: the keys
// as columns (depth x n), or rows as they lie (n x depth).
void pack_columns(DType type, const void* x, int64_t at, int64_t n, int64_t depth, bool transposed,
                  int64_t length, float* out);
void pack_rows(DType type, const void* x, int64_t at, int64_t n, int64_t depth, float* out);

// Adds the mask to scores (m x n, rows kScores apart) of the queries from `query` and keys from
// `key`, and puts -inf where causality forbids.
void add_mask(const Sizes& s, const void* mask, int64_t head, int64_t query, int64_t key, int64_t m,
              int64_t n, float* scores);

}  // namespace nnl::attention
