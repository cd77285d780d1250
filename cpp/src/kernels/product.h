// SPDX-License-Identifier: Apache-2.0
// Batched matrix products with bias, addition and activation behind them: oneDNN's for large
// matrices, registers of our own (gemm.h) for small ones and for builds without oneDNN.
#pragma once
#include <memory>
#include <string>

#include "nnl/spec.h"
#include "simd.h"

namespace nnl {

// Hands out parts of a workspace, 64-byte aligned: offsets at set-up, addresses at each run.
class Space {
 public:
  size_t take(size_t bytes) {
    const size_t at = size_;
    size_ += (bytes + 63) / 64 * 64;
    return at;
  }
  size_t floats(int64_t n) { return take(static_cast<size_t>(n) * sizeof(float)); }
  size_t size() const { return size_; }

  template <class T = float>
  static T* at(void* workspace, size_t offset) {
    return reinterpret_cast<T*>(static_cast<char*>(workspace) + offset);
  }

 private:
  size_t size_ = 0;
};

inline bool is_real(DType t) { return t == DType::f32 || is_half(t); }

// n elements from one floating point type to another, on several threads where that pays.
void convert(DType from, const void* x, DType to, void* y, int64_t n);

enum class Activation { none, relu, gelu, tanh, sigmoid, swish };

// Throws ValueError for a name that is not of these. gelu is the form with tanh.
Activation activation_of(const std::string& name);
void activate(Activation f, float* x, int64_t n);

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
  Activation activation = Activation::none;
};

class Product {
 public:
  virtual ~Product() = default;
  virtual void run(const void* a, const void* b, const void* bias, const void* z, void* y,
                   void* workspace) = 0;

  // Takes what it needs of the workspace. All types must be real.
  static std::unique_ptr<Product> make(const ProductSpec& spec, Space& space);
};

}  // namespace nnl
