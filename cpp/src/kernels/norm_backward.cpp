// SPDX-License-Identifier: Apache-2.0
// Gradients of the normalizations.
//
// batch_normalization_backward_fused: the gradient of fused_batch_normalization.
//   Inputs: gy, gy2, x, y, batch_mean, batch_variance, gamma, beta. gy2 is added to gy (where y has
//     two users); it may be left out, and so may gamma and beta. With relu, the mask is y > 0; if y
//     is left out it is computed again from x, gamma and beta, which is right only without z.
//   Attributes: axes, eps, batch_stat, activation: "identity" or "relu".
//   Outputs: gx, gbeta, ggamma of the shape of batch_mean, and, if there is a fourth, gz: the
//     masked gy + gy2, which is the gradient by z. gz may overwrite gy, gy2 or y; gx may overwrite
//     x, gy or gy2, and y where gz is asked for.
#include <cmath>

#include "norm.h"

namespace nnl {
namespace {

// Positions of the inputs in a signature; -1 for what an op does not have.
struct Places {
  int gy = 0, gy2 = -1, x, y = -1, gmean = -1, gvariance = -1, mean = 4, variance = 5, gamma = 6;
  int beta = -1;
};

struct Settings {
  NormShape shape;
  Places at;
  float eps = 0;
  bool batch_stat = true, relu = false;
  bool sums = false;  // gbeta and ggamma are the only outputs
};

template <class P>
struct Arrays {
  P gy, gy2, x, y, gz, gx;
  bool sum, from_y, from_x, keep;  // which of them are there; whether the mask comes from x

  // What reaches the normalization at `at`. `normalized` is its result there.
  template <bool whole>
  NNL_INLINE Lanes gradient(int64_t at, int64_t n, Lanes normalized) const {
    Lanes g = get<whole>(gy + at, n);
    if (sum) g += get<whole>(gy2 + at, n);
    if (from_y) g = get<whole>(y + at, n) > 0.0f ? g : Lanes{};
    if (from_x) g = normalized > 0.0f ? g : Lanes{};
    return g;
  }
  template <bool whole>
  NNL_INLINE Lanes gradient_again(int64_t at, int64_t n, Lanes normalized) const {
    return keep ? get<whole>(gz + at, n) : gradient<whole>(at, n, normalized);
  }
  NNL_INLINE void ask_for(int64_t at, int64_t n) const {
    nnl::ask_for(x + at, n);
    nnl::ask_for(gy + at, n);
    if (sum) nnl::ask_for(gy2 + at, n);
    if (from_y) nnl::ask_for(y + at, n);
  }
  NNL_INLINE void ask_for_again(int64_t at, int64_t n) const {
    if (!keep) return ask_for(at, n);
    nnl::ask_for(x + at, n);
    nnl::ask_for(gz + at, n);
  }
};

// Vectors of 16 channels each: what the inner loops need of them.
struct Channels {
  const float *mean, *scale, *beta;  // y = (x - mean) scale + beta
  const float *by_g, *by_x, *plus;   // gx = g by_g + (x - mean) by_x + plus
};

template <int kVectors, bool whole>
NNL_INLINE void get_all(Lanes (&v)[kVectors], const float* p, int64_t n) {
  for (int i = 0; i < kVectors; ++i) v[i] = get<whole>(p + i * kLanes, n);
}

template <int kVectors, bool whole, class P>
NNL_INLINE void add_sums(const Arrays<P>& a, int64_t at, int64_t next, int64_t stride,
                         int64_t pixels, int64_t n, const Channels& c, int64_t i, double* sum_g,
                         double* sum_gx) {
  Lanes mean[kVectors], scale[kVectors], beta[kVectors], s[kVectors] = {}, q[kVectors] = {};
  get_all<kVectors, whole>(mean, c.mean + i, n);
  get_all<kVectors, whole>(scale, c.scale + i, n);
  get_all<kVectors, whole>(beta, c.beta + i, n);
  for (int64_t p = 0; p < pixels; ++p, at += stride, next += kVectors * kLanes) {
    if (whole) a.ask_for(next, kVectors * kLanes);
    for (int v = 0; v < kVectors; ++v) {
      const int64_t o = at + v * kLanes;
      const Lanes d = get<whole>(a.x + o, n) - mean[v];
      const Lanes g = a.template gradient<whole>(o, n, d * scale[v] + beta[v]);
      if (a.keep) put<whole>(a.gz + o, g, n);
      s[v] += g;
      q[v] += g * d;
    }
  }
  for (int v = 0; v < kVectors; ++v) {
    add_to(sum_g + i + v * kLanes, s[v], n);
    add_to(sum_gx + i + v * kLanes, q[v], n);
  }
}

template <int kVectors, bool whole, class P>
NNL_INLINE void apply(const Arrays<P>& a, int64_t at, int64_t next, int64_t stride, int64_t pixels,
                      int64_t n, const Channels& c, int64_t i) {
  Lanes mean[kVectors], scale[kVectors], beta[kVectors];
  Lanes by_g[kVectors], by_x[kVectors], plus[kVectors];
  get_all<kVectors, whole>(mean, c.mean + i, n);
  get_all<kVectors, whole>(scale, c.scale + i, n);
  get_all<kVectors, whole>(beta, c.beta + i, n);
  get_all<kVectors, whole>(by_g, c.by_g + i, n);
  get_all<kVectors, whole>(by_x, c.by_x + i, n);
  get_all<kVectors, whole>(plus, c.plus + i, n);
  for (int64_t p = 0; p < pixels; ++p, at += stride, next += kVectors * kLanes) {
    if (whole) a.ask_for_again(next, kVectors * kLanes);
    for (int v = 0; v < kVectors; ++v) {
      const int64_t o = at + v * kLanes;
      const Lanes d = get<whole>(a.x + o, n) - mean[v];
      const Lanes g = a.template gradient_again<whole>(o, n, d * scale[v] + beta[v]);
      put<whole>(a.gx + o, g * by_g[v] + (d * by_x[v] + plus[v]), n);
    }
  }
}

template <class P>
class Backward : public Kernel {
 public:
  Backward(const Signature& s, Settings settings)
      : set_(std::move(settings)), shape_(set_.shape), in_(s.in), given_(s.in_given), out_(s.out) {
    const int64_t parts = parts_of(2 * shape_.size);
    outer_parts_ = shape_.by_channel && shape_.outer < parts ? 1 : parts;
    inner_parts_ = outer_parts_ == 1 ? parts : 1;
    if (!shape_.by_channel)
      outer_parts_ =
          std::max<int64_t>(1, std::min(parts, static_cast<int64_t>(shape_.kept_x.size())));
    Scratch scratch;
    workspace_ = cut(nullptr, scratch);
  }

