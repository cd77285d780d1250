// SPDX-License-Identifier: Apache-2.0
// What tests of networks share.
#pragma once
#include <cmath>

#include "check.h"
#include "nnl/networks.h"

namespace nnl::test {

inline Variable leaf(const Shape& shape, uint32_t seed, bool need_grad = true) {
  Variable v(shape, need_grad);
  const auto values = numbers(v.size(), seed);
  std::copy(values.begin(), values.end(), v.data<float>());
  return v;
}

inline std::vector<float> values_of(const Array& a) {
  const float* x = a.data<float>();
  return {x, x + a.size()};
}

inline bool close(double a, double b) {
  return std::fabs(a - b) <= 2e-3 * std::max(1.0, std::fabs(b));
}

}  // namespace nnl::test
