// SPDX-License-Identifier: Apache-2.0
// The instructions of element-wise programs: each is a loop over a block of float32.
#pragma once
#include <cstdint>

#include "vector_math.h"

namespace nnl {

// CODE(name, number of operands, cost in additions, value in terms of a, b and c)
// GUARDED: the same, but a block where `fits` fails for an element is computed by `otherwise`.
#define NNL_CODES(CODE, GUARDED)                                                               \
  CODE(copy, 1, 1, a)                                                                          \
  CODE(negative, 1, 1, -a)                                                                     \
  CODE(absolute, 1, 1, std::fabs(a))                                                           \
  CODE(square, 1, 1, a* a)                                                                     \
  CODE(cube, 1, 2, a * a * a)                                                                  \
  CODE(root, 1, 4, std::sqrt(a))                                                               \
  CODE(inverse, 1, 4, 1.0f / a)                                                                \
  CODE(inverse_root, 1, 8, 1.0f / std::sqrt(a))                                                \
  CODE(exp, 1, 10, fast_exp(a))                                                                \
  CODE(expm1, 1, 12, fast_expm1(a))                                                            \
  CODE(log, 1, 12, fast_log(a))                                                                \
  CODE(log1p, 1, 16, fast_log1p(a))                                                            \
  GUARDED(sin, 1, 20, fast_sin(a), std::fabs(a) < angle_limit, std::sin(a))                    \
  GUARDED(cos, 1, 20, fast_cos(a), std::fabs(a) < angle_limit, std::cos(a))                    \
  GUARDED(tan, 1, 30, fast_tan(a), std::fabs(a) < angle_limit, std::tan(a))                    \
  GUARDED(sinc, 1, 24, fast_sinc(a), std::fabs(a) < angle_limit,                               \
          a == 0.0f ? 1.0f : std::sin(a) / a)                                                  \
  CODE(sinh, 1, 30, fast_sinh(a))                                                              \
  CODE(cosh, 1, 20, fast_cosh(a))                                                              \
  CODE(tanh, 1, 16, fast_tanh(a))                                                              \
  CODE(asin, 1, 16, fast_asin(a))                                                              \
  CODE(acos, 1, 20, fast_acos(a))                                                              \
  CODE(atan, 1, 16, fast_atan(a))                                                              \
  CODE(asinh, 1, 40, fast_asinh(a))                                                            \
  CODE(acosh, 1, 40, fast_acosh(a))                                                            \
  CODE(atanh, 1, 20, fast_atanh(a))                                                            \
  CODE(erf, 1, 40, fast_erf(a))                                                                \
  CODE(sigmoid, 1, 12, fast_sigmoid(a))                                                        \
  CODE(log_sigmoid, 1, 30, -fast_softplus(-a))                                                 \
  CODE(swish, 1, 12, fast_swish(a))                                                            \
  CODE(gelu, 1, 16, a* fast_sigmoid(a * (1.5957691216057308f + 0.07135481627159945f * a * a))) \
  CODE(mish, 1, 16, mish_of(a))                                                                \
  CODE(softsign, 1, 5, a / (std::fabs(a) + 1.0f))                                              \
  CODE(tanh_shrink, 1, 16, a - fast_tanh(a))                                                   \
  CODE(relu, 1, 1, a > 0.0f ? a : 0.0f)                                                        \
  CODE(round, 1, 3, round_half_away(a))                                                        \
  CODE(ceil, 1, 1, std::ceil(a))                                                               \
  CODE(floor, 1, 1, std::floor(a))                                                             \
  CODE(is_nan, 1, 1, a != a ? 1.0f : 0.0f)                                                     \
  CODE(is_inf, 1, 1, std::fabs(a) == INFINITY ? 1.0f : 0.0f)                                   \
  CODE(logical_not, 1, 1, a == 0.0f ? 1.0f : 0.0f)                                             \
  CODE(add, 2, 1, a + b)                                                                       \
  CODE(subtract, 2, 1, a - b)                                                                  \
  CODE(multiply, 2, 1, a* b)                                                                   \
  CODE(divide, 2, 4, a / b)                                                                    \
  GUARDED(power, 2, 40, fast_pow(a, b), std::fabs(a) <= 3.4e38f && std::fabs(b) <= 3.4e38f,    \
          std::pow(a, b))                                                                      \
  CODE(larger, 2, 1, a > b || b != b ? a : b) /* of a number and NaN, the number */            \
  CODE(smaller, 2, 1, a < b || b != b ? a : b)                                                 \
  CODE(maximum, 2, 1, a > b || a != a ? a : b) /* NaN if one of them is */                     \
  CODE(minimum, 2, 1, a < b || a != a ? a : b)                                                 \
  CODE(atan2, 2, 24, fast_atan2(a, b))                                                         \
  CODE(fmod, 2, 200, std::fmod(a, b))                                                          \
  CODE(equal, 2, 1, a == b ? 1.0f : 0.0f)                                                      \
  CODE(not_equal, 2, 1, a != b ? 1.0f : 0.0f)                                                  \
  CODE(greater, 2, 1, a > b ? 1.0f : 0.0f)                                                     \
  CODE(greater_equal, 2, 1, a >= b ? 1.0f : 0.0f)                                              \
  CODE(less, 2, 1, a < b ? 1.0f : 0.0f)                                                        \
  CODE(less_equal, 2, 1, a <= b ? 1.0f : 0.0f)                                                 \
  CODE(logical_and, 2, 1, ((a != 0.0f) & (b != 0.0f)) ? 1.0f : 0.0f)                           \
  CODE(logical_or, 2, 1, ((a != 0.0f) | (b != 0.0f)) ? 1.0f : 0.0f)                            \
  CODE(logical_xor, 2, 1, (a != 0.0f) != (b != 0.0f) ? 1.0f : 0.0f)                            \
  CODE(leaky_relu, 2, 1, a > 0.0f ? a : a * b)                                                 \
  CODE(elu, 2, 14, a > 0.0f ? a : b * fast_expm1(a))                                           \
  CODE(softplus, 2, 30, fast_softplus(a* b) / b)                                               \
  CODE(sign, 2, 1, a > 0.0f ? 1.0f : (a < 0.0f ? -1.0f : b))                                   \
  CODE(signs, 2, 1, a > 0.0f ? 1.0f : (a < 0.0f ? -1.0f : (a == 0.0f ? b : a)))                \
  CODE(squared_difference, 2, 2, (a - b) * (a - b))                                            \
  CODE(absolute_backward, 2, 1, b < 0.0f ? -a : a)                                             \
  CODE(tanh_backward, 2, 3, a * (1.0f - b * b))                                                \
  CODE(sigmoid_backward, 2, 3, a * ((1.0f - b) * b))                                           \
  GUARDED(sinc_backward, 2, 50, a* sinc_slope(b), std::fabs(b) < angle_limit,                  \
          a * ((std::cos(b) - std::sin(b) / b) / b))                                           \
  CODE(where, 3, 1, a != 0.0f ? b : c)                                                         \
  CODE(multiply_add, 3, 2, a* b + c)                                                           \
  CODE(clip, 3, 1, a < b ? b : (a > c ? c : a))                                                \
  CODE(leaky_relu_backward, 3, 1, (b > 0.0f ? 1.0f : c) * a)                                   \
  /* a times 0 or 1, so that an infinite a becomes NaN as in numpy */                          \
  CODE(gate_greater, 3, 1, a*(b > c ? 1.0f : 0.0f))                                            \
  CODE(gate_greater_equal, 3, 1, a*(b >= c ? 1.0f : 0.0f))                                     \
  CODE(gate_less, 3, 1, a*(b < c ? 1.0f : 0.0f))                                               \
  CODE(gate_less_equal, 3, 1, a*(b <= c ? 1.0f : 0.0f))

inline float mish_of(float x) {
  // With e = e^x and n = e (e + 2), tanh(ln(1 + e)) is n / (n + 2): 1 from x = 20 on.
  const float e = fast_exp(x < 20.0f ? x : (x != x ? x : 20.0f)), n = e * (e + 2.0f);
  return x * (n / (n + 2.0f));
}

enum class Code : int64_t {
#define NNL_CODE(name, ...) name,
  NNL_CODES(NNL_CODE, NNL_CODE)
#undef NNL_CODE
      count
};

int operands_of(Code code);
int64_t cost_of(Code code);

// y = f(a, b, c) over n elements. y may be the memory of an operand.
using Loop = void (*)(float* y, const float* a, const float* b, const float* c, int64_t n);

// The loop in which the operands whose bits are set in `numbers` are one number for all elements.
// Not all of them may be: that is the loop without any, for n = 1.
Loop loop_of(Code code, int numbers);

}  // namespace nnl