  size_t workspace() const override { return workspace_; }
  bool may_overwrite(size_t o, size_t i) const override {
    if (set_.sums || i >= in_.size() || out_[o].dtype != in_[i].dtype) return false;
    const int at = static_cast<int>(i);
    const bool gradients = at == set_.at.gy || at == set_.at.gy2, kept = out_.size() > 3;
    if (o == 0) return gradients || at == set_.at.x || (kept && at == set_.at.y);
    return o == 3 && (gradients || at == set_.at.y);
  }

  void run(const Buffers& b) override {
    Scratch w;
    cut(b.workspace, w);
    const Places& at = set_.at;
    const int64_t stats = shape_.stats, params = shape_.params;
    read(b, at.mean, w.mean, stats);
    read(b, at.variance, w.variance, stats);
    read(b, at.gmean, w.gmean, stats);
    read(b, at.gvariance, w.gvariance, stats);
    read(b, at.gamma, w.gamma, params);
    read(b, at.beta, w.beta, params);
    std::fill(w.gparams, w.gparams + outer_parts_ * 2 * params, 0.0);
    const auto array = [&](int i) {
      return given(i) ? pointer<P>(b.in[i], in_[static_cast<size_t>(i)].dtype) : P{};
    };
    const bool keep = out_.size() > 3, from_y = set_.relu && given(at.y);
    const Arrays<P> a{array(at.gy),
                      array(at.gy2),
                      array(at.x),
                      array(at.y),
                      keep ? pointer<P>(b.out[3], out_[3].dtype) : P{},
                      set_.sums ? P{} : pointer<P>(b.out[0], out_[0].dtype),
                      given(at.gy2),
                      from_y,
                      set_.relu && !from_y,
                      keep};
    if (shape_.size) {
      const int64_t n =
          shape_.by_channel ? shape_.outer : static_cast<int64_t>(shape_.kept_x.size());
      for_parts(outer_parts_, n, [&](int64_t part, int64_t begin, int64_t end) {
        if (shape_.by_channel)
          for (int64_t i = begin; i < end; ++i) channels(a, w, part, i);
        else if (shape_.row_param)
          rows_with_parameters(a, w, part, begin, end);
        else
          for (int64_t i = begin; i < end; ++i) rows(a, w, part, static_cast<size_t>(i));
      });
    }
    if (out_.size() < 3 && !set_.sums) return;
    for (int64_t k = 1; k < outer_parts_; ++k)
      for (int64_t i = 0; i < 2 * params; ++i) w.gparams[i] += w.gparams[k * 2 * params + i];
    for (size_t k : {0, 1}) {
      const size_t o = set_.sums ? k : k + 1;
      for (int64_t i = 0; i < params; ++i)
        w.gamma[i] = static_cast<float>(w.gparams[static_cast<int64_t>(k) * params + i]);
      write_floats(w.gamma, b.out[o], out_[o].dtype, params);
    }
  }

