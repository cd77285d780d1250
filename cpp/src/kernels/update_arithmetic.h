// SPDX-License-Identifier: Apache-2.0
// What the files of update rules share.
#pragma once
#include "update_rules.h"

namespace nnl {

// Every rule names its arrays and computes element by element; names follow the definitions.
#define NNL_ARRAY(name, k) float* __restrict name = p[k]
#define NNL_EACH _Pragma("omp simd") for (int64_t i = 0; i < n; ++i)

inline float narrow(double x) { return static_cast<float>(x); }
// numpy's: NaN in either is NaN
inline float larger(float a, float b) { return b > a || b != b ? b : a; }

inline double scheduled(double value, double rate, double rate0) {
  return value != 0.0 && rate0 != 0.0 ? value * rate / rate0 : value;
}

// The rules of Adam's family; null for another name.
std::unique_ptr<Rule> moment_rule_of(const std::string& op, const Attributes& attributes);

}  // namespace nnl
