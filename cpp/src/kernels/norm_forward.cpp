// SPDX-License-Identifier: Apache-2.0
// Batch, layer, instance, group, tensor normalization and weight standardization.
#include <cmath>
#include <limits>

#include "norm.h"

namespace nnl {
namespace {

struct Settings {
  NormShape shape;
  float eps = 0;
  bool batch_stat = true, relu = false;
  bool moments = false;  // mean and variance are all that is wanted
  double decay = 1;
};

template <int kVectors, bool whole, class P>
NNL_INLINE void add_moments(P x, P next, int64_t stride, int64_t pixels, int64_t n,
                            const float* shift, double* sums, double* squares) {
  Lanes k[kVectors], s[kVectors] = {}, q[kVectors] = {};
  for (int v = 0; v < kVectors; ++v) k[v] = get<whole>(shift + v * kLanes, n);
  for (int64_t p = 0; p < pixels; ++p) {
    const P at = x + p * stride;
    if (whole) ask_for(next + p * kVectors * kLanes, kVectors * kLanes);
    for (int v = 0; v < kVectors; ++v) {
      const Lanes d = get<whole>(at + v * kLanes, n) - k[v];
      s[v] += d;
      q[v] += d * d;
    }
  }
  for (int v = 0; v < kVectors; ++v) {
    add_to(sums + v * kLanes, s[v], n);
    add_to(squares + v * kLanes, q[v], n);
  }
}

template <class P>
struct Arrays {
  P x, y, z;
  bool add, relu;

  template <bool whole>
  NNL_INLINE void finish(int64_t at, int64_t n, Lanes v) const {
    if (add) v += get<whole>(z + at, n);
    put<whole>(y + at, relu ? nnl::relu(v) : v, n);
  }
  NNL_INLINE void ask_for(int64_t at, int64_t n) const {
    nnl::ask_for(x + at, n);
    if (add) nnl::ask_for(z + at, n);
  }
};

template <int kVectors, bool whole, class P>
NNL_INLINE void apply(const Arrays<P>& a, int64_t at, int64_t next, int64_t stride, int64_t pixels,
                      int64_t n, const float* mean, const float* scale, const float* beta) {
  Lanes m[kVectors], s[kVectors], b[kVectors];
  for (int v = 0; v < kVectors; ++v) {
    m[v] = get<whole>(mean + v * kLanes, n);
    s[v] = get<whole>(scale + v * kLanes, n);
    b[v] = get<whole>(beta + v * kLanes, n);
  }
  for (int64_t p = 0; p < pixels; ++p, at += stride, next += kVectors * kLanes) {
    if (whole) a.ask_for(next, kVectors * kLanes);
    for (int v = 0; v < kVectors; ++v) {
      const int64_t o = at + v * kLanes;
      a.template finish<whole>(o, n, (get<whole>(a.x + o, n) - m[v]) * s[v] + b[v]);
    }
  }
}

template <class P>
class Forward : public Kernel {
 public:
  Forward(const Signature& s, Settings settings)
      : set_(std::move(settings)), shape_(set_.shape), in_(s.in), out_(s.out) {
    for (size_t i = 0; i < 6; ++i) given_[i] = s.given(i);
    const int64_t parts = parts_of(shape_.size);
    // Either whole problems (one per place of the outer axis) go to the threads, or pixels.
    outer_parts_ = shape_.by_channel && shape_.outer < parts ? 1 : parts;
    inner_parts_ = outer_parts_ == 1 ? parts : 1;
    if (!shape_.by_channel)
      outer_parts_ = std::min(parts, static_cast<int64_t>(shape_.kept_x.size()));
    Scratch scratch;
    workspace_ = cut(nullptr, scratch);
  }

  size_t workspace() const override { return workspace_; }
  bool may_overwrite(size_t o, size_t i) const override {
    return !set_.moments && o == 0 && (i == 0 || i == 5) && out_[0].dtype == in_[i].dtype;
  }

