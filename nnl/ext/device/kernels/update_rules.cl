// SPDX-License-Identifier: Apache-2.0
// The arithmetic of the solvers' update rules, element by element.
//
// constants: what a rule computes once per parameter and step, from its attributes a (in the order
// of update.py), the step number t, which counts from 1, and the rate. apply: one element; s are
// its states. Rules with norms look at all elements once before (first), change the constants by the
// sums p and q (after), and lamb has moved the states then.

INLINE real scheduled(real value, real rate, real rate0) {
  return value != 0 && rate0 != 0 ? value * rate / rate0 : value;
}
INLINE real corrected(real rate, real t, real beta1, real beta2) {
  return rate * sqrt(1 - pow(beta2, t)) / (1 - pow(beta1, t));
}
INLINE float larger(float a, float b) { return b > a || b != b ? b : a; }

#define CONSTANTS(rule) INLINE void rule##_constants(const real* a, real t, real lr, float* c)
#define APPLY(rule) INLINE void rule##_apply(const float* c, float* w, float g, float* s)
#define FIRST(rule) \
  INLINE void rule##_first(const float* c, float w, float g, float* s, float* p, float* q)
#define AFTER(rule) INLINE void rule##_after(const real* a, real p, real q, GLOBAL float* c)

CONSTANTS(sgd_update) { c[0] = (float)lr; }
APPLY(sgd_update) { *w -= g * c[0]; }

CONSTANTS(momentum_update) {  // a: momentum, wd, lr0
  c[0] = (float)lr, c[1] = (float)a[0], c[2] = (float)(1 - scheduled(a[1], lr, a[2]));
}
APPLY(momentum_update) {
  s[0] = s[0] * c[1] + g * c[0];
  *w = *w * c[2] - s[0];
}

CONSTANTS(nesterov_update) {  // a: momentum
  c[0] = (float)lr, c[1] = (float)a[0], c[2] = (float)(1 + a[0]);
}
APPLY(nesterov_update) {
  const float old = s[0] * c[1];
  s[0] = old - g * c[0];
  *w = *w - old + s[0] * c[2];
}

CONSTANTS(lars_update) {  // a: momentum, coefficient, eps, wd
  c[0] = (float)lr, c[1] = (float)a[0], c[2] = 0.0f;
}
FIRST(lars_update) { *p += w * w, *q += g * g; }
AFTER(lars_update) {
  const real length = sqrt(p);
  real rate = c[0];
  if (length >= a[2]) {
    const real slope = sqrt(q) + a[3] * length;
    if (slope != 0) rate *= a[1] * length / slope;
  }
  c[0] = (float)rate, c[2] = (float)(rate * a[3]);
}
APPLY(lars_update) {
  s[0] = s[0] * c[1] + g * c[0] + *w * c[2];
  *w -= s[0];
}

CONSTANTS(adagrad_update) { c[0] = (float)lr, c[1] = (float)a[0]; }  // a: eps
APPLY(adagrad_update) {
  s[0] += g * g;
  *w -= g / (sqrtf(s[0]) + c[1]) * c[0];
}

INLINE void decaying(const real* a, real lr, float* c) {
  c[0] = (float)lr, c[1] = (float)a[0], c[2] = (float)(1 - a[0]), c[3] = (float)a[1];
}
CONSTANTS(adadelta_update) { decaying(a, lr, c); }  // a: decay, eps
APPLY(adadelta_update) {
  s[0] = s[0] * c[1] + g * g * c[2];
  const float delta = sqrtf((s[1] + c[3]) / (s[0] + c[3])) * g;
  s[1] = s[1] * c[1] + delta * delta * c[2];
  *w -= delta * c[0];
}

CONSTANTS(rmsprop_update) { decaying(a, lr, c); }  // a: decay, eps
APPLY(rmsprop_update) {
  s[0] = s[0] * c[1] + g * g * c[2];
  *w -= g / (sqrtf(s[0]) + c[3]) * c[0];
}

CONSTANTS(rmsprop_graves_update) {  // a: decay, eps, momentum
  decaying(a, lr, c);
  c[4] = (float)a[2];
}
APPLY(rmsprop_graves_update) {
  s[0] = s[0] * c[1] + g * g * c[2];
  s[1] = s[1] * c[1] + g * c[2];
  const float variance = larger(s[0] - s[1] * s[1], 0.0f);
  s[2] = s[2] * c[4] - g / sqrtf(variance + c[3]) * c[0];
  *w += s[2];
}

CONSTANTS(lion_update) {  // a: beta1, beta2, wd
  c[0] = (float)lr, c[1] = (float)a[0], c[2] = (float)(1 - a[0]), c[3] = (float)a[1];
  c[4] = (float)(1 - a[1]), c[5] = (float)(1 - lr * a[2]);
}
APPLY(lion_update) {
  const float u = s[0] * c[1] + g * c[2];
  const float step = u > 0.0f ? c[0] : (u < 0.0f ? -c[0] : u * c[0]);  // NaN stays NaN
  *w = *w * c[5] - step;
  s[0] = s[0] * c[3] + g * c[4];
}

// The relatives of Adam: a begins with beta1, beta2, eps.
INLINE void with_rate(const real* a, real rate, float* c) {
  c[0] = (float)rate, c[1] = (float)a[0], c[2] = (float)(1 - a[0]), c[3] = (float)a[1];
  c[4] = (float)(1 - a[1]), c[5] = (float)a[2];
}
INLINE void average(const float* c, float g, float* s) {
  s[0] = s[0] * c[1] + g * c[2];
  s[1] = s[1] * c[3] + g * g * c[4];
}

