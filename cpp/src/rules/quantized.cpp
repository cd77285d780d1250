// SPDX-License-Identifier: Apache-2.0
// Rules of numbers of 8 bits: quantizing, the way back, and products.
#include <algorithm>

#include "convolution.h"

namespace nnl {
namespace {

void check_scales(const RuleCall& c) {
  for (size_t i : {1, 2}) {
    if (c[i].shape.size() != c[0].shape.size() || !stretches(c[i].shape, c[0].shape))
      c.fail(i, "what stretches to " + c.text(0));
  }
}

Specs quantize(const RuleCall& c) {
  c.one_of("round_mode", {"HALF_AWAY_FROM_ZERO", "HALF_TO_EVEN"});
  c.integer("dtype", 1, 2);
  check_scales(c);
  return {c[0]};
}
const ShapeRule quantize_linear{"quantize_linear", "x scale zero_point", quantize};

Specs dequantize(const RuleCall& c) {
  check_scales(c);
  return {c[0].dtype <= DType::bf16 ? c[0] : with_shape(c[1], c[0].shape)};
}
const ShapeRule dequantize_linear{"dequantize_linear", "x scale zero_point", dequantize};

// The type of y, a product of so many maps; checks scales, zero points and the activation.
Specs quantized(const RuleCall& c, Spec y, int64_t maps) {
  for (size_t i : {4, 8, 9})
    if (c.given(i) && c[i].size() != 1) c.fail(i, "one number");
  if (c[6].size() != 1 && c[6].size() != maps)
    c.fail(6, "1 or " + std::to_string(maps) + " numbers");
  const std::string& type = c.attributes.text("dtype");
  if (c.given(8))
    c.one_of("dtype", {"int8", "uint8"});
  else
    c.one_of("dtype", {"float32"});
  y.dtype = type == "int8" ? DType::i8 : type == "uint8" ? DType::u8 : DType::f32;
  c.has_shape(3, y.shape);
  return {y};
}

Specs convolution(const RuleCall& c) {
  c.one_of("activation", {"identity", "relu", "relu6", "sigmoid", "tanh", "swish", "hard_sigmoid",
                          "gelu", "leaky_relu", "elu"});
  const Shape weight = c.attributes.flag("packed") ? c.shape("w_shape") : c[1].shape;
  const Spec y = convolved_spec(c, 0, weight);
  c.has_shape(2, {weight[0]});
  if (c.given(7)) c.fail(7, "none");
  return quantized(c, y, weight[0]);
}

// What comes before the product's own rule sees: packed weights as they were.
Spec product_of(const RuleCall& c, const char* op,
                std::unordered_map<std::string, Attribute> attributes) {
  c.one_of("activation", {"identity", "relu", "gelu", "tanh", "sigmoid", "swish"});
  Signature s;
  s.attributes = Attributes(std::move(attributes));
  s.in = {with_type(c[0], DType::f32), with_type(c[1], DType::f32)};
  if (c.attributes.flag("packed")) s.in[1].shape = c.shape("w_shape");
  s.in_given = {true, true};
  const Spec y = infer(op, s)[0];
  if (c.given(2) && (y.shape.empty() || c[2].size() != y.shape.back()))
    c.fail(2, "one number for each column");
  return y;
}

Specs affine(const RuleCall& c) {
  const Spec y = product_of(c, "affine", {{"base_axis", c.integer("base_axis", 0, 64)}});
  return quantized(c, y, y.shape.back());
}

Specs batch_matmul(const RuleCall& c) {
  const Spec y = product_of(c, "batch_matmul",
                            {{"transpose_a", c.attributes.flag("transpose_a")},
                             {"transpose_b", c.attributes.flag("transpose_b")}});
  return quantized(c, y, y.shape.back());
}

const char* const inputs = "x weight bias? z? x_scale x_zero? w_scale w_zero? y_scale? y_zero?";
const ShapeRule quantized_convolution{"quantized_convolution", inputs, convolution};
const ShapeRule quantized_affine{"quantized_affine", inputs, affine};
const ShapeRule quantized_batch_matmul{"quantized_batch_matmul", inputs, batch_matmul};

Specs pair(const RuleCall& c) {
  c.one_of("activation", {"identity", "relu"});
  c.one_of("dtype", {"int8", "uint8"});
  const Shape& x = c[0].shape;
  Shape thin(x.size(), 1);
  std::copy_n(x.begin(), std::min<size_t>(2, x.size()), thin.begin());
  if (c[1].shape != x && c[1].shape != thin) c.fail(1, "the shape of " + c.text(0));
  for (size_t i = 2; i < 8; ++i)
    if (c[i].size() != 1) c.fail(i, "one number");
  return {with_type(c[0], c.attributes.text("dtype") == "int8" ? DType::i8 : DType::u8)};
}
const ShapeRule quantized_pair{"quantized_pair",
                               "x0 x1 x0_scale x0_zero x1_scale x1_zero y_scale y_zero", pair};

Specs packed(const RuleCall& c) { return {{{c.integer("nbytes", 0)}, DType::u8}}; }
const ShapeRule pack_weights{"pack_weights", "weight", packed};

}  // namespace
}  // namespace nnl
