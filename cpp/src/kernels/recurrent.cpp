// SPDX-License-Identifier: Apache-2.0
// rnn, lstm and gru: the products with x for all steps at once, then one loop over the steps with
// the product with the state and the gates after it. Where the result is bfloat16, so are the
// factors of products and what is kept. Dropout between layers draws its numbers for
// all layers first, as the definition in Python does.
#include "recurrent.h"

#include "../random.h"

namespace nnl {
namespace {
using namespace recurrent;

template <class T>
class Recurrent : public Kernel {
 public:
  // p: probability of dropout between the layers.
  Recurrent(const Signature& s, const Sizes& z, double p)
      : z_(z),
        drops_(p > 0),
        scale_(static_cast<float>(1.0 / (1.0 - p))),
        least_(static_cast<uint32_t>(std::min(p * 0x1p32, 0x1p32 - 1))) {
    if (drops_) dropped_ = space_.floats(z.steps * z.batch * z.width());
    const bool lstm = z.cell == Cell::lstm;
    first_ = z.cell == Cell::lstm ? 3 : 2;  // weight_l0 among the inputs
    outs_ = z.cell == Cell::lstm ? 3 : 2;   // inner among the outputs
    x_ = Reader<T>(s, 0, space_), h_ = Reader<T>(s, 1, space_);
    if (lstm) c_ = Reader<float>(s, 2, space_);
    weight_l0_ = Reader<T>(s, first_, space_), weight_ = Reader<T>(s, first_ + 1, space_);
    bias_ = Reader<float>(s, first_ + 2, space_);
    y_ = Writer<T>(s.out[0], space_), h_n_ = Writer<float>(s.out[1], space_);
    if (lstm) c_n_ = Writer<float>(s.out[2], space_);
    inner_ = Writer<T>(s.out[outs_], space_), saved_ = Writer<T>(s.out[outs_ + 1], space_);
    cells_ = Writer<T>(s.out[outs_ + 2], space_);
    has_bias_ = s.given(first_ + 2);
    const int64_t columns = z.gates() * z.hidden;
    for (int64_t layer = 0; layer < std::min<int64_t>(z.layers, 2); ++layer) {
      const int64_t size = z.input(layer);
      ProductSpec p;
      p.a = Matrices::of(dtype_of<T>, {z.steps * z.batch, size});
      p.b = {dtype_of<T>, {size, columns}, {1, size + z.hidden}, z.weights(layer)};
      p.y = Matrices::of(DType::f32, {z.steps * z.batch, columns});
      p.bias = has_bias_;
      of_x_.push_back(Product::make(p, space_));
    }
    inputs_ = space_.floats(z.directions * z.steps * z.batch * columns);
    // One row is multiplied with weights as they lie: to pack them is as much work as several
    // steps.
    direct_ = std::is_same_v<T, float> && z.batch == 1;
    if (!direct_) of_h_ = StateWeights<T>(z.hidden, columns, z.directions, space_);
    if (z.cell == Cell::gru) state_ = space_.floats(z.directions * z.batch * columns);
  }

  size_t workspace() const override { return space_.size(); }

