// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "real.h"
#include "space.h"

namespace nnl {

// Sums of the columns of a rows x n array of any floating point types.
class ColumnSums {
 public:
  ColumnSums(DType type, int64_t rows, int64_t n, DType out, Space& space)
      : type_(type), out_(out), rows_(rows), n_(n), sums_(space.floats(n)) {}
  void run(const void* x, void* y, void* workspace) const;

 private:
  template <class T>
  void add(const T* x, float* y, int64_t m) const;

  DType type_, out_;
  int64_t rows_, n_;
  size_t sums_;
};

}  // namespace nnl
