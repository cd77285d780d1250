// SPDX-License-Identifier: Apache-2.0
// What rnn, lstm and gru share forward and backward: sizes, and arrays brought to the type T that
// is multiplied and kept, float or bf16. What is carried from step to step is float32.
//
// Samples are independent of each other, so a thread takes some samples of one direction through
// all steps without waiting for others.
#pragma once
#include <algorithm>
#include <cstring>

#include "gemm.h"
#include "lanes.h"
#include "nnl/kernel.h"
#include "nnl/threads.h"
#include "product.h"

namespace nnl::recurrent {

enum class Cell { tanh, relu, lstm, gru };

struct Sizes {
  Cell cell;
  int64_t steps, batch, size, layers, directions, hidden;

  int64_t gates() const { return cell == Cell::lstm ? 4 : (cell == Cell::gru ? 3 : 1); }
  int64_t bias_rows() const { return cell == Cell::gru ? 4 : gates(); }
  int64_t saved() const { return cell == Cell::lstm || cell == Cell::gru ? 4 : 0; }
  int64_t input(int64_t layer) const { return layer ? directions * hidden : size; }
  int64_t width() const { return directions * hidden; }  // of one row of outputs
  int64_t weights(int64_t layer) const { return gates() * hidden * (input(layer) + hidden); }

  // Groups of samples that threads take: at least 4 each, as a tile of rows should be full.
  int64_t groups() const {
    const int64_t work = batch * hidden * hidden * gates() * steps * directions;
    if (work < 300000) return 1;
    return std::max<int64_t>(1, std::min<int64_t>(threads() / directions, batch / 4));
  }

  // f(direction, first sample, end of samples, group): divided among threads.
  template <class F>
  void for_groups(F&& f) const {
    const int64_t n = groups(), all = n * directions;
    const bool small = batch * hidden * hidden * gates() * steps * directions < 300000;
    parallel_for(all, small ? all : 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        f(i / n, batch * (i % n) / n, batch * (i % n + 1) / n, i);
    });
  }

  // The step in time that is processed k-th.
  int64_t at(int64_t direction, int64_t k) const { return direction ? steps - 1 - k : k; }
};

template <class T>
constexpr DType dtype_of = std::is_same_v<T, bf16> ? DType::bf16 : DType::f32;

// y = scale x where the mask is set, else 0.
template <class T>
void pass(const T* x, const uint8_t* mask, float scale, T* y, int64_t n) {
  parallel_for(n, 1 << 14, [&](int64_t begin, int64_t end) {
#pragma omp simd
    for (int64_t i = begin; i < end; ++i)
      y[i] = from_float<T>(to_float(x[i]) * (mask[i] ? scale : 0.0f));
  });
}

// y = W x, or y += W x, for W of n rows of k as they lie, `row` apart.
inline void times_rows(const float* w, int64_t row, const float* x, float* y, int64_t n, int64_t k,
                       bool add) {
  int64_t j = 0;
  for (; j + kLanes <= n; j += kLanes, w += kLanes * row) {  // as many sums as fill one vector
    Lanes s[kLanes] = {};
    by_lanes(k, [&](int64_t i, int64_t m, auto whole) {
      const Lanes v = get<whole()>(x + i, m);
      unroll<kLanes>(NNL_EACH(r) { s[r] += v * get<whole()>(w + r * row + i, m); });
    });
    const Lanes sums = folds(s, [](Lanes a, Lanes b) { return a + b; });
    store(y + j, add ? load(y + j) + sums : sums);
  }
  for (; j < n; ++j, w += row) {
    const float sum = sum_of(lane_sums(k, [&](int64_t i, int64_t m, auto whole) {
      return get<whole()>(x + i, m) * get<whole()>(w + i, m);
    }));
    y[j] = add ? y[j] + sum : sum;
  }
}

// The part of weights that is multiplied with the state of one step: k x n, packed.
template <class T>
class StateWeights {
 public:
  StateWeights() = default;
  StateWeights(int64_t k, int64_t n, int64_t directions, Space& space)
      : k_(k), n_(n), at_(space.floats(directions * size())) {}

  void pack(const T* from, int64_t row, int64_t col, int64_t direction, void* workspace) const {
    gemm::Packed<T>* to = packed(direction, workspace);
    const int64_t depth = size() / gemm::padded(n_),
                  panels = (n_ + gemm::kPanel - 1) / gemm::kPanel;
    const int64_t grain =
        std::max<int64_t>(1, (1 << 15) / std::max<int64_t>(depth * gemm::kPanel, 1));
    parallel_for(panels, grain, [&](int64_t begin, int64_t end) {
      const int64_t j = begin * gemm::kPanel;
      gemm::pack(from + j * col, row, col, k_, std::min(n_, end * gemm::kPanel) - j,
                 to + j * depth);
    });
  }
  // y = x w, or y += x w, for m rows that lie `x_row` and `y_row` apart.
  void multiply(const T* x, int64_t x_row, int64_t direction, float* y, int64_t y_row, int64_t m,
                bool add, void* workspace) const {
    gemm::multiply(x, x_row, 1, packed(direction, workspace), y, y_row, m, n_, k_, add);
  }

 private:
  int64_t size() const {
    return std::is_same_v<T, bf16> ? gemm::packed_pairs(k_, n_) : gemm::packed_size(k_, n_);
  }
  gemm::Packed<T>* packed(int64_t direction, void* workspace) const {
    return Space::at<gemm::Packed<T>>(workspace, at_) + direction * size();
  }

  int64_t k_ = 0, n_ = 0;
  size_t at_ = 0;
};

// An input as T, which is float or bf16.
template <class T>
class Reader {
 public:
  Reader() = default;
  Reader(const Signature& s, size_t i, Space& space) {
    if (!s.given(i)) return;
    type_ = s.in[i].dtype, n_ = s.in[i].size();
    if (type_ != dtype_of<T>) at_ = space.take(static_cast<size_t>(n_) * sizeof(T));
  }
  const T* get(const void* x, void* workspace) const {
    if (type_ == dtype_of<T> || !x) return static_cast<const T*>(x);
    T* y = Space::at<T>(workspace, at_);
    convert(type_, x, dtype_of<T>, y, n_);
    return y;
  }

 private:
  DType type_ = dtype_of<T>;
  int64_t n_ = 0;
  size_t at_ = 0;
};

// An output that is computed as T.
template <class T>
class Writer {
 public:
  Writer() = default;
  Writer(const Spec& s, Space& space) : type_(s.dtype), n_(s.size()) {
    if (type_ != dtype_of<T>) at_ = space.take(static_cast<size_t>(n_) * sizeof(T));
  }
  T* place(void* y, void* workspace) const {
    return type_ == dtype_of<T> ? static_cast<T*>(y) : Space::at<T>(workspace, at_);
  }
  void finish(void* y, void* workspace) const {
    if (type_ != dtype_of<T>) convert(dtype_of<T>, Space::at<T>(workspace, at_), type_, y, n_);
  }

 private:
  DType type_ = dtype_of<T>;
  int64_t n_ = 0;
  size_t at_ = 0;
};

}  // namespace nnl::recurrent
