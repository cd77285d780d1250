// SPDX-License-Identifier: Apache-2.0
// softmax, log_softmax and their gradients along any axis.
//
// softmax_fused: softmax(scale x + mask) along the last axis.
//   Inputs: x, mask. mask is of a floating type (added), or bool or 8 bits wide (elements where it
//     is 0 get no weight); sizes of 1 stretch, its rank may be lower. It may be left out. A row
//     without any weight becomes NaN, as softmax of nothing but -inf.
//   Attributes: scale.
//   Output: y. It may overwrite x.
// "softmax_fused_backward": the gradient by x: scale y (gy - sum(gy y)).
//   Inputs: gy, y. Attributes: scale. Output: gx, which may overwrite either.
#include <cmath>

#include "line.h"

namespace nnl {
namespace {

// ---- one row of neighbours ----

struct Row {
  float top, total;  // the largest, and the sum of exp(x - top)
};

// Writes exp(x - top) to e; f(i, lanes, whole, rest) gives x.
template <class F>
NNL_INLINE Row exponentials(int64_t n, float* e, F&& f) {
  Lanes top = all(-INFINITY);
  LaneInts nan = {};
  by_lanes(n, [&](int64_t i, int64_t lanes, auto whole) {
    const Lanes v = f(i, lanes, whole);
    put<whole()>(e + i, v, lanes);
    top = larger(v, top);
    nan |= v != v;
  });
  Row row{max_of(top), 0.0f};
  for (int i = 0; i < kLanes; ++i)
    if (nan[i]) row.top = NAN;
  row.total = sum_of(lane_sums(n, [&](int64_t i, int64_t lanes, auto whole) {
    const Lanes v = exp_of(get<whole()>(e + i, lanes, -INFINITY) - row.top);
    put<whole()>(e + i, v, lanes);
    return v;
  }));
  return row;
}

enum class Mask { none, add, keep };

// softmax (or its logarithm) of rows that lie in one piece, with scale and mask.
template <class P, bool logarithm>
class Rows : public Kernel {
 public:
  Rows(const Signature& s, Line line, float scale)
      : in_(s.in), out_(s.out[0]), line_(line), scale_(scale) {
    if (s.given(1)) describe_mask(s.in[1]);
    parts_ = parts_of(4 * s.in[0].size());
    Pieces pieces;
    cut(pieces);
    workspace_ = pieces.size();
  }
  size_t workspace() const override { return workspace_; }
  bool may_overwrite(size_t, size_t i) const override {
    return i == 0 && in_[0].dtype == out_.dtype;
  }

  void run(const Buffers& b) override {
    Pieces pieces(b.workspace);
    float *rows = nullptr, *mask = nullptr;
    std::tie(rows, mask) = cut(pieces);
    const P x = pointer<P>(b.in[0], in_[0].dtype), y = pointer<P>(b.out[0], out_.dtype);
    for_parts(parts_, line_.outer, [&](int64_t part, int64_t begin, int64_t end) {
      float *e = rows + part * padded(), *m = mask + part * padded();
      int64_t loaded = -1;
      for (int64_t r = begin; r < end; ++r) {
        if (mask_ != Mask::none) load_mask(b.in[1], r, m, loaded);
        one(x + r * line_.n, y + r * line_.n, e, m);
      }
    });
  }

 private:
  int64_t padded() const { return (line_.n + 63) / 64 * 64; }
  std::pair<float*, float*> cut(Pieces& pieces) const {
    float* rows = pieces.take<float>(parts_ * padded());
    return {rows, pieces.take<float>(parts_ * padded())};
  }

  void describe_mask(const Spec& m) {
    mask_ = is_real(m.dtype) ? Mask::add : Mask::keep;
    const Shape at = m.strides();
    const size_t rank = in_[0].shape.size(), skip = rank - m.shape.size();
    for (size_t i = 0; i + 1 < rank; ++i) {
      sizes_.push_back(in_[0].shape[i]);
      steps_.push_back(i < skip || m.shape[i - skip] == 1 ? 0 : at[i - skip]);
    }
    mask_n_ = m.shape.empty() ? 1 : m.shape.back();
  }

  // The row of the mask for row r of x, as float32 terms; `loaded` is the one that is there.
  void load_mask(const void* mask, int64_t r, float* m, int64_t& loaded) const {
    int64_t o = 0;
    for (size_t i = sizes_.size(); i-- > 0; r /= sizes_[i]) o += r % sizes_[i] * steps_[i];
    if (o == loaded) return;
    loaded = o;
    if (mask_ == Mask::add) {
      const char* p = static_cast<const char*>(mask);
      read_floats(p + o * static_cast<int64_t>(bytes_of(in_[1].dtype)), in_[1].dtype, m, mask_n_);
    } else {
      const uint8_t* p = static_cast<const uint8_t*>(mask) + o;
      for (int64_t i = 0; i < mask_n_; ++i) m[i] = p[i] ? 0.0f : -INFINITY;
    }
    if (mask_n_ == 1) std::fill(m + 1, m + line_.n, m[0]);
  }

