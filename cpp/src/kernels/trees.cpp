// SPDX-License-Identifier: Apache-2.0
// Decision trees: rows walk down them several at a time, so that one waits while others load.
#include <cmath>
#include <cstring>
#include <limits>

#include "line.h"

namespace nnl {
namespace {

constexpr int kWalkers = 32;
constexpr int64_t kRows = 256;  // of a block: they and a tree stay in the cache

template <class Int>
struct Table {
  Int count, last;  // nodes, and the last feature
};

// Where each is, and where the row begins that it looks at.
template <class Int>
struct Walkers {
  Int at[kWalkers], row[kWalkers];
};

// They walk until all are at leaves. Every node leads to a later one, so that ends whatever the
// table holds. Nothing depends on a branch: which way a row goes is what nobody can predict.
template <class Float, class Int>
void walk8(const Int* nodes, const Float* x, Table<Int> table, Int* start, const Int* row,
           bool& bad) {
  Int at[8], wrong = 0;
  std::copy_n(start, 8, at);
  for (bool live = true; live;) {
    Int all = -1;
#pragma GCC unroll 8
    for (int k = 0; k < 8; ++k) {
      const Int i = std::max<Int>(at[k], 0);
      const Int* node = nodes + 4 * i;
      const Int column = node[1] >> 1, feature = std::min(std::max<Int>(column, 0), table.last);
      Float split;
      std::memcpy(&split, node, sizeof(split));
      const Float value = x[row[k] + feature];
      const bool no = !(value <= split) & !((node[1] & 1) & (value != value));
      const Int next = node[2 + no];
      const bool out = (column != feature) | ((next >= 0) & ((next <= i) | (next >= table.count)));
      const bool there = at[k] < 0;
      wrong |= !there & out;
      at[k] = there ? at[k] : out ? -1 : next;
      all &= at[k];
    }
    live = all >= 0;
  }
  std::copy_n(at, 8, start);
  bad |= wrong != 0;
}

#ifdef __AVX512F__
void walk_together(const int32_t* nodes, const float* x, Table<int32_t> table, Walkers<int32_t>& w,
                   bool& bad) {
  constexpr int n = kWalkers / 16;
  const __m512i zero = _mm512_setzero_si512(), one = _mm512_set1_epi32(1);
  const __m512i count = _mm512_set1_epi32(table.count), last = _mm512_set1_epi32(table.last);
  __m512i at[n], row[n];
  for (int v = 0; v < n; ++v) {
    at[v] = _mm512_loadu_si512(w.at + 16 * v);
    row[v] = _mm512_loadu_si512(w.row + 16 * v);
  }
  __mmask16 wrong = 0;
  for (__mmask16 any = 1; any;) {
    any = 0;
    for (int v = 0; v < n; ++v) {
      const __mmask16 live = _mm512_cmpge_epi32_mask(at[v], zero);
      const __m512i node = _mm512_maskz_slli_epi32(live, at[v], 2);
      const __m512i column = _mm512_mask_i32gather_epi32(zero, live, node, nodes + 1, 4);
      const __m512i split = _mm512_mask_i32gather_epi32(zero, live, node, nodes, 4);
      const __m512i wanted = _mm512_maskz_srli_epi32(live, column, 1);  // below 0 becomes large
      const __m512i place = _mm512_add_epi32(row[v], _mm512_maskz_min_epu32(live, wanted, last));
      const __m512 value = _mm512_mask_i32gather_ps(_mm512_setzero_ps(), live, place, x, 4);
      const __mmask16 up_to = _mm512_cmp_ps_mask(value, _mm512_castsi512_ps(split), _CMP_LE_OQ);
      const __mmask16 none = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
      const auto no =
          static_cast<__mmask16>(~(up_to | (none & _mm512_test_epi32_mask(column, one))));
      const __m512i way = _mm512_mask_add_epi32(node, no, node, one);
      __m512i next = _mm512_mask_i32gather_epi32(zero, live, way, nodes + 2, 4);
      const __mmask16 inner = live & _mm512_cmpge_epi32_mask(next, zero);
      const __mmask16 out =
          (live & _mm512_cmpgt_epu32_mask(wanted, last)) |
          (inner & (_mm512_cmple_epi32_mask(next, at[v]) | _mm512_cmpge_epi32_mask(next, count)));
      wrong |= out;
      next = _mm512_mask_set1_epi32(next, out, -1);
      at[v] = _mm512_mask_mov_epi32(at[v], live, next);
      any |= static_cast<__mmask16>(inner & ~out);
    }
  }
  for (int v = 0; v < n; ++v) _mm512_storeu_si512(w.at + 16 * v, at[v]);
  bad |= wrong != 0;
}
#endif

template <class Float, class Int>
class Trees : public Kernel {
 public:
  explicit Trees(const Signature& s)
      : rows_(s.in[0].shape[0]),
        features_(s.in[0].shape[1]),
        nodes_(s.in[1].shape[0]),
        trees_(s.in[2].shape[0]),
        leaves_(s.in[3].shape[0]),
        width_(s.in[3].shape[1]),
        targets_(s.attributes.integer("n_targets")) {
    const std::string together = s.attributes.text("together");
    join_ = together == "sum" ? Join::sum : together == "min" ? Join::min : Join::max;
    blocks_ = (rows_ + kRows - 1) / kRows;
    // where one block would be all, the threads share it
    const int64_t most = std::max<int64_t>(rows_ * trees_ / 4096, 1);
    parts_ = std::max(blocks_, std::min<int64_t>({threads(), rows_ / kWalkers, most}));
  }
  // Sums of every row.
  size_t workspace() const override {
    return static_cast<size_t>(rows_ * targets_) * sizeof(double);
  }

