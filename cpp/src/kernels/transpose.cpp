// SPDX-License-Identifier: Apache-2.0
// Changing the order of axes, and copies that change none.
//
// to_layout: x -> y of the same shape; the layouts may differ, and the element types
// if they are floats. Tiled weights become plain ones and back.
#include "movement.h"

namespace nnl {
namespace {

std::unique_ptr<Kernel> transpose(const Signature& s) {
  if (!StridedCopy::takes(s.in[0].dtype, s.out[0].dtype)) return nullptr;
  const Shape own = s.in[0].strides();
  Shape source;
  for (int64_t a : s.attributes.integers("axes")) source.push_back(own[static_cast<size_t>(a)]);
  auto kernel = std::make_unique<Moves>();
  kernel->add(0, 0,
              {s.out[0].shape, source, 0, s.out[0].strides(), 0, s.in[0].dtype, s.out[0].dtype});
  return kernel;
}
const Registration of_transpose("transpose", transpose);

std::unique_ptr<Kernel> to_layout(const Signature& s) {
  if (!StridedCopy::takes(s.in[0].dtype, s.out[0].dtype) || s.in[0].shape != s.out[0].shape)
    return nullptr;
  Shape shape = s.out[0].shape, from = s.in[0].strides(), to = s.out[0].strides();
  const bool was_tiled = s.in[0].layout == Layout::tiled, tiled = s.out[0].layout == Layout::tiled;
  if (was_tiled != tiled) {
    if (shape.size() < 2 || shape[0] % 16 || shape[1] % 16) return nullptr;
    if ((was_tiled ? s.out[0] : s.in[0]).layout != Layout::plain) return nullptr;
    const int64_t taps = Spec{{shape.begin() + 2, shape.end()}}.size(), row = shape[1] * taps;
    const Shape plain = {16 * row, 16 * taps, 1, taps, row};
    shape = {shape[0] / 16, shape[1] / 16, taps, 16, 16};
    (was_tiled ? from : to) = Spec{shape}.strides();
    (was_tiled ? to : from) = plain;
  }
  auto kernel = std::make_unique<Moves>();
  kernel->add(0, 0, {shape, from, 0, to, 0, s.in[0].dtype, s.out[0].dtype});
  return kernel;
}
const Registration of_to_layout("to_layout", to_layout);

// A copy that may lie in the memory of its source.
class Copy : public Kernel {
 public:
  explicit Copy(const Signature& s)
      : n_(s.in[0].size()), from_(s.in[0].dtype), to_(s.out[0].dtype) {}
  void run(const Buffers& b) override {
    if (b.in[0] == b.out[0]) return;
    const Convert f = conversion(from_, to_);
    parallel_for(n_, 1 << 16, [&](int64_t begin, int64_t end) {
      f(at(b.in[0], from_, begin), at(b.out[0], to_, begin), end - begin);
    });
  }
  bool may_overwrite(size_t, size_t) const override { return from_ == to_; }

 private:
  int64_t n_;
  DType from_, to_;
};

// The elements in the plain order of both; channels-last ones are put in order on the way.
std::unique_ptr<Kernel> copy(const Signature& s) {
  const Spec &x = s.in[0], &y = s.out[0];
  if (!StridedCopy::takes(x.dtype, y.dtype)) return nullptr;
  const bool same_order = x.shape == y.shape && x.layout == y.layout;
  if (same_order || (x.layout == Layout::plain && y.layout == Layout::plain))
    return std::make_unique<Copy>(s);
  // reshape of an array that is not in the plain order: one that is contiguous on one side
  auto kernel = std::make_unique<Moves>();
  if (x.shape == y.shape)
    kernel->add(0, 0, {y.shape, x.strides(), 0, y.strides(), 0, x.dtype, y.dtype});
  else if (y.layout == Layout::plain)
    kernel->add(0, 0, {x.shape, x.strides(), 0, Spec{x.shape}.strides(), 0, x.dtype, y.dtype});
  else if (x.layout == Layout::plain)
    kernel->add(0, 0, {y.shape, Spec{y.shape}.strides(), 0, y.strides(), 0, x.dtype, y.dtype});
  else
    return nullptr;
  return kernel;
}
const Registration of_identity("identity", copy);
const Registration of_keep_states("keep_states", copy);
const Registration of_reshape("reshape", copy);

}  // namespace
}  // namespace nnl
