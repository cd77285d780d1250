// SPDX-License-Identifier: Apache-2.0
// What attention, with a cache or not, and its gradient share: sizes, which keys a query sees, and
// one block of scores.
#pragma once
#include <memory>
#include <vector>

#include "nnl/kernel.h"
#include "real.h"
#include "space.h"

namespace nnl::attention {

constexpr int64_t kFew = 8;       // rows that are not worth packing keys for
constexpr int64_t kQueries = 48;  // rows of one block: 8 tiles of 6
constexpr int64_t kKeys = 256;    // columns of one block; scores of 48 KiB
// Floats from one row of scores to the next: columns of 1 KiB steps would share four cache sets.
constexpr int64_t kScores = kKeys + 16;

struct Range {
  int64_t begin, end;  // of keys
  bool empty() const { return begin >= end; }
};

// One sample of a run: the position of its first query, how many keys and queries it has, and where
// its keys are.
struct Sample {
  int64_t offset, length, count, slot;
};

// The whole numbers of a run, null where they are left out.
struct Whole {
  const void* p = nullptr;
  DType type = DType::i64;
  explicit operator bool() const { return p; }
  int64_t operator[](int64_t i) const;
};

struct Given {
  const void *q, *k, *v, *mask;
  Whole lengths, offsets, segments, counts, slots;
};

struct Sizes {
  int64_t batch, heads, key_heads, queries, keys, depth, value_depth;
  float scale, soft_cap;
  bool causal, keys_transposed;
  int64_t offset, window;  // query i stands at i + offset, and sees no farther than window if not 0
  Spec mask;  // (batch, heads, queries, keys), each of them or 1; rank 0 where there is none
  bool has_mask;

  int64_t group() const { return heads / key_heads; }  // heads that share one of the keys
  Sample sample(const Given& g, int64_t b) const;
  // Keys that query i sees, as far as positions say.
  Range seen(const Sample& s, int64_t i) const;
  // Those that any of the queries [begin, end) sees, or more.
  Range seen(const Sample& s, int64_t begin, int64_t end) const;
};

// Sizes of the op's attributes and inputs q, k, v, mask; false to decline. After the mask come
// lengths, offsets and segments.
bool sizes_of(const Signature& s, size_t q, size_t mask, Sizes* out);
// Of the mask alone; one of three axes has none of heads if no_heads.
bool mask_of(const Signature& s, size_t mask, bool no_heads, Sizes* out);
Given given_of(const Signature& s, const Buffers& b, size_t q, size_t mask);

// Elements [begin, begin + n) of head `h` (of batch * heads), packed for gemm::multiply: the keys
// as columns (depth x n), or rows as they lie (n x depth).
void pack_columns(DType type, const void* x, int64_t at, int64_t n, int64_t depth, bool transposed,
                  int64_t length, float* out);
void pack_rows(DType type, const void* x, int64_t at, int64_t n, int64_t depth, float* out);

// Scores s become c tanh(s / c): m rows of n, kScores apart.
void cap(float c, float* scores, int64_t m, int64_t n);

// Adds the mask to the scores of one query and the keys [key, key + n), and puts -inf where it does
// not see one. Returns whether it sees any.
bool mask_row(const Sizes& s, const Given& g, const Sample& sample, int64_t b, int64_t head,
              int64_t query, int64_t key, int64_t n, float* scores);

// Attention itself; types are of q, k, v and y.
class Forward {
 public:
  Forward(const Sizes& z, DType q, DType k, DType v, DType y, Space& space);
  // lse may be null.
  void run(const Given& g, void* y, float* lse, void* workspace) const;

 private:
  struct Rows;
  int64_t key_blocks() const { return direct_ ? 0 : (z_.keys + kKeys - 1) / kKeys; }
  float* keys(char* memory, int64_t at) const;
  float* values(char* memory, int64_t at) const;
  void pack(const Given& g, const Sample& s, char* memory, int64_t key_head) const;
  void block(const Given& g, const Rows& r, char* memory, void* y, float* lse) const;

  Sizes z_;
  DType q_, k_, v_, y_;
  bool flat_, direct_;
  int64_t blocks_, items_, parts_;
  std::vector<size_t> starts_;
  size_t keys_, values_, rows_, scores_, sums_;
};

// For few queries, as when one token follows another, packing would cost more than it saves: the
// scores and the weighted sums of n keys, read once as they lie. rows: m x depth; scores and
// weights m rows kScores apart; sums m x depth.
void dots(DType type, const void* k, int64_t at, const float* rows, int64_t m, int64_t n,
          int64_t depth, float* scores);
void weigh(DType type, const void* v, int64_t at, const float* weights, int64_t m, int64_t n,
           int64_t depth, float* sums);

}  // namespace nnl::attention
