// SPDX-License-Identifier: Apache-2.0
// Scaled dot product attention without memory for the scores:
//
// attention: (query, key, value, mask?, lengths?, offsets?, segments?) -> (y, lse), or y alone.
//   y = softmax(scale q k^T + mask) v for every sample and head.
//   q (batch, heads, L, d), k (batch, heads', S, d), v (batch, heads', S, e), y (batch, heads, L,
//   e); heads' divides heads. Rank 3 is one axis of samples and no heads. mask: (batch, heads, L,
//   S), any of them 1; or (batch, L, S) where the attribute heads is 1, or (L, S). lse float32
//   (batch, heads, L): logarithm of the sum of exponentials, for the gradient. Attributes: scale;
//   causal: query i sees the keys j
//   <= i + causal_offset (0 if left out) + offsets[b]; window: those at a smaller distance from
//   there, if not 0; soft_cap: scores become c tanh(s / c), if not 0; transpose_k: k is (batch,
//   heads', d, S) (false if left out); heads: the first axis of rank 3 is (batch, heads), so mask
//   may have 4 axes (1 if left out); least: bytes of scores below which there is no kernel.
//   lengths (batch): keys of a sample; segments (batch, S):
//   numbers that query and key must share.
//
// A query that sees no key by these numbers gives 0; one whose keys a mask hides all, or where
// there are no keys, gives NaN, as softmax does.
#include "attention.h"

#include <algorithm>
#include <cmath>

#include "gemm.h"
#include "line.h"
#include "nnl/threads.h"

