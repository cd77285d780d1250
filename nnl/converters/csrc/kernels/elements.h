/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NNL_ELEMENTS_H
#define NNL_ELEMENTS_H

#include <math.h>

/* One element of what element-wise functions are made of. Comparisons give 0 or 1. */

static inline float element_copy(float a) { return a; }
static inline float element_negative(float a) { return -a; }
static inline float element_absolute(float a) { return fabsf(a); }
static inline float element_square(float a) { return a * a; }
static inline float element_cube(float a) { return a * a * a; }
static inline float element_root(float a) { return sqrtf(a); }
static inline float element_inverse(float a) { return 1.0f / a; }
static inline float element_inverse_root(float a) { return 1.0f / sqrtf(a); }
static inline float element_exp(float a) { return expf(a); }
static inline float element_expm1(float a) { return expm1f(a); }
static inline float element_log(float a) { return logf(a); }
static inline float element_log1p(float a) { return log1pf(a); }
static inline float element_sin(float a) { return sinf(a); }
static inline float element_cos(float a) { return cosf(a); }
static inline float element_tan(float a) { return tanf(a); }
static inline float element_sinc(float a) { return a == 0.0f ? 1.0f : sinf(a) / a; }
static inline float element_sinh(float a) { return sinhf(a); }
static inline float element_cosh(float a) { return coshf(a); }
static inline float element_tanh(float a) { return tanhf(a); }
static inline float element_asin(float a) { return asinf(a); }
static inline float element_acos(float a) { return acosf(a); }
static inline float element_atan(float a) { return atanf(a); }
static inline float element_asinh(float a) { return asinhf(a); }
static inline float element_acosh(float a) { return acoshf(a); }
static inline float element_atanh(float a) { return atanhf(a); }
static inline float element_erf(float a) { return erff(a); }
static inline float element_sigmoid(float a) { return 1.0f / (1.0f + expf(-a)); }
static inline float element_log_sigmoid(float a) {
  return fminf(a, 0.0f) - log1pf(expf(-fabsf(a)));
}
static inline float element_swish(float a) { return a * element_sigmoid(a); }
static inline float element_gelu(float a) {
  /* square root of 2 / pi, and 0.044715 times that */
  return 0.5f * a * (1.0f + tanhf(a * (0.797884561f + 0.0356774081f * a * a)));
}
static inline float element_mish(float a) {
  /* n / (n + 2) is tanh(ln(1 + e^a)): 1 from a = 20 on */
  const float e = expf(fminf(a, 20.0f)), n = e * (e + 2.0f);
  return a * (n / (n + 2.0f));
}
static inline float element_softsign(float a) { return a / (1.0f + fabsf(a)); }
static inline float element_tanh_shrink(float a) { return a - tanhf(a); }
static inline float element_relu(float a) { return a > 0.0f ? a : 0.0f; }
static inline float element_round(float a) { return roundf(a); }
static inline float element_ceil(float a) { return ceilf(a); }
static inline float element_floor(float a) { return floorf(a); }
static inline float element_is_nan(float a) { return a != a; }
static inline float element_is_inf(float a) { return fabsf(a) == INFINITY; }
static inline float element_logical_not(float a) { return a == 0.0f; }

static inline float element_add(float a, float b) { return a + b; }
static inline float element_subtract(float a, float b) { return a - b; }
static inline float element_multiply(float a, float b) { return a * b; }
static inline float element_divide(float a, float b) { return a / b; }
static inline float element_power(float a, float b) { return powf(a, b); }
/* of a number and NaN, the number */
static inline float element_larger(float a, float b) { return a > b || b != b ? a : b; }
static inline float element_smaller(float a, float b) { return a < b || b != b ? a : b; }
/* NaN if one of them is */
static inline float element_maximum(float a, float b) { return a > b || a != a ? a : b; }
static inline float element_minimum(float a, float b) { return a < b || a != a ? a : b; }
static inline float element_atan2(float a, float b) { return atan2f(a, b); }
static inline float element_fmod(float a, float b) { return fmodf(a, b); }
static inline float element_equal(float a, float b) { return a == b; }
static inline float element_not_equal(float a, float b) { return a != b; }
static inline float element_greater(float a, float b) { return a > b; }
static inline float element_greater_equal(float a, float b) { return a >= b; }
static inline float element_less(float a, float b) { return a < b; }
static inline float element_less_equal(float a, float b) { return a <= b; }
static inline float element_logical_and(float a, float b) { return a != 0.0f && b != 0.0f; }
static inline float element_logical_or(float a, float b) { return a != 0.0f || b != 0.0f; }
static inline float element_logical_xor(float a, float b) { return (a != 0.0f) != (b != 0.0f); }
static inline float element_leaky_relu(float a, float b) { return a > 0.0f ? a : a * b; }
static inline float element_elu(float a, float b) { return a > 0.0f ? a : b * expm1f(a); }
static inline float element_softplus(float a, float b) {
  const float z = a * b;
  return (element_relu(z) + log1pf(expf(-fabsf(z)))) / b;
}
static inline float element_sign(float a, float b) {
  return a > 0.0f ? 1.0f : a < 0.0f ? -1.0f : b;
}
static inline float element_signs(float a, float b) {
  return a > 0.0f ? 1.0f : a < 0.0f ? -1.0f : a == 0.0f ? b : a;
}
static inline float element_squared_difference(float a, float b) { return (a - b) * (a - b); }
static inline float element_absolute_backward(float a, float b) { return b < 0.0f ? -a : a; }
static inline float element_tanh_backward(float a, float b) { return a * (1.0f - b * b); }
static inline float element_sigmoid_backward(float a, float b) { return a * (b * (1.0f - b)); }
static inline float element_sinc_backward(float a, float b) {
  if (fabsf(b) < 0.5f) { /* Taylor's series: the quotient cancels */
    const float s = b * b;
    return a * b / -3.0f * (1.0f - s / 10.0f * (1.0f - s / 28.0f * (1.0f - s / 54.0f)));
  }
  return a * (cosf(b) - sinf(b) / b) / b;
}

static inline float element_where(float a, float b, float c) { return a != 0.0f ? b : c; }
static inline float element_multiply_add(float a, float b, float c) { return a * b + c; }
static inline float element_clip(float a, float b, float c) { return a < b ? b : a > c ? c : a; }
static inline float element_leaky_relu_backward(float a, float b, float c) {
  return b > 0.0f ? a : a * c;
}
static inline float element_gate_greater(float a, float b, float c) { return a * (b > c); }
static inline float element_gate_greater_equal(float a, float b, float c) { return a * (b >= c); }
static inline float element_gate_less(float a, float b, float c) { return a * (b < c); }
static inline float element_gate_less_equal(float a, float b, float c) { return a * (b <= c); }

#endif
