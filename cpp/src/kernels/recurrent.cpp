// SPDX-License-Identifier: Apache-2.0
// rnn, lstm and gru: the products with x for all steps at once, then one loop over the steps with
// the product with the state and the gates behind it. Dropout between layers draws its numbers for
// all layers first, as the definition in Python does.
#include "recurrent.h"

#include "../random.h"

namespace nnl {
namespace {
using namespace recurrent;

class Recurrent : public Kernel {
 public:
  // p: probability of dropout between the layers.
  Recurrent(const Signature& s, const Sizes& z, double p)
      : z_(z),
        drops_(p > 0),
        scale_(static_cast<float>(1.0 / (1.0 - p))),
        least_(static_cast<uint32_t>(std::min(p * 0x1p32, 0x1p32 - 1))) {
    if (drops_) dropped_ = space_.floats(z.steps * z.batch * z.width());
    first_ = z.cell == Cell::lstm ? 3 : 2;  // weight_l0 among the inputs
    outs_ = z.cell == Cell::lstm ? 3 : 2;   // inner among the outputs
    for (size_t i = 0; i < first_ + 3; ++i)
      in_.push_back(s.given(i) ? Reader(s.in[i], space_) : Reader());
    for (const Spec& y : s.out) out_.push_back(Writer(y, space_));
    places_.resize(out_.size());
    has_bias_ = s.given(first_ + 2);
    const int64_t columns = z.gates() * z.hidden;
    for (int64_t layer = 0; layer < std::min<int64_t>(z.layers, 2); ++layer) {
      const int64_t size = z.input(layer);
      ProductSpec p;
      p.a = Matrices::of(DType::f32, {z.steps * z.batch, size});
      p.b = {DType::f32, {size, columns}, {1, size + z.hidden}, z.weights(layer)};
      p.y = Matrices::of(DType::f32, {z.steps * z.batch, columns});
      p.bias = has_bias_;
      of_x_.push_back(Product::make(p, space_));
    }
    inputs_ = space_.floats(z.directions * z.steps * z.batch * columns);
    packed_ = space_.floats(z.directions * gemm::packed_size(z.hidden, columns));
    state_ = space_.floats(z.directions * z.batch * columns);
  }

  size_t workspace() const override { return space_.size(); }

  void run(const Buffers& b) override {
    void* w = b.workspace;
    std::vector<float*>& y = places_;
    for (size_t o = 0; o < out_.size(); ++o) y[o] = out_[o].place(b.out[o], w);
    const float* x = in_[0].get(b.in[0], w);
    const float* h = in_[1].get(b.in[1], w);
    const float* c = z_.cell == Cell::lstm ? in_[2].get(b.in[2], w) : nullptr;
    const float* weight_l0 = in_[first_].get(b.in[first_], w);
    const float* weight = in_[first_ + 1].get(b.in[first_ + 1], w);
    const float* bias = has_bias_ ? in_[first_ + 2].get(b.in[first_ + 2], w) : nullptr;
    const int64_t cells = z_.batch * z_.hidden, out = z_.steps * z_.batch * z_.width();
    auto* mask = drops_ ? static_cast<uint8_t*>(b.out[out_.size()]) : nullptr;
    if (drops_) draw(b.written_input<uint64_t>(first_ + 3), (z_.layers - 1) * out, mask);
    for (int64_t layer = 0; layer < z_.layers; ++layer) {
      Layer l{};
      const int64_t i = layer * z_.directions;  // of the first direction
      l.x = layer ? y[outs_] + (layer - 1) * out : x;
      if (layer && drops_) {
        float* passed = Space::at(w, dropped_);
        pass(l.x, mask + (layer - 1) * out, scale_, passed, out);
        l.x = passed;
      }
      l.weight = layer ? weight + (layer - 1) * z_.directions * z_.weights(1) : weight_l0;
      l.bias = bias ? bias + i * z_.bias_rows() * z_.hidden : nullptr;
      l.h = h + i * cells, l.h_n = y[1] + i * cells;
      l.c = c ? c + i * cells : nullptr, l.c_n = c ? y[2] + i * cells : nullptr;
      l.y = layer == z_.layers - 1 ? y[0] : y[outs_] + layer * out;
      l.saved = y[outs_ + 1] + i * z_.steps * cells * z_.saved();
      l.cs = c ? y[outs_ + 2] + i * z_.steps * cells : nullptr;
      run_layer(l, layer, w);
    }
    for (size_t o = 0; o < out_.size(); ++o) out_[o].finish(b.out[o], w);
  }

