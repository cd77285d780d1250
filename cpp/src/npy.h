// SPDX-License-Identifier: Apache-2.0
// Arrays as numpy saves them, .npy.
#pragma once
#include <string_view>

#include "nnl/spec.h"

namespace nnl {

struct NpyArray {
  Spec spec;
  const char* data;  // in the file, at any address
};

// ValueError: the file is damaged, of numbers in another order than C++ has them, or of something
// else than numbers.
// Source: numpy.lib.format, "Format Version 1.0" to "Format Version 3.0".
NpyArray npy_array(std::string_view file);

}  // namespace nnl
