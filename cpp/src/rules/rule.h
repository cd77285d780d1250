// SPDX-License-Identifier: Apache-2.0
// What shape rules are written with.
#pragma once
#include <initializer_list>
#include <string>
#include <vector>

#include "nnl/rules.h"

namespace nnl {

// No axis is longer and no step, pad or window larger: sums of their products fit in 64 bits.
constexpr int64_t longest_axis = int64_t{1} << 39;
constexpr int64_t largest_step = int64_t{1} << 22;

// A call as its rule sees it: inputs that must be there are there, and all sizes are sound.
struct RuleCall {
  const std::string& op;
  const std::vector<RuleInput>& inputs;  // as they are declared; the last may stand for several
  const Attributes& attributes;
  std::vector<Spec> in;
  const std::vector<bool>& in_given;

  const Spec& operator[](size_t i) const { return in[i]; }
  bool given(size_t i) const { return i < in.size() && in_given[i]; }

  // ---- attributes ----
  int64_t integer(const char* name, int64_t least, int64_t most = longest_axis) const;
  std::vector<int64_t> integers(const char* name, int64_t least, int64_t most) const;
  Shape shape(const char* name = "shape") const { return integers(name, 0, longest_axis); }
  size_t axis(const char* name, size_t rank) const;  // counted from the front
  std::vector<bool> axes(const char* name, size_t rank) const;
  void one_of(const char* name, std::initializer_list<const char*> words) const;
  void in_range(const char* name, bool holds, const char* wanted) const;

  // ---- inputs ----
  std::string text(size_t i) const;  // "weight float32[2, 3]"
  [[noreturn]] void fail(const std::string& what) const;
  [[noreturn]] void fail(size_t i,
                         const std::string& wanted) const;  // "op: weight ..., wanted ..."
  void same_shape(size_t i, size_t as) const;               // where both are given
  void has_shape(size_t i, const Shape& wanted) const;      // where it is given
  void has_type(size_t i, DType type) const;
  int rank_at_least(size_t i, int least) const;
};

using Specs = std::vector<Spec>;
using RuleOf = Specs (*)(const RuleCall&);

Spec with_shape(Spec x, Shape shape);
Spec with_type(Spec x, DType type);
Shape kept_shape(const Shape& shape, const std::vector<bool>& axes);     // with 1 along these
Shape dropped_shape(const Shape& shape, const std::vector<bool>& axes);  // without these
int64_t product(Shape::const_iterator begin, Shape::const_iterator end);
// Sizes of 1 stretch; false where others differ, or the ranks do.
bool stretches(const Shape& x, const Shape& to);
Shape together(const RuleCall& c, size_t i, size_t j);  // what two inputs of one rank stretch to

// The rule for inputs that stay as they are: the first one's spec.
Specs same(const RuleCall& c);

// Used at namespace scope by the files beside: `const ShapeRule relu{"relu", "x", same};` A name of
// an input ends with ? where it may be left out and with # where it is taken as whole numbers, and
// the last one begins with * where it stands for any number of them.
struct ShapeRule {
  ShapeRule(const char* op, const char* inputs, RuleOf rule);
  ShapeRule(std::initializer_list<const char*> ops, const char* inputs, RuleOf rule);
};

}  // namespace nnl
