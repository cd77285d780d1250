// SPDX-License-Identifier: Apache-2.0
// What rnn, lstm and gru share forward and backward: sizes, and arrays brought to float32.
//
// Samples are independent of each other, so a thread takes some samples of one direction through
// all steps without waiting for others.
#pragma once
#include <algorithm>
#include <cstring>

#include "gemm.h"
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

// y = scale x where the mask is set, else 0.
inline void pass(const float* x, const uint8_t* mask, float scale, float* y, int64_t n) {
  parallel_for(n, 1 << 14, [&](int64_t begin, int64_t end) {
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) y[i] = x[i] * (mask[i] ? scale : 0.0f);
  });
}

// An input as float32.
class Reader {
 public:
  Reader() = default;
  Reader(const Spec& s, Space& space) : type_(s.dtype), n_(s.size()) {
    if (type_ != DType::f32) at_ = space.floats(n_);
  }
  const float* get(const void* x, void* workspace) const {
    if (type_ == DType::f32 || !x) return static_cast<const float*>(x);
    float* y = Space::at(workspace, at_);
    convert(type_, x, DType::f32, y, n_);
    return y;
  }

 private:
  DType type_ = DType::f32;
  int64_t n_ = 0;
  size_t at_ = 0;
};

// An output that is computed as float32.
class Writer {
 public:
  Writer() = default;
  Writer(const Spec& s, Space& space) : type_(s.dtype), n_(s.size()) {
    if (type_ != DType::f32) at_ = space.floats(n_);
  }
  float* place(void* y, void* workspace) const {
    return type_ == DType::f32 ? static_cast<float*>(y) : Space::at(workspace, at_);
  }
  void finish(void* y, void* workspace) const {
    if (type_ != DType::f32) convert(DType::f32, Space::at(workspace, at_), type_, y, n_);
  }

 private:
  DType type_ = DType::f32;
  int64_t n_ = 0;
  size_t at_ = 0;
};

}  // namespace nnl::recurrent
