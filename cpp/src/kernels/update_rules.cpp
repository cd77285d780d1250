// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <map>

#include "update_arithmetic.h"

namespace nnl {
namespace {

class Sgd : public Rule {
 public:
  explicit Sgd(const Attributes&) {}
  int states() const override { return 0; }
  Constants at(int64_t, double lr) const override { return {narrow(lr)}; }
  void apply(const Constants& c, float* const* p, int64_t n) const override {
    NNL_ARRAY(w, 0);
    NNL_ARRAY(g, 1);
    const float rate = c[0];
    NNL_EACH w[i] -= g[i] * rate;
  }
};

class Momentum : public Rule {
 public:
  explicit Momentum(const Attributes& a)
      : mu_(a.number("momentum")), wd_(a.number("wd")), lr0_(a.number("lr0")) {}
  int states() const override { return 1; }
  Constants at(int64_t, double lr) const override {
    return {narrow(lr), narrow(mu_), narrow(1.0 - scheduled(wd_, lr, lr0_))};
  }
  void apply(const Constants& c, float* const* p, int64_t n) const override {
    NNL_ARRAY(w, 0);
    NNL_ARRAY(g, 1);
    NNL_ARRAY(m, 2);
    const float rate = c[0], mu = c[1], keep = c[2];
    NNL_EACH {
      m[i] = m[i] * mu + g[i] * rate;
      w[i] = w[i] * keep - m[i];
    }
  }

 private:
  double mu_, wd_, lr0_;
};

class Nesterov : public Rule {
 public:
  explicit Nesterov(const Attributes& a) : mu_(a.number("momentum")) {}
  int states() const override { return 1; }
  Constants at(int64_t, double lr) const override {
    return {narrow(lr), narrow(mu_), narrow(1.0 + mu_)};
  }
  void apply(const Constants& c, float* const* p, int64_t n) const override {
    NNL_ARRAY(w, 0);
    NNL_ARRAY(g, 1);
    NNL_ARRAY(m, 2);
    const float rate = c[0], mu = c[1], ahead = c[2];
    NNL_EACH {
      const float old = m[i] * mu, now = old - g[i] * rate;
      m[i] = now;
      w[i] = w[i] - old + now * ahead;
    }
  }

 private:
  double mu_;
};

class Lars : public Rule {
 public:
  explicit Lars(const Attributes& a)
      : mu_(a.number("momentum")),
        coefficient_(a.number("coefficient")),
        eps_(a.number("eps")),
        wd_(a.number("wd")) {}
  int states() const override { return 1; }
  bool in_two_passes() const override { return true; }
  Constants at(int64_t, double lr) const override { return {narrow(lr), narrow(mu_), 0.0f}; }
  void first_pass(const Constants&, float* const* p, int64_t n, double* sums) const override {
    NNL_ARRAY(w, 0);
    NNL_ARRAY(g, 1);
    float ww = 0.0f, gg = 0.0f;
#pragma omp simd reduction(+ : ww, gg)
    for (int64_t i = 0; i < n; ++i) ww += w[i] * w[i], gg += g[i] * g[i];
    sums[0] += ww, sums[1] += gg;
  }
  void after_first(Constants& c, const double* sums) const override {
    const double length = std::sqrt(sums[0]);
    double rate = c[0];
    if (length >= eps_) {
      const double slope = std::sqrt(sums[1]) + wd_ * length;
      if (slope != 0.0) rate *= coefficient_ * length / slope;
    }
    c[0] = narrow(rate), c[2] = narrow(rate * wd_);
  }
  void apply(const Constants& c, float* const* p, int64_t n) const override {
    NNL_ARRAY(w, 0);
    NNL_ARRAY(g, 1);
    NNL_ARRAY(v, 2);
    const float rate = c[0], mu = c[1], decay = c[2];
    NNL_EACH {
      v[i] = v[i] * mu + g[i] * rate + w[i] * decay;
      w[i] -= v[i];
    }
  }

 private:
  double mu_, coefficient_, eps_, wd_;
};

class Adagrad : public Rule {
 public:
  explicit Adagrad(const Attributes& a) : eps_(narrow(a.number("eps"))) {}
  int states() const override { return 1; }
  Constants at(int64_t, double lr) const override { return {narrow(lr)}; }
  void apply(const Constants& c, float* const* p, int64_t n) const override {
    NNL_ARRAY(w, 0);
    NNL_ARRAY(g, 1);
    NNL_ARRAY(v, 2);
    const float rate = c[0], eps = eps_;
    NNL_EACH {
      v[i] += g[i] * g[i];
      w[i] -= g[i] / (std::sqrt(v[i]) + eps) * rate;
    }
  }