  void run(const Buffers& b) override {
    void* w = b.workspace;
    const bool lstm = z_.cell == Cell::lstm;
    T *y = y_.place(b.out[0], w), *inner = inner_.place(b.out[outs_], w);
    const T *x = x_.get(b.in[0], w), *h = h_.get(b.in[1], w);
    const T* weight_l0 = weight_l0_.get(b.in[first_], w);
    const T* weight = weight_.get(b.in[first_ + 1], w);
    const float* bias = has_bias_ ? bias_.get(b.in[first_ + 2], w) : nullptr;
    float *h_n = h_n_.place(b.out[1], w), *c_n = lstm ? c_n_.place(b.out[2], w) : nullptr;
    T *saved = saved_.place(b.out[outs_ + 1], w), *cells = cells_.place(b.out[outs_ + 2], w);
    const int64_t n = z_.batch * z_.hidden, out = z_.steps * z_.batch * z_.width();
    load(h, h_n, z_.layers * z_.directions * n);
    if (lstm) load(c_.get(b.in[2], w), c_n, z_.layers * z_.directions * n);
    auto* mask = drops_ ? static_cast<uint8_t*>(b.out[outs_ + 3]) : nullptr;
    if (drops_) draw(b.written_input<uint64_t>(first_ + 3), (z_.layers - 1) * out, mask);
    for (int64_t layer = 0; layer < z_.layers; ++layer) {
      Layer l{};
      const int64_t i = layer * z_.directions;  // of the first direction
      l.x = layer ? inner + (layer - 1) * out : x;
      if (layer && drops_) {
        T* passed = Space::at<T>(w, dropped_);
        pass(l.x, mask + (layer - 1) * out, scale_, passed, out);
        l.x = passed;
      }
      l.weight = layer ? weight + (layer - 1) * z_.directions * z_.weights(1) : weight_l0;
      l.bias = bias ? bias + i * z_.bias_rows() * z_.hidden : nullptr;
      l.h = h + i * n, l.h_n = h_n + i * n;
      l.y = layer == z_.layers - 1 ? y : inner + layer * out;
      l.saved = saved + i * z_.steps * n * z_.saved();
      if (lstm) l.c_n = c_n + i * n, l.cs = cells + i * z_.steps * n;
      run_layer(l, layer, w);
    }
    y_.finish(b.out[0], w), h_n_.finish(b.out[1], w);
    if (lstm) c_n_.finish(b.out[2], w);
    inner_.finish(b.out[outs_], w), saved_.finish(b.out[outs_ + 1], w);
    cells_.finish(b.out[outs_ + 2], w);
  }

 private:
  // One layer: each pointer at the part of the first direction. h_n and c_n begin as the first
  // states and go along with the steps.
  struct Layer {
    const T *x, *weight;
    const float* bias;
    const T* h;
    T* y;
    float *h_n, *c_n;
    T *saved, *cs;
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
    const int64_t size = z_.input(layer), hidden = z_.hidden;
    for (int64_t d = 0; d < z_.directions; ++d) {
      const T* weight = l.weight + d * z_.weights(layer);
      const float* bias = l.bias ? l.bias + d * z_.bias_rows() * hidden : nullptr;
      of_x_[layer ? 1 : 0]->run(l.x, weight, bias, nullptr, inputs(l, d, w), w);
      if (!direct_) of_h_.pack(weight + size, 1, size + hidden, d, w);
    }
    z_.for_groups([&](int64_t d, int64_t begin, int64_t end, int64_t) {
      const T* h = l.h + (d * z_.batch + begin) * hidden;
      int64_t h_row = hidden;
      for (int64_t k = 0; k < z_.steps; ++k) {
        T* y = l.y + (z_.at(d, k) * z_.batch + begin) * z_.width() + d * hidden;
        step(l, layer, d, k, begin, end - begin, h, h_row, y, w);
        h = y, h_row = z_.width();
      }
    });
  }

  // Where W x + b of all steps goes: where the gates of a forward direction are kept, if it fits.
  float* inputs(const Layer& l, int64_t d, void* w) const {
    if constexpr (std::is_same_v<T, float>)
      if (z_.cell == Cell::lstm && d == 0) return l.saved;
    return Space::at(w, inputs_) + d * z_.steps * z_.batch * z_.gates() * z_.hidden;
  }

  void step(const Layer& l, int64_t layer, int64_t d, int64_t k, int64_t begin, int64_t m,
            const T* h, int64_t h_row, T* y, void* w) const {
    const int64_t hidden = z_.hidden, t = z_.at(d, k), columns = z_.gates() * hidden;
    const int64_t first = (d * z_.batch + begin) * hidden;  // of the states
    const int64_t at = ((d * z_.steps + k) * z_.batch + begin) * hidden;
    float *gates = inputs(l, d, w) + (t * z_.batch + begin) * columns, *h_n = l.h_n + first;
    const T* weight = l.weight + d * z_.weights(layer) + z_.input(layer);
    auto times_state = [&](float* to, bool add) {
      if constexpr (std::is_same_v<T, float>)
        if (direct_)
          return times_rows(weight, z_.input(layer) + hidden, h, to, columns, hidden, add);
      of_h_.multiply(h, h_row, d, to, columns, m, add, w);
    };
    if (z_.cell != Cell::gru) times_state(gates, true);
    if (z_.cell == Cell::lstm) {
      for (int64_t i = 0; i < m; ++i)
        lstm(gates + i * columns, l.saved + 4 * (at + i * hidden), l.c_n + first + i * hidden,
             l.cs + at + i * hidden, h_n + i * hidden, y + i * z_.width());
    } else if (z_.cell == Cell::gru) {
      float* state = Space::at(w, state_) + (d * z_.batch + begin) * columns;
      times_state(state, false);
      const float* bias = l.bias ? l.bias + (d * 4 + 3) * hidden : nullptr;
      for (int64_t i = 0; i < m; ++i)
        gru(gates + i * columns, state + i * columns, bias, l.saved + 4 * (at + i * hidden),
            h_n + i * hidden, y + i * z_.width());
    } else {
      activate(z_.cell == Cell::relu ? Curve::relu : Curve::tanh, gates, m * hidden);
      load(gates, h_n, m * hidden);
      for (int64_t i = 0; i < m; ++i) store(gates + i * hidden, y + i * z_.width(), hidden);
    }
  }