namespace nnl {
namespace attention {

constexpr int64_t kFarthest = int64_t{1} << 40;  // positions whose sums fit in 64 bits

int64_t Whole::operator[](int64_t i) const { return integer_at(p, type, i); }

Sample Sizes::sample(const Given& g, int64_t b) const {
  Sample s{offset, keys, queries, b};
  if (g.offsets) s.offset += std::clamp(g.offsets[b], -kFarthest, kFarthest);
  if (g.lengths) s.length = std::clamp<int64_t>(g.lengths[b], 0, keys);
  if (g.counts) s.count = g.counts[b];
  if (g.slots) s.slot = g.slots[b];
  return s;
}

namespace {
// As seen, but it may end before it begins.
Range unchecked(const Sizes& z, const Sample& s, int64_t i) {
  const int64_t at = i + s.offset;
  Range r{0, s.length};
  if (z.causal) r.end = std::min(r.end, at + 1);
  if (z.window)
    r.begin = std::max<int64_t>(0, at - z.window + 1), r.end = std::min(r.end, at + z.window);
  return r;
}
}  // namespace

Range Sizes::seen(const Sample& s, int64_t i) const {
  if (i >= s.count) return {0, 0};
  const Range r = unchecked(*this, s, i);
  return r.empty() ? Range{0, 0} : r;
}

Range Sizes::seen(const Sample& s, int64_t begin, int64_t end) const {
  const int64_t last = std::min(end, s.count) - 1;
  if (last < begin) return {0, 0};
  return {unchecked(*this, s, begin).begin, unchecked(*this, s, last).end};  // both only grow
}

bool sizes_of(const Signature& s, size_t first, size_t mask, Sizes* out) {
  const Spec &q = s.in[first], &k = s.in[first + 1], &v = s.in[first + 2];
  const int rank = q.rank();
  if (rank < 3 || rank > 4 || k.rank() != rank || v.rank() != rank) return false;
  for (const Spec* x : {&q, &k, &v})
    if (!is_real(x->dtype) || x->layout != Layout::plain) return false;
  const auto axis = [rank](const Spec& x, int i) { return x.shape[static_cast<size_t>(rank + i)]; };
  const Attributes& a = s.attributes;
  Sizes z{};
  z.keys_transposed = a.has("transpose_k") && a.flag("transpose_k");
  const int64_t in_first = rank == 3 && a.has("heads") ? a.integer("heads") : 1;
  if (in_first < 1 || q.shape[0] % in_first) return false;
  z.batch = q.shape[0] / in_first;
  z.heads = rank == 4 ? q.shape[1] : in_first;
  z.key_heads = rank == 4 ? k.shape[1] : in_first;
  z.queries = axis(q, -2), z.depth = axis(q, -1);
  z.keys = axis(v, -2), z.value_depth = axis(v, -1);
  z.scale = static_cast<float>(a.number("scale"));
  z.soft_cap = a.has("soft_cap") ? static_cast<float>(a.number("soft_cap")) : 0.0f;
  z.causal = a.has("causal") && a.flag("causal");
  z.offset = a.has("causal_offset") ? a.integer("causal_offset") : 0;
  z.window = a.has("window") ? a.integer("window") : 0;
  const int64_t k_keys = axis(k, z.keys_transposed ? -1 : -2);
  const int64_t k_depth = axis(k, z.keys_transposed ? -2 : -1);
  if (k_keys != z.keys || k_depth != z.depth || k.shape[0] != q.shape[0] ||
      v.shape[0] != q.shape[0])
    return false;
  if (!z.key_heads || z.heads < 1 || z.heads % z.key_heads ||
      (rank == 4 && v.shape[1] != z.key_heads))
    return false;
  for (size_t i = mask + 1; i < mask + 4; ++i)
    if (s.given(i) && !is_integer(s.in[i].dtype)) return false;
  if (!mask_of(s, mask, !a.has("heads") || a.integer("heads") == 1, &z)) return false;
  *out = z;
  return true;
}

bool mask_of(const Signature& s, size_t mask, bool no_heads, Sizes* z) {
  z->has_mask = s.given(mask);
  if (!z->has_mask) return true;
  z->mask = s.in[mask];
  if (!is_real(z->mask.dtype) || z->mask.layout != Layout::plain) return false;
  Shape& m = z->mask.shape;
  if (m.size() == 3 && no_heads) m.insert(m.begin() + 1, 1);
  while (m.size() < 4) m.insert(m.begin(), 1);
  const int64_t full[] = {z->batch, z->heads, z->queries, z->keys};
  for (size_t i = 0; i < 4; ++i)
    if (m.size() != 4 || (m[i] != 1 && m[i] != full[i])) return false;
  return true;
}

Given given_of(const Signature& s, const Buffers& b, size_t q, size_t mask) {
  Given g{b.in[q], b.in[q + 1], b.in[q + 2], s.given(mask) ? b.in[mask] : nullptr, {}, {},
          {},      {},          {}};
  Whole* which[] = {&g.lengths, &g.offsets, &g.segments};
  for (size_t i = 0; i < 3; ++i)
    if (s.given(mask + 1 + i)) *which[i] = {b.in[mask + 1 + i], s.in[mask + 1 + i].dtype};
  return g;
}

namespace {
template <class F>
void typed(DType type, const void* x, F&& f) {
  if (type == DType::bf16) return f(static_cast<const bf16*>(x));
  if (type == DType::f16) return f(static_cast<const f16*>(x));
  f(static_cast<const float*>(x));
}
}  // namespace

void pack_columns(DType type, const void* x, int64_t at, int64_t n, int64_t depth, bool transposed,
                  int64_t length, float* out) {
  typed(type, x, [&](auto* p) {
    if (transposed)
      gemm::pack(p + at, length, 1, depth, n, out);
    else
      gemm::pack(p + at, 1, depth, depth, n, out);
  });
}

void pack_rows(DType type, const void* x, int64_t at, int64_t n, int64_t depth, float* out) {
  typed(type, x, [&](auto* p) { gemm::pack(p + at, depth, 1, n, depth, out); });
}

void cap(float c, float* scores, int64_t m, int64_t n) {
  const float inverse = 1.0f / c;
  for (int64_t i = 0; i < m; ++i, scores += kScores)
#pragma omp simd
    for (int64_t j = 0; j < n; ++j) scores[j] = c * fast_tanh(scores[j] * inverse);
}

bool mask_row(const Sizes& s, const Given& g, const Sample& sample, int64_t b, int64_t head,
              int64_t query, int64_t key, int64_t n, float* to) {
  if (s.has_mask) {
    const Shape& shape = s.mask.shape;
    const int64_t at[] = {b, head, query};
    int64_t r = 0;
    for (size_t i = 0; i < 3; ++i) r = r * shape[i] + (shape[i] == 1 ? 0 : at[i]);
    float row[kKeys];
    if (shape[3] == 1) {
      load_any(s.mask.dtype, g.mask, r, row, 1);
      std::fill_n(row + 1, n - 1, row[0]);
    } else {
      load_any(s.mask.dtype, g.mask, r * shape[3] + key, row, n);
    }
#pragma omp simd
    for (int64_t j = 0; j < n; ++j) to[j] += row[j];
  }
  const Range r = s.seen(sample, query);
  const int64_t begin = std::clamp<int64_t>(r.begin - key, 0, n);
  const int64_t end = std::clamp<int64_t>(r.end - key, begin, n);
  std::fill_n(to, begin, -INFINITY);
  std::fill_n(to + end, n - end, -INFINITY);
  if (!g.segments) return begin < end;
  bool any = false;
  const int64_t own = g.segments[b * s.keys + query];
  for (int64_t j = begin; j < end; ++j)
    if (g.segments[b * s.keys + key + j] == own)
      any = true;
    else
      to[j] = -INFINITY;
  return any;
}

// Rows that are computed together: m queries of heads from `head` on, L after L of them.
struct Forward::Rows {
  int64_t b, head, query, m;
  Sample sample;
};

Forward::Forward(const Sizes& z, DType q, DType k, DType v, DType y, Space& space)
    : z_(z), q_(q), k_(k), v_(v), y_(y) {
  const int64_t rows = z.group() * z.queries;
  flat_ = rows <= kQueries;
  direct_ = rows <= kFew && !z.keys_transposed;
  blocks_ = flat_ ? 1 : (z.queries + kQueries - 1) / kQueries;
  items_ = z.batch * (flat_ ? z.key_heads : z.heads * blocks_);
  const int64_t work = z.queries * z.keys * (z.depth + z.value_depth) * z.batch * z.heads;
  const int64_t most = std::min<int64_t>(threads(), items_);
  parts_ = work < 500000 ? std::min<int64_t>(1, most) : most;
  // of one thread: keys and values of a head, and what belongs to a block of queries
  Space part;
  keys_ = part.floats(gemm::packed_size(z.depth, kKeys) * key_blocks());
  values_ = part.floats(gemm::packed_size(kKeys, z.value_depth) * key_blocks());
  rows_ = part.floats(kQueries * z.depth);
  scores_ = part.floats(kQueries * kScores);
  sums_ = part.floats(kQueries * z.value_depth);
  for (int64_t i = 0; i < parts_; ++i) starts_.push_back(space.take(part.size()));
}

void Forward::run(const Given& g, void* y, float* lse, void* workspace) const {
  parallel_for(parts_, 1, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      char* memory = Space::at<char>(workspace, starts_[static_cast<size_t>(p)]);
      int64_t packed = -1;
      for (int64_t i = items_ * p / parts_; i < items_ * (p + 1) / parts_; ++i) {
        const int64_t group = flat_ ? i : i / blocks_ / z_.group();  // of keys
        Rows r{group / z_.key_heads,
               group % z_.key_heads * z_.group(),
               0,
               z_.group() * z_.queries,
               {}};
        if (!flat_) {
          r.head = i / blocks_ % z_.heads, r.query = i % blocks_ * kQueries;
          r.m = std::min(kQueries, z_.queries - r.query);
        }
        r.sample = z_.sample(g, r.b);
        if (group != packed && !direct_) pack(g, r.sample, memory, packed = group);
        block(g, r, memory, y, lse);
      }
    }
  });
}

