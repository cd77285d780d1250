// SPDX-License-Identifier: Apache-2.0
// The arithmetic of the solvers' update rules, over blocks of float32.
#pragma once
#include <array>
#include <memory>
#include <string>

#include "nnl/attributes.h"

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

// The rule of an op; null for a name that is not one.
std::unique_ptr<Rule> rule_of(const std::string& op, const Attributes& attributes);

}  // namespace nnl
