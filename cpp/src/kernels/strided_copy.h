// SPDX-License-Identifier: Apache-2.0
// Copies between two arrays of one shape whose elements lie in any regular order.
#pragma once
#include <vector>

#include "nnl/spec.h"

namespace nnl {

class StridedCopy {
 public:
  // Strides in elements: 0 repeats (in the source only), negative ones run backwards. `from` and
  // `to` are the places of the first elements.
  StridedCopy(const Shape& shape, const Shape& source, int64_t from, const Shape& target,
              int64_t to, DType source_type, DType target_type);

  // Whether there is a loop for these element types.
  static bool takes(DType source, DType target);

  void run(const void* x, void* y) const;

  struct Axis {
    int64_t size, source, target;
  };

 private:
  using Loop = void (StridedCopy::*)(const void* x, void* y, int64_t begin, int64_t end) const;
  template <class S, class T>
  void copy(const void* x, void* y, int64_t begin, int64_t end) const;
  int64_t bands() const;
  static Loop loop_of(DType source, DType target);

  int64_t from_, to_, size_ = 1;
  std::vector<Axis> outer_;  // by falling stride of the target
  Axis inner_{1, 1, 1};      // of the least stride in the target
  Axis across_{1, 1, 1};     // along which the source is contiguous, where tiles are transposed
  bool transposes_ = false;
  int64_t parts_ = 0;  // what threads share: rows, or bands of tiles
  int64_t grain_ = 1;
  Loop loop_;
};

}  // namespace nnl
