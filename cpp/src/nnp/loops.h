// SPDX-License-Identifier: Apache-2.0
// Repeated and recurrent parts of networks, unrolled.
//
// A function or variable with repeat_ids stands for one copy per iteration of these loops, the
// first one being the outermost. The ends of loops are functions of their own:
//
//   RepeatStart(x, y)     x in the first iteration, then the y of the iteration before
//   RepeatEnd(y)          the y of the last iteration
//   RecurrentInput(x)     the i-th slice of x along an axis
//   RecurrentOutput(y)    all y stacked along an axis
//   Delay(y, x)           x in the first iteration, then the y of the iteration before
//
// A copy is called name_R[2] for the third iteration of the loop R, or takes [2] in the place of
// {R} in its name, as parameters do.
#pragma once

namespace nnl {

struct ProtoMessage;

bool has_loops(const ProtoMessage& network);

// A network that says the same without loops. ValueError: a loop has no number of iterations, is
// left by another way than its ends, or would give too many functions.
ProtoMessage without_loops(const ProtoMessage& network);

}  // namespace nnl
