// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <map>

#include "update_arithmetic.h"

namespace nnl {
namespace {

double corrected(double rate, int64_t step, double beta1, double beta2) {
  const auto t = static_cast<double>(step);
  return rate * std::sqrt(1.0 - std::pow(beta2, t)) / (1.0 - std::pow(beta1, t));
}

// What the relatives of Adam share: c[0..5] = rate, beta1, 1 - beta1, beta2, 1 - beta2, eps.
class Moments : public Rule {
 public:
  explicit Moments(const Attributes& a)
      : beta1_(a.number("beta1")), beta2_(a.number("beta2")), eps_(a.number("eps")) {}
  int states() const override { return 2; }

 protected:
  Constants with_rate(double rate) const {
    return {narrow(rate),   narrow(beta1_),       narrow(1.0 - beta1_),
            narrow(beta2_), narrow(1.0 - beta2_), narrow(eps_)};
  }
  double beta1_, beta2_, eps_;
};
#define NNL_MOMENTS \
  [[maybe_unused]] const float rate = c[0], b1 = c[1], r1 = c[2], b2 = c[3], r2 = c[4], eps = c[5]

class Adam : public Moments {
 public:
  explicit Adam(const Attributes& a) : Moments(a), wd_(a.number("wd")), lr0_(a.number("lr0")) {}
  Constants at(int64_t step, double lr) const override {
    Constants c = with_rate(corrected(lr, step, beta1_, beta2_));
    c[6] = narrow(1.0 - scheduled(wd_, lr, lr0_));
    return c;
  }
  void apply(const Constants& c, float* const* p, int64_t n) const override {
    NNL_ARRAY(w, 0);
    NNL_ARRAY(g, 1);
    NNL_ARRAY(m, 2);
    NNL_ARRAY(v, 3);
    NNL_MOMENTS;
    const float keep = c[6];
    NNL_EACH {
      m[i] = m[i] * b1 + g[i] * r1;
      v[i] = v[i] * b2 + g[i] * g[i] * r2;
      w[i] = w[i] * keep - m[i] / (std::sqrt(v[i]) + eps) * rate;
    }
  }

 private:
  double wd_, lr0_;
};

class Adamax : public Moments {
 public:
  explicit Adamax(const Attributes& a) : Moments(a) {}
  Constants at(int64_t step, double lr) const override {
    return with_rate(lr / (1.0 - std::pow(beta1_, static_cast<double>(step))));
  }
  void apply(const Constants& c, float* const* p, int64_t n) const override {
    NNL_ARRAY(w, 0);
    NNL_ARRAY(g, 1);
    NNL_ARRAY(m, 2);
    NNL_ARRAY(u, 3);
    NNL_MOMENTS;
    NNL_EACH {
      m[i] = m[i] * b1 + g[i] * r1;
      u[i] = larger(u[i] * b2, std::fabs(g[i]));
      w[i] -= m[i] / (u[i] + eps) * rate;
    }
  }
};

class AdaBelief : public Moments {
 public:
  explicit AdaBelief(const Attributes& a)
      : Moments(a),
        wd_(a.number("wd")),
        fixed_(a.flag("fixed_decay")),
        rectify_(a.flag("rectify")) {}
  bool has_optional() const override { return true; }
  // c[6]: what decay leaves; c[7]: 1 where the step is rate m, without a denominator; c[8]: eps as
  // the rate wants it, which undoes its root
  Constants at(int64_t step, double lr) const override {
    double rate = corrected(lr, step, beta1_, beta2_), plain = 0.0;
    if (rectify_) {  // arXiv:1908.03265, algorithm 2
      const auto t = static_cast<double>(step);
      const double longest = 2.0 / (1.0 - beta2_) - 1.0, power = std::pow(beta2_, t);
      const double length = longest - 2.0 * t * power / (1.0 - power);
      if (length <= 4.0) {
        rate = lr, plain = 1.0;
      } else {
        rate *= std::sqrt((length - 4.0) * (length - 2.0) * longest /
                          ((longest - 4.0) * (longest - 2.0) * length));
      }
    }
    Constants c = with_rate(rate);
    c[6] = narrow(1.0 - wd_ * (fixed_ ? 1.0 : lr)), c[7] = narrow(plain);
    c[8] = narrow(eps_ * std::sqrt(1.0 - std::pow(beta2_, static_cast<double>(step))));
    return c;
  }
  void apply(const Constants& c, float* const* p, int64_t n) const override {
    NNL_ARRAY(w, 0);
    NNL_ARRAY(g, 1);
    NNL_ARRAY(m, 2);
    NNL_ARRAY(v, 3);
    NNL_ARRAY(most, 4);
    NNL_MOMENTS;
    const float keep = c[6], late = c[8];
    NNL_EACH {
      m[i] = m[i] * b1 + g[i] * r1;
      const float off = g[i] - m[i];
      v[i] = v[i] * b2 + off * off * r2 + eps;
    }
    if (most) NNL_EACH most[i] = larger(most[i], v[i]);
    if (c[7] != 0.0f) {
      NNL_EACH w[i] = w[i] * keep - m[i] * rate;
      return;
    }
    const float* second = most ? most : v;
    NNL_EACH w[i] = w[i] * keep - m[i] / (std::sqrt(second[i]) + late) * rate;
  }

