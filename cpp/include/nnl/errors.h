// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <stdexcept>

namespace nnl {

// A value, shape or attribute that the function does not take. Python sees ValueError.
struct ValueError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace nnl
