// SPDX-License-Identifier: Apache-2.0
// affine, batch_matmul, and what only plans use:
//
// affine_fused: (x, weight, bias?, z?) -> y = f(x W + b + z).
//   Attributes: base_axis of affine; activation: identity, relu, gelu (with tanh), tanh, sigmoid,
//   swish. z has the shape of y.
#include <algorithm>

#include "nnl/kernel.h"
#include "product.h"

namespace nnl {
namespace {

bool takes(const Signature& s) {
  for (size_t i = 0; i < s.in.size(); ++i)
    if (s.in_given[i] && (!is_real(s.in[i].dtype) || s.in[i].layout != Layout::plain)) return false;
  return std::all_of(s.out.begin(), s.out.end(),
                     [](const Spec& y) { return is_real(y.dtype) && y.layout == Layout::plain; });
}

int64_t product_of(const Shape& shape, size_t begin, size_t end) {
  int64_t n = 1;
  for (size_t i = begin; i < end; ++i) n *= shape[i];
  return n;
}

class Affine : public Kernel {
 public:
  Affine(const Signature& s, Curve f) : bias_(s.given(2)), addend_(s.given(3)) {
    const Spec &x = s.in[0], &w = s.in[1];
    const auto base = static_cast<size_t>(s.attributes.integer("base_axis"));
    const int64_t rows = product_of(x.shape, 0, base);
    const int64_t inner = w.shape[0], columns = product_of(w.shape, 1, w.shape.size());
    ProductSpec p;
    p.a = Matrices::of(x.dtype, {rows, inner});
    p.b = Matrices::of(w.dtype, {inner, columns});
    p.y = Matrices::of(s.out[0].dtype, {rows, columns});
    p.bias = bias_, p.addend = addend_;
    if (bias_) p.bias_type = s.in[2].dtype;
    if (addend_) p.addend_type = s.in[3].dtype;
    p.activation = f;
    product_ = Product::make(p, space_);
  }
  size_t workspace() const override { return space_.size(); }
  void run(const Buffers& b) override {
    product_->run(b.in[0], b.in[1], bias_ ? b.in[2] : nullptr, addend_ ? b.in[3] : nullptr,
                  b.out[0], b.workspace);
  }

 private:
  bool bias_, addend_;
  Space space_;
  std::unique_ptr<Product> product_;
};

class BatchMatmul : public Kernel {
 public:
  BatchMatmul(const Signature& s, bool transpose_a, bool transpose_b) {
    ProductSpec p;
    p.a = Matrices::of(s.in[0].dtype, s.in[0].shape);
    p.b = Matrices::of(s.in[1].dtype, s.in[1].shape);
    if (transpose_a) p.a = p.a.transposed();
    if (transpose_b) p.b = p.b.transposed();
    p.y = Matrices::of(s.out[0].dtype, s.out[0].shape);
    product_ = Product::make(p, space_);
  }
  size_t workspace() const override { return space_.size(); }
  void run(const Buffers& b) override {
    product_->run(b.in[0], b.in[1], nullptr, nullptr, b.out[0], b.workspace);
  }

 private:
  Space space_;
  std::unique_ptr<Product> product_;
};

std::unique_ptr<Kernel> affine(const Signature& s) {
  if (!takes(s)) return nullptr;
  return std::make_unique<Affine>(s, Curve::none);
}

std::unique_ptr<Kernel> affine_fused(const Signature& s) {
  const Curve f = activation_of(s.attributes.text("activation"));
  if (!takes(s)) return nullptr;
  return std::make_unique<Affine>(s, f);
}

std::unique_ptr<Kernel> batch_matmul(const Signature& s) {
  if (!takes(s)) return nullptr;
  return std::make_unique<BatchMatmul>(s, s.attributes.flag("transpose_a"),
                                       s.attributes.flag("transpose_b"));
}

std::unique_ptr<Kernel> affine_weight(const Signature& s) {
  if (!takes(s)) return nullptr;
  return std::make_unique<BatchMatmul>(s, true, false);
}

// oneDNN multiplies bfloat16; float32 weights would be converted at every run.
Abilities product() {
  Abilities a;
#ifdef NNL_ONEDNN
  a.copies = true;
#endif
  return a;
}

Abilities fused_product() {
  Abilities a = product().append({"add2", "relu", "gelu", "tanh", "sigmoid", "swish"});
  // The product of more is made in several rounds, and what is added then costs more than a pass of
  // its own: 5% of the whole at 3072 rows.
  a.most_rows = 1024;
  a.adds_halves = true;
  return a;
}

const Registration registrations[] = {
    {"affine", affine, product()},
    {"affine_fused", affine_fused, fused_product()},
    {"batch_matmul", batch_matmul, product()},
    {"affine_weight", affine_weight},
};

}  // namespace
}  // namespace nnl
