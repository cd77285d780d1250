// SPDX-License-Identifier: Apache-2.0
// recurrent_backward: one loop over the steps for the gradients before the gates, then everything
// else as one product over all steps: with rows [x_t, h_{t-1}] next to each other, both kinds of
// weights get their gradient, in their own order in memory, from a single product.
#include "column_sums.h"
#include "recurrent.h"

namespace nnl {
namespace {
using namespace recurrent;

enum In { GY, GH_N, GC_N, X, H, C, WEIGHT_L0, WEIGHT, BIAS, Y, INNER, SAVED, CELLS, MASK };

class RecurrentBackward : public Kernel {
 public:
  RecurrentBackward(const Signature& s, const Sizes& z)
      : z_(z),
        drops_(s.in[MASK].size() > 0),
        scale_(static_cast<float>(1.0 / (1.0 - s.attributes.number("dropout")))) {
    if (drops_) dropped_ = space_.floats(z.steps * z.batch * z.width());
    for (size_t i = 0; i < MASK; ++i)
      in_.push_back(s.given(i) ? Reader(s.in[i], space_) : Reader());
    for (const Spec& y : s.out) out_.push_back(Writer(y, space_));
    has_bias_ = s.given(BIAS);
    rows_ = z.cell == Cell::gru ? 4 : z.gates();  // of H gradients, before the gates
    const int64_t n = z.steps * z.batch, columns = rows_ * z.hidden;
    for (int64_t layer = 0; layer < std::min<int64_t>(z.layers, 2); ++layer) {
      const int64_t size = z.input(layer), wide = size + z.hidden, gates = z.gates() * z.hidden;
      ProductSpec p;
      p.a = {DType::f32, {n, gates}, {columns, 1}, n * columns};
      p.b = {DType::f32, {gates, size}, {wide, 1}, z.weights(layer)};
      p.y = Matrices::of(DType::f32, {n, size});
      by_x_.push_back(Product::make(p, space_));
      p.addend = true;
      by_x_added_.push_back(Product::make(p, space_));
      p.addend = false;
      p.a = Matrices::of(DType::f32, {n, columns}).transposed();
      p.b = Matrices::of(DType::f32, {n, wide});
      p.y = Matrices::of(DType::f32, {columns, wide});
      by_w_.push_back(Product::make(p, space_));
    }
    sums_ = std::make_unique<ColumnSums>(DType::f32, n, columns, DType::f32, space_);
    const int64_t widest = std::max(z.size, z.width());
    g_ = space_.floats(z.directions * n * columns);
    joined_ = space_.floats(n * (widest + z.hidden));
    packed_ = space_.floats(z.directions * packed_size());
    gh_ = space_.floats(z.directions * z.batch * z.hidden);
    // gradients of the layer below in two places that take turns, and one for the other direction
    for (size_t& at : fed_) at = space_.floats(n * widest);
    if (z.cell == Cell::gru) gw_ = space_.floats(columns * (widest + z.hidden));
  }

  size_t workspace() const override { return space_.size(); }

  void run(const Buffers& b) override {
    const float* in[MASK];
    for (size_t i = 0; i < MASK; ++i) in[i] = in_[i].get(b.in[i], b.workspace);
    float* out[6];
    for (size_t o = 0; o < 6; ++o) out[o] = out_[o].place(b.out[o], b.workspace);
    const int64_t cells = z_.batch * z_.hidden, all = z_.steps * z_.batch * z_.width();
    const float* g = in[GY];
    for (int64_t layer = z_.layers; layer-- > 0;) {
      Layer l{};
      const int64_t i = layer * z_.directions;  // of the first direction
      const int64_t w_at = (layer - 1) * z_.directions * z_.weights(1);
      l.g = g;
      l.x = layer ? in[INNER] + (layer - 1) * all : in[X];
      const uint8_t* mask = drops_ && layer ? b.input<uint8_t>(MASK) + (layer - 1) * all : nullptr;
      if (mask) {
        float* passed = Space::at(b.workspace, dropped_);
        pass(l.x, mask, scale_, passed, all);
        l.x = passed;
      }
      l.y = layer == z_.layers - 1 ? in[Y] : in[INNER] + layer * all;
      l.h = in[H] + i * cells;
      l.c = z_.cell == Cell::lstm ? in[C] + i * cells : nullptr;
      l.saved = in[SAVED] + i * z_.steps * cells * z_.saved();
      l.cs = l.c ? in[CELLS] + i * z_.steps * cells : nullptr;
      l.weight = layer ? in[WEIGHT] + w_at : in[WEIGHT_L0];
      l.gw = layer ? out[4] + w_at : out[3];
      l.gb = has_bias_ ? out[5] + i * z_.bias_rows() * z_.hidden : nullptr;
      l.gh = out[1] + i * cells;
      std::copy(in[GH_N] + i * cells, in[GH_N] + (i + z_.directions) * cells, l.gh);
      if (l.c) {
        l.gc = out[2] + i * cells;
        std::copy(in[GC_N] + i * cells, in[GC_N] + (i + z_.directions) * cells, l.gc);
      }
      l.gx = layer ? Space::at(b.workspace, fed_[layer % 2]) : out[0];
      through_time(l, layer, b.workspace);
      products(l, layer, b.workspace);
      if (mask) pass(l.gx, mask, scale_, l.gx, all);
      g = l.gx;
    }
    for (size_t o = 0; o < 6; ++o) out_[o].finish(b.out[o], b.workspace);
  }