 private:
  double wd_;
  bool fixed_, rectify_;
};

class AmsGrad : public Moments {
 public:
  explicit AmsGrad(const Attributes& a) : Moments(a), correct_(a.flag("bias_correction")) {}
  int states() const override { return 3; }
  Constants at(int64_t step, double lr) const override {
    return with_rate(correct_ ? corrected(lr, step, beta1_, beta2_) : lr);
  }
  void apply(const Constants& c, float* const* p, int64_t n) const override {
    NNL_ARRAY(w, 0);
    NNL_ARRAY(g, 1);
    NNL_ARRAY(m, 2);
    NNL_ARRAY(v, 3);
    NNL_ARRAY(most, 4);
    NNL_MOMENTS;
    NNL_EACH {
      m[i] = m[i] * b1 + g[i] * r1;
      v[i] = v[i] * b2 + g[i] * g[i] * r2;
      most[i] = larger(most[i], v[i]);
      w[i] -= m[i] / (std::sqrt(most[i]) + eps) * rate;
    }
  }

 private:
  bool correct_;
};

// AdaBound, and AMSBound with the largest second moment: rates clipped to c[6], c[7].
class AdaBound : public Moments {
 public:
  AdaBound(const Attributes& a, bool ams)
      : Moments(a),
        final_(a.number("final_lr")),
        gamma_(a.number("gamma")),
        lr0_(a.number("lr0")),
        ams_(ams),
        correct_(!ams || a.flag("bias_correction")) {}
  int states() const override { return ams_ ? 3 : 2; }
  Constants at(int64_t step, double lr) const override {
    const double end = scheduled(final_, lr, lr0_), t = static_cast<double>(step);
    Constants c = with_rate(correct_ ? corrected(lr, step, beta1_, beta2_) : lr);
    c[6] = narrow(end * (1.0 - 1.0 / (gamma_ * t + 1.0)));
    c[7] = narrow(end * (1.0 + 1.0 / (gamma_ * t)));
    return c;
  }
  void apply(const Constants& c, float* const* p, int64_t n) const override {
    NNL_ARRAY(w, 0);
    NNL_ARRAY(g, 1);
    NNL_ARRAY(m, 2);
    NNL_ARRAY(v, 3);
    NNL_MOMENTS;
    const float low = c[6], high = c[7];
    float* most = ams_ ? p[4] : nullptr;
    NNL_EACH {
      m[i] = m[i] * b1 + g[i] * r1;
      v[i] = v[i] * b2 + g[i] * g[i] * r2;
    }
    if (most) NNL_EACH most[i] = larger(most[i], v[i]);
    const float* second = most ? most : v;
    NNL_EACH {
      float s = rate / (std::sqrt(second[i]) + eps);
      s = s < low ? low : s;
      s = s > high ? high : s;
      w[i] -= s * m[i];
    }
  }