 private:
  // One layer: each pointer at the part of the first direction.
  struct Layer {
    const float *x, *weight, *bias, *h, *c;
    float *y, *h_n, *c_n, *saved, *cs;
  };

  void draw(uint64_t* state, int64_t n, uint8_t* mask) const {
    const Philox random = Philox::take(state, (n + 1) / 2);
    parallel_for((n + 7) / 8, 1024, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        uint32_t halves[8];
        random.halves(i, halves);
        for (int64_t k = 0; k < std::min<int64_t>(8, n - 8 * i); ++k)
          mask[8 * i + k] = halves[k] >= least_;
      }
    });
  }

  void run_layer(const Layer& l, int64_t layer, void* w) {
    const int64_t size = z_.input(layer), hidden = z_.hidden, columns = z_.gates() * hidden;
    float* packed = Space::at(w, packed_);
    for (int64_t d = 0; d < z_.directions; ++d) {
      const float* weight = l.weight + d * z_.weights(layer);
      const float* bias = l.bias ? l.bias + d * z_.bias_rows() * hidden : nullptr;
      of_x_[layer ? 1 : 0]->run(l.x, weight, bias, nullptr, inputs(l, d, w), w);
      gemm::pack(weight + size, 1, size + hidden, hidden, columns,
                 packed + d * gemm::packed_size(hidden, columns));
    }
    z_.for_groups([&](int64_t d, int64_t begin, int64_t end, int64_t) {
      const float* wh = packed + d * gemm::packed_size(hidden, columns);
      const float* h = l.h + (d * z_.batch + begin) * hidden;
      int64_t h_row = hidden;
      for (int64_t k = 0; k < z_.steps; ++k) {
        const int64_t t = z_.at(d, k);
        float* y = l.y + (t * z_.batch + begin) * z_.width() + d * hidden;
        step(l, d, k, begin, end - begin, h, h_row, wh, y, w);
        h = y, h_row = z_.width();
      }
      for (int64_t i = begin; i < end; ++i)
        std::memcpy(l.h_n + (d * z_.batch + i) * hidden, h + (i - begin) * h_row,
                    static_cast<size_t>(hidden) * sizeof(float));
      if (z_.cell != Cell::lstm) return;
      const int64_t at = d * z_.batch * hidden, last = at * z_.steps;
      const float* c = z_.steps ? l.cs + last + (z_.steps - 1) * z_.batch * hidden : l.c + at;
      std::copy(c + begin * hidden, c + end * hidden, l.c_n + at + begin * hidden);
    });
  }

  // Where W x + b of all steps goes: the gates of a forward direction are computed in their place.
  float* inputs(const Layer& l, int64_t d, void* w) const {
    if (z_.cell == Cell::lstm && d == 0) return l.saved;
    return Space::at(w, inputs_) + d * z_.steps * z_.batch * z_.gates() * z_.hidden;
  }

  void step(const Layer& l, int64_t d, int64_t k, int64_t begin, int64_t m, const float* h,
            int64_t h_row, const float* wh, float* y, void* w) const {
    const int64_t hidden = z_.hidden, t = z_.at(d, k), columns = z_.gates() * hidden;
    float* of_x = inputs(l, d, w) + (t * z_.batch + begin) * columns;
    if (z_.cell == Cell::lstm) {
      const int64_t at = ((d * z_.steps + k) * z_.batch + begin) * hidden;
      float* gates = l.saved + 4 * at;
      if (gates != of_x) std::copy(of_x, of_x + m * columns, gates);
      gemm::multiply(h, h_row, 1, wh, gates, columns, m, columns, hidden, true);
      const float* c = k ? l.cs + at - z_.batch * hidden : l.c + (d * z_.batch + begin) * hidden;
      for (int64_t i = 0; i < m; ++i)
        lstm(gates + i * columns, c + i * hidden, l.cs + at + i * hidden, y + i * z_.width());
    } else if (z_.cell == Cell::gru) {
      float* state = Space::at(w, state_) + (d * z_.batch + begin) * columns;
      gemm::multiply(h, h_row, 1, wh, state, columns, m, columns, hidden, false);
      const float* bias = l.bias ? l.bias + (d * 4 + 3) * hidden : nullptr;
      float* keep = l.saved + ((d * z_.steps + k) * z_.batch + begin) * 4 * hidden;
      for (int64_t i = 0; i < m; ++i)
        gru(of_x + i * columns, state + i * columns, bias, h + i * h_row, keep + i * 4 * hidden,
            y + i * z_.width());
    } else {
      gemm::multiply(h, h_row, 1, wh, of_x, columns, m, columns, hidden, true);
      const Activation f = z_.cell == Cell::relu ? Activation::relu : Activation::tanh;
      activate(f, of_x, m * hidden);
      for (int64_t i = 0; i < m; ++i)
        std::copy(of_x + i * hidden, of_x + (i + 1) * hidden, y + i * z_.width());
    }
  }