 private:
  // One layer: each pointer at the part of the first direction. gh and gc begin as the gradients
  // of the last state and end as those of the first.
  struct Layer {
    const float *g, *x, *y, *h, *c, *saved, *cs, *weight;
    float *gx, *gh, *gc, *gw, *gb;
  };

  // The weights beside h, in one piece, or for gru in two: of r and z, and of n.
  int64_t packed_size() const { return gemm::packed_size(z_.gates() * z_.hidden, z_.hidden); }

  void through_time(const Layer& l, int64_t layer, void* w) const {
    const int64_t hidden = z_.hidden, size = z_.input(layer), wide = size + hidden;
    const int64_t columns = rows_ * hidden, two = 2 * hidden;
    for (int64_t d = 0; d < z_.directions; ++d) {
      const float* from = l.weight + d * z_.weights(layer) + size;
      float* to = Space::at(w, packed_) + d * packed_size();
      if (z_.cell == Cell::gru) {
        gemm::pack(from, wide, 1, two, hidden, to);
        gemm::pack(from + two * wide, wide, 1, hidden, hidden, to + gemm::packed_size(two, hidden));
      } else {
        gemm::pack(from, wide, 1, columns, hidden, to);
      }
    }
    z_.for_groups([&](int64_t d, int64_t begin, int64_t end, int64_t) {
      const float* packed = Space::at(w, packed_) + d * packed_size();
      const int64_t m = end - begin, first = (d * z_.batch + begin) * hidden;
      float *gh = l.gh + first, *step_gh = Space::at(w, gh_) + first;
      for (int64_t k = z_.steps; k-- > 0;) {
        const int64_t t = z_.at(d, k), at = ((d * z_.steps + k) * z_.batch + begin) * hidden;
        float* g = gradients(d, w) + (t * z_.batch + begin) * columns;
        for (int64_t i = 0; i < m; ++i) {
          const float* out = l.g + (t * z_.batch + begin + i) * z_.width() + d * hidden;
          const float* y = l.y + (out - l.g);
          const float* before =
              k ? l.y + (z_.at(d, k - 1) * z_.batch + begin + i) * z_.width() + d * hidden
                : l.h + first + i * hidden;
          float *gi = g + i * columns, *ghi = gh + i * hidden;
          if (z_.cell == Cell::lstm) {
            const float* c = l.cs + at + i * hidden;
            const float* c_before = k ? c - z_.batch * hidden : l.c + first + i * hidden;
            lstm(out, ghi, l.gc + first + i * hidden, l.saved + 4 * (at + i * hidden), c, c_before,
                 gi);
          } else if (z_.cell == Cell::gru) {
            gru(out, ghi, l.saved + 4 * (at + i * hidden), before, gi);
          } else {
            plain(out, ghi, y, gi);
          }
        }
        if (z_.cell == Cell::gru) {  // gh holds z gh by now
          gemm::multiply(g, columns, 1, packed, gh, hidden, m, hidden, two, true);
          gemm::multiply(g + 3 * hidden, columns, 1, packed + gemm::packed_size(two, hidden), gh,
                         hidden, m, hidden, hidden, true);
        } else {
          gemm::multiply(g, columns, 1, packed, step_gh, hidden, m, hidden, columns, false);
          std::copy(step_gh, step_gh + m * hidden, gh);
        }
      }
    });
  }

  void lstm(const float* __restrict out, const float* __restrict gh, float* __restrict gc,
            const float* __restrict gates, const float* __restrict c,
            const float* __restrict before, float* __restrict g) const {
    const int64_t n = z_.hidden;
#pragma omp simd
    for (int64_t j = 0; j < n; ++j) {
      const float i = gates[j], f = gates[n + j], a = gates[2 * n + j], o = gates[3 * n + j];
      const float tc = fast_tanh(c[j]), gy = gh[j] + out[j];
      const float of_c = gc[j] + gy * o * (1.0f - tc * tc);
      g[j] = of_c * a * i * (1.0f - i);
      g[n + j] = of_c * before[j] * f * (1.0f - f);
      g[2 * n + j] = of_c * i * (1.0f - a * a);
      g[3 * n + j] = gy * tc * o * (1.0f - o);
      gc[j] = of_c * f;
    }
  }

  void gru(const float* __restrict out, float* __restrict gh, const float* __restrict kept,
           const float* __restrict before, float* __restrict g) const {
    const int64_t n = z_.hidden;
#pragma omp simd
    for (int64_t j = 0; j < n; ++j) {
      const float r = kept[j], z = kept[n + j], a = kept[2 * n + j], of_h = kept[3 * n + j];
      const float gy = gh[j] + out[j], gn = gy * (1.0f - z) * (1.0f - a * a);
      g[j] = gn * of_h * r * (1.0f - r);
      g[n + j] = gy * (before[j] - a) * z * (1.0f - z);
      g[2 * n + j] = gn;
      g[3 * n + j] = gn * r;
      gh[j] = gy * z;
    }
  }

