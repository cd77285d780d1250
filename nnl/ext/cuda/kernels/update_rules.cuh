// SPDX-License-Identifier: Apache-2.0
// The arithmetic of the solvers' update rules, element by element.
//
// constants: what a rule computes once per parameter and step, from its attributes a (in the order
// of update.py), the step number t, which counts from 1, and the rate. apply: one element; s are
// its states. Rules with norms look at all elements once before, and then may have moved the states.

struct Rule {
  static const bool moved = false;
};

INLINE double scheduled(double value, double rate, double rate0) {
  return value != 0.0 && rate0 != 0.0 ? value * rate / rate0 : value;
}
INLINE double corrected(double rate, double t, double beta1, double beta2) {
  return rate * sqrt(1.0 - pow(beta2, t)) / (1.0 - pow(beta1, t));
}
INLINE float larger(float a, float b) { return b > a || b != b ? b : a; }

#define CONSTANTS static INLINE void constants(const double* a, double t, double lr, float* c)
#define APPLY static INLINE void apply(const float* c, float& w, float g, float* s)

struct sgd_update : Rule {
  CONSTANTS { c[0] = (float)lr; }
  APPLY { w -= g * c[0]; }
};
struct momentum_update : Rule {  // a: momentum, wd, lr0
  CONSTANTS {
    c[0] = (float)lr, c[1] = (float)a[0], c[2] = (float)(1.0 - scheduled(a[1], lr, a[2]));
  }
  APPLY {
    s[0] = s[0] * c[1] + g * c[0];
    w = w * c[2] - s[0];
  }
};
struct nesterov_update : Rule {  // a: momentum
  CONSTANTS { c[0] = (float)lr, c[1] = (float)a[0], c[2] = (float)(1.0 + a[0]); }
  APPLY {
    const float old = s[0] * c[1];
    s[0] = old - g * c[0];
    w = w - old + s[0] * c[2];
  }
};
struct lars_update : Rule {  // a: momentum, coefficient, eps, wd
  CONSTANTS { c[0] = (float)lr, c[1] = (float)a[0], c[2] = 0.0f; }
  static INLINE void first(const float* c, float w, float g, float* s, float& p, float& q) {
    p += w * w, q += g * g;
  }
  static INLINE void after(const double* a, double p, double q, float* c) {
    const double length = sqrt(p);
    double rate = c[0];
    if (length >= a[2]) {
      const double slope = sqrt(q) + a[3] * length;
      if (slope != 0.0) rate *= a[1] * length / slope;
    }
    c[0] = (float)rate, c[2] = (float)(rate * a[3]);
  }
  APPLY {
    s[0] = s[0] * c[1] + g * c[0] + w * c[2];
    w -= s[0];
  }
};
struct adagrad_update : Rule {  // a: eps
  CONSTANTS { c[0] = (float)lr, c[1] = (float)a[0]; }
  APPLY {
    s[0] += g * g;
    w -= g / (sqrtf(s[0]) + c[1]) * c[0];
  }
};
#define DECAYING c[0] = (float)lr, c[1] = (float)a[0], c[2] = (float)(1.0 - a[0]), c[3] = (float)a[1]
struct adadelta_update : Rule {  // a: decay, eps
  CONSTANTS { DECAYING; }
  APPLY {
    s[0] = s[0] * c[1] + g * g * c[2];
    const float delta = sqrtf((s[1] + c[3]) / (s[0] + c[3])) * g;
    s[1] = s[1] * c[1] + delta * delta * c[2];
    w -= delta * c[0];
  }
};
struct rmsprop_update : Rule {  // a: decay, eps
  CONSTANTS { DECAYING; }
  APPLY {
    s[0] = s[0] * c[1] + g * g * c[2];
    w -= g / (sqrtf(s[0]) + c[3]) * c[0];
  }
};
struct rmsprop_graves_update : Rule {  // a: decay, eps, momentum
  CONSTANTS { DECAYING, c[4] = (float)a[2]; }
  APPLY {
    s[0] = s[0] * c[1] + g * g * c[2];
    s[1] = s[1] * c[1] + g * c[2];
    const float variance = larger(s[0] - s[1] * s[1], 0.0f);
    s[2] = s[2] * c[4] - g / sqrtf(variance + c[3]) * c[0];
    w += s[2];
  }
};
struct lion_update : Rule {  // a: beta1, beta2, wd
  CONSTANTS {
    c[0] = (float)lr, c[1] = (float)a[0], c[2] = (float)(1.0 - a[0]), c[3] = (float)a[1];
    c[4] = (float)(1.0 - a[1]), c[5] = (float)(1.0 - lr * a[2]);
  }
  APPLY {
    const float u = s[0] * c[1] + g * c[2];
    const float step = u > 0.0f ? c[0] : (u < 0.0f ? -c[0] : u * c[0]);  // NaN stays NaN
    w = w * c[5] - step;
    s[0] = s[0] * c[3] + g * c[4];
  }
};

