// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "product.h"

namespace nnl {

// The product of one row with a large matrix, which is read once, in its own type: what counts is
// memory speed, not arithmetic. Null where this does not apply.
std::unique_ptr<Product> make_row_product(const ProductSpec& spec, Space& space);

}  // namespace nnl