 private:
  struct Scratch {
    float *mean, *variance, *gmean, *gvariance, *gamma, *beta;
    double* gparams;         // gbeta, ggamma for each outer part
    double *first, *second;  // by statistic
    float* channel[6];       // see Channels; for each outer part
    double* partial;         // sums by channel, for each part
    float* row_sums;         // gbeta, ggamma of some rows, for each outer part
  };

  size_t cut(void* workspace, Scratch& w) const {
    Pieces pieces(workspace);
    for (float** p : {&w.mean, &w.variance, &w.gmean, &w.gvariance})
      *p = pieces.take<float>(shape_.stats);
    w.gamma = pieces.take<float>(shape_.params);
    w.beta = pieces.take<float>(shape_.params);
    w.gparams = pieces.take<double>(outer_parts_ * 2 * shape_.params);
    if (shape_.by_channel) {
      w.first = pieces.take<double>(shape_.stats);
      w.second = pieces.take<double>(shape_.stats);
      for (float*& p : w.channel) p = pieces.take<float>(outer_parts_ * shape_.inner);
      w.partial = pieces.take<double>(outer_parts_ * inner_parts_ * 2 * shape_.inner);
    } else if (shape_.row_param) {
      w.row_sums = pieces.take<float>(outer_parts_ * 2 * shape_.params);
    }
    return pieces.size();
  }

  bool given(int i) const { return i >= 0 && given_.size() > static_cast<size_t>(i) && given_[i]; }
  void read(const Buffers& b, int i, float* y, int64_t n) const {
    if (given(i))
      read_floats(b.in[i], in_[static_cast<size_t>(i)].dtype, y, n);
    else
      std::fill(y, y + n, i == set_.at.gamma ? 1.0f : 0.0f);
  }
  float gamma(const Scratch& w, int64_t p) const { return shape_.params ? w.gamma[p] : 1.0f; }
  float beta(const Scratch& w, int64_t p) const { return shape_.params ? w.beta[p] : 0.0f; }
  float inverse(const Scratch& w, int64_t s) const {
    return 1.0f / std::sqrt(w.variance[s] + set_.eps);
  }

  // How gx depends on x - mean and on nothing, for one mean; first and second are the sums of what
  // reaches the normalized x, and of its product with x - mean.
  struct Coefficients {
    float by_x, plus;
  };
  Coefficients coefficients(const Scratch& w, int64_t s, double first, double second) const {
    if (!set_.batch_stat) return {0.0f, 0.0f};
    const double n = static_cast<double>(shape_.count), i = static_cast<double>(inverse(w, s));
    const double by_variance = 2.0 * static_cast<double>(w.gvariance[s]) - i * i * i * second;
    return {static_cast<float>(by_variance / n),
            static_cast<float>((static_cast<double>(w.gmean[s]) - i * first) / n)};
  }

  void add_gparams(const Scratch& w, int64_t part, int64_t p, double g, double gx) const {
    if (!shape_.params) return;
    double* sums = w.gparams + part * 2 * shape_.params;
    sums[p] += g;
    sums[shape_.params + p] += gx;
  }

