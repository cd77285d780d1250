// SPDX-License-Identifier: Apache-2.0
#include "elementwise_codes.h"

#include <algorithm>
#include <array>

#include "lanes.h"
#include "nnl/elementwise.h"

namespace nnl {
namespace {

#define NNL_CODE(name, operands, price, value)                                                     \
  struct name##_code {                                                                             \
    static constexpr int arity = operands;                                                         \
    static constexpr int64_t cost = price;                                                         \
    static constexpr bool guarded = false;                                                         \
    static float f([[maybe_unused]] float a, [[maybe_unused]] float b, [[maybe_unused]] float c) { \
      return value;                                                                                \
    }                                                                                              \
    static bool fits(float, float) { return true; }                                                \
    static float slow(float, float) { return 0.0f; }                                               \
  };
#define NNL_GUARDED(name, operands, price, value, condition, otherwise)                        \
  struct name##_code {                                                                         \
    static constexpr int arity = operands;                                                     \
    static constexpr int64_t cost = price;                                                     \
    static constexpr bool guarded = true;                                                      \
    static float f(float a, [[maybe_unused]] float b, float) { return value; }                 \
    static bool fits([[maybe_unused]] float a, [[maybe_unused]] float b) { return condition; } \
    static float slow(float a, [[maybe_unused]] float b) { return otherwise; }                 \
  };
NNL_CODES(NNL_CODE, NNL_GUARDED)
#undef NNL_CODE
#undef NNL_GUARDED

// Codes whose vectors are written by hand, with instructions that no compiler finds by itself.
template <class F>
struct ByHand {
  static constexpr bool there = false;
};
template <>
struct ByHand<exp_code> {
  static constexpr bool there = true;
  static NNL_INLINE Lanes f(Lanes a) { return exp_of(a); }
};
template <>
struct ByHand<log_code> {
  static constexpr bool there = true;
  static NNL_INLINE Lanes f(Lanes a) { return log_of(a); }
};

template <class F, int numbers>
void loop(float* y, const float* a, const float* b, const float* c, int64_t n) {
  [[maybe_unused]] const float na = numbers & 1 ? *a : 0.0f;
  [[maybe_unused]] const float nb = numbers & 2 ? *b : 0.0f;
  [[maybe_unused]] const float nc = numbers & 4 ? *c : 0.0f;
  auto va = [=](int64_t i) { return numbers & 1 ? na : a[i]; };
  auto vb = [=](int64_t i) { return F::arity < 2 ? 0.0f : numbers & 2 ? nb : b[i]; };
  auto vc = [=](int64_t i) { return F::arity < 3 ? 0.0f : numbers & 4 ? nc : c[i]; };
  if constexpr (ByHand<F>::there) {
    by_lanes(n, [&](int64_t i, int64_t lanes, auto whole) {
      put<whole>(y + i, ByHand<F>::f(get<whole>(a + i, lanes, 1.0f)), lanes);
    });
    return;
  }
  if constexpr (F::guarded && F::arity == 2 && (numbers & 2) != 0) {
    // as an array: of what does not change the compiler makes branches, and then no vectors
    constexpr int64_t most = 256;
    float many[most];
    std::fill(many, many + std::min(n, most), nb);
    for (int64_t i = 0; i < n; i += most)
      loop<F, numbers & 1>(y + i, numbers & 1 ? a : a + i, many, c, std::min(most, n - i));
    return;
  }
  if constexpr (F::guarded) {
    int unfit = 0;
#pragma omp simd reduction(+ : unfit)
    for (int64_t i = 0; i < n; ++i) unfit += F::fits(va(i), vb(i)) ? 0 : 1;
    if (unfit) {
      for (int64_t i = 0; i < n; ++i)
        y[i] = F::fits(va(i), vb(i)) ? F::f(va(i), vb(i), 0.0f) : F::slow(va(i), vb(i));
      return;
    }
  }
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) y[i] = F::f(va(i), vb(i), vc(i));
}

struct Entry {
  int arity;
  int64_t cost;
  std::array<Loop, 7> loops;  // by the bits of `numbers`
};

template <class F>
constexpr Entry entry() {
  if constexpr (F::arity == 1)
    return {1, F::cost, {loop<F, 0>}};
  else if constexpr (F::arity == 2)
    return {2, F::cost, {loop<F, 0>, loop<F, 1>, loop<F, 2>}};
  else
    return {3,
            F::cost,
            {loop<F, 0>, loop<F, 1>, loop<F, 2>, loop<F, 3>, loop<F, 4>, loop<F, 5>, loop<F, 6>}};
}

const Entry& entry_of(Code code) {
  static const Entry entries[] = {
#define NNL_CODE(name, ...) entry<name##_code>(),
      NNL_CODES(NNL_CODE, NNL_CODE)
#undef NNL_CODE
  };
  return entries[static_cast<size_t>(code)];
}

}  // namespace

int operands_of(Code code) { return entry_of(code).arity; }
int64_t cost_of(Code code) { return entry_of(code).cost; }
Loop loop_of(Code code, int numbers) { return entry_of(code).loops[static_cast<size_t>(numbers)]; }

std::vector<std::pair<std::string, int>> elementwise_codes() {
  return {
#define NNL_CODE(name, operands, ...) {#name, operands},
      NNL_CODES(NNL_CODE, NNL_CODE)
#undef NNL_CODE
  };
}

}  // namespace nnl
