// SPDX-License-Identifier: Apache-2.0
// slice and its gradient, flip, tile, and stretching: copies with steps that are not 1.
#include <algorithm>
#include <numeric>

#include "movement.h"

namespace nnl {
namespace {

bool taken(const Signature& s, size_t input = 0) {
  return StridedCopy::takes(s.in[input].dtype, s.out[0].dtype);
}

// The part of an array that Python's slices name: as slice.indices() counts.
struct Region {
  Region(const Signature& s, const Spec& whole) : shape(whole.shape), strides(whole.strides()) {
    const auto &start = s.attributes.integers("start"), &stop = s.attributes.integers("stop"),
               &step = s.attributes.integers("step");
    const size_t lead = shape.size() - start.size();
    for (size_t i = 0; i < start.size(); ++i) {
      int64_t& n = shape[lead + i];
      const int64_t low = step[i] < 0 ? -1 : 0, high = step[i] < 0 ? n - 1 : n;
      auto bounded = [&](int64_t v) { return std::clamp(v < 0 ? v + n : v, low, high); };
      // an empty axis has high < low going backwards
      const int64_t first = n ? bounded(start[i]) : 0, end = n ? bounded(stop[i]) : 0;
      const int64_t distance = step[i] < 0 ? first - end : end - first;
      const int64_t size = std::llabs(step[i]);
      n = distance > 0 ? (distance + size - 1) / size : 0;
      place += first * strides[lead + i];
      strides[lead + i] *= step[i];
    }
  }
  Shape shape, strides;
  int64_t place = 0;
};

std::unique_ptr<Kernel> slice(const Signature& s) {
  if (!taken(s)) return nullptr;
  const Region r(s, s.in[0]);
  if (r.shape != s.out[0].shape) return nullptr;
  auto kernel = std::make_unique<Moves>();
  kernel->add(0, 0,
              {r.shape, r.strides, r.place, s.out[0].strides(), 0, s.in[0].dtype, s.out[0].dtype});
  return kernel;
}
const Registration of_slice("slice", slice);

std::unique_ptr<Kernel> slice_backward(const Signature& s) {
  if (!taken(s)) return nullptr;
  const Region r(s, s.out[0]);
  if (r.shape != s.in[0].shape) return nullptr;
  auto kernel = std::make_unique<Moves>();
  if (s.in[0].size() != s.out[0].size()) kernel->fill(0, s.out[0], 0.0);
  kernel->add(0, 0,
              {r.shape, s.in[0].strides(), 0, r.strides, r.place, s.in[0].dtype, s.out[0].dtype});
  return kernel;
}
const Registration of_slice_backward("slice_backward", slice_backward);

std::unique_ptr<Kernel> flip(const Signature& s) {
  if (!taken(s)) return nullptr;
  Shape strides = s.in[0].strides();
  const auto& axes = s.attributes.integers("axes");
  int64_t from = 0;
  for (size_t a = 0; a < strides.size(); ++a) {
    if (std::find(axes.begin(), axes.end(), static_cast<int64_t>(a)) == axes.end()) continue;
    from += (s.in[0].shape[a] - 1) * strides[a];
    strides[a] = -strides[a];
  }
  auto kernel = std::make_unique<Moves>();
  kernel->add(0, 0,
              {s.in[0].shape, strides, from, s.out[0].strides(), 0, s.in[0].dtype, s.out[0].dtype});
  return kernel;
}
const Registration of_flip("flip", flip);

// Every axis becomes two: which copy, and where in it.
std::unique_ptr<Kernel> tile(const Signature& s) {
  if (!taken(s)) return nullptr;
  const Shape own = s.in[0].strides(), all = s.out[0].strides();
  const auto& reps = s.attributes.integers("reps");
  const size_t rank = all.size();
  const size_t lead = rank - own.size(), lead_reps = rank - reps.size();
  Shape sizes, source, target;
  for (size_t a = 0; a < rank; ++a) {
    const int64_t n = a < lead ? 1 : s.in[0].shape[a - lead];
    sizes.insert(sizes.end(), {a < lead_reps ? 1 : reps[a - lead_reps], n});
    source.insert(source.end(), {0, a < lead ? 0 : own[a - lead]});
    target.insert(target.end(), {n * all[a], all[a]});
  }
  auto kernel = std::make_unique<Moves>();
  kernel->add(0, 0, {sizes, source, 0, target, 0, s.in[0].dtype, s.out[0].dtype});
  return kernel;
}
const Registration of_tile("tile", tile);

// x stretched along the axes of y: `start` is the axis of y along which its first axis lies.
std::unique_ptr<Kernel> stretched(const Signature& s, size_t input, size_t start) {
  if (!taken(s, input)) return nullptr;
  const Spec& x = s.in[input];
  const Shape own = x.strides();
  Shape source(s.out[0].shape.size(), 0);
  for (size_t a = 0; a < own.size(); ++a) source[start + a] = x.shape[a] == 1 ? 0 : own[a];
  auto kernel = std::make_unique<Moves>();
  kernel->add(input, 0,
              {s.out[0].shape, source, 0, s.out[0].strides(), 0, x.dtype, s.out[0].dtype});
  return kernel;
}

std::unique_ptr<Kernel> broadcast(const Signature& s) {
  return stretched(s, 0, s.out[0].shape.size() - s.in[0].shape.size());
}
const Registration of_broadcast("broadcast", broadcast);

std::unique_ptr<Kernel> broadcast_to(const Signature& s) {
  const int64_t axis = s.attributes.integer("axis");
  const size_t last = s.out[0].shape.size() - s.in[1].shape.size();
  return stretched(s, 1, axis == -1 ? last : static_cast<size_t>(axis));
}
const Registration of_broadcast_to("broadcast_to", broadcast_to);

}  // namespace
}  // namespace nnl