  // ---- by channel ----

  void channels(const Arrays<P>& a, const Scratch& w, int64_t part, int64_t outer) const {
    const int64_t c = shape_.inner, n = shape_.reduced, base = outer * n * c;
    float* at[6];
    for (int i = 0; i < 6; ++i) at[i] = w.channel[i] + part * c;
    const Channels ch{at[0], at[1], at[2], at[3], at[4], at[5]};
    const auto stat = [&](int64_t i) {
      return outer * shape_.outer_stat + shape_.stat_of[static_cast<size_t>(i)];
    };
    const auto param = [&](int64_t i) {
      return outer * shape_.outer_param + shape_.param_of[static_cast<size_t>(i)];
    };
    for (int64_t i = 0; i < c; ++i) {
      at[0][i] = w.mean[stat(i)];
      at[1][i] = inverse(w, stat(i)) * gamma(w, param(i));
      at[2][i] = beta(w, param(i));
    }
    double* partial = w.partial + part * inner_parts_ * 2 * c;
    for_parts(inner_parts_, n, [&](int64_t k, int64_t begin, int64_t end) {
      double* sums = partial + k * 2 * c;
      std::fill(sums, sums + 2 * c, 0.0);
      by_tiles(begin, end, false, [&](int64_t first, int64_t pixels, int64_t next) {
        by_blocks(c, [&](int64_t i, auto vectors, auto whole, int64_t lanes) {
          add_sums<vectors(), whole()>(a, base + first * c + i, base + next * c + i * pixels, c,
                                       pixels, lanes, ch, i, sums, sums + c);
        });
      });
    });
    for (int64_t k = 1; k < inner_parts_; ++k)
      for (int64_t i = 0; i < 2 * c; ++i) partial[i] += partial[k * 2 * c + i];

    for (int64_t i = 0; i < c; ++i) w.first[stat(i)] = w.second[stat(i)] = 0.0;
    for (int64_t i = 0; i < c; ++i) {
      const double by = static_cast<double>(gamma(w, param(i)));
      w.first[stat(i)] += by * partial[i];
      w.second[stat(i)] += by * partial[c + i];
      add_gparams(w, part, param(i), partial[i],
                  partial[c + i] * static_cast<double>(inverse(w, stat(i))));
    }
    if (set_.sums) return;
    for (int64_t i = 0; i < c; ++i) {
      const int64_t s = stat(i);
      const Coefficients k = coefficients(w, s, w.first[s], w.second[s]);
      at[3][i] = at[1][i];
      at[4][i] = k.by_x;
      at[5][i] = k.plus;
    }
    for_parts(inner_parts_, n, [&](int64_t, int64_t begin, int64_t end) {
      by_tiles(begin, end, true, [&](int64_t first, int64_t pixels, int64_t next) {
        by_blocks(c, [&](int64_t i, auto vectors, auto whole, int64_t lanes) {
          apply<vectors(), whole()>(a, base + first * c + i, base + next * c + i * pixels, c,
                                    pixels, lanes, ch, i);
        });
      });
    });
  }

  // ---- by row, gamma and beta the same along it ----

  void rows(const Arrays<P>& a, const Scratch& w, int64_t part, size_t i) const {
    const int64_t base = shape_.kept_x[i], stat = shape_.kept_stat[i], n = shape_.row;
    const float mean = w.mean[stat], inv = inverse(w, stat);
    double first = 0.0, second = 0.0;
    for (size_t j = 0; j < shape_.reduced_x.size(); ++j) {
      const int64_t at = base + shape_.reduced_x[j];
      const int64_t p = shape_.kept_param[i] + shape_.reduced_param[j];
      const float by = inv * gamma(w, p), plus = beta(w, p);
      double sums[2] = {};
      row_sums<2>(n, sums, [&](int64_t k, int64_t lanes, auto whole, Lanes* s) {
        const Lanes d = get<whole()>(a.x + (at + k), lanes, mean) - mean;
        const Lanes g =
            masked<whole()>(a.template gradient<whole()>(at + k, lanes, d * by + plus), lanes);
        if (a.keep) put<whole()>(a.gz + (at + k), g, lanes);
        s[0] += g;
        s[1] += g * d;
      });
      first += static_cast<double>(gamma(w, p)) * sums[0];
      second += static_cast<double>(gamma(w, p)) * sums[1];
      add_gparams(w, part, p, sums[0], sums[1] * static_cast<double>(inv));
    }
    if (set_.sums) return;
    const Coefficients c = coefficients(w, stat, first, second);
    for (size_t j = 0; j < shape_.reduced_x.size(); ++j) {
      const int64_t at = base + shape_.reduced_x[j];
      const int64_t p = shape_.kept_param[i] + shape_.reduced_param[j];
      const float by = inv * gamma(w, p), plus = beta(w, p);
      by_lanes(n, [&](int64_t k, int64_t lanes, auto whole) {
        const Lanes d = get<whole()>(a.x + (at + k), lanes, mean) - mean;
        const Lanes g = a.template gradient_again<whole()>(at + k, lanes, d * by + plus);
        put<whole()>(a.gx + (at + k), g * by + (d * c.by_x + c.plus), lanes);
      });
    }
  }

