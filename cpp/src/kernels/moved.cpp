// SPDX-License-Identifier: Apache-2.0
// Crops, flips and shifts by random numbers of elements; each sample has draws of its own.
#include <cmath>

#include "../random.h"
#include "line.h"

namespace nnl {
namespace {

enum class How { crop, flip, shift };

// Inputs x and the stream; outputs y and, for the gradient, where in x each element comes from.
template <How how>
class Moved : public Kernel {
 public:
  explicit Moved(const Signature& s)
      : x_(s.in[0]), y_(s.out[0]), base_(static_cast<size_t>(s.attributes.integer("base_axis"))) {
    const Attributes& a = s.attributes;
    const size_t rank = x_.shape.size();
    if constexpr (how == How::flip) {
      for (int64_t axis : a.integers("axes")) moves_.push_back({static_cast<size_t>(axis), 1});
    } else if constexpr (how == How::crop) {
      for (size_t i = 0; i < rank; ++i)
        if (y_.shape[i] < x_.shape[i]) moves_.push_back({i, x_.shape[i] - y_.shape[i]});
    } else {
      const std::vector<int64_t>& most = a.integers("shifts");
      for (size_t i = 0; i < most.size(); ++i) {
        const size_t axis = rank - most.size() + i;
        if (most[i] && x_.shape[axis]) moves_.push_back({axis, most[i]});
      }
      border_ = a.text("border_mode");
      outside_ = static_cast<float>(a.number("constant_value"));
    }
    for (Move& m : moves_) {
      m.first = draws_;
      m.lead = std::min(m.axis, base_);
      m.draws = 1;
      for (size_t i = 0; i < m.lead; ++i) m.draws *= x_.shape[i];
      draws_ += m.draws;
    }
  }
  size_t workspace() const override { return static_cast<size_t>(draws_ + 1) * sizeof(int64_t); }

  void run(const Buffers& b) override {
    auto* drawn = static_cast<int64_t*>(b.workspace);
    for (const Move& m : moves_) {
      const Philox stream = Philox::take(b.written_input<uint64_t>(1), m.draws);
      const int64_t low = how == How::shift ? -m.most : 0;
      for (int64_t i = 0; i < m.draws; ++i) {
        uint64_t word;
        stream.words(i, 1, &word);
        drawn[m.first + i] = static_cast<int64_t>(std::floor(
                                 uniform(word) * static_cast<double>(m.most - low + 1))) +
                             low;
      }
    }
    auto* index = b.output<int64_t>(1);
    parallel_for(y_.size(), 1 << 12, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        index[i] = source(i, drawn);
        const float v = index[i] < 0 ? outside_ : float_at(b.in[0], x_.dtype, index[i]);
        set_float(b.out[0], y_.dtype, i, v);
      }
    });
  }

 private:
  struct Move {
    size_t axis;
    int64_t most;  // of what is drawn
    int64_t first = 0, draws = 0;
    size_t lead = 0;
  };

  // Which element of x element i of y is; -1 for none.
  int64_t source(int64_t i, const int64_t* drawn) const {
    int64_t at = 0, step = 1, rest = i;
    bool inside = true;
    for (size_t d = x_.shape.size(); d-- > 0; step *= x_.shape[d]) {
      int64_t p = rest % y_.shape[d];
      rest /= y_.shape[d];
      for (const Move& m : moves_)
        if (m.axis == d) p = moved(p, x_.shape[d], drawn[m.first + sample(rest, d, m.lead)]);
      inside = inside && p >= 0;
      at += p * step;
    }
    return inside ? at : -1;
  }

  // The number of the sample, of which `rest` counts the axes before d.
  int64_t sample(int64_t rest, size_t d, size_t lead) const {
    for (size_t k = d; k-- > lead;) rest /= y_.shape[k];
    return rest;
  }

  int64_t moved(int64_t p, int64_t n, int64_t draw) const {
    if (how == How::crop) return p + draw;
    if (how == How::flip) return draw ? n - 1 - p : p;
    p -= draw;
    if (border_ == "nearest") return std::clamp<int64_t>(p, 0, n - 1);
    if (border_ == "constant") return p < n ? std::max<int64_t>(p, -1) : -1;
    p = (p % (2 * n) + 2 * n) % (2 * n);
    return p < n ? p : 2 * n - 1 - p;
  }

  Spec x_, y_;
  size_t base_;
  std::vector<Move> moves_;
  int64_t draws_ = 0;
  std::string border_;
  float outside_ = 0.0f;
};

template <How how>
std::unique_ptr<Kernel> random_move(const Signature& s) {
  if (!is_real(s.in[0].dtype) || !is_real(s.out[0].dtype) || s.out[1].dtype != DType::i64 ||
      s.in[1].dtype != DType::u64)
    return nullptr;
  for (const Spec* x : {&s.in[0], &s.out[0], &s.out[1]})
    if (x->layout != Layout::plain) return nullptr;
  return std::make_unique<Moved<how>>(s);
}

const Registration registrations[] = {
    {"random_crop", random_move<How::crop>},
    {"random_flip", random_move<How::flip>},
    {"random_shift", random_move<How::shift>},
};

}  // namespace
}  // namespace nnl
