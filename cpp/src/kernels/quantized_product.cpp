// SPDX-License-Identifier: Apache-2.0
// Products of matrices of 8 bits; see quantized.h.
//
// quantized_affine, quantized_batch_matmul: y = f(x w + bias + z), quantized.
//   Attributes of affine_fused or batch_matmul, `activation` in both, and
//     packed, w_shape  whether w is what a packer has made of weights of this shape.
// pack_weights(w) -> packed
//   of: the op that takes packed, whose attributes are given too; the specs of its inputs and of
//   what it makes follow that of w.
#ifdef NNL_ONEDNN
#include <algorithm>

#include "convolution.h"
#include "product.h"
#include "quantized.h"

namespace nnl {
namespace {

using dnnl::memory;

memory::desc desc(const Matrices& x, DType type) {
  return {x.shape, onednn::type_of(type), x.strides};
}

struct Described {
  ProductSpec spec;
  Quantized quantized;
};

bool read(bool affine, const Signature& s, Described& d) {
  for (size_t i = 0; i < s.in.size(); ++i)
    if (s.given(i) && s.in[i].layout != Layout::plain) return false;
  Signature floats = in_floats(s), weights = s;
  weights.in[1].dtype = DType::i8;
  if (s.attributes.flag("packed"))
    floats.in[1] = weights.in[1] = {s.attributes.integers("w_shape"), DType::i8, Layout::plain};
  ProductSpec& p = d.spec;
  p = affine ? affine_product(floats) : batch_product(floats);
  p.bias = s.given(2), p.addend = s.given(3);
  p.activation = activation_of(s.attributes.text("activation"));
  p.packed = s.attributes.flag("packed");
  p.a.dtype = s.in[0].dtype, p.b.dtype = DType::i8, p.y.dtype = s.out[0].dtype;
  d.quantized = Quantized::read(weights, p.y.columns());
  p = simplified(p);
  const bool counts =
      std::max({p.y.rows(), p.y.columns(), p.a.columns()}) <= INT32_MAX && p.y.elements;
  return d.quantized.given && counts && p.a.elements && (!p.packed || p.b.shape.size() == 2);
}

memory::desc bias_desc(const ProductSpec& s) {
  Shape row(s.y.shape.size() - 1, 1), steps(row.size(), s.y.columns());
  row.push_back(s.y.columns()), steps.push_back(1);
  return {row, memory::data_type::f32, steps};
}

dnnl::matmul::primitive_desc primitive_of(const Described& d) {
  const ProductSpec& s = d.spec;
  dnnl::primitive_attr attr = onednn::with_scratchpad();
  Scales(d.quantized).describe(attr, 1 << (s.y.shape.size() - 1));
  dnnl::post_ops ops;
  if (s.addend) ops.append_binary(dnnl::algorithm::binary_add, desc(s.y, DType::f32));
  append(ops, s.activation);
  attr.set_post_ops(ops);
  memory::desc b = desc(s.b, DType::i8);
  if (s.packed) b = {s.b.shape, memory::data_type::s8, memory::format_tag::any};
  const auto a = desc(s.a, s.a.dtype), y = desc(s.y, s.y.dtype);
  if (!s.bias) return {onednn::engine(), a, b, y, attr, true};
  return {onednn::engine(), a, b, bias_desc(s), y, attr, true};
}

bool is_ready(const dnnl::matmul::primitive_desc& pd) {
  return pd && std::string(pd.impl_info_str()).find("ref") == std::string::npos;
}

class QuantizedProduct : public Kernel {
 public:
  QuantizedProduct(const Described& d, const dnnl::matmul::primitive_desc& pd)
      : s_(d.spec), scales_(d.quantized), call_(pd), scratch_(pd.scratchpad_desc().get_size()) {
    call_.arg(DNNL_ARG_SRC, pd.src_desc()).arg(DNNL_ARG_WEIGHTS, pd.weights_desc());
    call_.arg(DNNL_ARG_DST, pd.dst_desc()).arg(DNNL_ARG_SCRATCHPAD, pd.scratchpad_desc());
    if (s_.bias) call_.arg(DNNL_ARG_BIAS, bias_desc(s_));
    if (s_.addend) call_.arg(kAddend, desc(s_.y, DType::f32));
    scales_.add_to(call_);
  }
  size_t workspace() const override { return scratch_; }
  void run(const Buffers& b) override {
    call_.set(DNNL_ARG_SRC, b.in[0]);
    call_.set(DNNL_ARG_WEIGHTS, b.in[1]);
    if (s_.bias) call_.set(DNNL_ARG_BIAS, b.in[2]);
    if (s_.addend) call_.set(kAddend, b.in[3]);
    call_.set(DNNL_ARG_DST, b.out[0]);
    call_.set(DNNL_ARG_SCRATCHPAD, b.workspace);
    scales_.set(call_, b);
    call_.run();
  }

 private:
  static constexpr int kAddend = DNNL_ARG_ATTR_MULTIPLE_POST_OP(0) | DNNL_ARG_SRC_1;
  ProductSpec s_;
  Scales scales_;
  onednn::Call call_;
  size_t scratch_;
};

int most_threads(const ProductSpec& s) {
  return onednn::most_threads(2 * s.y.elements * s.a.columns());
}

template <bool affine>
std::unique_ptr<Kernel> product(const Signature& s) {
  Described d;
  if (!read(affine, s, d)) return nullptr;
  const ThreadScope scope(most_threads(d.spec));
  const auto pd = primitive_of(d);
  return is_ready(pd) ? std::make_unique<QuantizedProduct>(d, pd) : nullptr;
}

std::unique_ptr<Kernel> pack(const Signature& s) {
  Signature of = s;
  of.in.erase(of.in.begin()), of.in_given.erase(of.in_given.begin());
  of.out = {of.in.back()};
  of.in.pop_back(), of.in_given.pop_back();
  return packed_product(s.attributes.text("of"), of).packer;
}

const Registration registrations[] = {
    {"quantized_affine", product<true>},
    {"quantized_batch_matmul", product<false>},
    {"pack_weights", pack},
};

}  // namespace

PackedKernels packed_quantized_product(const std::string& op, const Signature& s) {
  Described d;
  PackedKernels made;
  if (!read(op == "quantized_affine", s, d) || d.spec.b.shape.size() != 2) return made;
  d.spec.packed = true;
  const ThreadScope scope(most_threads(d.spec));
  const auto pd = primitive_of(d);
  if (!is_ready(pd)) return made;
  const memory::desc plain = desc(d.spec.b, DType::i8), packed = pd.weights_desc();
  if (packed == plain) return made;
  made.order = {packed.get_size(), onednn::text_of(packed)};
  made.packer = onednn::packer(plain, packed);
  made.kernel = std::make_unique<QuantizedProduct>(d, pd);
  return made;
}

}  // namespace nnl
#endif
