// SPDX-License-Identifier: Apache-2.0
// Products of rows with the matrix that each chooses, expert by expert.
//
// expert_product: (x, weight, index) -> y (N, K, F). x (N, D) or (N, K, D), weight (E, D, F), or
//   (E, F, D) if transposed, index (N, K).
// expert_weight: (x, gy, index) -> its gradient by weight: the sum of x^T gy over the rows of each.
#include <algorithm>
#include <cstring>

#include "gemm.h"
#include "line.h"
#include "nnl/errors.h"
#include "nnl/threads.h"
#include "row_product.h"
#include "space.h"

namespace nnl {
namespace {

constexpr int64_t kRows = 96;      // rows that are gathered at a time
constexpr int64_t kColumns = 512;  // columns of one piece of work

// The entries of index, sorted by expert.
class Choices {
 public:
  Choices(const Spec& index, int64_t experts, Space& space) : index_(index), experts_(experts) {
    starts_ = space.take(static_cast<size_t>(experts + 1) * sizeof(int64_t));
    order_ = space.take(static_cast<size_t>(index.size()) * sizeof(int64_t));
  }
  // Throws ValueError for an index that is no expert, before anything is written.
  void sort(const void* index, void* workspace) const {
    int64_t *starts = Space::at<int64_t>(workspace, starts_), *order = entries(workspace);
    std::fill_n(starts, experts_ + 1, 0);
    for (int64_t i = 0; i < index_.size(); ++i) {
      const int64_t e = integer_at(index, index_.dtype, i);
      if (e < 0 || e >= experts_)
        throw ValueError("expert_product: index holds " + std::to_string(e) + ", wanted 0 to " +
                         std::to_string(experts_ - 1));
      ++starts[e];
    }
    for (int64_t e = 1; e <= experts_; ++e) starts[e] += starts[e - 1];
    for (int64_t i = index_.size(); i-- > 0;)
      order[--starts[integer_at(index, index_.dtype, i)]] = i;
  }
  int64_t count(void* workspace, int64_t e) const {
    const int64_t* starts = Space::at<int64_t>(workspace, starts_);
    return starts[e + 1] - starts[e];
  }
  const int64_t* of(void* workspace, int64_t e) const {
    return entries(workspace) + Space::at<int64_t>(workspace, starts_)[e];
  }

 private:
  int64_t* entries(void* workspace) const { return Space::at<int64_t>(workspace, order_); }
  Spec index_;
  int64_t experts_;
  size_t starts_, order_;
};

// Rows of an array that stand for entries of index: each row for `per` of them.
struct Rows {
  DType type;
  int64_t width, per;
  // Rows of `to` are `step` apart.
  void gather(const void* x, const int64_t* entries, int64_t n, float* to, int64_t step) const {
    for (int64_t i = 0; i < n; ++i)
      load_any(type, x, entries[i] / per * width, to + i * step, width);
  }
};
Rows rows_of(const Spec& x, const Spec& index) {
  return {x.dtype, x.shape.back(), x.rank() == 2 ? index.shape[1] : 1};
}

template <class F>
void typed(DType type, const void* x, F&& f) {
  if (type == DType::bf16) return f(static_cast<const bf16*>(x));
  if (type == DType::f16) return f(static_cast<const f16*>(x));
  f(static_cast<const float*>(x));
}

class ExpertProduct : public Kernel {
 public:
  explicit ExpertProduct(const Signature& s)
      : s_(s),
        transposed_(s.attributes.flag("transposed")),
        experts_(s.in[1].shape[0]),
        x_(rows_of(s.in[0], s.in[2])),
        d_(x_.width),
        f_(s.out[0].shape[2]),
        choices_(s.in[2], experts_, space_) {
    Space part;
    // rows for which a matrix is read as it lies, once
    few_ = FewRows::most(s.in[1].dtype, transposed_);
    gathered_ = part.floats(kRows * FewRows::step_of(d_));
    packed_ = part.floats(gemm::packed_size(d_, gemm::kPanel));
    sums_ = part.floats(std::max(kRows * gemm::kPanel, few_ * kColumns));
    blocks_ = (f_ + kColumns - 1) / kColumns;
    parts_ = std::max<int64_t>(1, std::min<int64_t>(threads(), experts_ * blocks_));
    for (int64_t i = 0; i < parts_; ++i) starts_.push_back(space_.take(part.size()));
  }
  size_t workspace() const override { return space_.size(); }

  void run(const Buffers& b) override {
    choices_.sort(b.in[2], b.workspace);
    // the columns of each expert are divided, so that all threads have work where one is chosen
    parallel_for(parts_, 1, [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p)
        for (int64_t e = 0; e < experts_; ++e) {
          const int64_t n = choices_.count(b.workspace, e);
          if (!n) continue;
          const int64_t first = f_ * p / parts_ / 16 * 16;
          const int64_t last = p + 1 == parts_ ? f_ : f_ * (p + 1) / parts_ / 16 * 16;
          char* memory = Space::at<char>(b.workspace, starts_[static_cast<size_t>(p)]);
          for (int64_t at = first; at < last; at += kColumns)
            columns(b, memory, e, n, at, std::min(kColumns, last - at));
        }
    });
  }