  // The gates may lie where they are kept.
  void lstm(const float* gates, T* saved, float* c, T* c_out, float* h, T* y) const {
    const int64_t n = z_.hidden;
    by_lanes(n, [=](int64_t j, int64_t m, auto whole) {
      constexpr bool w = decltype(whole)::value;
      const Lanes i = sigmoid_of(get<w>(gates + j, m));
      const Lanes f = sigmoid_of(get<w>(gates + n + j, m));
      const Lanes g = tanh_of(get<w>(gates + 2 * n + j, m));
      const Lanes o = sigmoid_of(get<w>(gates + 3 * n + j, m));
      const Lanes cell = f * get<w>(c + j, m) + i * g, state = o * tanh_of(cell);
      put<w>(saved + j, i, m), put<w>(saved + n + j, f, m);
      put<w>(saved + 2 * n + j, g, m), put<w>(saved + 3 * n + j, o, m);
      put<w>(c + j, cell, m), put<w>(c_out + j, cell, m);
      put<w>(h + j, state, m), put<w>(y + j, state, m);
    });
  }

  void gru(const float* x, const float* state, const float* bias, T* keep, float* h, T* y) const {
    const int64_t n = z_.hidden;
    by_lanes(n, [=](int64_t j, int64_t m, auto whole) {
      constexpr bool w = decltype(whole)::value;
      const Lanes r = sigmoid_of(get<w>(x + j, m) + get<w>(state + j, m));
      const Lanes z = sigmoid_of(get<w>(x + n + j, m) + get<w>(state + n + j, m));
      Lanes of_h = get<w>(state + 2 * n + j, m);
      if (bias) of_h += get<w>(bias + j, m);
      const Lanes g = tanh_of(get<w>(x + 2 * n + j, m) + r * of_h);
      const Lanes next = g + z * (get<w>(h + j, m) - g);
      put<w>(keep + j, r, m), put<w>(keep + n + j, z, m);
      put<w>(keep + 2 * n + j, g, m), put<w>(keep + 3 * n + j, of_h, m);
      put<w>(h + j, next, m), put<w>(y + j, next, m);
    });
  }

  Sizes z_;
  bool drops_;
  float scale_;
  uint32_t least_;
  size_t first_, outs_, dropped_ = 0;
  bool has_bias_, direct_;
  Space space_;
  Reader<T> x_, h_, weight_l0_, weight_;
  Reader<float> c_, bias_;
  Writer<T> y_, inner_, saved_, cells_;
  Writer<float> h_n_, c_n_;
  std::vector<std::unique_ptr<Product>> of_x_;
  StateWeights<T> of_h_;
  size_t inputs_, state_ = 0;
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
  const double p = drops ? a.number("dropout") : 0.0;
  if (s.out[0].dtype == DType::bf16) return std::make_unique<Recurrent<bf16>>(s, z, p);
  return std::make_unique<Recurrent<float>>(s, z, p);
}

std::unique_ptr<Kernel> rnn(const Signature& s) {
  return make(s, s.attributes.text("nonlinearity") == "relu" ? Cell::relu : Cell::tanh);
}

const Registration r0("rnn", rnn);
const Registration r1("lstm", [](const Signature& s) { return make(s, Cell::lstm); });
const Registration r2("gru", [](const Signature& s) { return make(s, Cell::gru); });

}  // namespace
}  // namespace nnl
