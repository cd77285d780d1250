// SPDX-License-Identifier: Apache-2.0
// From the steps of a program to kernels.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "nnl/kernel.h"
#include "nnl/program.h"

namespace nnl {

namespace opencl {
class Space;
}

// A kernel over values; `step` is the number of the step of the program that it does, or a part of.
struct Call {
  std::string label;
  std::shared_ptr<Kernel> kernel;  // calls that ask for the same have the same
  std::vector<int> in, out;
  size_t step;
  bool once = false;                // runs only when what is given has changed: it packs weights
  const ProgramStep* of = nullptr;  // the step or the part of one that it does, if it is one
  std::string layout;               // the order of the weights that it packs
  bool on_device = false;           // it reads and writes what is there
};

struct Lowered {
  std::vector<ProgramValue> values;  // those of the program, then those that only kernels have
  std::vector<Call> calls;
  size_t prepared = 0, cut = 0;  // calls that run once, at the front; calls of the first part
  // What the program gives, each in the plain order and in memory of its own.
  std::vector<std::pair<std::string, int>> outputs;
  std::map<int, int> carries;  // as in the program, in the order of the values that get them
};

// Steps become kernels, fused ones that no kernel takes the steps they were made from.
// Args: program: one that check() has seen. prepare: whether weights that no run changes are packed
//   once. device: asked first for the kernels of each step; null: all run on the host.
// ValueError: a step has no kernel; the text names it.
Lowered lower(const ProgramData& program, bool prepare, opencl::Space* device = nullptr);

// The kernel that changes the order ("to_layout") or the type ("cast") of an array.
std::unique_ptr<Kernel> conversion(const char* op, const Spec& in, const Spec& out);

// Runs a kernel of one input and one output, with scratch memory of its own.
void run_once(Kernel& kernel, const void* in, void* out);

// One number in every element of an array of any type.
void fill(void* data, const Spec& spec, double value);

}  // namespace nnl
