// SPDX-License-Identifier: Apache-2.0
// Scaled dot product attention without memory for the scores:
//
// attention: (q, k, v, mask?) -> (y, lse), or y alone.
//   y = softmax(scale q k^T + mask) v for every sample and head.
//   q (batch, heads, L, d), k (batch, heads', S, d), v (batch, heads', S, e), y (batch, heads, L,
//   e); heads' divides heads. Rank 3 is one axis of samples and no heads. mask: 4 axes (3 for rank
//   3), (batch, heads, L, S), any of them 1; or (L, S). lse float32 (batch, heads, L): logarithm of
//   the sum of exponentials, for the gradient. Attributes: scale; causal: query i sees the keys j
//   <= i + causal_offset (0 if left out); transpose_k: k is (batch, heads', d, S) (false if left
//   out); heads: the first axis of rank 3 is (batch, heads), so mask may have 4 axes (1 if left
//   out).
//
// A query that sees no key gives NaN, as softmax does.
#include "attention.h"

#include <algorithm>
#include <cmath>

#include "gemm.h"
#include "nnl/threads.h"

namespace nnl {
namespace attention {

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
  z.causal = a.has("causal") && a.flag("causal");
  z.offset = a.has("causal_offset") ? a.integer("causal_offset") : 0;
  if ((a.has("window") && a.integer("window")) || (a.has("soft_cap") && a.number("soft_cap")) ||
      z.offset < 0)
    return false;
  for (size_t i = mask + 1; i < s.in.size(); ++i)
    if (s.given(i)) return false;
  const int64_t k_keys = axis(k, z.keys_transposed ? -1 : -2);
  const int64_t k_depth = axis(k, z.keys_transposed ? -2 : -1);
  if (k_keys != z.keys || k_depth != z.depth || k.shape[0] != q.shape[0] ||
      v.shape[0] != q.shape[0])
    return false;
  if (!z.key_heads || z.heads % z.key_heads || (rank == 4 && v.shape[1] != z.key_heads))
    return false;
  z.has_mask = s.given(mask);
  if (z.has_mask) {
    z.mask = s.in[mask];
    if (!is_real(z.mask.dtype) || z.mask.layout != Layout::plain) return false;
    Shape& m = z.mask.shape;
    if (m.size() == 3 && rank == 3 && in_first == 1) m.insert(m.begin() + 1, 1);
    while (m.size() < 4) m.insert(m.begin(), 1);
    const int64_t full[] = {z.batch, z.heads, z.queries, z.keys};
    for (size_t i = 0; i < 4; ++i)
      if (m.size() != 4 || (m[i] != 1 && m[i] != full[i])) return false;
  }
  *out = z;
  return true;
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

void add_mask(const Sizes& s, const void* mask, int64_t head, int64_t query, int64_t key, int64_t m,
              int64_t n, float* scores) {
  if (s.has_mask) {
    const Shape& shape = s.mask.shape;
    const int64_t b = shape[0] == 1 ? 0 : head / s.heads, h = shape[1] == 1 ? 0 : head % s.heads;
    float row[kKeys];
    for (int64_t i = 0; i < m; ++i) {
      if (i == 0 || shape[2] != 1) {
        const int64_t r = ((b * shape[1] + h) * shape[2] + (shape[2] == 1 ? 0 : query + i));
        if (shape[3] == 1) {
          load_any(s.mask.dtype, mask, r, row, 1);
          std::fill_n(row + 1, n - 1, row[0]);
        } else {
          load_any(s.mask.dtype, mask, r * shape[3] + key, row, n);
        }
      }
      float* to = scores + i * kScores;
#pragma omp simd
      for (int64_t j = 0; j < n; ++j) to[j] += row[j];
    }
  }
  if (!s.causal) return;
  for (int64_t i = 0; i < m; ++i) {
    const int64_t seen = std::max<int64_t>(query + i + s.offset + 1 - key, 0);
    for (int64_t j = seen; j < n; ++j) scores[i * kScores + j] = -INFINITY;
  }
}

}  // namespace attention

namespace {
using namespace attention;

class Attention : public Kernel {
 public:
  Attention(const Signature& s, const Sizes& z)
      : z_(z), q_(s.in[0].dtype), k_(s.in[1].dtype), v_(s.in[2].dtype), y_(s.out[0].dtype) {
    has_lse_ = s.out.size() > 1;
    direct_ = z.queries <= kFew;
    blocks_ = (z.queries + kQueries - 1) / kQueries;
    const int64_t work = z.queries * z.keys * (z.depth + z.value_depth) * z.batch * z.heads;
    const int64_t most = std::min<int64_t>(threads(), z.batch * z.heads * blocks_);
    parts_ = work < 500000 ? std::min<int64_t>(1, most) : most;
    // of one thread: keys and values of a head, and what belongs to a block of queries
    keys_ = part_.floats(gemm::packed_size(z.depth, kKeys) * key_blocks());
    values_ = part_.floats(gemm::packed_size(kKeys, z.value_depth) * key_blocks());
    rows_ = part_.floats(kQueries * z.depth);
    scores_ = part_.floats(kQueries * kScores);
    sums_ = part_.floats(kQueries * z.value_depth);
    for (int64_t i = 0; i < parts_; ++i) starts_.push_back(space_.take(part_.size()));
  }

