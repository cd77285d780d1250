// SPDX-License-Identifier: Apache-2.0
// Programs as data: what a file holds, and what a Runner runs.
#pragma once
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "nnl/attributes.h"
#include "nnl/spec.h"

namespace nnl {

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
};

// What runs: steps over values, in order.
struct ProgramData {
  std::vector<ProgramValue> values = std::vector<ProgramValue>(1);
  std::vector<ProgramStep> steps;
  std::vector<std::pair<std::string, int>> outputs;
  std::vector<int> kept;       // values that must be readable after a run
  std::map<int, int> results;  // value -> the given value that it is a new copy of
  std::map<int, int> carries;  // given value -> the value that it has after a run, 0 for zeros
};

// Compares every step with the rule of its op, so that kernels need not: they read and write as far
// as these shapes say.
//
// ValueError: a step gives something else, or writes where others read; the text names the step.
NNL_API void check(const ProgramData& program);

}  // namespace nnl
