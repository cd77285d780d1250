// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "product.h"

namespace nnl {

// The product of a few rows with a large matrix, which is read once, in its own type: what counts
// is memory speed, not arithmetic. Null where this does not apply.
std::unique_ptr<Product> make_row_product(const ProductSpec& spec, Space& space);

// Rows from which a matrix is converted as a whole where its type is none that is multiplied.
constexpr int64_t kConverted = 64;

// Whether the processor multiplies bfloat16: without, oneDNN takes 4 times as long as with float32.
bool multiplies_bf16();

// Its work on one thread: y = x b, for m rows and `width` columns of a matrix b of floats, whose
// element (p, j) is at `at` + p row + j column in the array; one of these is 1. Rows of x, k long,
// are `step` apart, those of y n.
struct FewRows {
  DType type;
  int64_t row, column, m, k, step, n;

  void run(const void* b, int64_t at, const float* x, int64_t width, float* y) const;
  // Rows up to which this is faster than products that bring the matrix into another order.
  static int64_t most(DType type, bool columns_run);
  // Floats from one row of x to the next, so that they are not all in one set of a cache.
  static int64_t step_of(int64_t k) { return k + 16; }
};

}  // namespace nnl