  // ---- by row, gamma and beta varying along it: no mask and no gz here ----

  void rows_with_parameters(const Arrays<P>& a, const Scratch& w, int64_t part, int64_t begin,
                            int64_t end) const {
    constexpr int64_t few = 64;  // means whose sums are added in float32
    const int64_t params = shape_.params;
    float *gbeta = w.row_sums + part * 2 * params, *ggamma = gbeta + params;
    double* total = w.gparams + part * 2 * params;
    for (int64_t i = begin; i < end; i += few) {
      std::fill(gbeta, gbeta + 2 * params, 0.0f);
      for (int64_t k = i; k < std::min(i + few, end); ++k)
        row_with_parameters(a, w, static_cast<size_t>(k), gbeta, ggamma);
      for (int64_t p = 0; p < 2 * params; ++p) total[p] += static_cast<double>(gbeta[p]);
    }
  }

  void row_with_parameters(const Arrays<P>& a, const Scratch& w, size_t i, float* gbeta,
                           float* ggamma) const {
    const int64_t base = shape_.kept_x[i], stat = shape_.kept_stat[i], n = shape_.row;
    const float mean = w.mean[stat], inv = inverse(w, stat);
    double sums[2] = {};
    for (size_t j = 0; j < shape_.reduced_x.size(); ++j) {
      const int64_t at = base + shape_.reduced_x[j];
      const int64_t p = shape_.kept_param[i] + shape_.reduced_param[j];
      row_sums<2>(n, sums, [&](int64_t k, int64_t lanes, auto whole, Lanes* s) {
        const Lanes d = get<whole()>(a.x + (at + k), lanes, mean) - mean;
        Lanes g = a.template gradient<whole()>(at + k, lanes, d);
        const int64_t q = p + k;
        put<whole()>(gbeta + q, get<whole()>(gbeta + q, lanes) + g, lanes);
        put<whole()>(ggamma + q, get<whole()>(ggamma + q, lanes) + g * d * inv, lanes);
        g = masked<whole()>(g * get<whole()>(w.gamma + q, lanes), lanes);
        s[0] += g;
        s[1] += g * d;
      });
    }
    const Coefficients c = coefficients(w, stat, sums[0], sums[1]);
    for (size_t j = 0; j < shape_.reduced_x.size(); ++j) {
      const int64_t at = base + shape_.reduced_x[j];
      const int64_t p = shape_.kept_param[i] + shape_.reduced_param[j];
      by_lanes(n, [&](int64_t k, int64_t lanes, auto whole) {
        const Lanes d = get<whole()>(a.x + (at + k), lanes) - mean;
        Lanes g = a.template gradient<whole()>(at + k, lanes, d);
        g *= get<whole()>(w.gamma + p + k, lanes) * inv;
        put<whole()>(a.gx + (at + k), g + (d * c.by_x + c.plus), lanes);
      });
    }
  }

