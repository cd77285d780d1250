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

template <class T>
class RecurrentBackward : public Kernel {
 public:
  RecurrentBackward(const Signature& s, const Sizes& z)
      : z_(z),
        drops_(s.in[MASK].size() > 0),
        scale_(static_cast<float>(1.0 / (1.0 - s.attributes.number("dropout")))) {
    if (drops_) dropped_ = values(z.steps * z.batch * z.width());
    for (size_t i = 0; i < MASK; ++i)
      if (carried(i))
        wide_[i] = Reader<float>(s, i, space_);
      else
        in_[i] = Reader<T>(s, i, space_);
    gx_ = Writer<T>(s.out[0], space_);
    for (size_t o = 1; o < 6; ++o) out_[o] = Writer<float>(s.out[o], space_);
    has_bias_ = s.given(BIAS);
    rows_ = z.cell == Cell::gru ? 4 : z.gates();  // of H gradients, before the gates
    const int64_t n = z.steps * z.batch, columns = rows_ * z.hidden;
    for (int64_t layer = 0; layer < std::min<int64_t>(z.layers, 2); ++layer) {
      const int64_t size = z.input(layer), wide = size + z.hidden, gates = z.gates() * z.hidden;
      const bool wanted = layer || s.attributes.flag("need_x");
      ProductSpec p;
      p.a = {dtype_of<T>, {n, gates}, {columns, 1}, n * columns};
      p.b = {dtype_of<T>, {gates, size}, {wide, 1}, z.weights(layer)};
      p.y = Matrices::of(dtype_of<T>, {n, size});
      p.addend_type = dtype_of<T>;
      by_x_.push_back(wanted ? Product::make(p, space_) : nullptr);
      p.addend = true;
      by_x_added_.push_back(wanted && z.directions > 1 ? Product::make(p, space_) : nullptr);
      p.addend = false;
      p.a = Matrices::of(dtype_of<T>, {n, columns}).transposed();
      p.b = Matrices::of(dtype_of<T>, {n, wide});
      p.y = Matrices::of(DType::f32, {columns, wide});
      by_w_.push_back(Product::make(p, space_));
    }
    sums_ = std::make_unique<ColumnSums>(dtype_of<T>, n, columns, DType::f32, space_);
    const int64_t widest = std::max(z.size, z.width());
    g_ = values(z.directions * n * columns);
    joined_ = values(n * (widest + z.hidden));
    const bool gru = z.cell == Cell::gru;  // the row of n is multiplied with a gradient of its own
    by_h_ = StateWeights<T>((gru ? 2 : rows_) * z.hidden, z.hidden, z.directions, space_);
    if (gru) by_n_ = StateWeights<T>(z.hidden, z.hidden, z.directions, space_);
    // gradients of the layer below in two places that take turns, and one for the other direction
    for (size_t& at : fed_) at = values(n * widest);
    if (z.cell == Cell::gru) gw_ = space_.floats(columns * (widest + z.hidden));
  }

  size_t workspace() const override { return space_.size(); }

  void run(const Buffers& b) override {
    const T* in[MASK];
    for (size_t i = 0; i < MASK; ++i)
      if (!carried(i)) in[i] = in_[i].get(b.in[i], b.workspace);
    const float *gh_n = wide_[GH_N].get(b.in[GH_N], b.workspace), *gc_n = nullptr, *c = nullptr;
    if (z_.cell == Cell::lstm)
      gc_n = wide_[GC_N].get(b.in[GC_N], b.workspace), c = wide_[C].get(b.in[C], b.workspace);
    T* gx = gx_.place(b.out[0], b.workspace);
    float* out[6];
    for (size_t o = 1; o < 6; ++o) out[o] = out_[o].place(b.out[o], b.workspace);
    const int64_t cells = z_.batch * z_.hidden, all = z_.steps * z_.batch * z_.width();
    const T* g = in[GY];
    for (int64_t layer = z_.layers; layer-- > 0;) {
      Layer l{};
      const int64_t i = layer * z_.directions;  // of the first direction
      const int64_t w_at = (layer - 1) * z_.directions * z_.weights(1);
      l.g = g;
      l.x = layer ? in[INNER] + (layer - 1) * all : in[X];
      const uint8_t* mask = drops_ && layer ? b.input<uint8_t>(MASK) + (layer - 1) * all : nullptr;
      if (mask) {
        T* passed = Space::at<T>(b.workspace, dropped_);
        pass(l.x, mask, scale_, passed, all);
        l.x = passed;
      }
      l.y = layer == z_.layers - 1 ? in[Y] : in[INNER] + layer * all;
      l.h = in[H] + i * cells;
      l.c = c ? c + i * cells : nullptr;
      l.saved = in[SAVED] + i * z_.steps * cells * z_.saved();
      l.cs = l.c ? in[CELLS] + i * z_.steps * cells : nullptr;
      l.weight = layer ? in[WEIGHT] + w_at : in[WEIGHT_L0];
      l.gw = layer ? out[4] + w_at : out[3];
      l.gb = has_bias_ ? out[5] + i * z_.bias_rows() * z_.hidden : nullptr;
      l.gh = out[1] + i * cells;
      std::copy(gh_n + i * cells, gh_n + (i + z_.directions) * cells, l.gh);
      if (l.c) {
        l.gc = out[2] + i * cells;
        std::copy(gc_n + i * cells, gc_n + (i + z_.directions) * cells, l.gc);
      }
      l.gx = layer ? Space::at<T>(b.workspace, fed_[layer % 2]) : gx;
      through_time(l, layer, b.workspace);
      products(l, layer, b.workspace);
      if (mask) pass(l.gx, mask, scale_, l.gx, all);
      g = l.gx;
    }
    gx_.finish(b.out[0], b.workspace);
    for (size_t o = 1; o < 6; ++o) out_[o].finish(b.out[o], b.workspace);
  }

