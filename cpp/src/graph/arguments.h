// SPDX-License-Identifier: Apache-2.0
// Arguments of functions, checked and brought to the form that attributes have.
#pragma once
#include <string>
#include <vector>

#include "graph.h"

namespace nnl::graph {

const Shape& shape_of(const char* function, const char* name, const Variable& x);
// Counted from the front.
int64_t axis_of(const char* function, int64_t axis, const Variable& x);
// The same for several; no axes are all of them.
std::vector<int64_t> axes_of(const char* function, const Integers& axes, const Variable& x,
                             bool none_is_all = true);
// One value for each spatial axis; `value` for each if none is given.
std::vector<int64_t> or_all(const Integers& given, size_t n, int64_t value);
void check_positive(const char* function, const char* name, double value);

Variable random_state(int seed);

}  // namespace nnl::graph
