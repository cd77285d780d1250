// SPDX-License-Identifier: Apache-2.0
// Cross entropies of integer labels.
#include <cmath>

#include "line.h"
#include "norm.h"

namespace nnl {
namespace {

constexpr float kTiny = 1.17549435e-38f;  // the smallest probability whose logarithm is taken

// Throws for a label that is too large, before anything is written.
void check_labels(const char* name, const void* target, DType type, int64_t n, int64_t classes) {
  int64_t top = -1;
  for (int64_t i = 0; i < n; ++i) top = std::max(top, integer_at(target, type, i));
  if (n && top >= classes)
    throw ValueError(std::string(name) + ": target has the label " + std::to_string(top) +
                     ", wanted labels in [0, " + std::to_string(classes) +
                     "), or negative ones to be ignored");
}

// Scores of up to 16 lines, side by side or (where the axis is the last) one after another.
template <class P>
struct Lines {
  Line line;

  // f(first line, lines, offset of its first element, whether there are 16)
  template <class F>
  void each(int64_t parts, F&& f) const {
    if (line.inner == 1) {
      for_parts(parts, line.outer, [&](int64_t, int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) f(i, int64_t{1}, i * line.n, std::false_type{});
      });
      return;
    }
    const int64_t per = (line.inner + kLanes - 1) / kLanes;
    for_parts(parts, line.outer * per, [&](int64_t, int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t o = i / per, k = i % per * kLanes;
        const int64_t lanes = std::min<int64_t>(kLanes, line.inner - k);
        const int64_t at = o * line.n * line.inner + k;
        if (lanes == kLanes)
          f(o * line.inner + k, lanes, at, std::true_type{});
        else
          f(o * line.inner + k, lanes, at, std::false_type{});
      }
    });
  }

  // The largest score and the sum of exp(score - largest): in lane 0, or in each lane.
  template <bool whole>
  NNL_INLINE void measure(P x, int64_t lanes, Lanes& top, Lanes& total) const {
    top = all(-INFINITY);
    LaneInts nan = {};
    if (line.inner == 1) {
      by_lanes(line.n, [&](int64_t i, int64_t n, auto full) {
        const Lanes v = get<full()>(x + i, n, -INFINITY);
        top = larger(v, top);
        nan |= v != v;
      });
      top = all(max_of(top));
      for (int i = 0; i < kLanes; ++i)
        if (nan[i]) top = all(NAN);
      total = all(sum_of(lane_sums(line.n, [&](int64_t i, int64_t n, auto full) {
        return exp_of(get<full()>(x + i, n, -INFINITY) - top);
      })));
      return;
    }
    for (int64_t j = 0; j < line.n; ++j) {
      const Lanes v = get<whole>(x + j * line.inner, lanes);
      top = larger(v, top);
      nan |= v != v;
    }
    top = nan ? all(NAN) : top;
    Lanes s[2] = {};
    for (int64_t j = 0; j < line.n; ++j)
      s[j & 1] += exp_of(get<whole>(x + j * line.inner, lanes) - top);
    total = s[0] + s[1];
  }

  // gx = exp(x - top) by, less `weight` at the label; `weight` is 0 for lines without a label.
  template <bool whole>
  NNL_INLINE void slope(P x, P gx, int64_t lanes, Lanes top, Lanes by, Lanes weight,
                        const int64_t* label) const {
    const auto correct = [&](P at, float x_label, int64_t i) {
      const Lanes e = exp_of(all(x_label) - top);
      store_part(at, all(e[i] * by[i] - weight[i]), 1);
    };
    float chosen[kLanes];
    for (int64_t i = 0; i < lanes; ++i)
      chosen[i] = label[i] < 0 ? 0.0f : load_part(x + (label[i] * line.inner + i), 1)[0];
    const Lanes m = top, scale = by;  // never indexed, so that they stay in registers
    if (line.inner == 1)
      by_lanes(line.n, [&](int64_t i, int64_t n, auto full) {
        put<full()>(gx + i, exp_of(get<full()>(x + i, n) - m) * scale, n);
      });
    else
      for (int64_t j = 0; j < line.n; ++j) {
        const int64_t o = j * line.inner;
        put<whole>(gx + o, exp_of(get<whole>(x + o, lanes) - m) * scale, lanes);
      }
    for (int64_t i = 0; i < lanes; ++i)
      if (label[i] >= 0) correct(gx + (label[i] * line.inner + i), chosen[i], i);
  }
};

// Outputs y, largest, total.
template <class P>
class Loss : public Kernel {
 public:
  Loss(const Signature& s, Line line) : in_(s.in), out_(s.out), lines_{line} {
    parts_ = parts_of(4 * in_[0].size());
  }
  void run(const Buffers& b) override {
    const Line& line = lines_.line;
    check_labels("softmax_cross_entropy", b.in[1], in_[1].dtype, in_[1].size(), line.n);
    const P x = pointer<P>(b.in[0], in_[0].dtype);
    lines_.each(parts_, [&](int64_t first, int64_t lanes, int64_t at, auto whole) {
      Lanes top, total;
      lines_.template measure<whole()>(x + at, lanes, top, total);
      for (int64_t i = 0; i < lanes; ++i) {
        const int64_t label = integer_at(b.in[1], in_[1].dtype, first + i);
        float y = 0.0f;
        if (label >= 0)
          y = std::log(total[i]) - (load_part(x + (at + label * line.inner + i), 1)[0] - top[i]);
        set_float(b.out[0], out_[0].dtype, first + i, y);
        set_float(b.out[1], out_[1].dtype, first + i, top[i]);
        set_float(b.out[2], out_[2].dtype, first + i, total[i]);
      }
    });
  }