  void plain(const float* __restrict out, const float* __restrict gh, const float* __restrict y,
             float* __restrict g) const {
    const bool relu = z_.cell == Cell::relu;
#pragma omp simd
    for (int64_t j = 0; j < z_.hidden; ++j)
      g[j] = (out[j] + gh[j]) * (relu ? (y[j] > 0.0f ? 1.0f : 0.0f) : 1.0f - y[j] * y[j]);
  }

  // Gradients before the gates of one direction: (steps in time, batch, rows, hidden).
  float* gradients(int64_t d, void* w) const {
    return Space::at(w, g_) + d * z_.steps * z_.batch * rows_ * z_.hidden;
  }

  void products(const Layer& l, int64_t layer, void* w) const {
    const int64_t hidden = z_.hidden, size = z_.input(layer), wide = size + hidden;
    const size_t kind = layer ? 1 : 0;
    for (int64_t d = 0; d < z_.directions; ++d) {
      const float *g = gradients(d, w), *weight = l.weight + d * z_.weights(layer);
      const bool last = d == z_.directions - 1;
      float* other = Space::at(w, fed_[2]);
      if (d == 0)
        by_x_[kind]->run(g, weight, nullptr, nullptr, last ? l.gx : other, w);
      else
        by_x_added_[kind]->run(g, weight, nullptr, other, l.gx, w);
      if (l.gb) sums_->run(g, l.gb + d * rows_ * hidden, w);

      float* joined = Space::at(w, joined_);
      parallel_for(z_.steps * z_.batch, std::max<int64_t>(1, 16384 / wide),
                   [&](int64_t begin, int64_t end) {
                     for (int64_t r = begin; r < end; ++r) join(l, d, size, r, joined + r * wide);
                   });
      float* gw = l.gw + d * z_.weights(layer);
      if (z_.cell != Cell::gru) {
        by_w_[kind]->run(g, joined, nullptr, nullptr, gw, w);
        continue;
      }
      float* four = Space::at(w, gw_);  // rows of r, z, of n beside x and of n beside h
      by_w_[kind]->run(g, joined, nullptr, nullptr, four, w);
      std::copy(four, four + 3 * hidden * wide, gw);
      for (int64_t i = 0; i < hidden; ++i) {
        const float* from = four + (3 * hidden + i) * wide + size;
        std::copy(from, from + hidden, gw + (2 * hidden + i) * wide + size);
      }
    }
  }

  // The row [x_t, state before t] of sample r % batch at time r / batch.
  void join(const Layer& l, int64_t d, int64_t size, int64_t r, float* to) const {
    const int64_t t = r / z_.batch, i = r % z_.batch, earlier = d ? t + 1 : t - 1;
    std::copy(l.x + r * size, l.x + (r + 1) * size, to);
    const float* h = earlier < 0 || earlier == z_.steps
                         ? l.h + (d * z_.batch + i) * z_.hidden
                         : l.y + (earlier * z_.batch + i) * z_.width() + d * z_.hidden;
    std::copy(h, h + z_.hidden, to + size);
  }

  Sizes z_;
  bool drops_;
  float scale_;
  size_t dropped_ = 0;
  int64_t rows_;
  bool has_bias_;
  Space space_;
  std::vector<Reader> in_;
  std::vector<Writer> out_;
  std::vector<std::unique_ptr<Product>> by_x_, by_x_added_, by_w_;
  std::unique_ptr<ColumnSums> sums_;
  size_t g_, joined_, packed_, gh_, fed_[3], gw_ = 0;
};

std::unique_ptr<Kernel> setup(const Signature& s) {
  if (s.in.size() != MASK + 1 || s.out.size() != 6) return nullptr;
  const std::string& name = s.attributes.text("cell");
  Sizes z{};
  z.cell = name == "lstm"
               ? Cell::lstm
               : (name == "gru" ? Cell::gru : (name == "relu" ? Cell::relu : Cell::tanh));
  z.steps = s.in[X].shape[0], z.batch = s.in[X].shape[1], z.size = s.in[X].shape[2];
  z.layers = s.in[H].shape[0], z.directions = s.in[H].shape[1], z.hidden = s.in[H].shape[3];
  if (z.cell == Cell::lstm && !(s.given(GC_N) && s.given(C) && s.given(CELLS))) return nullptr;
  for (size_t i = 0; i < MASK; ++i)
    if (s.given(i) && (!is_real(s.in[i].dtype) || s.in[i].layout != Layout::plain)) return nullptr;
  for (const Spec& g : s.out)
    if (!is_real(g.dtype) || g.layout != Layout::plain) return nullptr;
  return std::make_unique<RecurrentBackward>(s, z);
}

const Registration registration("recurrent_backward", setup);

}  // namespace
}  // namespace nnl
