// SPDX-License-Identifier: Apache-2.0
#pragma once
#if __cplusplus < 201703L  // every header of nnl for C++ includes this one
#error "nnl needs C++17: compile with -std=c++17"
#endif
#include <stdexcept>

#define NNL_API __attribute__((visibility("default")))  // what programs see of the library

namespace nnl {

// A value, shape or attribute that the function does not take. Python sees ValueError.
struct NNL_API ValueError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace nnl
