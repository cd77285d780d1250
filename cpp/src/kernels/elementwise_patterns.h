// SPDX-License-Identifier: Apache-2.0
// How inputs stretch to the shape of the outputs.
#pragma once
#include "convert.h"
#include "nnl/spec.h"

namespace nnl {

// Where the elements of an input lie, seen from the flat index over the output.
struct Pattern {
  enum Kind { full, number, repeated } kind = full;
  Shape sizes, strides;  // axes in the order of memory of the output; neighbours merged
  int64_t period = 0;    // the pattern repeats after so many elements; 0 if only as a whole
};

// strides[a] is how far neighbours of the input along axis a of the output lie apart; 0 repeats.
Pattern pattern_of(const Spec& out, const Shape& strides);

// Strides of an input of shape `aligned`, whose elements lie as `own` says, along the axes of out.
Shape strides_along(const Spec& out, const Shape& aligned, const Spec& own);

// The stretches of [start, start + n) along the last axis of a pattern, and where each begins.
class Runs {
 public:
  Runs(const Pattern& pattern, int64_t start, int64_t n);
  bool left() const { return done_ < n_; }
  int64_t done() const { return done_; }  // elements before this stretch
  int64_t size() const { return size_; }
  int64_t place() const { return place_; }
  void next();

 private:
  const Pattern& pattern_;
  int64_t n_, done_ = 0, size_ = 0, place_ = 0;
  int64_t index_[16];  // pattern_of() refuses more axes
};

// The elements of x that belong to the outputs from `start` on. Where n float32 lie side by side
// this is their place, else they are copied to y.
const float* gather(const Pattern& pattern, const void* x, DType type, int64_t start, int64_t n,
                    float* y);

}  // namespace nnl