 private:
  float eps_;
};

class Adadelta : public Rule {
 public:
  explicit Adadelta(const Attributes& a) : decay_(a.number("decay")), eps_(a.number("eps")) {}
  int states() const override { return 2; }
  Constants at(int64_t, double lr) const override {
    return {narrow(lr), narrow(decay_), narrow(1.0 - decay_), narrow(eps_)};
  }
  void apply(const Constants& c, float* const* p, int64_t n) const override {
    NNL_ARRAY(w, 0);
    NNL_ARRAY(g, 1);
    NNL_ARRAY(eg, 2);
    NNL_ARRAY(ed, 3);
    const float rate = c[0], decay = c[1], rest = c[2], eps = c[3];
    NNL_EACH {
      eg[i] = eg[i] * decay + g[i] * g[i] * rest;
      const float delta = std::sqrt((ed[i] + eps) / (eg[i] + eps)) * g[i];
      ed[i] = ed[i] * decay + delta * delta * rest;
      w[i] -= delta * rate;
    }
  }

 private:
  double decay_, eps_;
};

class RmsProp : public Rule {
 public:
  explicit RmsProp(const Attributes& a) : decay_(a.number("decay")), eps_(a.number("eps")) {}
  int states() const override { return 1; }
  Constants at(int64_t, double lr) const override {
    return {narrow(lr), narrow(decay_), narrow(1.0 - decay_), narrow(eps_)};
  }
  void apply(const Constants& c, float* const* p, int64_t n) const override {
    NNL_ARRAY(w, 0);
    NNL_ARRAY(g, 1);
    NNL_ARRAY(v, 2);
    const float rate = c[0], decay = c[1], rest = c[2], eps = c[3];
    NNL_EACH {
      v[i] = v[i] * decay + g[i] * g[i] * rest;
      w[i] -= g[i] / (std::sqrt(v[i]) + eps) * rate;
    }
  }

 private:
  double decay_, eps_;
};

class RmsPropGraves : public Rule {
 public:
  explicit RmsPropGraves(const Attributes& a)
      : decay_(a.number("decay")), mu_(a.number("momentum")), eps_(a.number("eps")) {}
  int states() const override { return 3; }
  Constants at(int64_t, double lr) const override {
    return {narrow(lr), narrow(decay_), narrow(1.0 - decay_), narrow(eps_), narrow(mu_)};
  }
  void apply(const Constants& c, float* const* p, int64_t n) const override {
    NNL_ARRAY(w, 0);
    NNL_ARRAY(x, 1);
    NNL_ARRAY(square, 2);
    NNL_ARRAY(g, 3);
    NNL_ARRAY(d, 4);
    const float rate = c[0], decay = c[1], rest = c[2], eps = c[3], mu = c[4];
    NNL_EACH {
      square[i] = square[i] * decay + x[i] * x[i] * rest;
      g[i] = g[i] * decay + x[i] * rest;
      const float variance = larger(square[i] - g[i] * g[i], 0.0f);
      d[i] = d[i] * mu - x[i] / std::sqrt(variance + eps) * rate;
      w[i] += d[i];
    }
  }

 private:
  double decay_, mu_, eps_;
};

class Lion : public Rule {
 public:
  explicit Lion(const Attributes& a)
      : beta1_(a.number("beta1")), beta2_(a.number("beta2")), wd_(a.number("wd")) {}
  int states() const override { return 1; }
  Constants at(int64_t, double lr) const override {
    return {narrow(lr),     narrow(beta1_),       narrow(1.0 - beta1_),
            narrow(beta2_), narrow(1.0 - beta2_), narrow(1.0 - lr * wd_)};
  }
  void apply(const Constants& c, float* const* p, int64_t n) const override {
    NNL_ARRAY(w, 0);
    NNL_ARRAY(g, 1);
    NNL_ARRAY(m, 2);
    const float rate = c[0], b1 = c[1], r1 = c[2], b2 = c[3], r2 = c[4], keep = c[5];
    NNL_EACH {
      const float u = m[i] * b1 + g[i] * r1;
      const float step = u > 0.0f ? rate : (u < 0.0f ? -rate : u * rate);  // NaN stays NaN
      w[i] = w[i] * keep - step;
      m[i] = m[i] * b2 + g[i] * r2;
    }
  }

 private:
  double beta1_, beta2_, wd_;
};

template <class R>
std::unique_ptr<Rule> make(const Attributes& a) {
  return std::make_unique<R>(a);
}

}  // namespace

std::unique_ptr<Rule> rule_of(const std::string& op, const Attributes& attributes) {
  using Make = std::unique_ptr<Rule> (*)(const Attributes&);
  static const std::map<std::string, Make> table = {
      {"sgd_update", make<Sgd>},           {"momentum_update", make<Momentum>},
      {"nesterov_update", make<Nesterov>}, {"lars_update", make<Lars>},
      {"adagrad_update", make<Adagrad>},   {"adadelta_update", make<Adadelta>},
      {"rmsprop_update", make<RmsProp>},   {"rmsprop_graves_update", make<RmsPropGraves>},
      {"lion_update", make<Lion>},
  };
  auto it = table.find(op);
  return it == table.end() ? moment_rule_of(op, attributes) : it->second(attributes);
}

}  // namespace nnl