CONSTANTS(adam_update) {  // wd, lr0
  with_rate(a, corrected(lr, t, a[0], a[1]), c);
  c[6] = (float)(1 - scheduled(a[3], lr, a[4]));
}
APPLY(adam_update) {
  average(c, g, s);
  *w = *w * c[6] - s[0] / (sqrtf(s[1]) + c[5]) * c[0];
}

CONSTANTS(adamax_update) { with_rate(a, lr / (1 - pow(a[0], t)), c); }
APPLY(adamax_update) {
  s[0] = s[0] * c[1] + g * c[2];
  s[1] = larger(s[1] * c[3], fabsf(g));
  *w -= s[0] / (s[1] + c[5]) * c[0];
}

// c[6]: what decay leaves; c[7]: 1 where the step is rate m, without a denominator; c[8]: eps as
// the rate wants it, which undoes its root
CONSTANTS(adabelief_update) {  // wd, fixed_decay, rectify; s[2] is the largest s[1] so far
  real rate = corrected(lr, t, a[0], a[1]), plain = 0;
  if (a[5] != 0) {  // arXiv:1908.03265, algorithm 2
    const real longest = 2 / (1 - a[1]) - 1, power = pow(a[1], t);
    const real length = longest - 2 * t * power / (1 - power);
    if (length <= 4)
      rate = lr, plain = 1;
    else
      rate *= sqrt((length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length));
  }
  with_rate(a, rate, c);
  c[6] = (float)(1 - a[3] * (a[4] != 0 ? 1 : lr)), c[7] = (float)plain;
  c[8] = (float)(a[2] * sqrt(1 - pow(a[1], t)));
}
INLINE void move_by_belief(const float* c, float* w, const float* s, float second) {
  *w = *w * c[6] - (c[7] != 0.0f ? s[0] * c[0] : s[0] / (sqrtf(second) + c[8]) * c[0]);
}
INLINE void average_deviation(const float* c, float g, float* s) {
  s[0] = s[0] * c[1] + g * c[2];
  const float off = g - s[0];
  s[1] = s[1] * c[3] + off * off * c[4] + c[5];
}
APPLY(adabelief_update) {
  average_deviation(c, g, s);
  move_by_belief(c, w, s, s[1]);
}
CONSTANTS(adabelief_update_largest) { adabelief_update_constants(a, t, lr, c); }
APPLY(adabelief_update_largest) {
  average_deviation(c, g, s);
  s[2] = larger(s[2], s[1]);
  move_by_belief(c, w, s, s[2]);
}

CONSTANTS(amsgrad_update) {  // bias_correction
  with_rate(a, a[3] != 0 ? corrected(lr, t, a[0], a[1]) : lr, c);
}
APPLY(amsgrad_update) {
  average(c, g, s);
  s[2] = larger(s[2], s[1]);
  *w -= s[0] / (sqrtf(s[2]) + c[5]) * c[0];
}

// Rates clipped to c[6], c[7]; a: final_lr, gamma, lr0.
INLINE void bounds(const real* a, real t, real lr, float* c) {
  const real end = scheduled(a[3], lr, a[5]);
  c[6] = (float)(end * (1 - 1 / (a[4] * t + 1)));
  c[7] = (float)(end * (1 + 1 / (a[4] * t)));
}
INLINE void move_within(const float* c, float* w, float m, float second) {
  float rate = c[0] / (sqrtf(second) + c[5]);
  rate = rate < c[6] ? c[6] : rate;
  rate = rate > c[7] ? c[7] : rate;
  *w -= rate * m;
}
CONSTANTS(adabound_update) {
  with_rate(a, corrected(lr, t, a[0], a[1]), c);
  bounds(a, t, lr, c);
}
APPLY(adabound_update) {
  average(c, g, s);
  move_within(c, w, s[0], s[1]);
}
CONSTANTS(amsbound_update) {  // bias_correction
  with_rate(a, a[6] != 0 ? corrected(lr, t, a[0], a[1]) : lr, c);
  bounds(a, t, lr, c);
}
APPLY(amsbound_update) {
  average(c, g, s);
  s[2] = larger(s[2], s[1]);
  move_within(c, w, s[0], s[2]);
}

CONSTANTS(lamb_update) {  // gamma_l, gamma_u, wd, bias_correction
  with_rate(a, lr, c);
  c[6] = (float)(a[6] != 0 ? 1 - pow(a[0], t) : 1);
  c[7] = (float)(a[6] != 0 ? 1 / (1 - pow(a[1], t)) : 1);
  c[8] = (float)a[5];
}
INLINE float direction(const float* c, float w, const float* s) {
  return s[0] / ((sqrtf(s[1] * c[7]) + c[5]) * c[6]) + w * c[8];
}
FIRST(lamb_update) {
  average(c, g, s);
  const float r = direction(c, w, s);
  *p += w * w, *q += r * r;
}
AFTER(lamb_update) {
  const real length = sqrt(q), size = sqrt(p);
  const real clipped = size < a[3] ? a[3] : size > a[4] ? a[4] : size;
  c[0] = length != 0 ? (float)(c[0] * clipped / length) : 0.0f;
}
APPLY(lamb_update) {
  if (c[0] != 0.0f) *w -= direction(c, *w, s) * c[0];
}