 private:
  // One layer: each pointer at the part of the first direction. gh and gc begin as the gradients
  // of the last state and end as those of the first.
  struct Layer {
    const T *g, *x, *y, *h, *saved, *cs, *weight;
    const float* c;
    T* gx;
    float *gh, *gc, *gw, *gb;
  };

  static bool carried(size_t i) { return i == GH_N || i == GC_N || i == C; }
  size_t values(int64_t n) { return space_.take(static_cast<size_t>(n) * sizeof(T)); }

  void through_time(const Layer& l, int64_t layer, void* w) const {
    const int64_t hidden = z_.hidden, size = z_.input(layer), wide = size + hidden;
    const int64_t columns = rows_ * hidden, two = 2 * hidden;
    const bool is_gru = z_.cell == Cell::gru;
    for (int64_t d = 0; d < z_.directions; ++d) {
      const T* from = l.weight + d * z_.weights(layer) + size;
      by_h_.pack(from, wide, 1, d, w);
      if (is_gru) by_n_.pack(from + two * wide, wide, 1, d, w);
    }
    z_.for_groups([&](int64_t d, int64_t begin, int64_t end, int64_t) {
      const int64_t m = end - begin, first = (d * z_.batch + begin) * hidden;
      float* gh = l.gh + first;
      for (int64_t k = z_.steps; k-- > 0;) {
        const int64_t t = z_.at(d, k), at = ((d * z_.steps + k) * z_.batch + begin) * hidden;
        T* g = gradients(d, w) + (t * z_.batch + begin) * columns;
        for (int64_t i = 0; i < m; ++i) {
          const T* out = l.g + (t * z_.batch + begin + i) * z_.width() + d * hidden;
          const T* y = l.y + (out - l.g);
          const T* before =
              k ? l.y + (z_.at(d, k - 1) * z_.batch + begin + i) * z_.width() + d * hidden
                : l.h + first + i * hidden;
          T* gi = g + i * columns;
          float* ghi = gh + i * hidden;
          const T* saved = l.saved + 4 * (at + i * hidden);
          if (is_gru) {
            gru(out, ghi, saved, before, gi);
          } else if (z_.cell == Cell::lstm) {
            const T* c = l.cs + at + i * hidden;
            float* gc = l.gc + first + i * hidden;
            if (k)
              lstm(out, ghi, gc, saved, c, c - z_.batch * hidden, gi);
            else
              lstm(out, ghi, gc, saved, c, l.c + first + i * hidden, gi);
          } else {
            plain(out, ghi, y, gi);
          }
        }
        by_h_.multiply(g, columns, d, gh, hidden, m, is_gru, w);  // of gru, gh holds z gh by now
        if (is_gru) by_n_.multiply(g + 3 * hidden, columns, d, gh, hidden, m, true, w);
      }
    });
  }

