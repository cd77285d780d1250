// SPDX-License-Identifier: Apache-2.0
// Batched matrix products with bias, addition and activation after them: oneDNN's for large
// matrices, registers of our own (gemm.h) for small ones and for builds without oneDNN.
#pragma once
#include <memory>
#include <string>

#include "nnl/kernel.h"
#include "nnl/packing.h"
#include "real.h"
#include "space.h"

namespace nnl {

// What is applied to each element of a result.
enum class Curve { none, relu, gelu, tanh, sigmoid, swish };

// Throws ValueError for a name that is not of these. gelu is the form with tanh.
Curve activation_of(const std::string& name);
void activate(Curve f, float* x, int64_t n);

// An array seen as matrices: (batch..., rows, columns) over the elements of one memory, which the
// strides need not visit in order. A stride of 0 repeats.
struct Matrices {
  DType dtype = DType::f32;
  Shape shape, strides;
  int64_t elements = 0;  // of the whole memory

  // A contiguous array read in another shape.
  static Matrices of(DType dtype, Shape shape);
  int64_t rows() const { return shape[shape.size() - 2]; }
  int64_t columns() const { return shape.back(); }
  Matrices transposed() const;
};

// y = f(a b + bias + z); bias (columns of y) and z (the shape of y) may be left out.
struct ProductSpec {
  Matrices a, b, y;  // y contiguous
  bool bias = false, addend = false;
  DType bias_type = DType::f32, addend_type = DType::f32;
  Curve activation = Curve::none;
  bool packed = false;  // b is what make_packer's kernel has made of it
};

// Those of affine, of affine_fused, and of batch_matmul.
ProductSpec affine_product(const Signature& s);
ProductSpec affine_fused_product(const Signature& s);
ProductSpec batch_product(const Signature& s);

// The same with fewer batch axes: as few and as large products as there can be.
ProductSpec simplified(ProductSpec s);

class Product {
 public:
  virtual ~Product() = default;
  virtual void run(const void* a, const void* b, const void* bias, const void* z, void* y,
                   void* workspace) = 0;

  // Takes what it needs of the workspace. All types must be real.
  static std::unique_ptr<Product> make(const ProductSpec& spec, Space& space);
};

// The kernel that brings b, its input, into the order that the product likes best; null where the
// product takes b only as it is.
std::unique_ptr<Kernel> make_packer(const ProductSpec& spec, PackedOrder& order);

// Of a quantized_affine or quantized_batch_matmul; the packer's only input is the weights.
PackedKernels packed_quantized_product(const std::string& op, const Signature& s);

}  // namespace nnl
