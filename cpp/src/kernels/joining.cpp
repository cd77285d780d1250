// SPDX-License-Identifier: Apache-2.0
// concatenate, stack and split: one copy for every array that is joined or taken out.
#include "movement.h"

namespace nnl {
namespace {

bool all_taken(const Signature& s) {
  for (const Spec& x : s.in)
    for (const Spec& y : s.out)
      if (!StridedCopy::takes(x.dtype, y.dtype)) return false;
  return true;
}

std::unique_ptr<Kernel> concatenate(const Signature& s) {
  if (!all_taken(s)) return nullptr;
  const auto axis = static_cast<size_t>(s.attributes.integer("axis"));
  const Shape target = s.out[0].strides();
  auto kernel = std::make_unique<Moves>();
  int64_t to = 0;
  for (size_t i = 0; i < s.in.size(); ++i) {
    const Spec& x = s.in[i];
    kernel->add(i, 0, {x.shape, x.strides(), 0, target, to, x.dtype, s.out[0].dtype});
    to += x.shape[axis] * target[axis];
  }
  return kernel;
}
const Registration of_concatenate("concatenate", concatenate);

std::unique_ptr<Kernel> stack(const Signature& s) {
  if (!all_taken(s)) return nullptr;
  const auto axis = static_cast<ptrdiff_t>(s.attributes.integer("axis"));
  Shape target = s.out[0].strides();
  const int64_t step = target[static_cast<size_t>(axis)];
  target.erase(target.begin() + axis);
  auto kernel = std::make_unique<Moves>();
  for (size_t i = 0; i < s.in.size(); ++i) {
    const Spec& x = s.in[i];
    kernel->add(
        i, 0,
        {x.shape, x.strides(), 0, target, static_cast<int64_t>(i) * step, x.dtype, s.out[0].dtype});
  }
  return kernel;
}
const Registration of_stack("stack", stack);

std::unique_ptr<Kernel> split(const Signature& s) {
  if (!all_taken(s)) return nullptr;
  const auto axis = static_cast<ptrdiff_t>(s.attributes.integer("axis"));
  Shape source = s.in[0].strides();
  const int64_t step = source[static_cast<size_t>(axis)];
  source.erase(source.begin() + axis);
  auto kernel = std::make_unique<Moves>();
  for (size_t o = 0; o < s.out.size(); ++o) {
    const Spec& y = s.out[o];
    kernel->add(
        0, o,
        {y.shape, source, static_cast<int64_t>(o) * step, y.strides(), 0, s.in[0].dtype, y.dtype});
  }
  return kernel;
}
const Registration of_split("split", split);

}  // namespace
}  // namespace nnl
