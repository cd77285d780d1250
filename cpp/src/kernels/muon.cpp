// SPDX-License-Identifier: Apache-2.0
// Muon: a step along the momentum whose singular values are brought close to 1, by an iteration of
// matrix products (Jordan et al., Muon: An optimizer for hidden layers in neural networks, 2024).
#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "nnl/threads.h"
#include "product.h"
#include "update_rules.h"

namespace nnl {
namespace {

constexpr int64_t kBlock = 1024;  // elements
constexpr float kA = 3.4445f, kB = -4.775f, kC = 2.0315f;

// The step of one parameter (rows, columns). X is kept as the parameter lies; with n = min(rows,
// columns), G = X X^T or X^T X is n x n, and so is U = b G + c G G; then X = a X + U X or X U.
class Matrix {
 public:
  Matrix(const Shape& shape, DType type) : type_(type), rows_(shape[0]), columns_(shape[1]) {
    const int64_t size = rows_ * columns_, n = std::min(rows_, columns_);
    const auto width = static_cast<int64_t>(bytes_of(type));
    x_ = space_.take(static_cast<size_t>(size * width));
    gram_ = space_.take(static_cast<size_t>(n * n * width));
    u_ = space_.take(static_cast<size_t>(n * n * width));
    y_ = space_.floats(std::max(size, n * n));
    sums_ = space_.take(static_cast<size_t>(blocks(size)) * sizeof(double));
    if (!size) return;
    const Matrices x = Matrices::of(type, {1, rows_, columns_}), g = Matrices::of(type, {1, n, n});
    const Matrices square = Matrices::of(DType::f32, {1, n, n});
    const Matrices y = Matrices::of(DType::f32, {1, rows_, columns_});
    const bool tall = rows_ > columns_;
    gram_of_ = product(tall ? x.transposed() : x, tall ? x : x.transposed(), square);
    square_of_ = product(g, g, square);
    next_ = tall ? product(x, g, y) : product(g, x, y);
    tall_ = tall;
  }

  size_t workspace() const { return space_.size(); }
  float* direction(void* workspace) const { return Space::at(workspace, y_); }
  double* sums(void* workspace) const { return Space::at<double>(workspace, sums_); }
  static int64_t blocks(int64_t size) { return (size + kBlock - 1) / kBlock; }

  // Takes the direction in y and gives the step there; `length` is its Frobenius norm.
  void orthogonalize(void* ws, float length, int64_t steps) const {
    const int64_t size = rows_ * columns_, n = std::min(rows_, columns_);
    float* y = Space::at(ws, y_);
    void *x = Space::at<char>(ws, x_), *gram = Space::at<char>(ws, gram_);
    void* u = Space::at<char>(ws, u_);
    each(size, [&](int64_t at, int64_t count) {
      for (int64_t i = at; i < at + count; ++i) y[i] /= length;
      store_any(type_, y + at, x, at, count);
    });
    for (int64_t step = 0; step < steps; ++step) {
      gram_of_->run(x, x, nullptr, nullptr, y, ws);
      each(n * n, [&](int64_t at, int64_t count) { store_any(type_, y + at, gram, at, count); });
      square_of_->run(gram, gram, nullptr, nullptr, y, ws);
      combine(n * n, gram, kB, y, kC, u);
      if (tall_)
        next_->run(x, u, nullptr, nullptr, y, ws);
      else
        next_->run(u, x, nullptr, nullptr, y, ws);
      combine(size, x, kA, y, 1.0f, x);
    }
    each(size, [&](int64_t at, int64_t count) { load_any(type_, x, at, y + at, count); });
  }

  template <class F>
  static void each(int64_t size, F&& f) {
    parallel_for(blocks(size), 16, [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b) f(b * kBlock, std::min(kBlock, size - b * kBlock));
    });
  }

 private:
  std::unique_ptr<Product> product(const Matrices& a, const Matrices& b, const Matrices& y) {
    ProductSpec spec;
    spec.a = a, spec.b = b, spec.y = y;
    return Product::make(spec, space_);
  }

  // z = p x + q y
  void combine(int64_t size, const void* x, float p, const float* y, float q, void* z) const {
    each(size, [&](int64_t at, int64_t count) {
      float v[kBlock];
      load_any(type_, x, at, v, count);
#pragma omp simd
      for (int64_t i = 0; i < count; ++i) v[i] = p * v[i] + q * y[at + i];
      store_any(type_, v, z, at, count);
    });
  }