  void run(const Buffers& b) override {
    Scratch w;
    cut(b.workspace, w);
    const int64_t stats = shape_.stats;
    if (given_[1]) read_floats(b.in[1], in_[1].dtype, w.beta, shape_.params);
    if (given_[2]) read_floats(b.in[2], in_[2].dtype, w.gamma, shape_.params);
    if (!set_.batch_stat) {
      read_floats(b.in[3], in_[3].dtype, w.mean, stats);
      read_floats(b.in[4], in_[4].dtype, w.variance, stats);
    } else {
      std::fill(w.mean, w.mean + stats, 0.0f);
      std::fill(w.variance, w.variance + stats, 0.0f);
    }
    const Arrays<P> a{pointer<P>(b.in[0], in_[0].dtype),
                      set_.moments ? P{} : pointer<P>(b.out[0], out_[0].dtype),
                      given_[5] ? pointer<P>(b.in[5], in_[5].dtype) : P{}, given_[5], set_.relu};
    if (shape_.size && shape_.by_channel) {
      for_parts(outer_parts_, shape_.outer, [&](int64_t part, int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) channels(a, w, part, i);
      });
    } else if (shape_.size) {
      for_parts(outer_parts_, static_cast<int64_t>(shape_.kept_x.size()),
                [&](int64_t, int64_t begin, int64_t end) {
                  for (int64_t i = begin; i < end; ++i) rows(a, w, static_cast<size_t>(i));
                });
    }
    const size_t first = set_.moments ? 0 : 1;
    write_floats(w.mean, b.out[first], out_[first].dtype, stats);
    write_floats(w.variance, b.out[first + 1], out_[first + 1].dtype, stats);
    if (set_.batch_stat && shape_.count && shape_.size) {
      const double n = static_cast<double>(shape_.count);
      const double unbiased = n > 1 ? n / (n - 1) : std::numeric_limits<double>::quiet_NaN();
      update(b, 3, w.mean, 1.0 - set_.decay);
      update(b, 4, w.variance, (1.0 - set_.decay) * unbiased);
    }
  }

 private:
  struct Scratch {
    float *beta, *gamma, *mean, *variance;
    double *mean_sum, *square_sum;         // by statistic
    float *shift, *centre, *scale, *plus;  // by channel, for each outer part
    double* partial;                       // sums and squares by channel, for each part
  };

  size_t cut(void* workspace, Scratch& w) const {
    Pieces pieces(workspace);
    w.beta = pieces.take<float>(shape_.params);
    w.gamma = pieces.take<float>(shape_.params);
    w.mean = pieces.take<float>(shape_.stats);
    w.variance = pieces.take<float>(shape_.stats);
    if (!shape_.by_channel) return pieces.size();
    w.mean_sum = pieces.take<double>(shape_.stats);
    w.square_sum = pieces.take<double>(shape_.stats);
    for (float** p : {&w.shift, &w.centre, &w.scale, &w.plus})
      *p = pieces.take<float>(outer_parts_ * shape_.inner);
    w.partial = pieces.take<double>(outer_parts_ * inner_parts_ * 2 * shape_.inner);
    return pieces.size();
  }

  // A running statistic becomes decay times itself plus `rest` times the batch's.
  void update(const Buffers& b, size_t i, float* batch, double rest) {
    if (!given_[i]) return;
    const auto go = [&](auto* running) {
      using T = std::remove_pointer_t<decltype(running)>;
      for (int64_t s = 0; s < shape_.stats; ++s)
        running[s] = from_float<T>(static_cast<float>(set_.decay) * to_float(running[s]) +
                                   static_cast<float>(rest * static_cast<double>(batch[s])));
    };
    if (in_[i].dtype == DType::f32) go(b.written_input<float>(i));
    if (in_[i].dtype == DType::bf16) go(b.written_input<bf16>(i));
    if (in_[i].dtype == DType::f16) go(b.written_input<f16>(i));
  }

  float inverse(float variance) const { return 1.0f / std::sqrt(variance + set_.eps); }

  // ---- by channel ----

