// SPDX-License-Identifier: Apache-2.0
// Convolutions by oneDNN: reorders into its layouts where they differ, the primitive, reorders
// back.
#ifdef NNL_ONEDNN
#include <algorithm>
#include <cstring>

#include "blocked_weights.h"
#include "converted.h"
#include "convolution.h"
#include "nnl/threads.h"
#include "onednn.h"

namespace nnl {
namespace {

using dnnl::algorithm;
using dnnl::memory;
using memory_type = memory::data_type;
using onednn::Call;

constexpr size_t kNowhere = ~size_t{0};

// How oneDNN is asked: with channels-last images as they lie, or free to choose every layout.
enum class Images { as_they_lie, free };

struct Descs {
  memory::desc x, w, y, bias;
  memory::dims stride, dilation, begin, end;
  dnnl::primitive_attr attr = onednn::with_scratchpad();
};

memory::desc exact(const Convolution::Array& a) {
  return {a.shape, onednn::type_of(a.dtype), a.strides};
}

memory::desc tiled_weights(const Convolution& c, DType type) {
  using tag = memory::format_tag;
  const tag tags[2][3] = {{tag::OIw16i16o, tag::OIhw16i16o, tag::OIdhw16i16o},
                          {tag::gOIw16i16o, tag::gOIhw16i16o, tag::gOIdhw16i16o}};
  Shape shape = c.w.shape;
  if (c.groups == 1) shape.erase(shape.begin());
  return {shape, onednn::type_of(type), tags[c.groups > 1][c.spatial() - 1]};
}

// Weights as oneDNN counts them: without the axis of groups where there is one group.
memory::desc exact_weights(const Convolution& c, DType type) {
  if (c.tiled) return tiled_weights(c, type);
  Shape shape = c.w.shape, strides = c.w.strides;
  if (c.groups == 1) {
    shape.erase(shape.begin());
    strides.erase(strides.begin());
  }
  return {shape, onednn::type_of(type), strides};
}

memory::desc image_desc(const Convolution::Array& a, memory_type type, Images images) {
  if (images == Images::as_they_lie && a.strides[1] == 1 && a.shape[1] > 1)
    return {a.shape, type, a.strides};
  // planes: oneDNN would choose channels-last, to which its reorders are slow
  if (images == Images::as_they_lie && a.shape[1] % 16 == 0) {
    using tag = memory::format_tag;
    const tag blocked[] = {tag::nCw16c, tag::nChw16c, tag::nCdhw16c};
    return {a.shape, type, blocked[a.shape.size() - 3]};
  }
  return {a.shape, type, memory::format_tag::any};
}

void append(dnnl::post_ops& ops, const Activation& a) {
  switch (a.kind) {
    case Activation::identity:
      return;
    case Activation::relu:
      return ops.append_eltwise(algorithm::eltwise_relu, 0.0f, 0.0f);
    case Activation::leaky_relu:
      return ops.append_eltwise(algorithm::eltwise_relu, a.alpha, 0.0f);
    case Activation::elu:
      return ops.append_eltwise(algorithm::eltwise_elu, a.alpha, 0.0f);
    case Activation::relu6:
      return ops.append_eltwise(algorithm::eltwise_clip, 0.0f, 6.0f);
    case Activation::sigmoid:
      return ops.append_eltwise(algorithm::eltwise_logistic, 0.0f, 0.0f);
    case Activation::tanh:
      return ops.append_eltwise(algorithm::eltwise_tanh, 0.0f, 0.0f);
    case Activation::swish:
      return ops.append_eltwise(algorithm::eltwise_swish, 1.0f, 0.0f);
    case Activation::hard_swish:
      return ops.append_eltwise(algorithm::eltwise_hardswish, 1.0f / 6.0f, 0.5f);
    case Activation::hard_sigmoid:
      return ops.append_eltwise(algorithm::eltwise_hardsigmoid, 0.2f, 0.5f);
    case Activation::gelu:
      return ops.append_eltwise(algorithm::eltwise_gelu_tanh, 0.0f, 0.0f);
  }
}

Descs describe(const Convolution& c, Images images, bool tiles_as_they_lie) {
  // products of bfloat16 where the data is, or where the result is: float32 data, the image of a
  // network, then loses no more than the result does. Weights follow.
  const bool x = c.x.dtype == DType::bf16, y = c.y.dtype == DType::bf16;
  const DType type = y || (x && c.direction != Direction::weight) ? DType::bf16 : DType::f32;
  const memory_type t = onednn::type_of(type);
  auto result = [&](const Convolution::Array& a) {
    return type == DType::bf16 ? onednn::type_of(a.dtype) : memory_type::f32;
  };
  Descs d;
  d.x = image_desc(c.x, c.direction == Direction::data ? result(c.x) : t, images);
  d.y = image_desc(c.y, c.direction == Direction::forward ? result(c.y) : t, images);
  const memory_type w_type = c.direction == Direction::weight ? result(c.w) : t;
  d.w = {exact_weights(c, DType::f32).get_dims(), w_type, memory::format_tag::any};
  if (c.quantized.given) {
    d.x = image_desc(c.x, onednn::type_of(c.x.dtype), images);
    d.y = image_desc(c.y, onednn::type_of(c.y.dtype), images);
    d.w = {d.w.get_dims(), onednn::type_of(DType::i8), memory::format_tag::any};
    Scales(c.quantized).describe(d.attr, c.groups > 1 ? 3 : 1);
  }
  if (tiles_as_they_lie) d.w = tiled_weights(c, type);
  if (c.bias_at != c.none && c.direction != Direction::data)
    d.bias = {{c.maps}, memory_type::f32, memory::format_tag::a};
  d.stride = c.stride;
  for (size_t i = 0; i < c.spatial(); ++i) {
    const int64_t reach = (c.kernel[i] - 1) * c.dilation[i] + 1;
    d.dilation.push_back(c.dilation[i] - 1);
    d.begin.push_back(c.pad[i]);
    d.end.push_back((c.out[i] - 1) * c.stride[i] + reach - c.size[i] - c.pad[i]);
  }
  dnnl::post_ops ops;
  if (c.z_at != c.none && c.quantized.given)
    ops.append_binary(algorithm::binary_add, exact(c.z));
  else if (c.z_at != c.none)
    ops.append_sum(1.0f);
  append(ops, c.activation);
  if (ops.len()) d.attr.set_post_ops(ops);
  return d;
}

// A primitive with the layouts that it wants; not ready where oneDNN has only its reference.
struct Chosen {
  dnnl::primitive_desc_base primitive;
  memory::desc x, w, y, scratchpad;
  bool ready() const { return static_cast<bool>(primitive); }
};

template <class Desc>
bool is_slow(const Desc& pd) {
  return !pd || std::strstr(pd.impl_info_str(), "ref") != nullptr;
}

// oneDNN 3.2 sums bfloat16 channels in pairs, and in this kernel, which it takes where an image has
// a single channel, the last of an odd number is paired with the first of the next pixel.
template <class Desc>
bool pairs_pixels(const Desc& pd, const memory::desc& summed) {
  return std::strstr(pd.impl_info_str(), "jit_bf16_1x1") != nullptr && summed.get_dims()[1] % 2 &&
         summed.get_inner_nblks() == 0;
}

// oneDNN 3.2 without AVX-512: a 1 x 1 convolution with strides gathers its pixels first. Where
// their channels lie side by side and are no whole number of lanes, the last ones are gathered to a
// wrong place, and the gradient of the weights comes out wrong.
template <class Desc>
bool gathers_wrongly(const Desc& pd, const Descs& d) {
  const memory::desc x = pd.src_desc();
  const bool strided = std::any_of(d.stride.begin(), d.stride.end(), [](auto s) { return s > 1; });
  return std::strstr(pd.impl_info_str(), "jit_1x1") != nullptr && strided && x.get_dims()[1] % 16 &&
         x.get_inner_nblks() == 0;
}

Chosen choose_forward(const Descs& d, dnnl::prop_kind kind) {
  const dnnl::convolution_forward::primitive_desc pd(
      onednn::engine(), kind, algorithm::convolution_direct, d.x, d.w, d.bias, d.y, d.stride,
      d.dilation, d.begin, d.end, d.attr, true);
  if (is_slow(pd) || pairs_pixels(pd, pd.src_desc())) return {};
  return {pd, pd.src_desc(), pd.weights_desc(), pd.dst_desc(), pd.scratchpad_desc()};
}

// The forward pass that oneDNN asks for as a hint: all in one type.
dnnl::convolution_forward::primitive_desc hint(const Descs& d, memory_type x, memory_type w,
                                               memory_type y) {
  auto as = [](const memory::desc& m, memory_type type) {
    return memory::desc(m.get_dims(), type, memory::format_tag::any);
  };
  return {onednn::engine(),
          dnnl::prop_kind::forward_training,
          algorithm::convolution_direct,
          as(d.x, x),
          as(d.w, w),
          as(d.y, y),
          d.stride,
          d.dilation,
          d.begin,
          d.end,
          dnnl::primitive_attr(),
          true};
}

// Matrix products for one channel per group: 60 times slower than the kernels for depthwise
// convolution, which oneDNN lacks for bfloat16 gradients by the data with strides.
bool pads_depthwise(const Descs& d, const char* implementation) {
  const auto w = d.w.get_dims();
  const bool depthwise = w.size() == d.x.get_dims().size() + 1 && w[0] > 1 && w[1] * w[2] == 1;
  return depthwise && std::strstr(implementation, "brgconv") != nullptr;
}

Chosen choose_data(const Descs& d) {
  const memory_type t = d.y.get_data_type();
  const auto forward = hint(d, t, t, t);
  if (!forward) return {};
  const dnnl::convolution_backward_data::primitive_desc pd(
      onednn::engine(), algorithm::convolution_direct, d.x, d.w, d.y, d.stride, d.dilation, d.begin,
      d.end, forward, d.attr, true);
  if (is_slow(pd) || pairs_pixels(pd, pd.diff_dst_desc()) || pads_depthwise(d, pd.impl_info_str()))
    return {};
  return {pd, pd.diff_src_desc(), pd.weights_desc(), pd.diff_dst_desc(), pd.scratchpad_desc()};
}

Chosen choose_weight(const Descs& d) {
  const memory_type t = d.x.get_data_type();
  const auto forward = hint(d, t, t, t);
  if (!forward) return {};
  const dnnl::convolution_backward_weights::primitive_desc pd(
      onednn::engine(), algorithm::convolution_direct, d.x, d.w, d.bias, d.y, d.stride, d.dilation,
      d.begin, d.end, forward, d.attr, true);
  if (is_slow(pd) || gathers_wrongly(pd, d)) return {};
  return {pd, pd.src_desc(), pd.diff_weights_desc(), pd.diff_dst_desc(), pd.scratchpad_desc()};
}

// Whether to convolve by a kernel that takes tiled weights as they lie: those for channels-last
// images are a few per cent slower than the ones that oneDNN prefers, which is less than what it
// takes to bring many weights into another order for few pixels.
bool keeps_tiles(const Convolution& c) {
  return c.tiled && c.direction == Direction::forward && c.w.dtype == DType::f32 &&
         c.x.dtype == DType::f32 && 4 * c.w.size() > c.x.size() + c.y.size();
}

Chosen choose(const Convolution& c) {
  if (c.spatial() > 3 || c.x.size() == 0 || c.y.size() == 0 || c.w.size() == 0) return {};
  if (keeps_tiles(c)) {
    const Chosen chosen =
        choose_forward(describe(c, Images::as_they_lie, true), dnnl::prop_kind::forward_inference);
    if (chosen.ready()) return chosen;
  }
  for (Images images : {Images::as_they_lie, Images::free}) {
    const Descs d = describe(c, images, false);
    Chosen chosen;
    switch (c.direction) {
      case Direction::forward:
        chosen = choose_forward(d, dnnl::prop_kind::forward_inference);
        break;
      case Direction::data:
        chosen = choose_data(d);
        break;
      case Direction::weight:
        chosen = choose_weight(d);
        break;
    }
    if (chosen.ready()) return chosen;
  }
  return {};
}

// An array that the primitive reads or writes: where it lies, and its copy in another layout.
struct Port {
  size_t at;                // among the inputs (or outputs) of the op
  size_t copy = kNowhere;   // place in the workspace
  size_t place = kNowhere;  // of the array itself, if that is in the workspace
  int arg = 0;
  Call reorder;
  BlockedWeights weights;  // instead of reorder, where it can do that

