// SPDX-License-Identifier: Apache-2.0
// Open sizes as files have them.
#pragma once
#include "nnl/json.h"
#include "nnl/program.h"

namespace nnl {

// {name: [example, least, greatest or null, multiple]}
void read_dims(const Json& json, ProgramData& program);

// A number, the name of a dim, [value, axis] or [operator, a, b]. ValueError: it is none of them,
// or names what is not there.
SizeExpression expression_of(const Json& json, const ProgramData& program);

// The attributes of a step that depend on open sizes, with {"size": expression} in the place of
// numbers. "elementwise.shapes" and "elementwise.constants" are those of its element-wise program.
void read_open(const Json& json, const ProgramData& program, ProgramStep& step);

// Compares what a step makes with what the rule of its op gives.
void check_made(const std::vector<ProgramValue>& values, const ProgramStep& step,
                const std::vector<Spec>& wanted);

// ValueError: an array with such a shape cannot lie in its order.
void check_order(const Spec& spec);

}  // namespace nnl
