// SPDX-License-Identifier: Apache-2.0
// Programs as data: what a file holds, and what a Runner runs.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "nnl/attributes.h"
#include "nnl/spec.h"

namespace nnl {

// An open size: a name for a number that a program is given when it runs.
struct NNL_API OpenSize {
  static constexpr int64_t largest = (int64_t{1} << 31) - 1;
  std::string name;
  int64_t example = 1, least = 1, greatest = largest, multiple = 1;

  // ValueError: a size is not in the range. The text names both.
  NNL_API void check(int64_t size) const;
};

// A number that depends on open sizes, as a stack takes it: numbers are put on it, operations take
// two from it and put one there.
struct SizeOp {
  enum class Kind : uint8_t {
    whole,  // `a`
    real,
    dim,   // the size number `a` of the program
    axis,  // of value `a`, that of axis `b`
    add,
    subtract,
    multiply,
    floor_divide,
    least,
    greatest,
    divide
  };
  Kind kind;
  int64_t a = 0, b = 0;
  double real = 0;
};
using SizeExpression = std::vector<SizeOp>;

// An attribute with open sizes in it: one number, or a list of them.
struct OpenAttribute {
  std::string name;
  bool list = false;
  std::vector<SizeExpression> numbers;
};

// A value of a program, by number; number 0 stands for an input that is left out.
struct ProgramValue {
  enum class Role { input, parameter, state, constant, intermediate };
  Spec spec;
  Role role = Role::intermediate;
  std::string name;
  int root = 0;         // the value whose memory it is
  int copies = 0;       // the given value that it is in another element type
  bool filled = false;  // a constant of one number
  double fill = 0;
  std::vector<SizeExpression> sizes;  // its shape, where that is open and no step says it
  bool given() const { return role != Role::intermediate; }
};

struct ProgramData;

struct ProgramStep {
  std::string op, label;  // label: what messages call it, "affine in fc (train.py:12)"
  std::unordered_map<std::string, Attribute> attributes;
  std::vector<int> in, out;
  std::vector<int> writes;         // positions of the inputs that it changes
  bool view = false;               // the output is the memory of the first input
  bool second = false;             // it belongs to the second part of a training step
  std::vector<ProgramStep> parts;  // of a fused step, those it replaces
  int64_t flops = 0, bytes = 0;    // floating-point operations; bytes read and written
  // How an element-wise step is asked for where it has no kernel of its own.
  std::vector<int64_t> code;
  std::vector<double> constants;
  std::vector<Shape> shapes;
  std::map<std::string, std::vector<ProgramData>> programs;  // inside it, by attribute
  std::vector<OpenAttribute> open;                           // attributes that depend on open sizes
  // The same of `shapes` and `constants`, one each; empty if they do not.
  std::vector<OpenAttribute> open_seen;
  std::vector<SizeExpression> open_constants;
};

// What runs: steps over values, in order. With open sizes, `dims`, shapes and attributes are those
// of some sizes of these: the examples at first.
struct ProgramData {
  std::vector<ProgramValue> values = std::vector<ProgramValue>(1);
  std::vector<ProgramStep> steps;
  std::vector<std::pair<std::string, int>> outputs;
  // Output `of` has as many entries along an axis as output `count` holds, which nobody is shown.
  struct Count {
    size_t of, count, axis;
  };
  std::vector<Count> counts;
  std::vector<int> kept;       // values that must be readable after a run
  std::map<int, int> results;  // value -> the given value that it is a new copy of
  std::map<int, int> carries;  // given value -> the value that it has after a run, 0 for zeros
  std::vector<OpenSize> dims;
  std::vector<std::string> words;  // strings in order of their numbers, which it computes with
  std::vector<std::string> texts;  // inputs and outputs that are strings
};

// Brings an open program to other sizes of its dims, in their order. Shapes of what steps make
// follow from the rules of the ops.
//
// ValueError: a size is not in its range, or a step does not take these; the text names it. The
// program has parts of both sizes then, until it is moved again.
NNL_API void move_to(ProgramData& program, const std::vector<int64_t>& sizes);

// The closed program for sizes of the dims by name; those of the examples where nothing is said.
//
// ValueError: as above, or there is no such dim.
NNL_API ProgramData at(const ProgramData& program, const std::map<std::string, int64_t>& sizes);

// An open program at the sizes of its examples: the same as it is written.
//
// ValueError: it is not the same; the text says where.
NNL_API ProgramData example_of(const ProgramData& program);

// The present values of the attributes of a step that are open: text that two steps share only if
// they do the same.
NNL_API std::string text_of_open(const ProgramStep& step);

// Compares values with those whose memory or copies they are.
//
// ValueError: one does not fit.
NNL_API void check_values(const ProgramData& program);

// Compares every step with the rule of its op, so that kernels need not: they read and write as far
// as these shapes say.
//
// ValueError: a step gives something else, or writes where others read; the text names the step.
NNL_API void check(const ProgramData& program);

}  // namespace nnl