  void move(const void* from, void* to, bool written) {
    if (!reorder.ready()) return written ? weights.unblock(from, to) : weights.block(from, to);
    reorder.set(DNNL_ARG_FROM, from);
    reorder.set(DNNL_ARG_TO, to);
    reorder.run();
  }
};

class OnednnConvolution : public Kernel {
 public:
  OnednnConvolution(const Convolution& c, const Chosen& chosen)
      : c_(c), main_(chosen.primitive), scales_(c.quantized), overwrites_(c.z_at != c.none) {
    const bool forward = c.direction == Direction::forward, data = c.direction == Direction::data;
    scratchpad_ = parts_.take(chosen.scratchpad.get_size());
    main_.arg(DNNL_ARG_SCRATCHPAD, chosen.scratchpad);
    if (c.scale_at != c.none) scaled_ = parts_.take(static_cast<size_t>(c.w.size()) * 4);
    if (data)
      add(outs_, DNNL_ARG_DIFF_SRC, c.x_at, exact(c.x), chosen.x, true);
    else
      add(ins_, DNNL_ARG_SRC, c.x_at, exact(c.x), chosen.x, false);
    if (forward)
      add(outs_, DNNL_ARG_DST, c.y_at, exact(c.y), chosen.y, true);
    else
      add(ins_, DNNL_ARG_DIFF_DST, c.y_at, exact(c.y), chosen.y, false);
    if (c.direction == Direction::weight) {
      add(outs_, DNNL_ARG_DIFF_WEIGHTS, c.w_at, exact_weights(c, c.w.dtype), chosen.w, true);
    } else if (c.packed) {
      add(ins_, DNNL_ARG_WEIGHTS, c.w_at, chosen.w, chosen.w, false);
    } else {
      const DType type = c.scale_at == c.none ? c.w.dtype : DType::f32;
      add(ins_, DNNL_ARG_WEIGHTS, c.w_at, exact_weights(c, type), chosen.w, false);
      ins_.back().place = scaled_;
    }
    if (c.bias_at != c.none && !data) {
      const memory::desc given({c.maps}, onednn::type_of(c.bias_type), memory::format_tag::a);
      const memory::desc wanted({c.maps}, memory_type::f32, memory::format_tag::a);
      if (forward)
        add(ins_, DNNL_ARG_BIAS, c.bias_at, given, wanted, false);
      else
        add(outs_, DNNL_ARG_DIFF_BIAS, c.bias_at, given, wanted, true);
    }
    if (c.quantized.given) scales_.add_to(main_);
    if (c.z_at != c.none && c.quantized.given) {
      overwrites_ = false;
      main_.arg(kAddend, exact(c.z));
    } else if (c.z_at != c.none) {
      const memory::desc z = exact(c.z);
      overwrites_ = z == exact(c.y);
      z_bytes_ = overwrites_ && outs_[0].copy == kNowhere ? z.get_size() : 0;
      if (!z_bytes_) z_ = onednn::reorder(z, chosen.y);
    }
  }

