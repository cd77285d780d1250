// SPDX-License-Identifier: Apache-2.0
// The arithmetic of the solvers' update rules, over blocks of float32.
#pragma once
#include <algorithm>
#include <array>
#include <memory>
#include <string>

#include "nnl/attributes.h"
#include "nnl/kernel.h"
#include "real.h"

namespace nnl {

// What a rule computes once per array and step from the step number, the rate and norms.
using Constants = std::array<float, 10>;

class Rule {
 public:
  virtual ~Rule() = default;

  // Arrays of one parameter: w, g and the states. With an optional one it comes last, after t and
  // lr among the op's inputs.
  virtual int states() const = 0;
  virtual bool has_optional() const { return false; }

  // `step` counts from 1.
  virtual Constants at(int64_t step, double lr) const = 0;

  // Whether the rule walks over all elements once before, adding to two sums.
  virtual bool in_two_passes() const { return false; }
  virtual void first_pass(const Constants&, float* const* /*p*/, int64_t /*n*/,
                          double* /*sums*/) const {}
  virtual void after_first(Constants&, const double* /*sums*/) const {}

  // One step for n elements; p are w, g, the states and the optional array or null.
  virtual void apply(const Constants& c, float* const* p, int64_t n) const = 0;
};

// A master goes on from the parameter w, given in 16 bits, where w is not the master rounded:
// somebody has written it.
inline void begin_again(DType type, const float* w, float* master, int64_t n) {
  constexpr int64_t part = 1024;
  uint16_t rounded[part];
  float back[part];
  for (int64_t at = 0; at < n; at += part) {
    const int64_t count = std::min(part, n - at);
    store_any(type, master + at, rounded, 0, count);
    load_any(type, rounded, 0, back, count);
    float* m = master + at;
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) m[i] = back[i] == w[at + i] ? m[i] : w[at + i];
  }
}

// muon_update, whose steps are no arithmetic of elements; null for arrays that it does not take.
std::unique_ptr<Kernel> make_muon(const Signature& s, size_t count, bool masters);

// The rule of an op; null for a name that is not one.
std::unique_ptr<Rule> rule_of(const std::string& op, const Attributes& attributes);

}  // namespace nnl