 private:
  void columns(const Buffers& b, char* memory, int64_t e, int64_t n, int64_t first,
               int64_t width) const {
    float* gathered = Space::at(memory, gathered_);
    const int64_t* entries = choices_.of(b.workspace, e);
    const auto each = [&](int64_t begin, int64_t rows, const float* sums, int64_t at,
                          int64_t columns) {
      for (int64_t i = 0; i < rows; ++i)
        store_any(s_.out[0].dtype, sums + i * columns, b.out[0], entries[begin + i] * f_ + at,
                  columns);
    };
    float* sums = Space::at(memory, sums_);
    if (n <= few_) {
      const int64_t step = FewRows::step_of(d_);
      x_.gather(b.in[0], entries, n, gathered, step);
      const FewRows rows{s_.in[1].dtype, transposed_ ? 1 : f_, transposed_ ? d_ : 1, n, d_, step,
                         width};
      rows.run(b.in[1], e * d_ * f_ + first * rows.column, gathered, width, sums);
      return each(0, n, sums, first, width);
    }
    typed(s_.in[1].dtype, b.in[1], [&](auto* w) {
      w += e * d_ * f_;
      float* packed = Space::at(memory, packed_);
      for (int64_t begin = 0; begin < n; begin += kRows) {
        const int64_t rows = std::min(kRows, n - begin);
        x_.gather(b.in[0], entries + begin, rows, gathered, d_);
        for (int64_t at = first; at < first + width; at += gemm::kPanel) {
          const int64_t m = std::min(gemm::kPanel, first + width - at);
          if (transposed_)
            gemm::pack(w + at * d_, 1, d_, d_, m, packed);
          else
            gemm::pack(w + at, f_, 1, d_, m, packed);
          gemm::multiply(gathered, d_, 1, packed, sums, m, rows, m, d_, false);
          each(begin, rows, sums, at, m);
        }
      }
    });
  }

  Signature s_;
  bool transposed_;
  int64_t experts_;
  Rows x_;
  int64_t d_, f_;
  Space space_;
  Choices choices_;
  int64_t few_ = 0, blocks_, parts_;
  std::vector<size_t> starts_;
  size_t gathered_, packed_, sums_;
};

class ExpertWeight : public Kernel {
 public:
  explicit ExpertWeight(const Signature& s)
      : s_(s),
        transposed_(s.attributes.flag("transposed")),
        experts_(s.attributes.integer("experts")),
        rows_(rows_of(s.in[transposed_ ? 1 : 0], s.in[2])),
        columns_(rows_of(s.in[transposed_ ? 0 : 1], s.in[2])),
        choices_(s.in[2], experts_, space_) {
    Space part;
    a_ = part.floats(kRows * rows_.width);
    b_ = part.floats(kRows * columns_.width);
    packed_ = part.floats(gemm::packed_size(kRows, columns_.width));
    parts_ = std::max<int64_t>(1, std::min<int64_t>(threads(), experts_));
    for (int64_t i = 0; i < parts_; ++i) starts_.push_back(space_.take(part.size()));
  }
  size_t workspace() const override { return space_.size(); }

  void run(const Buffers& b) override {
    choices_.sort(b.in[2], b.workspace);
    parallel_for(parts_, 1, [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p)
        for (int64_t e = experts_ * p / parts_; e < experts_ * (p + 1) / parts_; ++e)
          sum(b, Space::at<char>(b.workspace, starts_[static_cast<size_t>(p)]), e);
    });
  }

 private:
  void sum(const Buffers& b, char* memory, int64_t e) const {
    const int64_t n = choices_.count(b.workspace, e), rows = rows_.width, columns = columns_.width;
    const int64_t* entries = choices_.of(b.workspace, e);
    float *x = Space::at(memory, a_), *g = Space::at(memory, b_);
    float *packed = Space::at(memory, packed_), *to = b.output<float>() + e * rows * columns;
    if (!n) std::fill_n(to, rows * columns, 0.0f);
    for (int64_t at = 0; at < n; at += kRows) {
      const int64_t some = std::min(kRows, n - at);
      rows_.gather(b.in[transposed_ ? 1 : 0], entries + at, some, x, rows);
      columns_.gather(b.in[transposed_ ? 0 : 1], entries + at, some, g, columns);
      gemm::pack(static_cast<const float*>(g), columns, 1, some, columns, packed);
      gemm::multiply(x, 1, rows, packed, to, columns, rows, columns, some, at > 0);
    }
  }

  Signature s_;
  bool transposed_;
  int64_t experts_;
  Rows rows_, columns_;
  Space space_;
  Choices choices_;
  int64_t parts_;
  std::vector<size_t> starts_;
  size_t a_, b_, packed_;
};

template <class K>
std::unique_ptr<Kernel> setup(const Signature& s) {
  for (const auto* specs : {&s.in, &s.out})
    for (const Spec& x : *specs)
      if (x.layout != Layout::plain) return nullptr;
  const Spec& y = s.out[0];
  if (!is_real(s.in[0].dtype) || !is_real(s.in[1].dtype) || !is_integer(s.in[2].dtype))
    return nullptr;
  if (!is_real(y.dtype) || !s.in[0].size() || !y.size()) return nullptr;
  if (std::is_same_v<K, ExpertWeight> && y.dtype != DType::f32) return nullptr;
  return std::make_unique<K>(s);
}

const Registration registration("expert_product", setup<ExpertProduct>);
const Registration of_weight("expert_weight", setup<ExpertWeight>);

}  // namespace
}  // namespace nnl