  void one(P x, P y, float* e, const float* m) const {
    const int64_t n = line_.n;
    const Row row =
        mask_ == Mask::none
            ? exponentials(n, e,
                           [&](int64_t i, int64_t lanes, auto whole) {
                             return get<whole()>(x + i, lanes, nothing_) * scale_;
                           })
            : exponentials(n, e, [&](int64_t i, int64_t lanes, auto whole) {
                return get<whole()>(x + i, lanes) * scale_ + get<whole()>(m + i, lanes, -INFINITY);
              });
    const float by = 1.0f / row.total, log_total = std::log(row.total);
    by_lanes(n, [&](int64_t i, int64_t lanes, auto whole) {
      if constexpr (logarithm)
        put<whole()>(y + i, get<whole()>(x + i, lanes) - row.top - log_total, lanes);
      else
        put<whole()>(y + i, get<whole()>(e + i, lanes) * by, lanes);
    });
  }

  const std::vector<Spec> in_;
  const Spec out_;
  const Line line_;
  const float scale_;
  const float nothing_ = scale_ < 0 ? INFINITY : -INFINITY;  // -infinity once it is scaled
  Mask mask_ = Mask::none;
  Shape sizes_, steps_;  // the axes before the last: of x, and of the mask in elements
  int64_t mask_n_ = 0, parts_ = 1;
  size_t workspace_ = 0;
};

// ---- an axis that is not the last: 16 neighbours at a time ----

template <class P, bool logarithm>
class Columns : public Kernel {
 public:
  Columns(const Signature& s, Line line) : in_(s.in[0]), out_(s.out[0]), line_(line) {
    parts_ = parts_of(4 * in_.size());
  }
  size_t workspace() const override {
    return static_cast<size_t>(parts_ * line_.n) * sizeof(Lanes);
  }
  bool may_overwrite(size_t, size_t) const override { return in_.dtype == out_.dtype; }

  void run(const Buffers& b) override {
    const P x = pointer<P>(b.in[0], in_.dtype), y = pointer<P>(b.out[0], out_.dtype);
    float* scratch = static_cast<float*>(b.workspace);
    const int64_t per = (line_.inner + kLanes - 1) / kLanes;
    for_parts(parts_, line_.outer * per, [&](int64_t part, int64_t begin, int64_t end) {
      float* e = scratch + part * line_.n * kLanes;
      for (int64_t i = begin; i < end; ++i) {
        const int64_t k = i % per * kLanes, at = i / per * line_.n * line_.inner + k;
        const int64_t lanes = std::min<int64_t>(kLanes, line_.inner - k);
        if (lanes == kLanes)
          one<true>(x + at, y + at, e, lanes);
        else
          one<false>(x + at, y + at, e, lanes);
      }
    });
  }

 private:
  template <bool whole>
  void one(P x, P y, float* e, int64_t lanes) const {
    const int64_t n = line_.n, step = line_.inner;
    Lanes top = all(-INFINITY);
    for (int64_t j = 0; j < n; ++j) {
      const Lanes v = get<whole>(x + j * step, lanes);
      top = v > top ? v : (v != v ? v : top);
      top = top != top ? top : larger(v, top);
    }
    Lanes s[2] = {};
    for (int64_t j = 0; j < n; ++j) {
      const Lanes v = exp_of(get<whole>(x + j * step, lanes) - top);
      store(e + j * kLanes, v);
      s[j & 1] += v;
    }
    const Lanes total = s[0] + s[1], by = 1.0f / total;
    Lanes log_total = {};
    if (logarithm)
      for (int i = 0; i < kLanes; ++i) log_total[i] = std::log(total[i]);
    for (int64_t j = 0; j < n; ++j) {
      const Lanes v =
          logarithm ? get<whole>(x + j * step, lanes) - top - log_total : load(e + j * kLanes) * by;
      put<whole>(y + j * step, v, lanes);
    }
  }

  const Spec in_, out_;
  const Line line_;
  int64_t parts_;
};

// ---- gradients ----

template <class P, bool logarithm>
class Gradient : public Kernel {
 public:
  Gradient(const Signature& s, Line line, float scale)
      : in_(s.in), out_(s.out[0]), line_(line), scale_(scale), parts_(parts_of(2 * out_.size())) {}
  bool may_overwrite(size_t, size_t i) const override { return in_[i].dtype == out_.dtype; }