  void lstm(float* __restrict gates, const float* __restrict c, float* __restrict c_out,
            float* __restrict y) const {
    const int64_t n = z_.hidden;
    float *gi = gates, *gf = gates + n, *gn = gates + 2 * n, *go = gates + 3 * n;
#pragma omp simd
    for (int64_t j = 0; j < n; ++j) {
      const float i = fast_sigmoid(gi[j]), f = fast_sigmoid(gf[j]);
      const float g = fast_tanh(gn[j]), o = fast_sigmoid(go[j]);
      gi[j] = i, gf[j] = f, gn[j] = g, go[j] = o;
      const float cell = f * c[j] + i * g;
      c_out[j] = cell;
      y[j] = o * fast_tanh(cell);
    }
  }

  void gru(const float* __restrict x, const float* __restrict state, const float* __restrict bias,
           const float* __restrict h, float* __restrict keep, float* __restrict y) const {
    const int64_t n = z_.hidden;
#pragma omp simd
    for (int64_t j = 0; j < n; ++j) {
      const float r = fast_sigmoid(x[j] + state[j]), z = fast_sigmoid(x[n + j] + state[n + j]);
      const float of_h = state[2 * n + j] + (bias ? bias[j] : 0.0f);
      const float g = fast_tanh(x[2 * n + j] + r * of_h);
      keep[j] = r, keep[n + j] = z, keep[2 * n + j] = g, keep[3 * n + j] = of_h;
      y[j] = g + z * (h[j] - g);
    }
  }

  Sizes z_;
  bool drops_;
  float scale_;
  uint32_t least_;
  size_t first_, outs_, dropped_ = 0;
  bool has_bias_;
  Space space_;
  std::vector<Reader> in_;
  std::vector<Writer> out_;
  std::vector<float*> places_;
  std::vector<std::unique_ptr<Product>> of_x_;
  size_t inputs_, packed_, state_;
};

std::unique_ptr<Kernel> make(const Signature& s, Cell cell) {
  const Attributes& a = s.attributes;
  const size_t inputs = cell == Cell::lstm ? 6 : 5;
  Sizes z{};
  z.cell = cell;
  z.steps = s.in[0].shape[0], z.batch = s.in[0].shape[1], z.size = s.in[0].shape[2];
  z.layers = a.integer("num_layers"), z.directions = a.flag("bidirectional") ? 2 : 1;
  z.hidden = s.in[1].shape[3];
  const bool drops = a.has("dropout") && a.flag("training") && z.layers > 1;
  for (size_t i = 0; i < inputs; ++i)
    if (s.given(i) && (!is_real(s.in[i].dtype) || s.in[i].layout != Layout::plain)) return nullptr;
  for (size_t o = 0; o + 1 < s.out.size(); ++o)  // the last is the mask of dropout
    if (!is_real(s.out[o].dtype) || s.out[o].layout != Layout::plain) return nullptr;
  Signature without_mask = s;
  without_mask.out.pop_back();
  return std::make_unique<Recurrent>(without_mask, z, drops ? a.number("dropout") : 0.0);
}

std::unique_ptr<Kernel> rnn(const Signature& s) {
  return make(s, s.attributes.text("nonlinearity") == "relu" ? Cell::relu : Cell::tanh);
}

const Registration r0("rnn", rnn);
const Registration r1("lstm", [](const Signature& s) { return make(s, Cell::lstm); });
const Registration r2("gru", [](const Signature& s) { return make(s, Cell::gru); });

}  // namespace
}  // namespace nnl