  template <class C>
  void lstm(const T* __restrict out, const float* __restrict gh, float* __restrict gc,
            const T* __restrict gates, const T* __restrict c, const C* __restrict before,
            T* __restrict g) const {
    const int64_t n = z_.hidden;
#pragma omp simd
    for (int64_t j = 0; j < n; ++j) {
      const float i = to_float(gates[j]), f = to_float(gates[n + j]);
      const float a = to_float(gates[2 * n + j]), o = to_float(gates[3 * n + j]);
      const float tc = fast_tanh(to_float(c[j])), gy = gh[j] + to_float(out[j]);
      const float of_c = gc[j] + gy * o * (1.0f - tc * tc);
      g[j] = from_float<T>(of_c * a * i * (1.0f - i));
      g[n + j] = from_float<T>(of_c * to_float(before[j]) * f * (1.0f - f));
      g[2 * n + j] = from_float<T>(of_c * i * (1.0f - a * a));
      g[3 * n + j] = from_float<T>(gy * tc * o * (1.0f - o));
      gc[j] = of_c * f;
    }
  }

  void gru(const T* __restrict out, float* __restrict gh, const T* __restrict kept,
           const T* __restrict before, T* __restrict g) const {
    const int64_t n = z_.hidden;
#pragma omp simd
    for (int64_t j = 0; j < n; ++j) {
      const float r = to_float(kept[j]), z = to_float(kept[n + j]);
      const float a = to_float(kept[2 * n + j]), of_h = to_float(kept[3 * n + j]);
      const float gy = gh[j] + to_float(out[j]), gn = gy * (1.0f - z) * (1.0f - a * a);
      g[j] = from_float<T>(gn * of_h * r * (1.0f - r));
      g[n + j] = from_float<T>(gy * (to_float(before[j]) - a) * z * (1.0f - z));
      g[2 * n + j] = from_float<T>(gn);
      g[3 * n + j] = from_float<T>(gn * r);
      gh[j] = gy * z;
    }
  }

  void plain(const T* __restrict out, const float* __restrict gh, const T* __restrict y,
             T* __restrict g) const {
    const bool relu = z_.cell == Cell::relu;
#pragma omp simd
    for (int64_t j = 0; j < z_.hidden; ++j) {
      const float state = to_float(y[j]);
      const float slope = relu ? (state > 0.0f ? 1.0f : 0.0f) : 1.0f - state * state;
      g[j] = from_float<T>((to_float(out[j]) + gh[j]) * slope);
    }
  }

  // Gradients before the gates of one direction: (steps in time, batch, rows, hidden).
  T* gradients(int64_t d, void* w) const {
    return Space::at<T>(w, g_) + d * z_.steps * z_.batch * rows_ * z_.hidden;
  }

  void products(const Layer& l, int64_t layer, void* w) const {
    const int64_t hidden = z_.hidden, size = z_.input(layer), wide = size + hidden;
    const size_t kind = layer ? 1 : 0;
    for (int64_t d = 0; d < z_.directions; ++d) {
      const T *g = gradients(d, w), *weight = l.weight + d * z_.weights(layer);
      const bool last = d == z_.directions - 1;
      T* other = Space::at<T>(w, fed_[2]);
      if (d == 0 && by_x_[kind])
        by_x_[kind]->run(g, weight, nullptr, nullptr, last ? l.gx : other, w);
      if (d && by_x_[kind]) by_x_added_[kind]->run(g, weight, nullptr, other, l.gx, w);
      if (l.gb) sums_->run(g, l.gb + d * rows_ * hidden, w);

      T* joined = Space::at<T>(w, joined_);
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
  void join(const Layer& l, int64_t d, int64_t size, int64_t r, T* to) const {
    const int64_t t = r / z_.batch, i = r % z_.batch, earlier = d ? t + 1 : t - 1;
    std::copy(l.x + r * size, l.x + (r + 1) * size, to);
    const T* h = earlier < 0 || earlier == z_.steps
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
  Reader<T> in_[MASK];
  Reader<float> wide_[MASK];
  Writer<T> gx_;
  Writer<float> out_[6];
  StateWeights<T> by_h_, by_n_;
  std::vector<std::unique_ptr<Product>> by_x_, by_x_added_, by_w_;
  std::unique_ptr<ColumnSums> sums_;
  size_t g_, joined_, fed_[3], gw_ = 0;
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
  if (s.in[Y].dtype == DType::bf16) return std::make_unique<RecurrentBackward<bf16>>(s, z);
  return std::make_unique<RecurrentBackward<float>>(s, z);
}

const Registration registration("recurrent_backward", setup);

}  // namespace
}  // namespace nnl