// The relatives of Adam: a begins with beta1, beta2, eps.
struct Moments : Rule {
  static INLINE void with_rate(const double* a, double rate, float* c) {
    c[0] = (float)rate, c[1] = (float)a[0], c[2] = (float)(1.0 - a[0]), c[3] = (float)a[1];
    c[4] = (float)(1.0 - a[1]), c[5] = (float)a[2];
  }
  static INLINE void average(const float* c, float g, float* s) {
    s[0] = s[0] * c[1] + g * c[2];
    s[1] = s[1] * c[3] + g * g * c[4];
  }
};
struct adam_update : Moments {  // wd, lr0
  CONSTANTS {
    with_rate(a, corrected(lr, t, a[0], a[1]), c);
    c[6] = (float)(1.0 - scheduled(a[3], lr, a[4]));
  }
  APPLY {
    average(c, g, s);
    w = w * c[6] - s[0] / (sqrtf(s[1]) + c[5]) * c[0];
  }
};
struct adamax_update : Moments {
  CONSTANTS { with_rate(a, lr / (1.0 - pow(a[0], t)), c); }
  APPLY {
    s[0] = s[0] * c[1] + g * c[2];
    s[1] = larger(s[1] * c[3], fabsf(g));
    w -= s[0] / (s[1] + c[5]) * c[0];
  }
};
struct adabelief_update : Moments {  // wd, fixed_decay, rectify; s[2] is the largest s[1] so far
  // c[6]: what decay leaves; c[7]: 1 where the step is rate m, without a denominator; c[8]: eps as
  // the rate wants it, which undoes its root
  CONSTANTS {
    double rate = corrected(lr, t, a[0], a[1]), plain = 0.0;
    if (a[5] != 0.0) {  // arXiv:1908.03265, algorithm 2
      const double longest = 2.0 / (1.0 - a[1]) - 1.0, power = pow(a[1], t);
      const double length = longest - 2.0 * t * power / (1.0 - power);
      if (length <= 4.0)
        rate = lr, plain = 1.0;
      else
        rate *= sqrt((length - 4.0) * (length - 2.0) * longest /
                     ((longest - 4.0) * (longest - 2.0) * length));
    }
    with_rate(a, rate, c);
    c[6] = (float)(1.0 - a[3] * (a[4] != 0.0 ? 1.0 : lr)), c[7] = (float)plain;
    c[8] = (float)(a[2] * sqrt(1.0 - pow(a[1], t)));
  }
  static INLINE void move(const float* c, float& w, const float* s, float second) {
    w = w * c[6] - (c[7] != 0.0f ? s[0] * c[0] : s[0] / (sqrtf(second) + c[8]) * c[0]);
  }
  static INLINE void average_deviation(const float* c, float g, float* s) {
    s[0] = s[0] * c[1] + g * c[2];
    const float off = g - s[0];
    s[1] = s[1] * c[3] + off * off * c[4] + c[5];
  }
  APPLY {
    average_deviation(c, g, s);
    move(c, w, s, s[1]);
  }
};
struct adabelief_update_largest : adabelief_update {
  APPLY {
    average_deviation(c, g, s);
    s[2] = larger(s[2], s[1]);
    move(c, w, s, s[2]);
  }
};
struct amsgrad_update : Moments {  // bias_correction
  CONSTANTS { with_rate(a, a[3] != 0.0 ? corrected(lr, t, a[0], a[1]) : lr, c); }
  APPLY {
    average(c, g, s);
    s[2] = larger(s[2], s[1]);
    w -= s[0] / (sqrtf(s[2]) + c[5]) * c[0];
  }
};
struct Bounded : Moments {  // rates clipped to c[6], c[7]; a: final_lr, gamma, lr0
  static INLINE void bounds(const double* a, double t, double lr, float* c) {
    const double end = scheduled(a[3], lr, a[5]);
    c[6] = (float)(end * (1.0 - 1.0 / (a[4] * t + 1.0)));
    c[7] = (float)(end * (1.0 + 1.0 / (a[4] * t)));
  }
  static INLINE void move(const float* c, float& w, float m, float second) {
    float rate = c[0] / (sqrtf(second) + c[5]);
    rate = rate < c[6] ? c[6] : rate;
    rate = rate > c[7] ? c[7] : rate;
    w -= rate * m;
  }
};
struct adabound_update : Bounded {
  CONSTANTS {
    with_rate(a, corrected(lr, t, a[0], a[1]), c);
    bounds(a, t, lr, c);
  }
  APPLY {
    average(c, g, s);
    move(c, w, s[0], s[1]);
  }
};
struct amsbound_update : Bounded {  // bias_correction
  CONSTANTS {
    with_rate(a, a[6] != 0.0 ? corrected(lr, t, a[0], a[1]) : lr, c);
    bounds(a, t, lr, c);
  }
  APPLY {
    average(c, g, s);
    s[2] = larger(s[2], s[1]);
    move(c, w, s[0], s[2]);
  }
};
struct lamb_update : Moments {  // gamma_l, gamma_u, wd, bias_correction
  static const bool moved = true;
  CONSTANTS {
    with_rate(a, lr, c);
    c[6] = (float)(a[6] != 0.0 ? 1.0 - pow(a[0], t) : 1.0);
    c[7] = (float)(a[6] != 0.0 ? 1.0 / (1.0 - pow(a[1], t)) : 1.0);
    c[8] = (float)a[5];
  }
  static INLINE float direction(const float* c, float w, const float* s) {
    return s[0] / ((sqrtf(s[1] * c[7]) + c[5]) * c[6]) + w * c[8];
  }
  static INLINE void first(const float* c, float w, float g, float* s, float& p, float& q) {
    average(c, g, s);
    const float r = direction(c, w, s);
    p += w * w, q += r * r;
  }
  static INLINE void after(const double* a, double p, double q, float* c) {
    const double length = sqrt(q), size = sqrt(p);
    const double clipped = size < a[3] ? a[3] : size > a[4] ? a[4] : size;
    c[0] = length != 0.0 ? (float)(c[0] * clipped / length) : 0.0f;
  }
  APPLY {
    if (c[0] != 0.0f) w -= direction(c, w, s) * c[0];
  }
};