  size_t workspace() const override { return parts_.size(); }
  bool may_overwrite(size_t, size_t i) const override { return i == c_.z_at && overwrites_; }

  void run(const Buffers& b) override {
    char* scratch = static_cast<char*>(b.workspace);
    main_.set(DNNL_ARG_SCRATCHPAD, scratch + scratchpad_);
    if (scaled_ != kNowhere) scale_weights(b, reinterpret_cast<float*>(scratch + scaled_));
    for (Port& p : ins_) {
      const void* data = p.place == kNowhere ? b.in[p.at] : scratch + p.place;
      if (p.copy != kNowhere) {
        p.move(data, scratch + p.copy, false);
        data = scratch + p.copy;
      }
      main_.set(p.arg, data);
    }
    for (Port& p : outs_) main_.set(p.arg, p.copy == kNowhere ? b.out[p.at] : scratch + p.copy);
    if (c_.quantized.given) scales_.set(main_, b);
    if (c_.z_at != c_.none && c_.quantized.given)
      main_.set(kAddend, b.in[c_.z_at]);
    else if (c_.z_at != c_.none)
      place_z(b, scratch);
    main_.run();
    for (Port& p : outs_) {
      if (p.copy != kNowhere) p.move(scratch + p.copy, b.out[p.at], true);
    }
  }

