// SPDX-License-Identifier: Apache-2.0
// affine, batch_matmul, and what only plans use:
//
// affine_fused: (x, weight, bias?, z?) -> y = f(x W + b + z).
//   Attributes: base_axis of affine; activation: identity, relu, gelu (with tanh), tanh, sigmoid,
//   swish. z has the shape of y. packed: W is what pack_weights has made of weights of w_shape.
#include <algorithm>
#include <map>

#include "convolution.h"
#include "nnl/kernel.h"
#include "nnl/packing.h"
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

class Multiply : public Kernel {
 public:
  explicit Multiply(const ProductSpec& p)
      : bias_(p.bias), addend_(p.addend), product_(Product::make(p, space_)) {}
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

ProductSpec affine_with(Curve f, const Signature& s) {
  const Spec &x = s.in[0], &w = s.in[1];
  const auto base = static_cast<size_t>(s.attributes.integer("base_axis"));
  const int64_t rows = product_of(x.shape, 0, base);
  const int64_t inner = w.shape[0], columns = product_of(w.shape, 1, w.shape.size());
  ProductSpec p;
  p.a = Matrices::of(x.dtype, {rows, inner});
  p.b = Matrices::of(w.dtype, {inner, columns});
  p.y = Matrices::of(s.out[0].dtype, {rows, columns});
  p.bias = s.given(2), p.addend = s.given(3);
  if (p.bias) p.bias_type = s.in[2].dtype;
  if (p.addend) p.addend_type = s.in[3].dtype;
  p.activation = f;
  return p;
}
ProductSpec batches(const Signature& s, bool transpose_a, bool transpose_b) {
  ProductSpec p;
  p.a = Matrices::of(s.in[0].dtype, s.in[0].shape);
  p.b = Matrices::of(s.in[1].dtype, s.in[1].shape);
  if (transpose_a) p.a = p.a.transposed();
  if (transpose_b) p.b = p.b.transposed();
  p.y = Matrices::of(s.out[0].dtype, s.out[0].shape);
  return p;
}
ProductSpec affine_weight(const Signature& s) { return batches(s, true, false); }

template <ProductSpec (*spec_of)(const Signature&)>
std::unique_ptr<Kernel> multiply(const Signature& s) {
  if (!takes(s)) return nullptr;
  return std::make_unique<Multiply>(spec_of(s));
}

std::unique_ptr<Kernel> fused(const Signature& s) {
  if (!s.attributes.has("packed") || !s.attributes.flag("packed"))
    return multiply<affine_fused_product>(s);
  Signature whole = s;
  whole.in[1] = {s.attributes.integers("w_shape"), DType::f32, Layout::plain};
  if (!takes(whole)) return nullptr;
  ProductSpec p = affine_fused_product(whole);
  p.packed = true;
  return std::make_unique<Multiply>(p);
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
    {"affine", multiply<affine_product>, product()},
    {"affine_fused", fused, fused_product()},
    {"batch_matmul", multiply<batch_product>, product()},
    {"affine_weight", multiply<affine_weight>},
};

}  // namespace

ProductSpec affine_product(const Signature& s) { return affine_with(Curve::none, s); }
ProductSpec affine_fused_product(const Signature& s) {
  return affine_with(activation_of(s.attributes.text("activation")), s);
}
ProductSpec batch_product(const Signature& s) {
  return batches(s, s.attributes.flag("transpose_a"), s.attributes.flag("transpose_b"));
}

PackedKernels packed_product(const std::string& op, const Signature& s) {
  static const std::map<std::string, ProductSpec (*)(const Signature&)> products = {
      {"affine", affine_product},
      {"affine_fused", affine_fused_product},
      {"batch_matmul", batch_product}};
#ifdef NNL_ONEDNN
  if (op == "quantized_convolution") return packed_quantized(s);
  if (op == "quantized_affine" || op == "quantized_batch_matmul")
    return packed_quantized_product(op, s);
#endif
  PackedKernels made;
  const auto found = products.find(op);
  if (found == products.end() || !takes(s)) return made;
  ProductSpec p = found->second(s);
  made.packer = make_packer(p, made.order);
  if (!made.packer) return made;
  p.packed = true;
  made.kernel = std::make_unique<Multiply>(p);
  return made;
}

}  // namespace nnl
