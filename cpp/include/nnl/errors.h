// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <stdexcept>

#define NNL_API __attribute__((visibility("default")))  // what programs see of the library

namespace nnl {

// A value, shape or attribute that the function does not take. Python sees ValueError.
struct NNL_API ValueError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace nnl
