// SPDX-License-Identifier: Apache-2.0
// attention_backward: (gy, q, k, v, y, lse, mask?, lengths?, offsets?, segments?, glse?) -> (gq,
// gk,
//   gv), the gradients of attention, which computes the scores again from lse, float32. Attributes
//   and shapes of attention. There is no gradient of mask. What it keeps grows with queries and
//   keys, for the heads that share one of the keys.
#include <algorithm>
#include <cmath>

#include "attention.h"
#include "gemm.h"
#include "nnl/threads.h"

namespace nnl {
namespace {
using namespace attention;

class AttentionBackward : public Kernel {
 public:
  AttentionBackward(const Signature& s, const Sizes& z) : s_(s), z_(z) {
    for (size_t i = 0; i < 5; ++i) in_[i] = s.in[i].dtype;
    for (size_t i = 0; i < 3; ++i) out_[i] = s.out[i].dtype;
    const int64_t work = z.queries * z.keys * (z.depth + z.value_depth) * z.batch * z.heads;
    const int64_t most = std::min<int64_t>(threads(), z.batch * z.key_heads);
    parts_ = work < 200000 ? std::min<int64_t>(1, most) : most;
    const int64_t d = z.depth, e = z.value_depth;
    // per thread, for a block of keys: k as columns and as rows, v as columns
    k_columns_ = part_.floats(gemm::packed_size(d, kKeys));
    k_rows_ = part_.floats(gemm::packed_size(kKeys, d));
    v_columns_ = part_.floats(gemm::packed_size(e, kKeys));
    // for a block of queries, q and gy as they lie and packed
    q_ = part_.floats(kQueries * d);
    q_rows_ = part_.floats(gemm::packed_size(kQueries, d));
    gy_ = part_.floats(kQueries * e);
    gy_rows_ = part_.floats(gemm::packed_size(kQueries, e));
    y_ = part_.floats(kQueries * e);
    scores_ = part_.floats(kQueries * kScores);
    slopes_ = part_.floats(kQueries * kScores);
    if (z.soft_cap != 0.0f) capped_ = part_.floats(kQueries * kScores);
    // sums of the heads of a group
    dots_ = part_.floats(z.group() * z.queries);
    gq_ = part_.floats(z.group() * z.queries * d);
    gk_ = part_.floats(kKeys * d);
    gv_ = part_.floats(kKeys * e);
    for (int64_t i = 0; i < parts_; ++i) starts_.push_back(space_.take(part_.size()));
  }

  size_t workspace() const override { return space_.size(); }

  void run(const Buffers& b) override {
    const int64_t groups = z_.batch * z_.key_heads;
    const Given g = given_of(s_, b, 1, 6);
    parallel_for(parts_, 1, [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p)
        for (int64_t h = groups * p / parts_; h < groups * (p + 1) / parts_; ++h)
          group(b, g, Space::at<char>(b.workspace, starts_[static_cast<size_t>(p)]), h);
    });
  }

 private:
  // The heads of q that share the h-th head of k, of all samples.
  void group(const Buffers& b, const Given& g, char* memory, int64_t h) const {
    const int64_t d = z_.depth, e = z_.value_depth, rows = z_.group() * z_.queries;
    const int64_t first = h * rows;
    const Sample sample = z_.sample(g, h / z_.key_heads);
    float* gq = Space::at(memory, gq_);
    std::fill_n(gq, rows * d, 0.0f);
    products(b, memory, first, rows);
    const Range all = z_.seen(sample, 0, z_.queries);
    for (int64_t key = 0; key < z_.keys; key += kKeys) {
      const int64_t n = std::min(kKeys, z_.keys - key);
      float *gk = Space::at(memory, gk_), *gv = Space::at(memory, gv_);
      if (key < all.end && key + n > all.begin) pack_keys(b, memory, h, key, n);
      std::fill_n(gk, n * d, 0.0f);
      std::fill_n(gv, n * e, 0.0f);
      for (int64_t row = 0; row < rows; row += z_.queries)
        for (int64_t query = 0; query < z_.queries; query += kQueries) {
          const int64_t m = std::min(kQueries, z_.queries - query);
          const Range seen = z_.seen(sample, query, query + m);
          if (key < seen.end && key + n > seen.begin)
            block(b, g, sample, memory, h, row + query, query, key, m, n);
        }
      store_keys(b, h, key, n, gk);
      store_any(out_[2], gv, b.out[2], (h * z_.keys + key) * e, n * e);
    }
#pragma omp simd
    for (int64_t i = 0; i < rows * d; ++i) gq[i] *= z_.scale;
    store_any(out_[0], gq, b.out[0], first * d, rows * d);
  }

  // gy y, less the gradient of lse, of each row.
  void products(const Buffers& b, char* memory, int64_t first, int64_t rows) const {
    const int64_t e = z_.value_depth;
    float *dots = Space::at(memory, dots_), *gy = Space::at(memory, gy_);
    float* y = Space::at(memory, y_);
    for (int64_t row = 0; row < rows; row += kQueries) {
      const int64_t m = std::min(kQueries, rows - row);
      load_any(in_[0], b.in[0], (first + row) * e, gy, m * e);
      load_any(in_[4], b.in[4], (first + row) * e, y, m * e);
      for (int64_t i = 0; i < m; ++i) {
        float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
        for (int64_t j = 0; j < e; ++j) sum += gy[i * e + j] * y[i * e + j];
        if (s_.given(10)) {
          float of_lse;
          load_any(s_.in[10].dtype, b.in[10], first + row + i, &of_lse, 1);
          sum -= of_lse;
        }
        dots[row + i] = sum;
      }
    }
  }

