// SPDX-License-Identifier: Apache-2.0
// Products of numbers of 8 bits, with what makes them real numbers: (x, w, bias?, z?, x_scale,
// x_zero?, w_scale, w_zero?, y_scale?, y_zero?) -> y. x is int8 or uint8, w int8; y is either, or
// float32 without y_scale. Scales and zero points are float32; w_scale may have one for each map.
#pragma once
#include "nnl/kernel.h"
#include "product.h"
#ifdef NNL_ONEDNN
#include "onednn.h"
#endif

namespace nnl {

// Which of them a product has.
struct Quantized {
  enum Input : size_t { x_scale = 4, x_zero, w_scale, w_zero, y_scale, y_zero };
  bool given = false, has_x_zero = false, has_w_zero = false, has_y_scale = false,
       has_y_zero = false;
  int64_t w_scales = 1;

  // Not given where the types of the inputs, or their numbers, are others.
  static Quantized read(const Signature& s, int64_t maps);
};

// The signature without scales, as if all numbers were float32: for reading shapes.
Signature in_floats(const Signature& s);

#ifdef NNL_ONEDNN
void append(dnnl::post_ops& ops, Curve f);

// What of it oneDNN reads at every run.
class Scales {
 public:
  explicit Scales(const Quantized& q) : q_(q) {}

  // Args: maps: the bits of the axes of the weights that have a scale each.
  void describe(dnnl::primitive_attr& attr, int maps) const;
  void add_to(onednn::Call& call) const;
  void set(onednn::Call& call, const Buffers& b);

 private:
  Quantized q_;
  int32_t x_zero_ = 0, w_zero_ = 0, y_zero_ = 0;
};
#endif

}  // namespace nnl
