// SPDX-License-Identifier: Apache-2.0
#include "quantized.h"

#include <algorithm>
#include <cmath>

#include "pooling_bytes.h"

namespace nnl {

Quantized Quantized::read(const Signature& s, int64_t maps) {
  Quantized q;
  const DType y = s.out[0].dtype;
  if (s.in.size() <= w_scale || !is_byte(s.in[0].dtype) || s.in[1].dtype != DType::i8) return q;
  for (size_t i = 2; i < s.in.size(); ++i)
    if (s.given(i) && s.in[i].dtype != DType::f32) return q;
  for (size_t i : {x_scale, x_zero, w_zero, y_scale, y_zero})
    if (s.given(i) && s.in[i].size() != 1) return q;
  q.has_x_zero = s.given(x_zero), q.has_w_zero = s.given(w_zero);
  q.has_y_scale = s.given(y_scale), q.has_y_zero = s.given(y_zero);
  q.w_scales = s.given(w_scale) ? s.in[w_scale].size() : 0;
  q.given = s.given(x_scale) && (q.w_scales == 1 || q.w_scales == maps) &&
            (q.has_y_scale ? is_byte(y) : y == DType::f32 && !q.has_y_zero);
  return q;
}

Signature in_floats(const Signature& s) {
  Signature floats = s;
  const size_t n = std::min<size_t>(s.in.size(), Quantized::x_scale);
  floats.in.resize(n), floats.in_given.resize(n);
  floats.in[0].dtype = floats.in[1].dtype = floats.out[0].dtype = DType::f32;
  return floats;
}

#ifdef NNL_ONEDNN
namespace {

using dnnl::memory;

constexpr int kScale = DNNL_ARG_ATTR_SCALES, kZero = DNNL_ARG_ATTR_ZERO_POINTS;

memory::desc numbers(int64_t n, memory::data_type type) {
  return {{n}, type, memory::format_tag::a};
}

int32_t whole(const Buffers& b, size_t i) {
  return static_cast<int32_t>(std::nearbyint(*b.input<float>(i)));
}

}  // namespace

void Scales::describe(dnnl::primitive_attr& attr, int maps) const {
  attr.set_scales_mask(DNNL_ARG_SRC, 0);
  attr.set_scales_mask(DNNL_ARG_WEIGHTS, q_.w_scales == 1 ? 0 : maps);
  if (q_.has_y_scale) attr.set_scales_mask(DNNL_ARG_DST, 0);
  if (q_.has_x_zero) attr.set_zero_points_mask(DNNL_ARG_SRC, 0);
  if (q_.has_w_zero) attr.set_zero_points_mask(DNNL_ARG_WEIGHTS, 0);
  if (q_.has_y_zero) attr.set_zero_points_mask(DNNL_ARG_DST, 0);
}

void Scales::add_to(onednn::Call& call) const {
  const auto scale = numbers(1, memory::data_type::f32), zero = numbers(1, memory::data_type::s32);
  call.arg(kScale | DNNL_ARG_SRC, scale);
  call.arg(kScale | DNNL_ARG_WEIGHTS, numbers(q_.w_scales, memory::data_type::f32));
  if (q_.has_y_scale) call.arg(kScale | DNNL_ARG_DST, scale);
  if (q_.has_x_zero) call.arg(kZero | DNNL_ARG_SRC, zero);
  if (q_.has_w_zero) call.arg(kZero | DNNL_ARG_WEIGHTS, zero);
  if (q_.has_y_zero) call.arg(kZero | DNNL_ARG_DST, zero);
}

void Scales::set(onednn::Call& call, const Buffers& b) {
  call.set(kScale | DNNL_ARG_SRC, b.in[Quantized::x_scale]);
  call.set(kScale | DNNL_ARG_WEIGHTS, b.in[Quantized::w_scale]);
  if (q_.has_y_scale) call.set(kScale | DNNL_ARG_DST, b.in[Quantized::y_scale]);
  if (q_.has_x_zero) {
    x_zero_ = whole(b, Quantized::x_zero);
    call.set(kZero | DNNL_ARG_SRC, &x_zero_);
  }
  if (q_.has_w_zero) {
    w_zero_ = whole(b, Quantized::w_zero);
    call.set(kZero | DNNL_ARG_WEIGHTS, &w_zero_);
  }
  if (q_.has_y_zero) {
    y_zero_ = whole(b, Quantized::y_zero);
    call.set(kZero | DNNL_ARG_DST, &y_zero_);
  }
}
#endif

}  // namespace nnl
