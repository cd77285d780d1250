// SPDX-License-Identifier: Apache-2.0
// Outputs of element-wise programs that are reduced over axes block by block, and never written out
// in full.
#pragma once
#include "elementwise_patterns.h"

namespace nnl {

class BlockReduction {
 public:
  enum Kind : int64_t { none, sum, largest, smallest };

  // space: what the program runs over. out: its kept axes, or all with reduced ones of size 1.
  BlockReduction(const Spec& space, const Spec& out, const std::vector<int64_t>& axes, Kind kind,
                 double scale);

  // How many running values a part of the work needs.
  int64_t size() const { return out_.size(); }

  void start(double* values) const;
  // Takes in the elements [start, start + n) of the space.
  void add(const float* x, int64_t start, int64_t n, double* values) const;
  // Joins the values of all parts, which lie `step` apart, into the first, and writes the output.
  void finish(double* values, int64_t step, int64_t parts, void* out) const;

 private:
  template <class R>
  void add_as(const float* x, int64_t start, int64_t n, double* values) const;

  Spec out_;
  Pattern pattern_;
  Kind kind_;
  double scale_;
};

}  // namespace nnl
