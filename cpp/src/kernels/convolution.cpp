// SPDX-License-Identifier: Apache-2.0
// Convolution, its gradients and its transposes. oneDNN first, loops for the rest.
//
// Ops without a definition in Python, emitted by plans:
//
//   convolution_fused(x, w, b?, z?, scale?) -> y
//       y = activation(scale * convolution(x, w) + b + z); b and scale have one value per map, z
//       the shape of y. y may overwrite z. Attributes of convolution; pad may have two entries per
//       axis (begin, end); and
//         activation  name: identity, relu, leaky_relu, elu (both with `alpha`), relu6, sigmoid,
//                     tanh, swish, hard_swish, hard_sigmoid, gelu. Left out: identity.
//         packed      w is u8[bytes], written by pack_convolution. There is no scale then.
//         w_shape     the shape of the weights, if packed.
//   pack_convolution(x, w, b?, z?, scale?, y) -> packed
//       The weights, times scale, in the order that convolution_fused on these arrays with these
//       attributes wants. Of x, b, z and y only the specs are looked at: their memory may be null.
//       packed is u8[packed_convolution(...).order.bytes].
//   convolution_weight_bias(x, gy) -> gw, gb
//       Both gradients in one pass over gy. Attributes of convolution_weight.
//
// Weights, and gradients of weights, may be tiled where channel_last is false.
#include "convolution.h"

#include <cmath>

#include "converted.h"
#include "nnl/packing.h"
#include "simd.h"