 private:
  void add(std::vector<Port>& ports, int arg, size_t at, const memory::desc& given,
           const memory::desc& wanted, bool written) {
    Port p;
    p.at = at;
    p.arg = arg;
    if (given != wanted) {
      p.copy = parts_.take(wanted.get_size());
      if ((arg == DNNL_ARG_WEIGHTS || arg == DNNL_ARG_DIFF_WEIGHTS) && !c_.quantized.given)
        p.weights = BlockedWeights(given, wanted, c_.groups > 1);
      if (!(written ? p.weights.can_unblock() : p.weights.can_block()))
        p.reorder = written ? onednn::reorder(wanted, given) : onednn::reorder(given, wanted);
    }
    main_.arg(arg, wanted);
    ports.push_back(std::move(p));
  }

  // The primitive adds to what is in y.
  void place_z(const Buffers& b, char* scratch) {
    const void* z = b.in[c_.z_at];
    if (!z_bytes_) {
      const Port& y = outs_[0];
      z_.set(DNNL_ARG_FROM, z);
      z_.set(DNNL_ARG_TO, y.copy == kNowhere ? b.out[y.at] : scratch + y.copy);
      z_.run();
    } else if (b.out[outs_[0].at] != z) {
      auto* from = static_cast<const char*>(z);
      auto* to = static_cast<char*>(b.out[outs_[0].at]);
      parallel_for(static_cast<int64_t>(z_bytes_), 1 << 17, [=](int64_t i, int64_t end) {
        std::memcpy(to + i, from + i, static_cast<size_t>(end - i));
      });
    }
  }

