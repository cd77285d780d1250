// SPDX-License-Identifier: Apache-2.0
// Sizes and memory of a convolution, whichever of its three linear maps is wanted.
//
// Everything is brought to one form: data (N, C, *S), weights (G, O/G, C/G, *K), results
// (N, O, *S'), each with a stride per axis. Batch axes are merged; channel_last, the layout of an
// array, transposition (deconvolution) and depthwise weights only change sizes and strides.
#pragma once
#include <memory>

#include "nnl/kernel.h"
#include "nnl/packing.h"
#include "quantized.h"

namespace nnl {

// x, w and y stand for themselves or for their gradients: `forward` writes y, `data` writes x,
// `weight` writes w.
enum class Direction { forward, data, weight };

struct Activation {
  enum Kind {
    identity,
    relu,
    leaky_relu,
    elu,
    relu6,
    sigmoid,
    tanh,
    swish,
    hard_swish,
    hard_sigmoid,
    gelu
  } kind = identity;
  float alpha = 0.0f;
};

struct Convolution {
  struct Array {
    DType dtype = DType::f32;
    Shape shape, strides;  // in elements
    int64_t size() const;
  };
  static constexpr size_t none = ~size_t{0};

  Direction direction = Direction::forward;
  int64_t batch = 0, groups = 1, channels = 0, maps = 0;
  Shape size, out, kernel, stride, dilation, pad;  // one entry per spatial axis
  Array x, w, y, z;
  // Where the arrays stand among inputs (what is written: among outputs); none where there is none.
  size_t x_at = none, w_at = none, y_at = none, bias_at = none, z_at = none, scale_at = none;
  DType bias_type = DType::f32;  // of bias, or of its gradient
  Activation activation;
  Quantized quantized;  // where x and w have 8 bits
  bool packed = false;  // w is what pack_convolution made
  bool tiled = false;   // the weights lie so; see Layout

  size_t spatial() const { return size.size(); }
  // Length of bias: channels of what is written.
  int64_t bias_size() const { return direction == Direction::data ? channels : maps; }
};

float apply(const Activation& a, float x);

// Each declines by returning null.
// Gradients of the weights of depthwise and of 1 x 1 convolutions, channels-last.
std::unique_ptr<Kernel> depthwise_weight(const Convolution& c);
std::unique_ptr<Kernel> pointwise_weight(const Convolution& c);
// Of images of one channel to such images, and the gradient by the data.
bool is_plane_filter(const Convolution& c);
std::unique_ptr<Kernel> plane_filter(const Convolution& c);
std::unique_ptr<Kernel> convolution_loop(const Convolution& c, const Signature& s);
// Adds the bias of a deconvolution to what `inner` writes; other maps add theirs themselves.
std::unique_ptr<Kernel> with_bias(std::unique_ptr<Kernel> inner, const Convolution& c);
#ifdef NNL_ONEDNN
std::unique_ptr<Kernel> convolution_onednn(const Convolution& c, const Signature& s);
// Of a convolution, and of the same one with packed weights.
PackedKernels packed_onednn(const Convolution& plain, const Convolution& packed);
// Of a quantized_convolution; the packer's only input is the weights.
PackedKernels packed_quantized(const Signature& s);
#endif

}  // namespace nnl