float* Forward::keys(char* memory, int64_t at) const {
  return Space::at(memory, keys_) + gemm::packed_size(z_.depth, kKeys) * (at / kKeys);
}
float* Forward::values(char* memory, int64_t at) const {
  return Space::at(memory, values_) + gemm::packed_size(kKeys, z_.value_depth) * (at / kKeys);
}

void Forward::pack(const Given& g, const Sample& s, char* memory, int64_t group) const {
  const int64_t source = s.slot * z_.key_heads + group % z_.key_heads;
  const int64_t all = z_.keys * z_.depth;
  const Range seen = z_.seen(s, 0, z_.queries);
  for (int64_t at = seen.begin / kKeys * kKeys; at < seen.end; at += kKeys) {
    const int64_t n = std::min(kKeys, seen.end - at);
    pack_columns(k_, g.k, source * all + (z_.keys_transposed ? at : at * z_.depth), n, z_.depth,
                 z_.keys_transposed, z_.keys, keys(memory, at));
    pack_rows(v_, g.v, (source * z_.keys + at) * z_.value_depth, n, z_.value_depth,
              values(memory, at));
  }
}

// Softmax in the running form, over blocks of keys.
void Forward::block(const Given& g, const Rows& r, char* memory, void* y, float* lse) const {
  const int64_t m = r.m, d = z_.depth, e = z_.value_depth;
  float* rows = Space::at(memory, rows_);
  float* scores = Space::at(memory, scores_);
  float* sums = Space::at(memory, sums_);
  const int64_t first = (r.b * z_.heads + r.head) * z_.queries + r.query;
  const int64_t source = r.sample.slot * z_.key_heads + r.head / z_.group();
  load_any(q_, g.q, first * d, rows, m * d);
#pragma omp simd
  for (int64_t i = 0; i < m * d; ++i) rows[i] *= z_.scale;
  float largest[kQueries], total[kQueries];
  bool any[kQueries] = {};
  std::fill_n(largest, kQueries, -INFINITY);
  std::fill_n(total, kQueries, 0.0f);
  std::fill_n(sums, m * e, 0.0f);
  const Range all = z_.seen(r.sample, 0, z_.queries);
  const Range seen = flat_ ? all : z_.seen(r.sample, r.query, r.query + m);
  for (int64_t key = seen.begin / kKeys * kKeys; key < seen.end; key += kKeys) {
    // what is packed ends with the last key that any query sees
    const int64_t n = std::min(kKeys, all.end - key);
    if (direct_)
      dots(k_, g.k, (source * z_.keys + key) * d, rows, m, n, d, scores);
    else
      gemm::multiply(rows, d, 1, keys(memory, key), scores, kScores, m, n, d, false);
    if (z_.soft_cap != 0.0f) cap(z_.soft_cap, scores, m, n);
    for (int64_t i = 0; i < m; ++i) {
      float* s = scores + i * kScores;
      const int64_t query = flat_ ? i % z_.queries : r.query + i;
      if (mask_row(z_, g, r.sample, r.b, r.head + i / z_.queries * flat_, query, key, n, s))
        any[i] = true;
      float top = -INFINITY;
#pragma omp simd reduction(max : top)
      for (int64_t j = 0; j < n; ++j) top = std::max(top, s[j]);
      top = std::max(top, largest[i]);
      const float base = top == -INFINITY ? 0.0f : top;  // no key seen yet
      float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
      for (int64_t j = 0; j < n; ++j) {
        s[j] = fast_exp(s[j] - base);
        sum += s[j];
      }
      if (top != largest[i]) {
        const float shrink = fast_exp(largest[i] - base);
        total[i] *= shrink;
#pragma omp simd
        for (int64_t j = 0; j < e; ++j) sums[i * e + j] *= shrink;
      }
      total[i] += sum;
      largest[i] = top;
    }
    if (direct_)
      weigh(v_, g.v, (source * z_.keys + key) * e, scores, m, n, e, sums);
    else
      gemm::multiply(scores, kScores, 1, values(memory, key), sums, e, m, e, n, true);
  }
  for (int64_t i = 0; i < m; ++i) {
    const bool nothing = !any[i] && z_.keys > 0;
    // all hidden by the mask: 0 / 0, as softmax has it
    const float factor = nothing ? 0.0f : (total[i] == 0.0f ? NAN : 1.0f / total[i]);
#pragma omp simd
    for (int64_t j = 0; j < e; ++j) sums[i * e + j] *= factor;
    if (lse) lse[first + i] = nothing ? 0.0f : largest[i] + std::log(total[i]);
  }
  store_any(y_, sums, y, first * e, m * e);
}

}  // namespace attention