  void scale_weights(const Buffers& b, float* out) const {
    const int64_t per_map = c_.w.size() / c_.maps;
    const float* scale = b.input<float>(c_.scale_at);
    to_float32(b.in[c_.w_at], c_.w.dtype, out, c_.w.size());
    parallel_for(c_.maps, 1 + (1 << 15) / per_map, [=](int64_t begin, int64_t end) {
      for (int64_t o = begin; o < end; ++o)
        for (int64_t i = o * per_map; i < (o + 1) * per_map; ++i) out[i] *= scale[o];
    });
  }

  static constexpr int kAddend = DNNL_ARG_ATTR_MULTIPLE_POST_OP(0) | DNNL_ARG_SRC_1;
  Convolution c_;
  Call main_;
  Scales scales_;
  onednn::Parts parts_;
  std::vector<Port> ins_, outs_;
  size_t scratchpad_, scaled_ = kNowhere, z_bytes_ = 0;
  Call z_;
  bool overwrites_;
};

class Pack : public Kernel {
 public:
  Pack(const Convolution& c, const memory::desc& packed)
      : c_(c),
        reorder_(onednn::reorder(exact_weights(c, c.scale_at == c.none ? c.w.dtype : DType::f32),
                                 packed)) {}
  size_t workspace() const override {
    return c_.scale_at == c_.none ? 0 : static_cast<size_t>(c_.w.size()) * 4;
  }
  void run(const Buffers& b) override {
    const void* w = b.in[c_.w_at];
    if (c_.scale_at != c_.none) {
      auto* scaled = static_cast<float*>(b.workspace);
      const float* scale = b.input<float>(c_.scale_at);
      const int64_t per_map = c_.w.size() / c_.maps;
      to_float32(w, c_.w.dtype, scaled, c_.w.size());
      parallel_for(c_.maps, std::max<int64_t>(1, (1 << 15) / std::max<int64_t>(per_map, 1)),
                   [=](int64_t m, int64_t end) {
                     for (; m < end; ++m)
                       for (int64_t i = m * per_map; i < (m + 1) * per_map; ++i)
                         scaled[i] *= scale[m];
                   });
      w = scaled;
    }
    reorder_.set(DNNL_ARG_FROM, w);
    reorder_.set(DNNL_ARG_TO, b.out[0]);
    reorder_.run();
  }

 private:
  Convolution c_;
  Call reorder_;
};

int most_threads(const Convolution& c) {
  const int64_t pixels = c.y.size() / std::max<int64_t>(c.maps, 1);
  return onednn::most_threads(2 * pixels * c.w.size());
}

// What is added to numbers of 8 bits is read as it lies.
bool takes(const Convolution& c, const Chosen& chosen) {
  const bool adds = c.quantized.given && c.z_at != c.none;
  return chosen.ready() && !(adds && (chosen.y != exact(c.y) || c.z.strides != c.y.strides));
}

}  // namespace

std::unique_ptr<Kernel> convolution_onednn(const Convolution& c, const Signature&) {
  const ThreadScope scope(most_threads(c));
  const Chosen chosen = choose(c);
  if (!takes(c, chosen)) return nullptr;
  return std::make_unique<OnednnConvolution>(c, chosen);
}

PackedKernels packed_onednn(const Convolution& plain, const Convolution& packed) {
  const ThreadScope scope(most_threads(packed));
  const Chosen chosen = choose(packed);
  if (!takes(packed, chosen)) return {};
  return {{chosen.w.get_size(), onednn::text_of(chosen.w)},
          std::make_unique<Pack>(plain, chosen.w),
          std::make_unique<OnednnConvolution>(packed, chosen)};
}

}  // namespace nnl
#endif