  const DType type_;
  const int64_t rows_, columns_;
  bool tall_ = false;
  Space space_;
  size_t x_ = 0, gram_ = 0, u_ = 0, y_ = 0, sums_ = 0;
  std::unique_ptr<Product> gram_of_, square_of_, next_;
};

// Inputs of each parameter: w g m t lr, and its master in float32 where there is one.
class Muon : public Kernel {
 public:
  Muon(const Signature& s, size_t count, bool masters)
      : in_(s.in),
        out_(s.out),
        momentum_(static_cast<float>(s.attributes.number("momentum"))),
        wd_(s.attributes.number("wd")),
        eps_(static_cast<float>(s.attributes.number("eps"))),
        steps_(s.attributes.integer("steps")),
        nesterov_(s.attributes.flag("nesterov")),
        match_(s.attributes.flag("match")),
        masters_(masters),
        inputs_(s.in.size() / count) {
    const DType type = s.attributes.flag("half") ? DType::bf16 : DType::f32;
    for (size_t i = 0; i < count; ++i) {
      matrices_.push_back(std::make_unique<Matrix>(s.in[i * inputs_].shape, type));
      workspace_ = std::max(workspace_, matrices_.back()->workspace());
    }
  }

  size_t workspace() const override { return workspace_; }
  bool may_overwrite(size_t o, size_t i) const override {
    return i == o * inputs_ && out_[o].dtype == in_[i].dtype;
  }

  void run(const Buffers& b) override {
    for (size_t i = 0; i < matrices_.size(); ++i) step(b, i, *matrices_[i]);
  }

 private:
  void step(const Buffers& b, size_t parameter, const Matrix& matrix) const {
    const size_t w = parameter * inputs_, g = w + 1, m = w + 2, t = w + 3;
    const Shape& shape = in_[w].shape;
    const int64_t size = in_[w].size();
    ++*b.written_input<int64_t>(t);
    if (!size) return;
    double lr = 0.0;
    if (in_[t + 1].dtype == DType::f64) {
      lr = *b.input<double>(t + 1);
    } else {
      float y;
      load_any(in_[t + 1].dtype, b.in[t + 1], 0, &y, 1);
      lr = y;
    }
    float* d = matrix.direction(b.workspace);
    double* sums = matrix.sums(b.workspace);
    const float mu = momentum_, rest = 1.0f - mu;
    Matrix::each(size, [&](int64_t at, int64_t n) {
      float gs[kBlock], ms[kBlock];
      load_any(in_[g].dtype, b.in[g], at, gs, n);
      load_any(in_[m].dtype, b.in[m], at, ms, n);
      float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
      for (int64_t i = 0; i < n; ++i) {
        ms[i] = ms[i] * mu + gs[i] * rest;
        d[at + i] = nesterov_ ? gs[i] * rest + ms[i] * mu : ms[i];
        sum += d[at + i] * d[at + i];
      }
      sums[at / kBlock] = sum;
      store_any(in_[m].dtype, ms, b.in[m], at, n);
    });
    double total = 0.0;
    for (int64_t k = 0; k < Matrix::blocks(size); ++k) total += sums[k];
    matrix.orthogonalize(b.workspace, std::max(static_cast<float>(std::sqrt(total)), eps_), steps_);
    const auto rows = static_cast<double>(shape[0]), columns = static_cast<double>(shape[1]);
    const double factor = match_ ? 0.2 * std::sqrt(std::max(rows, columns))
                                 : std::sqrt(std::max(1.0, rows / columns));
    const auto rate = static_cast<float>(lr * factor), keep = static_cast<float>(1.0 - lr * wd_);
    Matrix::each(size, [&](int64_t at, int64_t n) {
      float ws[kBlock];
      load_any(in_[w].dtype, b.in[w], at, ws, n);
      float* p = ws;
      if (masters_) {
        p = b.written_input<float>(w + inputs_ - 1) + at;
        begin_again(in_[w].dtype, ws, p, n);
      }
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) p[i] = p[i] * keep - d[at + i] * rate;
      store_any(in_[w].dtype, p, b.in[w], at, n);
      void* y = parameter < out_.size() ? b.out[parameter] : nullptr;
      if (y && y != b.in[w]) store_any(out_[parameter].dtype, p, y, at, n);
    });
  }

  std::vector<Spec> in_, out_;
  const float momentum_;
  const double wd_;
  const float eps_;
  const int64_t steps_;
  const bool nesterov_, match_, masters_;
  const size_t inputs_;
  std::vector<std::unique_ptr<Matrix>> matrices_;
  size_t workspace_ = 0;
};

}  // namespace

std::unique_ptr<Kernel> make_muon(const Signature& s, size_t count, bool masters) {
  const size_t inputs = count ? s.in.size() / count : 0;
  const size_t wanted = masters ? 6 : 5;
  if (inputs != wanted || s.in.size() != count * wanted) return nullptr;
  for (size_t i = 0; i < s.in.size(); ++i) {
    const size_t k = i % inputs;
    const Spec& x = s.in[i];
    if (k == 3 && x.dtype != DType::i64) return nullptr;
    if (k == 4 && !is_real(x.dtype) && x.dtype != DType::f64) return nullptr;
    if (k == 5 && x.dtype != DType::f32) return nullptr;
    if (k == 3 || k == 4) continue;
    if (!is_real(x.dtype) || x.layout != Layout::plain || x.rank() != 2) return nullptr;
  }
  return std::make_unique<Muon>(s, count, masters);
}

namespace {
const Registration muon("muon_update", [](const Signature& s) { return make_muon(s, 1, false); });
}  // namespace
}  // namespace nnl