namespace nnl {

int64_t Convolution::Array::size() const {
  int64_t n = 1;
  for (int64_t d : shape) n *= d;
  return n;
}

float apply(const Activation& a, float x) {
  switch (a.kind) {
    case Activation::identity:
      return x;
    case Activation::relu:
      return x > 0.0f ? x : 0.0f;
    case Activation::leaky_relu:
      return x > 0.0f ? x : a.alpha * x;
    case Activation::elu:
      return x > 0.0f ? x : a.alpha * std::expm1(x);
    case Activation::relu6:
      return std::fmin(std::fmax(x, 0.0f), 6.0f);
    case Activation::sigmoid:
      return fast_sigmoid(x);
    case Activation::tanh:
      return fast_tanh(x);
    case Activation::swish:
      return x * fast_sigmoid(x);
    case Activation::hard_swish:
      return x * std::fmin(std::fmax(x / 6.0f + 0.5f, 0.0f), 1.0f);
    case Activation::hard_sigmoid:
      return std::fmin(std::fmax(0.2f * x + 0.5f, 0.0f), 1.0f);
    case Activation::gelu:
      return 0.5f * x * (1.0f + fast_tanh(0.797884561f * (x + 0.044715f * x * x * x)));
  }
  return x;
}

namespace {

bool is_number(DType t) { return t == DType::f32 || is_half(t); }

bool read_activation(const Attributes& a, Activation& activation) {
  static const char* const names[] = {"identity",   "relu",         "leaky_relu", "elu",
                                      "relu6",      "sigmoid",      "tanh",       "swish",
                                      "hard_swish", "hard_sigmoid", "gelu"};
  if (!a.has("activation")) return true;
  const std::string& name = a.text("activation");
  for (int i = 0; i <= Activation::gelu; ++i) {
    if (name != names[i]) continue;
    activation.kind = static_cast<Activation::Kind>(i);
    if (a.has("alpha")) activation.alpha = static_cast<float>(a.number("alpha"));
    return true;
  }
  return false;
}

// Sizes and strides of data as (N, C, *S). False where batch axes cannot be merged.
bool as_images(const Spec& s, size_t base, bool channel_last, Convolution::Array& a) {
  const size_t n = s.shape.size();
  if (n < base + 2 || (base != 1 && s.layout != Layout::plain)) return false;
  const Shape strides = s.strides();
  a.dtype = s.dtype;
  int64_t batch = 1;
  for (size_t i = 0; i < base; ++i) batch *= s.shape[i];
  a.shape = {batch};
  a.strides = {base ? strides[base - 1] : s.size()};
  const size_t channel = channel_last ? n - 1 : base;
  a.shape.push_back(s.shape[channel]);
  a.strides.push_back(strides[channel]);
  for (size_t i = base; i < n; ++i) {
    if (i == channel) continue;
    a.shape.push_back(s.shape[i]);
    a.strides.push_back(strides[i]);
  }
  return true;
}

struct Roles {
  const Spec *x, *w, *y;
  int64_t groups;
  bool depthwise, channel_last;
};

// Whether tiles of weights hold maps and channels of one group only, and are not padded.
bool can_be_tiled(const Spec& s, const Roles& r) {
  return !r.depthwise && !r.channel_last && s.rank() > 2 && s.shape[0] / r.groups % 16 == 0 &&
         s.shape[1] % 16 == 0;
}

// Sizes and strides of weights as (G, O/G, C/G, *K).
bool as_weights(const Spec& s, int64_t groups, bool channel_last, bool depthwise,
                Convolution::Array& a) {
  const size_t n = s.shape.size();
  if (n < (depthwise ? 2u : 3u)) return false;
  const Shape strides = s.strides();
  const int64_t per_group = s.shape[0] / groups;
  a.dtype = s.dtype;
  a.shape = {groups, per_group};
  a.strides = {per_group * strides[0], strides[0]};
  if (depthwise) {
    a.shape.push_back(1);
    a.strides.push_back(strides[0]);
  }
  const size_t channel = channel_last ? n - 1 : 1;
  if (!depthwise) {
    a.shape.push_back(s.shape[channel]);
    a.strides.push_back(strides[channel]);
  }
  for (size_t i = 1; i < n; ++i) {
    if (!depthwise && i == channel) continue;
    a.shape.push_back(s.shape[i]);
    a.strides.push_back(strides[i]);
  }
  return true;
}

bool describe(const Attributes& a, const Roles& r, Convolution& c) {
  const auto base = static_cast<size_t>(a.integer("base_axis"));
  if (!as_images(*r.x, base, r.channel_last, c.x) || !as_images(*r.y, base, r.channel_last, c.y) ||
      !as_weights(*r.w, r.groups, r.channel_last, r.depthwise, c.w))
    return false;
  if (!is_number(c.x.dtype) || !is_number(c.y.dtype) || !is_number(c.w.dtype)) return false;
  c.tiled = r.w->layout == Layout::tiled;
  if (c.tiled && !can_be_tiled(*r.w, r)) return false;
  const size_t n = c.x.shape.size() - 2;
  if (c.w.shape.size() != n + 3 || c.y.shape.size() != n + 2) return false;
  c.batch = c.x.shape[0];
  c.groups = r.groups;
  c.channels = c.x.shape[1];
  c.maps = c.y.shape[1];
  c.size.assign(c.x.shape.begin() + 2, c.x.shape.end());
  c.out.assign(c.y.shape.begin() + 2, c.y.shape.end());
  c.kernel.assign(c.w.shape.begin() + 3, c.w.shape.end());
  c.stride = a.integers("stride");
  c.dilation = a.integers("dilation");
  const auto& pad = a.integers("pad");
  if (c.stride.size() != n || c.dilation.size() != n) return false;
  if (pad.size() != n && pad.size() != 2 * n) return false;
  c.pad.clear();  // the far end follows from the sizes
  for (size_t i = 0; i < n; ++i) c.pad.push_back(pad[pad.size() == n ? i : 2 * i]);
  return true;
}

// Forgets spatial axes of one pixel before and after, and one weight: sound that was made a
// picture. oneDNN counts on the last axis being long.
void forget_single_axes(Convolution& c) {
  if (c.tiled) return;
  for (size_t i = c.spatial(); i-- > 0 && c.spatial() > 1;) {
    if (c.size[i] != 1 || c.out[i] != 1 || c.kernel[i] != 1) continue;
    const auto at = static_cast<std::ptrdiff_t>(i);
    for (Shape* v : {&c.size, &c.out, &c.kernel, &c.stride, &c.dilation, &c.pad})
      v->erase(v->begin() + at);
    for (Convolution::Array* a : {&c.x, &c.y, &c.z, &c.w}) {
      if (a->shape.empty()) continue;  // there is no z
      const auto axis = at + (a == &c.w ? 3 : 2);
      a->shape.erase(a->shape.begin() + axis);
      a->strides.erase(a->strides.begin() + axis);
    }
  }
}

int64_t groups_of(const Attributes& a) { return a.has("group") ? a.integer("group") : 1; }
bool channel_last_of(const Attributes& a) {
  return a.has("channel_last") && a.flag("channel_last");
}

// oneDNN's kernel or the loop. float16, which oneDNN has only for other processors, is computed in
// float32, and so is bfloat16 where oneDNN declines it.
template <bool (*Read)(const Signature&, Convolution&)>
std::unique_ptr<Kernel> setup(const Signature& s) {
  if (auto kernel = converted(s, Convert::float16, setup<Read>)) return kernel;
  Convolution c;
  if (!Read(s, c)) return nullptr;
  forget_single_axes(c);
  if (auto kernel = depthwise_weight(c)) return kernel;
  if (auto kernel = pointwise_weight(c)) return kernel;
  if (auto kernel = plane_filter(c)) return with_bias(std::move(kernel), c);
#ifdef NNL_ONEDNN
  if (auto kernel = convolution_onednn(c, s)) return with_bias(std::move(kernel), c);
  if (auto kernel = converted(s, Convert::halves, setup<Read>)) return kernel;
#endif
  return c.packed || c.tiled ? nullptr : with_bias(convolution_loop(c, s), c);
}

bool read_bias(const Signature& s, size_t at, Convolution& c) {
  if (!s.given(at)) return true;
  c.bias_at = at;
  c.bias_type = s.in[at].dtype;
  return is_number(c.bias_type);
}

bool read_forward(const Signature& s, Convolution& c) {
  const Roles roles{
      &s.in[0], &s.in[1], &s.out[0], groups_of(s.attributes), false, channel_last_of(s.attributes)};
  c.direction = Direction::forward;
  c.x_at = 0, c.w_at = 1, c.y_at = 0;
  return describe(s.attributes, roles, c) && read_bias(s, 2, c);
}

bool read_data(const Signature& s, Convolution& c) {  // convolution_data, deconvolution
  const Roles roles{
      &s.out[0], &s.in[1], &s.in[0], groups_of(s.attributes), false, channel_last_of(s.attributes)};
  c.direction = Direction::data;
  c.x_at = 0, c.w_at = 1, c.y_at = 0;
  return describe(s.attributes, roles, c) && read_bias(s, 2, c);
}

bool read_weight(const Signature& s, Convolution& c) {
  const Roles roles{
      &s.in[0], &s.out[0], &s.in[1], groups_of(s.attributes), false, channel_last_of(s.attributes)};
  c.direction = Direction::weight;
  c.x_at = 0, c.w_at = 0, c.y_at = 1;
  if (s.out.size() > 1) c.bias_at = 1, c.bias_type = s.out[1].dtype;
  return is_number(c.bias_type) && describe(s.attributes, roles, c);
}

bool read_depthwise(const Signature& s, Convolution& c) {
  const auto base = static_cast<size_t>(s.attributes.integer("base_axis"));
  const Roles roles{&s.in[0], &s.in[1], &s.out[0], s.in[0].shape.at(base), true, false};
  c.direction = Direction::forward;
  c.x_at = 0, c.w_at = 1, c.y_at = 0;
  return describe(s.attributes, roles, c) && read_bias(s, 2, c);
}

bool read_depthwise_transposed(const Signature& s, Convolution& c) {
  const auto base = static_cast<size_t>(s.attributes.integer("base_axis"));
  const int64_t groups = s.in[0].shape.at(base) / s.attributes.integer("divisor");
  const Roles roles{&s.out[0], &s.in[1], &s.in[0], groups, true, false};
  c.direction = Direction::data;
  c.x_at = 0, c.w_at = 1, c.y_at = 0;
  return describe(s.attributes, roles, c) && read_bias(s, 2, c);
}

// What convolution_fused and pack_convolution have in common: x, w, b, z, scale and y.
// Args: w_shape: null where the weights are input 1, else that of weights that are packed.
bool read_fused_with(const Signature& s, const Spec& y, const Shape* w_shape, Convolution& c) {
  const Attributes& a = s.attributes;
  c.packed = w_shape != nullptr;
  const Spec w = c.packed ? Spec{*w_shape, DType::f32, Layout::plain} : s.in[1];
  const Roles roles{&s.in[0], &w, &y, groups_of(a), false, channel_last_of(a)};
  c.direction = Direction::forward;
  c.x_at = 0, c.w_at = 1, c.y_at = 0;
  if (!describe(a, roles, c) || !read_bias(s, 2, c) || !read_activation(a, c.activation))
    return false;
  if (s.given(3)) {
    const auto base = static_cast<size_t>(a.integer("base_axis"));
    if (s.in[3].shape != y.shape || !as_images(s.in[3], base, roles.channel_last, c.z) ||
        !is_number(c.z.dtype))
      return false;
    c.z_at = 3;
  }
  if (s.given(4) && !c.packed) {
    if (s.in[4].dtype != DType::f32 || c.tiled) return false;
    c.scale_at = 4;
  }
  return true;
}

bool read_fused(const Signature& s, Convolution& c) {
  const Attributes& a = s.attributes;
  if (!a.has("packed") || !a.flag("packed")) return read_fused_with(s, s.out[0], nullptr, c);
  return !s.given(4) && read_fused_with(s, s.out[0], &a.integers("w_shape"), c);
}

#ifdef NNL_ONEDNN
// A quantized_convolution; see quantized.h.
bool read_quantized_with(const Signature& s, const Shape* w_shape, Convolution& c) {
  const Signature floats = in_floats(s);
  if (!read_fused_with(floats, floats.out[0], w_shape, c)) return false;
  c.x.dtype = s.in[0].dtype, c.y.dtype = s.out[0].dtype, c.w.dtype = DType::i8;
  Signature weights = s;
  weights.in[1].dtype = DType::i8;  // also where they are packed
  c.quantized = Quantized::read(weights, c.maps);
  forget_single_axes(c);
  return c.quantized.given && !c.quantized.has_w_zero;
}

std::unique_ptr<Kernel> quantized(const Signature& s) {
  const bool packed = s.attributes.flag("packed");
  Convolution c;
  if (!read_quantized_with(s, packed ? &s.attributes.integers("w_shape") : nullptr, c))
    return nullptr;
  return convolution_onednn(c, s);
}

PackedKernels packed_with(const Signature& s, const Spec& y) {
  Convolution plain, packed;
  if (!read_fused_with(s, y, nullptr, plain) || !read_fused_with(s, y, &s.in[1].shape, packed) ||
      is_plane_filter(plain))
    return {};
  forget_single_axes(plain);
  forget_single_axes(packed);
  return packed_onednn(plain, packed);
}

std::unique_ptr<Kernel> pack(const Signature& s) {
  if (s.in.size() < 6) return nullptr;
  PackedKernels made = packed_with(s, s.in[5]);
  return made.order.bytes == s.out[0].bytes() ? std::move(made.packer) : nullptr;
}
const Registration pack_registration("pack_convolution", pack);
const Registration quantized_registration("quantized_convolution", quantized,
                                          Abilities().last({0, 3}, {0}));
const std::vector<int> first{0}, second{1};
#else
const std::vector<int> first, second;
#endif

// Images are fastest channels-last; oneDNN takes and makes weights in tiles.
Abilities images(std::vector<int> in, std::vector<int> out) {
  return Abilities().last(std::move(in), std::move(out));
}

const Registration registrations[] = {
    {"convolution", setup<read_forward>, images({0}, {0}).tiled(second, {}).packed()},
    {"convolution_data", setup<read_data>, images({0}, {0}).tiled(second, {})},
    {"convolution_weight", setup<read_weight>, images({0, 1}, {}).tiled({}, first)},
    {"convolution_weight_bias", setup<read_weight>, images({0, 1}, {}).tiled({}, first)},
    {"deconvolution", setup<read_data>, images({0}, {0}).tiled(second, {})},
    {"depthwise_convolution", setup<read_depthwise>, images({0}, {0})},
    {"depthwise_deconvolution", setup<read_depthwise_transposed>, images({0}, {0})},
    {"convolution_fused", setup<read_fused>,
     images({0, 3}, {0})
         .tiled(second, {})
         .packed()
         .append({"batch_normalization", "add2", "relu", "relu6", "sigmoid", "tanh", "swish",
                  "hard_sigmoid", "gelu"})},
};

}  // namespace

#ifdef NNL_ONEDNN
PackedKernels packed_quantized(const Signature& s) {
  Convolution plain, packed;
  if (read_quantized_with(s, nullptr, plain) && read_quantized_with(s, &s.in[1].shape, packed)) {
    plain.w_at = 0;
    return packed_onednn(plain, packed);
  }
  return {};
}
#endif

PackedKernels packed_convolution(const Signature& s) {
#ifdef NNL_ONEDNN
  // float16 runs through float32, and there the kernel takes no packed weights
  for (const Spec& spec : s.in)
    if (spec.dtype == DType::f16) return {};
  return s.out[0].dtype == DType::f16 ? PackedKernels{} : packed_with(s, s.out[0]);
#else
  (void)s;
  return {};
#endif
}

}  // namespace nnl
