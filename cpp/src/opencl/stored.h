// SPDX-License-Identifier: Apache-2.0
// Kernels that a file of programs has for OpenCL devices: texts, and how steps launch them.
//
// nnl/ext/device/kernels/stored.py writes them.
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace nnl::opencl {

struct StoredKernel {
  std::string name, op, text;
};

// An array of a launch: of those of its step, inputs before outputs before scratch memory.
struct StoredArray {
  static constexpr int64_t none = -1;
  int64_t array;  // `none`: it is left out
  uint64_t place;
};

struct StoredLaunch {
  size_t kernel;
  std::array<size_t, 3> grid, block;
  std::string rest;  // the last parameter
  std::vector<StoredArray> arrays;
};

struct StoredStep {
  size_t workspace = 0;
  std::vector<StoredLaunch> launches;  // none: it runs on the host
};

struct Stored {
  std::vector<StoredKernel> kernels;
  std::map<std::string, std::vector<StoredStep>> programs;  // by name, for each step in order
};

// ValueError: the text is not what nnl writes.
Stored stored_kernels(std::string_view json);

}  // namespace nnl::opencl