  void channels(const Arrays<P>& a, const Scratch& w, int64_t part, int64_t outer) const {
    const int64_t c = shape_.inner, n = shape_.reduced, base = outer * n * c;
    float* centre = w.centre + part * c;
    float* scale = w.scale + part * c;
    float* plus = w.plus + part * c;
    if (set_.batch_stat) moments(a.x + base, w, part, outer * shape_.outer_stat);
    if (set_.moments) return;
    for (int64_t i = 0; i < c; ++i) {
      const int64_t s = outer * shape_.outer_stat + shape_.stat_of[static_cast<size_t>(i)];
      const int64_t p = outer * shape_.outer_param + shape_.param_of[static_cast<size_t>(i)];
      centre[i] = w.mean[s];
      scale[i] = inverse(w.variance[s]) * (given_[2] ? w.gamma[p] : 1.0f);
      plus[i] = given_[1] ? w.beta[p] : 0.0f;
    }
    for_parts(inner_parts_, n, [&](int64_t, int64_t begin, int64_t end) {
      by_tiles(begin, end, true, [&](int64_t first, int64_t pixels, int64_t next) {
        by_blocks(c, [&](int64_t i, auto vectors, auto whole, int64_t lanes) {
          apply<vectors(), whole()>(a, base + first * c + i, base + next * c + i * pixels, c,
                                    pixels, lanes, centre + i, scale + i, plus + i);
        });
      });
    });
  }

  // Mean and variance of the channels of x. One pass over x, of which first a guess of the mean is
  // subtracted: the average of up to 32 pixels. Then the error of the variance is at most n / 32
  // rounding errors even where one outlier spoils the guess, and next to none otherwise.
  void moments(P x, const Scratch& w, int64_t part, int64_t stat) const {
    const int64_t c = shape_.inner, n = shape_.reduced, samples = std::min<int64_t>(n, 32);
    float* shift = w.shift + part * c;
    std::fill(shift, shift + c, 0.0f);
    by_blocks(c, [&](int64_t i, auto vectors, auto whole, int64_t lanes) {
      for (int v = 0; v < vectors(); ++v) {
        Lanes s = {};
        for (int64_t k = 0; k < samples; ++k)
          s += get<whole()>(x + n * k / samples * c + i + v * kLanes, lanes);
        put<whole()>(shift + i + v * kLanes, s / static_cast<float>(samples), lanes);
      }
    });
    for (int64_t i = 0; i < c; ++i)  // NaN must not reach channels of other pixels' means
      if (!std::isfinite(shift[i])) shift[i] = 0.0f;
    double* partial = w.partial + part * inner_parts_ * 2 * c;
    for_parts(inner_parts_, n, [&](int64_t k, int64_t begin, int64_t end) {
      double *sums = partial + k * 2 * c, *squares = sums + c;
      std::fill(sums, sums + 2 * c, 0.0);
      by_tiles(begin, end, false, [&](int64_t first, int64_t pixels, int64_t next) {
        by_blocks(c, [&](int64_t i, auto vectors, auto whole, int64_t lanes) {
          add_moments<vectors(), whole()>(x + first * c + i, x + (next * c + i * pixels), c, pixels,
                                          lanes, shift + i, sums + i, squares + i);
        });
      });
    });
    for (int64_t k = 1; k < inner_parts_; ++k)
      for (int64_t i = 0; i < 2 * c; ++i) partial[i] += partial[k * 2 * c + i];
    combine(w, shift, partial, stat);
  }

