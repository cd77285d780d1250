// SPDX-License-Identifier: Apache-2.0
// Where buffers lie in one arena; those of different times share memory.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "nnl/errors.h"

namespace nnl {

// A buffer that is used from step `first` to step `last`.
struct Interval {
  size_t first, last, bytes;
  int64_t offset = 0;  // what plan_memory sets
};

// Sets the offsets, multiples of 64, and returns the bytes of the arena. Two buffers that are alive
// at a time never overlap; what is large and lives long is placed first, and each goes to the
// smallest gap that fits. O(n^2). ValueError: no machine has as much memory.
NNL_API size_t plan_memory(std::vector<Interval>& intervals);

}  // namespace nnl