 private:
  const std::vector<Spec> in_, out_;
  const Lines<P> lines_;
  int64_t parts_;
};

// Inputs gy, x, target, largest, total.
template <class P>
class LossGradient : public Kernel {
 public:
  LossGradient(const Signature& s, Line line) : in_(s.in), out_(s.out[0]), lines_{line} {
    parts_ = parts_of(4 * out_.size());
  }
  bool may_overwrite(size_t, size_t i) const override {
    return i == 1 && in_[1].dtype == out_.dtype;
  }

  void run(const Buffers& b) override {
    check_labels("softmax_cross_entropy_backward", b.in[2], in_[2].dtype, in_[2].size(),
                 lines_.line.n);
    const P x = pointer<P>(b.in[1], in_[1].dtype), gx = pointer<P>(b.out[0], out_.dtype);
    const auto value = [&](size_t i, int64_t k) { return float_at(b.in[i], in_[i].dtype, k); };
    lines_.each(parts_, [&](int64_t first, int64_t lanes, int64_t at, auto whole) {
      Lanes top = {}, by = {}, weight = {};
      int64_t label[kLanes];
      for (int64_t i = 0; i < lanes; ++i) {
        label[i] = integer_at(b.in[2], in_[2].dtype, first + i);
        top[i] = value(3, first + i);
        weight[i] = label[i] < 0 ? 0.0f : value(0, first + i);
        by[i] = weight[i] / value(4, first + i);
      }
      if (lines_.line.inner == 1) top = all(top[0]), by = all(by[0]);
      lines_.template slope<whole()>(x + at, gx + at, lanes, top, by, weight, label);
    });
  }

 private:
  const std::vector<Spec> in_;
  const Spec out_;
  const Lines<P> lines_;
  int64_t parts_;
};

// -log of the probability at the label.
class Categorical : public Kernel {
 public:
  Categorical(const Signature& s, Line line) : in_(s.in), out_(s.out[0]), line_(line) {}
  void run(const Buffers& b) override {
    check_labels("categorical_cross_entropy", b.in[1], in_[1].dtype, in_[1].size(), line_.n);
    for (int64_t k = 0; k < line_.lines(); ++k) {
      const int64_t label = integer_at(b.in[1], in_[1].dtype, k);
      const int64_t at = k / line_.inner * line_.n * line_.inner + k % line_.inner;
      float y = 0.0f;
      if (label >= 0) {
        const float p = float_at(b.in[0], in_[0].dtype, at + label * line_.inner);
        y = -std::log(p < kTiny ? kTiny : p);
      }
      set_float(b.out[0], out_.dtype, k, y);
    }
  }

 private:
  const std::vector<Spec> in_;
  const Spec out_;
  const Line line_;
};

// Whether an array with one element per line has them in the order of the lines.
bool by_line(const Spec& s, const Spec& x) {
  return is_real(s.dtype) && (s.size() == 1 || same_order(s, {s.shape, s.dtype, x.layout}));
}
bool labels(const Spec& s, const Spec& x) {
  return is_integer(s.dtype) && same_order(s, {s.shape, s.dtype, x.layout});
}

std::unique_ptr<Kernel> softmax_loss(const Signature& s) {
  const Spec& x = s.in[0];
  if (!is_real(x.dtype) || !labels(s.in[1], x)) return nullptr;
  if (!x.size() && s.in[1].size()) return nullptr;  // no classes
  for (size_t i : {0, 1, 2})
    if (!by_line(s.out[i], x)) return nullptr;
  const Line line = line_of(x, s.attributes.integer("axis"));
  return with_pointer(common_type({&x}), [&](auto type) -> std::unique_ptr<Kernel> {
    return std::make_unique<Loss<decltype(type)>>(s, line);
  });
}

std::unique_ptr<Kernel> softmax_gradient(const Signature& s) {
  const Spec &x = s.in[1], &gx = s.out[0];
  if (!is_real(x.dtype) || !is_real(gx.dtype) || !labels(s.in[2], x)) return nullptr;
  for (size_t i : {0, 3, 4})
    if (!by_line(s.in[i], x)) return nullptr;
  if (gx.layout != x.layout) return nullptr;
  const Line line = line_of(x, s.attributes.integer("axis"));
  return with_pointer(common_type({&x, &gx}), [&](auto type) -> std::unique_ptr<Kernel> {
    return std::make_unique<LossGradient<decltype(type)>>(s, line);
  });
}

std::unique_ptr<Kernel> categorical(const Signature& s) {
  const Spec& x = s.in[0];
  if (!is_real(x.dtype) || !labels(s.in[1], x) || !by_line(s.out[0], x)) return nullptr;
  if (!x.size() && s.in[1].size()) return nullptr;
  return std::make_unique<Categorical>(s, line_of(x, s.attributes.integer("axis")));
}

const Registration registrations[] = {
    {"softmax_cross_entropy", softmax_loss},
    {"softmax_cross_entropy_backward", softmax_gradient},
    {"categorical_cross_entropy", categorical},
};

}  // namespace
}  // namespace nnl