  // Moments of channels (about `shift`) become those of the groups they belong to.
  void combine(const Scratch& w, const float* shift, double* partial, int64_t stat) const {
    const int64_t c = shape_.inner;
    const double n = static_cast<double>(shape_.reduced), all = static_cast<double>(shape_.count);
    const auto of = [&](int64_t i) { return stat + shape_.stat_of[static_cast<size_t>(i)]; };
    for (int64_t i = 0; i < c; ++i) w.mean_sum[of(i)] = w.square_sum[of(i)] = 0.0;
    for (int64_t i = 0; i < c; ++i) {
      const double off = partial[i] / n;
      partial[c + i] -= partial[i] * off;
      partial[i] = static_cast<double>(shift[i]) + off;
      w.mean_sum[of(i)] += partial[i] * (n / all);
    }
    for (int64_t i = 0; i < c; ++i) {
      const double off = partial[i] - w.mean_sum[of(i)];
      w.square_sum[of(i)] += partial[c + i] + n * off * off;
    }
    for (int64_t i = 0; i < c; ++i) {
      const double variance = w.square_sum[of(i)] / all;
      w.mean[of(i)] = static_cast<float>(w.mean_sum[of(i)]);
      w.variance[of(i)] = static_cast<float>(variance < 0.0 ? 0.0 : variance);
    }
  }

  // ---- by row ----

  void rows(const Arrays<P>& a, const Scratch& w, size_t i) const {
    const int64_t base = shape_.kept_x[i], stat = shape_.kept_stat[i], n = shape_.row;
    if (set_.batch_stat) {
      double sum = 0.0, square = 0.0;
      for (int64_t o : shape_.reduced_x)
        row_sums<1>(n, &sum, [&](int64_t k, int64_t lanes, auto whole, Lanes* s) {
          s[0] += get<whole()>(a.x + (base + o + k), lanes);
        });
      const double count = static_cast<double>(shape_.count);
      const float mean = static_cast<float>(sum / count);
      for (int64_t o : shape_.reduced_x)
        row_sums<1>(n, &square, [&](int64_t k, int64_t lanes, auto whole, Lanes* s) {
          const Lanes d = get<whole()>(a.x + (base + o + k), lanes, mean) - mean;
          s[0] += d * d;
        });
      w.mean[stat] = mean;
      w.variance[stat] = static_cast<float>(square / count);
    }
    if (set_.moments) return;
    const float mean = w.mean[stat], scale = inverse(w.variance[stat]);
    for (size_t j = 0; j < shape_.reduced_x.size(); ++j) {
      const int64_t at = base + shape_.reduced_x[j];
      const int64_t p = shape_.kept_param[i] + shape_.reduced_param[j];
      if (shape_.row_param) {
        by_lanes(n, [&](int64_t k, int64_t lanes, auto whole) {
          Lanes v = (get<whole()>(a.x + (at + k), lanes) - mean) * scale;
          if (given_[2]) v *= get<whole()>(w.gamma + p + k, lanes);
          if (given_[1]) v += get<whole()>(w.beta + p + k, lanes);
          a.template finish<whole()>(at + k, lanes, v);
        });
      } else {
        const float by = given_[2] ? scale * w.gamma[p] : scale, plus = given_[1] ? w.beta[p] : 0;
        by_lanes(n, [&](int64_t k, int64_t lanes, auto whole) {
          a.template finish<whole()>(at + k, lanes,
                                     (get<whole()>(a.x + (at + k), lanes) - mean) * by + plus);
        });
      }
    }
  }