  void run(const Buffers& b) override {
    const P gy = pointer<P>(b.in[0], in_[0].dtype), y = pointer<P>(b.in[1], in_[1].dtype);
    const P gx = pointer<P>(b.out[0], out_.dtype);
    const int64_t per = line_.inner == 1 ? 1 : (line_.inner + kLanes - 1) / kLanes;
    for_parts(parts_, line_.outer * per, [&](int64_t, int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t k = i % per * kLanes, at = i / per * line_.n * line_.inner + k;
        const int64_t lanes = std::min<int64_t>(kLanes, line_.inner - k);
        if (line_.inner == 1)
          row(gy + at, y + at, gx + at);
        else if (lanes == kLanes)
          column<true>(gy + at, y + at, gx + at, lanes);
        else
          column<false>(gy + at, y + at, gx + at, lanes);
      }
    });
  }

 private:
  NNL_INLINE static Lanes term(Lanes g, Lanes y) { return logarithm ? g : g * y; }
  NNL_INLINE Lanes result(Lanes g, Lanes y, Lanes total) const {
    if constexpr (logarithm) return g - exp_of(y) * total;
    return (g - total) * y * scale_;
  }

  void row(P gy, P y, P gx) const {
    const Lanes total = all(sum_of(lane_sums(line_.n, [&](int64_t i, int64_t lanes, auto whole) {
      return term(get<whole()>(gy + i, lanes), get<whole()>(y + i, lanes));
    })));
    by_lanes(line_.n, [&](int64_t i, int64_t lanes, auto whole) {
      put<whole()>(gx + i, result(get<whole()>(gy + i, lanes), get<whole()>(y + i, lanes), total),
                   lanes);
    });
  }

  template <bool whole>
  void column(P gy, P y, P gx, int64_t lanes) const {
    const int64_t n = line_.n, step = line_.inner;
    Lanes s[2] = {};
    for (int64_t j = 0; j < n; ++j)
      s[j & 1] += term(get<whole>(gy + j * step, lanes), get<whole>(y + j * step, lanes));
    const Lanes total = s[0] + s[1];
    for (int64_t j = 0; j < n; ++j) {
      const Lanes g = get<whole>(gy + j * step, lanes), v = get<whole>(y + j * step, lanes);
      put<whole>(gx + j * step, result(g, v, total), lanes);
    }
  }

  const std::vector<Spec> in_;
  const Spec out_;
  const Line line_;
  const float scale_;
  const int64_t parts_;
};

bool usable(const Signature& s) {
  return is_real(s.in[0].dtype) && is_real(s.out[0].dtype) && s.in[0].layout == s.out[0].layout;
}

template <bool logarithm>
std::unique_ptr<Kernel> forward(const Signature& s) {
  if (!usable(s)) return nullptr;
  const Line line = line_of(s.in[0], s.attributes.integer("axis"));
  return with_pointer(common_type({&s.in[0], &s.out[0]}),
                      [&](auto type) -> std::unique_ptr<Kernel> {
                        using P = decltype(type);
                        if (line.inner == 1)
                          return std::make_unique<Rows<P, logarithm>>(s, line, 1.0f);
                        return std::make_unique<Columns<P, logarithm>>(s, line);
                      });
}

template <bool logarithm>
std::unique_ptr<Kernel> backward_along(const Signature& s, int64_t axis, float scale) {
  if (!usable(s) || !is_real(s.in[1].dtype) || s.in[1].layout != s.in[0].layout) return nullptr;
  const Line line = line_of(s.in[0], axis);
  return with_pointer(
      common_type({&s.in[0], &s.in[1], &s.out[0]}), [&](auto type) -> std::unique_ptr<Kernel> {
        return std::make_unique<Gradient<decltype(type), logarithm>>(s, line, scale);
      });
}

template <bool logarithm>
std::unique_ptr<Kernel> backward(const Signature& s) {
  return backward_along<logarithm>(s, s.attributes.integer("axis"), 1.0f);
}

std::unique_ptr<Kernel> fused(const Signature& s) {
  if (!usable(s) || s.in[0].layout != Layout::plain) return nullptr;
  const Line line = line_of(s.in[0], -1);
  if (s.given(1)) {
    const Spec& m = s.in[1];
    if (m.layout != Layout::plain || m.rank() > s.in[0].rank()) return nullptr;
    if (!is_real(m.dtype) && bytes_of(m.dtype) != 1) return nullptr;
  }
  const float scale = static_cast<float>(s.attributes.number("scale"));
  if (scale == 0) return nullptr;  // nothing to scale to -infinity with
  return with_pointer(common_type({&s.in[0], &s.out[0]}),
                      [&](auto type) -> std::unique_ptr<Kernel> {
                        return std::make_unique<Rows<decltype(type), false>>(s, line, scale);
                      });
}

std::unique_ptr<Kernel> fused_backward(const Signature& s) {
  return backward_along<false>(s, -1, static_cast<float>(s.attributes.number("scale")));
}

const Registration registrations[] = {
    {"softmax", forward<false>},
    {"log_softmax", forward<true>},
    {"softmax_backward", backward<false>},
    {"log_softmax_backward", backward<true>},
    {"softmax_fused", fused},
    {"softmax_fused_backward", fused_backward},
};

}  // namespace
}  // namespace nnl
