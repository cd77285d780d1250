// SPDX-License-Identifier: Apache-2.0
// Rules of updates, and of what is done to gradients before them.
#include <algorithm>
#include <map>

#include "rule.h"

namespace nnl {
namespace {

// The arrays of all update rules; t, the number of steps, and lr are one number each.
const std::map<std::string, const char*>& updates() {
  static const std::map<std::string, const char*> known = {
      {"sgd_update", "w g t lr"},
      {"momentum_update", "w g m t lr"},
      {"nesterov_update", "w g m t lr"},
      {"lion_update", "w g m t lr"},
      {"muon_update", "w g m t lr"},
      {"lars_update", "w g v t lr"},
      {"adagrad_update", "w g v t lr"},
      {"rmsprop_update", "w g v t lr"},
      {"adadelta_update", "w g e_sqr_grad e_sqr_delta t lr"},
      {"rmsprop_graves_update", "w gradient n g d t lr"},
      {"adam_update", "w g mean var t lr"},
      {"adabound_update", "w g mean var t lr"},
      {"lamb_update", "w g mean var t lr"},
      {"adamax_update", "w g m u t lr"},
      {"adabelief_update", "w g mean var t lr s_max?"},
      {"amsgrad_update", "w g m v v_hat t lr"},
      {"amsbound_update", "w g m v v_hat t lr"},
  };
  return known;
}

// The arrays [begin, end) of one parameter; t is the one at this place.
void check_update(const RuleCall& c, size_t begin, size_t end, size_t t) {
  for (size_t i = begin; i < end; ++i) {
    const bool number = i == begin + t || i == begin + t + 1;
    if (number && c[i].size() != 1) c.fail(i, "one number");
    if (!number) c.same_shape(i, begin);
  }
}

// How many arrays there are before t.
size_t place_of_t(const std::string& rule) {
  const std::string inputs = updates().at(rule);
  return static_cast<size_t>(
             std::count(inputs.begin(),
                        inputs.begin() + static_cast<std::ptrdiff_t>(inputs.find(" t ")), ' ')) +
         1;
}

Specs updated(const RuleCall& c) {
  check_update(c, 0, c.in.size(), place_of_t(c.op));
  return {c[0]};
}

const bool registered = [] {
  for (const auto& [op, inputs] : updates()) ShapeRule(op.c_str(), inputs, updated);
  return true;
}();

Specs all_updated(const RuleCall& c) {
  const std::string& rule = c.attributes.text("rule");
  if (!updates().count(rule)) c.fail("rule is '" + rule + "', wanted the op of an update");
  const size_t t = place_of_t(rule), guards = c.attributes.flag("guarded") ? 2 : 0;
  const auto count = static_cast<size_t>(c.integer("count", 1, largest_step));
  const auto inputs = static_cast<size_t>(c.integer("inputs", static_cast<int64_t>(t) + 2, 16));
  if (c.in.size() != count * inputs + guards)
    c.fail("got " + std::to_string(c.in.size()) + " arrays, wanted " + std::to_string(inputs) +
           " for each of " + std::to_string(count) + " parameters");
  Specs out;
  for (size_t k = 0; k < count; ++k) {
    check_update(c, k * inputs, (k + 1) * inputs, t);
    out.push_back(c[k * inputs]);
  }
  return out;
}

Specs mastered(const RuleCall& c) {
  const std::string& rule = c.attributes.text("rule");
  if (!updates().count(rule)) c.fail("rule is '" + rule + "', wanted the op of an update");
  const size_t t = place_of_t(rule);
  if (c.in.size() < t + 3) c.fail("got " + std::to_string(c.in.size()) + " arrays");
  check_update(c, 0, c.in.size(), t);
  return {c[0]};
}
const ShapeRule master_update{"master_update", "*arrays", mastered};
const ShapeRule multi_update{"multi_update", "*arrays?", all_updated};

Specs decayed(const RuleCall& c) {
  c.same_shape(1, 0);
  return {c[0]};
}
const ShapeRule decay_gradient{"decay_gradient", "g w", decayed};
const ShapeRule scale_gradient{{"scale_gradient", "clip_gradient"}, "g", same};

Specs two_flags(const RuleCall&) { return {{{2}, DType::boolean}}; }
const ShapeRule finite_check{"finite_check", "*x", two_flags};

Specs one_scale(const RuleCall& c) {
  if (!(c.attributes.number("clip_norm") > 0.0)) c.fail("clip_norm is not positive");
  return {c[0]};
}
const ShapeRule clipped_scale{"clipped_scale", "scale *g", one_scale};

}  // namespace
}  // namespace nnl