  const Settings set_;
  const NormShape& shape_;
  const std::vector<Spec> in_, out_;
  bool given_[6] = {};
  int64_t outer_parts_ = 1, inner_parts_ = 1;
  size_t workspace_ = 0;
};

// The kernel for inputs (x, beta, gamma, mean, variance, z), of which the last may be absent.
std::unique_ptr<Kernel> make(const Signature& s, Settings set, const std::vector<bool>& reduced,
                             int64_t channel = -1, int64_t groups = 0) {
  for (const Spec& o : s.out)
    if (!is_real(o.dtype)) return nullptr;
  const Spec* p = nullptr;
  for (size_t i = 0; i < s.in.size(); ++i)
    if (s.given(i) && !is_real(s.in[i].dtype)) return nullptr;
  for (size_t i : {1, 2}) {
    if (!s.given(i)) continue;
    if (p && !same_order(*p, s.in[i])) return nullptr;
    p = &s.in[i];
  }
  for (size_t i : {3, 4})
    if (s.given(i) && !same_order(s.in[i], s.out[1])) return nullptr;
  const Spec* y = set.moments ? nullptr : &s.out[0];
  const Spec &mean = s.out[y ? 1 : 0], &variance = s.out[y ? 2 : 1];
  if (!same_order(mean, variance) || (y && s.in[0].layout != y->layout)) return nullptr;
  const Spec* z = s.given(5) ? &s.in[5] : nullptr;
  if (z && z->layout != s.in[0].layout) return nullptr;
  set.shape.params = p ? p->size() : 0;
  if (!see(axes_of(s.in[0], mean, p, reduced, channel, groups), set.shape)) return nullptr;
  return with_pointer(common_type({&s.in[0], y, z}), [&](auto type) -> std::unique_ptr<Kernel> {
    return std::make_unique<Forward<decltype(type)>>(s, std::move(set));
  });
}

std::vector<bool> all_but(size_t rank, const std::vector<int64_t>& axes) {
  std::vector<bool> reduced(rank, true);
  for (int64_t a : axes) reduced[static_cast<size_t>(a)] = false;
  return reduced;
}

Settings settings_of(const Signature& s) {
  Settings set;
  set.eps = static_cast<float>(s.attributes.number("eps"));
  return set;
}

template <bool fused>
std::unique_ptr<Kernel> batch(const Signature& s) {
  Settings set = settings_of(s);
  set.batch_stat = s.attributes.flag("batch_stat");
  set.decay = s.attributes.number("decay_rate");
  if (fused) set.relu = s.attributes.text("nonlinearity") == "relu";
  if (!set.batch_stat && !(s.given(3) && s.given(4))) return nullptr;
  return make(s, set, all_but(s.in[0].shape.size(), s.attributes.integers("axes")));
}

std::unique_ptr<Kernel> moments(const Signature& s) {
  Settings set;
  set.moments = true;
  return make(s, set, all_but(s.in[0].shape.size(), s.attributes.integers("axes")));
}

std::unique_ptr<Kernel> layer(const Signature& s) {
  return make(s, settings_of(s),
              all_but(s.in[0].shape.size(), s.attributes.integers("batch_axis")));
}

std::unique_ptr<Kernel> instance(const Signature& s) {
  std::vector<int64_t> kept = s.attributes.integers("batch_axis");
  kept.push_back(s.attributes.integer("channel_axis"));
  return make(s, settings_of(s), all_but(s.in[0].shape.size(), kept));
}

std::unique_ptr<Kernel> group(const Signature& s) {
  const int64_t c = s.attributes.integer("channel_axis");
  std::vector<int64_t> kept{c};
  for (int64_t a : s.attributes.integers("batch_axis")) kept.push_back(a + (a > c));
  return make(s, settings_of(s), all_but(s.in[0].shape.size() + 1, kept), c,
              s.attributes.integer("num_groups"));
}

std::unique_ptr<Kernel> tensor(const Signature& s) {
  return make(s, settings_of(s), all_but(s.in[0].shape.size(), s.attributes.integers("axes")));
}

std::unique_ptr<Kernel> weights(const Signature& s) {
  return make(s, settings_of(s),
              all_but(s.in[0].shape.size(), {s.attributes.integer("channel_axis")}));
}

const Registration registrations[] = {
    {"batch_normalization", batch<false>},
    {"batch_normalization_with_statistics", batch<false>},
    {"fused_batch_normalization", batch<true>, Abilities().append({"add2", "relu"})},
    {"fused_batch_normalization_with_statistics", batch<true>},
    {"batch_moments", moments},
    {"layer_normalization", layer},
    {"layer_normalization_with_statistics", layer},
    {"instance_normalization", instance},
    {"instance_normalization_with_statistics", instance},
    {"group_normalization", group},
    {"group_normalization_with_statistics", group},
    {"tensor_normalization", tensor},
    {"tensor_normalization_with_statistics", tensor},
    {"weight_standardization", weights},
    {"weight_standardization_with_statistics", weights},
};

}  // namespace
}  // namespace nnl