  size_t workspace() const override { return space_.size(); }

  void run(const Buffers& b) override {
    const int64_t items = z_.batch * z_.heads * blocks_;
    parallel_for(parts_, 1, [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p) {
        char* memory = Space::at<char>(b.workspace, starts_[static_cast<size_t>(p)]);
        int64_t packed = -1;
        for (int64_t i = items * p / parts_; i < items * (p + 1) / parts_; ++i) {
          const int64_t head = i / blocks_;
          const int64_t source =
              head / z_.heads * z_.key_heads + head % z_.heads * z_.key_heads / z_.heads;
          if (source != packed && !direct_) pack(b, memory, packed = source);
          block(b, memory, head, source, i % blocks_ * kQueries);
        }
      }
    });
  }

 private:
  // Blocks of keys that are kept packed at once.
  int64_t key_blocks() const { return direct_ ? 1 : (z_.keys + kKeys - 1) / kKeys; }
  float* keys(char* memory, int64_t at) const {
    return Space::at(memory, keys_) + gemm::packed_size(z_.depth, kKeys) * (at / kKeys);
  }
  float* values(char* memory, int64_t at) const {
    return Space::at(memory, values_) + gemm::packed_size(kKeys, z_.value_depth) * (at / kKeys);
  }

  void pack(const Buffers& b, char* memory, int64_t source) const {
    for (int64_t at = 0; at < z_.keys; at += kKeys) {
      const int64_t n = std::min(kKeys, z_.keys - at), all = z_.keys * z_.depth;
      pack_columns(k_, b.in[1], source * all + (z_.keys_transposed ? at : at * z_.depth), n,
                   z_.depth, z_.keys_transposed, z_.keys, keys(memory, at));
      pack_rows(v_, b.in[2], (source * z_.keys + at) * z_.value_depth, n, z_.value_depth,
                values(memory, at));
    }
  }

  // The rows from `query` on of one head: softmax in the running form, over blocks of keys.
  void block(const Buffers& b, char* memory, int64_t head, int64_t source, int64_t query) const {
    const int64_t m = std::min(kQueries, z_.queries - query), e = z_.value_depth;
    float* rows = Space::at(memory, rows_);
    float* scores = Space::at(memory, scores_);
    float* sums = Space::at(memory, sums_);
    const int64_t first = head * z_.queries + query;
    load_any(q_, b.in[0], first * z_.depth, rows, m * z_.depth);
#pragma omp simd
    for (int64_t i = 0; i < m * z_.depth; ++i) rows[i] *= z_.scale;
    float largest[kQueries], total[kQueries];
    std::fill_n(largest, kQueries, -INFINITY);
    std::fill_n(total, kQueries, 0.0f);
    std::fill_n(sums, m * e, 0.0f);
    const int64_t seen = z_.seen(query + m);
    for (int64_t key = 0; key < seen; key += kKeys) {
      const int64_t n = std::min(kKeys, z_.keys - key);
      if (direct_)
        dots(b, memory, source, key, m, n);
      else
        gemm::multiply(rows, z_.depth, 1, keys(memory, key), scores, kScores, m, n, z_.depth,
                       false);
      add_mask(z_, z_.has_mask ? b.in[3] : nullptr, head, query, key, m, n, scores);
      for (int64_t i = 0; i < m; ++i) {
        float* s = scores + i * kScores;
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
        if (key && top != largest[i]) {
          const float shrink = fast_exp(largest[i] - base);
          total[i] *= shrink;
#pragma omp simd
          for (int64_t j = 0; j < e; ++j) sums[i * e + j] *= shrink;
        }
        total[i] += sum;
        largest[i] = top;
      }
      if (direct_)
        weigh(b, memory, source, key, m, n);
      else
        gemm::multiply(scores, kScores, 1, values(memory, key), sums, e, m, e, n, key > 0);
    }
    for (int64_t i = 0; i < m; ++i) {
      const float inverse = 1.0f / total[i];
      // nothing seen: 0 / 0, as softmax has it
      const float factor = total[i] == 0.0f ? NAN : inverse;
#pragma omp simd
      for (int64_t j = 0; j < e; ++j) sums[i * e + j] *= factor;
      if (has_lse_) b.output<float>(1)[first + i] = largest[i] + std::log(total[i]);
    }
    store_any(y_, sums, b.out[0], first * e, m * e);
  }