namespace {
using namespace attention;

class Attention : public Kernel {
 public:
  Attention(const Signature& s, const Sizes& z)
      : s_(s), forward_(z, s.in[0].dtype, s.in[1].dtype, s.in[2].dtype, s.out[0].dtype, space_) {}

  size_t workspace() const override { return space_.size(); }

  void run(const Buffers& b) override {
    float* lse = s_.out.size() > 1 ? b.output<float>(1) : nullptr;
    forward_.run(given_of(s_, b, 0, 3), b.out[0], lse, b.workspace);
  }

 private:
  Signature s_;
  Space space_;
  Forward forward_;
};

std::unique_ptr<Kernel> attention_setup(const Signature& s) {
  Sizes z;
  if (!sizes_of(s, 0, 3, &z)) return nullptr;
  if (!is_real(s.out[0].dtype) || s.out[0].layout != Layout::plain) return nullptr;
  if (s.out.size() > 1 && s.out[1].dtype != DType::f32) return nullptr;
  const double scores = static_cast<double>(z.batch * z.heads) * static_cast<double>(z.queries) *
                        static_cast<double>(z.keys * static_cast<int64_t>(bytes_of(s.in[0].dtype)));
  if (s.attributes.has("least") && scores < static_cast<double>(s.attributes.integer("least")))
    return nullptr;
  return std::make_unique<Attention>(s, z);
}

const Registration registration("attention", attention_setup);

}  // namespace
}  // namespace nnl