  const Settings set_;
  const NormShape& shape_;
  const std::vector<Spec> in_;
  const std::vector<bool> given_;
  const std::vector<Spec> out_;
  int64_t outer_parts_ = 1, inner_parts_ = 1;
  size_t workspace_ = 0;
};

std::unique_ptr<Kernel> make(const Signature& s, Settings set, const std::vector<bool>& reduced,
                             int64_t channel = -1, int64_t groups = 0) {
  const auto spec = [&](int i) {
    return i >= 0 && s.given(static_cast<size_t>(i)) ? &s.in[static_cast<size_t>(i)] : nullptr;
  };
  const Places& at = set.at;
  const Spec &x = *spec(at.x), &stat = *spec(at.mean);
  for (const Spec& o : s.out)
    if (!is_real(o.dtype)) return nullptr;
  for (size_t i = 0; i < s.in.size(); ++i)
    if (s.given(i) && !is_real(s.in[i].dtype)) return nullptr;
  const Spec* gz = s.out.size() > 3 ? &s.out[3] : nullptr;
  const Spec* gx = set.sums ? nullptr : &s.out[0];
  for (const Spec* a : {spec(at.gy), spec(at.gy2), spec(at.y), gz, gx})
    if (a && a->layout != x.layout) return nullptr;
  for (int i : {at.gmean, at.gvariance, at.variance})
    if (spec(i) && !same_order(*spec(i), stat)) return nullptr;
  const bool gparams = set.sums || s.out.size() > 2;
  const Spec* p = gparams ? &s.out[gx ? 1 : 0] : nullptr;
  for (const Spec* q : {spec(at.gamma), spec(at.beta), gparams ? &s.out[gx ? 2 : 1] : nullptr})
    if (q && p && !same_order(*q, *p)) return nullptr;
  set.shape.params = p ? p->size() : 0;
  Spec folded = stat;
  if (groups) {
    if (stat.layout != Layout::plain) return nullptr;
    folded.shape.insert(folded.shape.begin() + channel + 1, 1);
  }
  if (!see(axes_of(x, folded, p, reduced, channel, groups), set.shape)) return nullptr;
  const DType common = common_type({&x, spec(at.gy), spec(at.gy2), spec(at.y), gz, gx});
  return with_pointer(common, [&](auto type) -> std::unique_ptr<Kernel> {
    return std::make_unique<Backward<decltype(type)>>(s, std::move(set));
  });
}

// Inputs: gy, gmean, gvariance, x, mean, variance, gamma.
std::unique_ptr<Kernel> backward(const Signature& s) {
  Settings set;
  set.at.x = 3;
  set.at.gmean = 1;
  set.at.gvariance = 2;
  set.eps = static_cast<float>(s.attributes.number("eps"));
  if (s.given(6) && s.out.size() < 3) return nullptr;
  std::vector<bool> reduced(s.in[3].shape.size(), false);
  for (int64_t a : s.attributes.integers("axes")) reduced[static_cast<size_t>(a)] = true;
  const int64_t groups = s.attributes.has("groups") ? s.attributes.integer("groups") : 0;
  if (!groups) return make(s, set, reduced);
  const int64_t channel = s.attributes.integer("channel_axis");
  reduced.insert(reduced.begin() + channel + 1, true);
  return make(s, set, reduced, channel, groups);
}

std::unique_ptr<Kernel> batch(const Signature& s) {
  Settings set;
  set.at.gy2 = 1;
  set.at.x = 2;
  set.at.y = 3;
  set.at.beta = 7;
  set.eps = static_cast<float>(s.attributes.number("eps"));
  set.batch_stat = s.attributes.flag("batch_stat");
  set.relu = s.attributes.text("activation") == "relu";
  std::vector<bool> reduced(s.in[2].shape.size(), true);
  for (int64_t a : s.attributes.integers("axes")) reduced[static_cast<size_t>(a)] = false;
  return make(s, set, reduced);
}

// Inputs: gy, x, mean, variance.
std::unique_ptr<Kernel> sums(const Signature& s) {
  Settings set;
  set.sums = true;
  set.at.x = 1;
  set.at.mean = 2;
  set.at.variance = 3;
  set.at.gamma = 4;  // not there
  set.eps = static_cast<float>(s.attributes.number("eps"));
  std::vector<bool> reduced;
  for (int64_t n : s.in[2].shape) reduced.push_back(n == 1);
  return make(s, set, reduced);
}

const Registration registrations[] = {
    {"normalization_backward", backward},
    {"normalization_sums", sums},
    {"batch_normalization_backward_fused", batch},
};

}  // namespace
}  // namespace nnl