 private:
  double final_, gamma_, lr0_;
  bool ams_, correct_;
};

// The direction r is computed twice: its norm is needed before the first element moves, and a
// second pass over m and v costs less than memory for r.
class Lamb : public Moments {
 public:
  explicit Lamb(const Attributes& a)
      : Moments(a),
        low_(a.number("gamma_l")),
        high_(a.number("gamma_u")),
        wd_(a.number("wd")),
        correct_(a.flag("bias_correction")) {}
  bool in_two_passes() const override { return true; }
  Constants at(int64_t step, double lr) const override {
    const auto t = static_cast<double>(step);
    Constants c = with_rate(lr);
    c[6] = narrow(correct_ ? 1.0 - std::pow(beta1_, t) : 1.0);
    c[7] = narrow(correct_ ? 1.0 / (1.0 - std::pow(beta2_, t)) : 1.0);
    c[8] = narrow(wd_);
    return c;
  }
  void first_pass(const Constants& c, float* const* p, int64_t n, double* sums) const override {
    NNL_ARRAY(w, 0);
    NNL_ARRAY(g, 1);
    NNL_ARRAY(m, 2);
    NNL_ARRAY(v, 3);
    NNL_MOMENTS;
    const float fix_m = c[6], fix_v = c[7], wd = c[8];
    float ww = 0.0f, rr = 0.0f;
#pragma omp simd reduction(+ : ww, rr)
    for (int64_t i = 0; i < n; ++i) {
      m[i] = m[i] * b1 + g[i] * r1;
      v[i] = v[i] * b2 + g[i] * g[i] * r2;
      const float r = m[i] / ((std::sqrt(v[i] * fix_v) + eps) * fix_m) + w[i] * wd;
      ww += w[i] * w[i], rr += r * r;
    }
    sums[0] += ww, sums[1] += rr;
  }
  void after_first(Constants& c, const double* sums) const override {
    const double length = std::sqrt(sums[1]), size = std::sqrt(sums[0]);
    c[0] = length != 0.0 ? narrow(c[0] * std::min(std::max(size, low_), high_) / length) : 0.0f;
  }
  void apply(const Constants& c, float* const* p, int64_t n) const override {
    NNL_ARRAY(w, 0);
    NNL_ARRAY(m, 2);
    NNL_ARRAY(v, 3);
    NNL_MOMENTS;
    const float fix_m = c[6], fix_v = c[7], wd = c[8];
    if (rate == 0.0f) return;
    NNL_EACH {
      const float r = m[i] / ((std::sqrt(v[i] * fix_v) + eps) * fix_m) + w[i] * wd;
      w[i] -= r * rate;
    }
  }

 private:
  double low_, high_, wd_;
  bool correct_;
};

template <class R>
std::unique_ptr<Rule> make(const Attributes& a) {
  return std::make_unique<R>(a);
}

std::unique_ptr<Rule> ada_bound(const Attributes& a) {
  return std::make_unique<AdaBound>(a, false);
}
std::unique_ptr<Rule> ams_bound(const Attributes& a) { return std::make_unique<AdaBound>(a, true); }

}  // namespace

std::unique_ptr<Rule> moment_rule_of(const std::string& op, const Attributes& attributes) {
  using Make = std::unique_ptr<Rule> (*)(const Attributes&);
  static const std::map<std::string, Make> table = {
      {"adam_update", make<Adam>},           {"adamax_update", make<Adamax>},
      {"adabelief_update", make<AdaBelief>}, {"amsgrad_update", make<AmsGrad>},
      {"adabound_update", ada_bound},        {"amsbound_update", ams_bound},
      {"lamb_update", make<Lamb>},
  };
  auto it = table.find(op);
  return it == table.end() ? nullptr : it->second(attributes);
}

}  // namespace nnl