  void pack_keys(const Buffers& b, char* memory, int64_t h, int64_t key, int64_t n) const {
    const int64_t d = z_.depth, e = z_.value_depth, all = z_.keys * d;
    const int64_t at = h * all + (z_.keys_transposed ? key : key * d);
    pack_columns(in_[2], b.in[2], at, n, d, z_.keys_transposed, z_.keys,
                 Space::at(memory, k_columns_));
    if (z_.keys_transposed) {  // the place of gk is free here
      float* rows = Space::at(memory, gk_);
      for (int64_t c = 0; c < d; ++c) {
        float line[kKeys];
        load_any(in_[2], b.in[2], at + c * z_.keys, line, n);
        for (int64_t j = 0; j < n; ++j) rows[j * d + c] = line[j];
      }
      gemm::pack(static_cast<const float*>(rows), d, 1, n, d, Space::at(memory, k_rows_));
    } else {
      pack_rows(in_[2], b.in[2], at, n, d, Space::at(memory, k_rows_));
    }
    pack_columns(in_[3], b.in[3], (h * z_.keys + key) * e, n, e, false, z_.keys,
                 Space::at(memory, v_columns_));
  }

  void store_keys(const Buffers& b, int64_t h, int64_t key, int64_t n, const float* gk) const {
    const int64_t d = z_.depth, all = h * z_.keys * d;
    if (!z_.keys_transposed) return store_any(out_[1], gk, b.out[1], all + key * d, n * d);
    for (int64_t c = 0; c < d; ++c) {
      float line[kKeys];
      for (int64_t j = 0; j < n; ++j) line[j] = gk[j * d + c];
      store_any(out_[1], line, b.out[1], all + c * z_.keys + key, n);
    }
  }

  // What the queries [query, query + m) of a head, in the row `at` of its group, and the keys [key,
  // key + n) give to each other.
  void block(const Buffers& b, const Given& g, const Sample& sample, char* memory, int64_t h,
             int64_t at, int64_t query, int64_t key, int64_t m, int64_t n) const {
    const int64_t d = z_.depth, e = z_.value_depth;
    const int64_t row = h * z_.group() * z_.queries + at, head = row / z_.queries % z_.heads;
    float *q = Space::at(memory, q_), *gy = Space::at(memory, gy_);
    float *p = Space::at(memory, scores_), *gs = Space::at(memory, slopes_);
    const float* dots = Space::at(memory, dots_) + at;
    const float* lse = b.input<float>(5) + row;
    load_any(in_[1], b.in[1], row * d, q, m * d);
    load_any(in_[0], b.in[0], row * e, gy, m * e);
#pragma omp simd
    for (int64_t i = 0; i < m * d; ++i) q[i] *= z_.scale;
    gemm::multiply(q, d, 1, Space::at(memory, k_columns_), p, kScores, m, n, d, false);
    float* capped = z_.soft_cap != 0.0f ? Space::at(memory, capped_) : nullptr;
    if (capped) {
      cap(z_.soft_cap, p, m, n);
      std::copy_n(p, m * kScores, capped);
    }
    gemm::multiply(gy, e, 1, Space::at(memory, v_columns_), gs, kScores, m, n, e, false);
    for (int64_t i = 0; i < m; ++i) {
      float *pi = p + i * kScores, *gi = gs + i * kScores;
      const float base = lse[i], dot = dots[i];
      mask_row(z_, g, sample, h / z_.key_heads, head, query + i, key, n, pi);
#pragma omp simd
      for (int64_t j = 0; j < n; ++j) {
        pi[j] = fast_exp(pi[j] - base);
        gi[j] = pi[j] * (gi[j] - dot);
      }
      if (!capped) continue;
      const float* c = capped + i * kScores;
      const float inverse = 1.0f / z_.soft_cap;
#pragma omp simd
      for (int64_t j = 0; j < n; ++j) gi[j] *= 1.0f - (c[j] * inverse) * (c[j] * inverse);
    }
    float* packed = Space::at(memory, gy_rows_);
    gemm::pack(static_cast<const float*>(gy), e, 1, m, e, packed);
    gemm::multiply(p, 1, kScores, packed, Space::at(memory, gv_), e, n, e, m, true);
    packed = Space::at(memory, q_rows_);
    gemm::pack(static_cast<const float*>(q), d, 1, m, d, packed);
    gemm::multiply(gs, 1, kScores, packed, Space::at(memory, gk_), d, n, d, m, true);
    gemm::multiply(gs, kScores, 1, Space::at(memory, k_rows_), Space::at(memory, gq_) + at * d, d,
                   m, d, n, true);
  }

  Signature s_;
  Sizes z_;
  DType in_[5], out_[3];
  int64_t parts_;
  Space part_, space_;
  std::vector<size_t> starts_;
  size_t k_columns_, k_rows_, v_columns_, q_, q_rows_, gy_, gy_rows_, y_, scores_, slopes_,
      capped_ = 0, dots_, gq_, gk_, gv_;
};

std::unique_ptr<Kernel> setup(const Signature& s) {
  Sizes z;
  if (s.in.size() < 6 || s.out.size() != 3) return nullptr;
  if (!sizes_of(s, 1, 6, &z)) return nullptr;
  if (s.given(10) && (!is_real(s.in[10].dtype) || s.in[10].layout != Layout::plain)) return nullptr;
  for (size_t i : {0, 4})
    if (!is_real(s.in[i].dtype) || s.in[i].layout != Layout::plain) return nullptr;
  for (const Spec& g : s.out)
    if (!is_real(g.dtype) || g.layout != Layout::plain) return nullptr;
  if (s.in[5].dtype != DType::f32) return nullptr;
  return std::make_unique<AttentionBackward>(s, z);
}

const Registration registration("attention_backward", setup);

}  // namespace
}  // namespace nnl