  // For few queries, as when one token follows another, packing would cost more than it saves: the
  // scores and the weighted sum of n keys from `key`, over k and v as they lie.
  void dots(const Buffers& b, char* memory, int64_t source, int64_t key, int64_t m,
            int64_t n) const {
    const int64_t d = z_.depth, all = source * z_.keys * d;
    const float* rows = Space::at(memory, rows_);
    float* scores = Space::at(memory, scores_);
    if (z_.keys_transposed) {
      for (int64_t i = 0; i < m; ++i) std::fill_n(scores + i * kScores, n, 0.0f);
      float line[kKeys];
      for (int64_t c = 0; c < d; ++c) {
        load_any(k_, b.in[1], all + c * z_.keys + key, line, n);
        for (int64_t i = 0; i < m; ++i) {
          const float q = rows[i * d + c];
          float* to = scores + i * kScores;
#pragma omp simd
          for (int64_t j = 0; j < n; ++j) to[j] += q * line[j];
        }
      }
      return;
    }
    const float* k = as_float(k_, b.in[1], all + key * d, Space::at(memory, keys_), n * d);
    for (int64_t j = 0; j < n; ++j)
      for (int64_t i = 0; i < m; ++i) {
        float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
        for (int64_t c = 0; c < d; ++c) sum += rows[i * d + c] * k[j * d + c];
        scores[i * kScores + j] = sum;
      }
  }

  void weigh(const Buffers& b, char* memory, int64_t source, int64_t key, int64_t m,
             int64_t n) const {
    const int64_t e = z_.value_depth, at = (source * z_.keys + key) * e;
    const float* v = as_float(v_, b.in[2], at, Space::at(memory, values_), n * e);
    const float* p = Space::at(memory, scores_);
    float* sums = Space::at(memory, sums_);
    for (int64_t i = 0; i < m; ++i, p += kScores, sums += e) {
      int64_t j = 0;
      for (; j + 4 <= n; j += 4) {
        const float *v0 = v + j * e, *v1 = v0 + e, *v2 = v1 + e, *v3 = v2 + e;
#pragma omp simd
        for (int64_t c = 0; c < e; ++c)
          sums[c] += (p[j] * v0[c] + p[j + 1] * v1[c]) + (p[j + 2] * v2[c] + p[j + 3] * v3[c]);
      }
      for (; j < n; ++j)
#pragma omp simd
        for (int64_t c = 0; c < e; ++c) sums[c] += p[j] * v[j * e + c];
    }
  }

  static const float* as_float(DType type, const void* x, int64_t at, float* place, int64_t n) {
    if (type == DType::f32) return static_cast<const float*>(x) + at;
    load_any(type, x, at, place, n);
    return place;
  }

  static constexpr int64_t kFew = 4;

  Sizes z_;
  DType q_, k_, v_, y_;
  bool has_lse_, direct_;
  int64_t blocks_, parts_;
  Space part_, space_;
  std::vector<size_t> starts_;
  size_t keys_, values_, rows_, scores_, sums_;
};

std::unique_ptr<Kernel> attention_setup(const Signature& s) {
  Sizes z;
  if (!sizes_of(s, 0, 3, &z)) return nullptr;
  if (!is_real(s.out[0].dtype) || s.out[0].layout != Layout::plain) return nullptr;
  if (s.out.size() > 1 && s.out[1].dtype != DType::f32) return nullptr;
  return std::make_unique<Attention>(s, z);
}

const Registration registration("attention", attention_setup);

}  // namespace
}  // namespace nnl