  void run(const Buffers& b) override {
    bool bad = false;
    parallel_for(parts_, 1, [&](int64_t begin, int64_t end) {
      bool mine = false;
      for (int64_t p = begin; p < end; ++p)
        block(b, rows_ * p / parts_, rows_ * (p + 1) / parts_, mine);
      if (mine) {
#pragma omp atomic write
        bad = true;
      }
    });
    if (bad)
      throw ValueError(
          "tree_ensemble: a node leads out of the table or backwards, or a feature, leaf or target "
          "is out of range");
  }

 private:
  enum class Join { sum, min, max };
  void block(const Buffers& b, int64_t begin, int64_t end, bool& bad) const {
    const auto* x = b.input<Float>(0) + begin * features_;
    const auto* roots = b.input<int32_t>(2);
    double* sums = static_cast<double*>(b.workspace) + begin * targets_;
    const double start = join_ == Join::sum ? 0 : std::numeric_limits<double>::quiet_NaN();
    std::fill_n(sums, (end - begin) * targets_, start);
    Walkers<Int> w;
    if (end - begin < kWalkers) {  // few rows: several trees at once
      for (int64_t r = begin; r < end; ++r)
        for (int64_t t = 0; t < trees_; t += kWalkers) {
          const int n = static_cast<int>(std::min<int64_t>(kWalkers, trees_ - t));
          for (int k = 0; k < kWalkers; ++k) {
            w.at[k] = k < n ? roots[t + k] : -1;
            w.row[k] = static_cast<Int>((r - begin) * features_);
          }
          walk(b, x, w, bad);
          for (int k = 0; k < n; ++k) add(b, w.at[k], sums + (r - begin) * targets_, bad);
        }
    } else {
      for (int64_t t = 0; t < trees_; ++t)
        for (int64_t r = begin; r < end; r += kWalkers) {
          const int n = static_cast<int>(std::min<int64_t>(kWalkers, end - r));
          for (int k = 0; k < kWalkers; ++k) {
            w.at[k] = k < n ? roots[t] : -1;
            w.row[k] = static_cast<Int>((r - begin + (k < n ? k : 0)) * features_);
          }
          walk(b, x, w, bad);
          for (int k = 0; k < n; ++k) add(b, w.at[k], sums + (r - begin + k) * targets_, bad);
        }
    }
    auto* y = b.output<Float>() + begin * targets_;
    for (int64_t i = 0; i < (end - begin) * targets_; ++i)
      y[i] = std::isnan(sums[i]) && join_ != Join::sum ? 0 : static_cast<Float>(sums[i]);
  }

  void walk(const Buffers& b, const Float* x, Walkers<Int>& w, bool& bad) const {
    const Table<Int> table{static_cast<Int>(nodes_), static_cast<Int>(features_ - 1)};
    const auto* nodes = b.input<Int>(1);
    if (nodes_ > 0 && features_ > 0) {
      for (Int& at : w.at)
        if (at >= table.count) bad = true, at = -1;
#ifdef __AVX512F__
      if constexpr (std::is_same_v<Float, float>) return walk_together(nodes, x, table, w, bad);
#endif
      for (int k = 0; k < kWalkers; k += 8) walk8(nodes, x, table, w.at + k, w.row + k, bad);
    } else {
      for (Int& at : w.at) bad |= at >= 0, at = std::min<Int>(at, -1);
    }
  }

  void add(const Buffers& b, Int at, double* y, bool& bad) const {
    const int64_t leaf = ~static_cast<int64_t>(at);
    const auto* targets = b.input<int32_t>(4);
    if (leaf < 0 || leaf >= leaves_ || targets[leaf] < 0 || targets[leaf] > targets_ - width_) {
      bad = true;
      return;
    }
    const Float* w = b.input<Float>(3) + leaf * width_;
    y += targets[leaf];
    for (int64_t i = 0; i < width_; ++i) {
      if (join_ == Join::sum)
        y[i] += w[i];
      else
        y[i] = join_ == Join::min ? std::fmin(y[i], w[i]) : std::fmax(y[i], w[i]);
    }
  }

  int64_t rows_, features_, nodes_, trees_, leaves_, width_, targets_, blocks_, parts_;
  Join join_;
};

std::unique_ptr<Kernel> tree_ensemble(const Signature& s) {
  const bool wide = s.in[1].dtype == DType::i64;
  const DType type = wide ? DType::f64 : DType::f32;
  for (const Spec* spec : {&s.in[0], &s.in[3], &s.out[0]})
    if (spec->dtype != type || spec->layout != Layout::plain) return nullptr;
  if (s.in[1].dtype != DType::i32 && !wide) return nullptr;
  // positions in the table and in a block of rows are int32
  if (s.in[1].shape[0] >= (1 << 28) || s.in[0].shape[1] >= (1 << 20)) return nullptr;
  if (wide) return std::make_unique<Trees<double, int64_t>>(s);
  return std::make_unique<Trees<float, int32_t>>(s);
}

const Registration registration("tree_ensemble", tree_ensemble);

}  // namespace
}  // namespace nnl
