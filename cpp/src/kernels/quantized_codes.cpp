// SPDX-License-Identifier: Apache-2.0
#include "quantized_codes.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace nnl {

Codes::Codes(const Signature& s, size_t w)
    : w(w),
      rows(s.in[w].shape[0]),
      groups(s.in[w + 1].shape[1]),
      size(s.attributes.integer("group_size")),
      bits(s.attributes.integer("bits")),
      columns(groups * size),
      scale_type(s.in[w + 1].dtype),
      offset_type(s.given(w + 2) ? s.in[w + 2].dtype : DType::f32),
      given(s.given(w + 2)) {}

void Codes::unpack(const Buffers& b, int64_t r, int64_t from, int64_t n, float* y) const {
  const uint8_t* codes = row(b, r);
  const Any scale = scales(b, r), offset = offsets(b, r);
  for (const int64_t end = from + n; from < end;) {
    const int64_t g = from / size, count = std::min(end, (g + 1) * size) - from;
    const float s = load_part(scale + g, 1)[0];
    const float o = given ? load_part(offset + g, 1)[0] : -middle() * s;
    if (bits == 8) {
      const uint8_t* c = codes + from;
#pragma omp simd
      for (int64_t i = 0; i < count; ++i) y[i] = s * static_cast<float>(c[i]) + o;
    } else {
      const uint8_t* pairs = codes + from / 2;
#pragma omp simd
      for (int64_t i = 0; i < count / 2; ++i) {
        y[2 * i] = s * static_cast<float>(pairs[i] & 15) + o;
        y[2 * i + 1] = s * static_cast<float>(pairs[i] >> 4) + o;
      }
    }
    from += count, y += count;
  }
}

Rounded::Rounded(const Codes& w, DType type, int64_t m, int64_t stride, Space& space)
    : m_(m), columns_(w.columns), groups_(w.groups), size_(w.size), stride_(stride), type_(type) {
  codes_ = space.take(static_cast<size_t>(m * stride));
  units_ = space.floats(m * groups_);
  sums_ = space.floats(m * groups_);
}

void Rounded::round(const Buffers& b, const void* x) const {
  constexpr int64_t kPart = 512;  // numbers at a time
  const auto round_group = [&](int64_t from, int8_t* to, float& unit, float& sum) {
    float part[kPart];
    float most = 0.0f, sure = 0.0f;  // sure: 0, or nan where a number is not finite
    for (int64_t at = 0; at < size_; at += kPart) {
      const int64_t n = std::min(kPart, size_ - at);
      load_any(type_, x, from + at, part, n);
#pragma omp simd reduction(max : most) reduction(+ : sure)
      for (int64_t i = 0; i < n; ++i) {
        const float a = std::fabs(part[i]);
        most = a > most ? a : most;
        sure += part[i] * 0.0f;
      }
    }
    const bool finite = sure == 0.0f;
    const float scale = finite && most > 0.0f ? 127.0f / most : 0.0f;
    int32_t codes = 0;
    for (int64_t at = 0; at < size_; at += kPart) {
      const int64_t n = std::min(kPart, size_ - at);
      if (size_ > kPart) load_any(type_, x, from + at, part, n);
      if (!finite) std::fill_n(part, n, 0.0f);
#pragma omp simd reduction(+ : codes)
      for (int64_t i = 0; i < n; ++i) {
        const auto c = static_cast<int32_t>(std::nearbyint(part[i] * scale));
        to[at + i] = static_cast<int8_t>(c);
        codes += c;
      }
    }
    unit = finite ? most / 127.0f : std::numeric_limits<float>::quiet_NaN();
    sum = unit * static_cast<float>(codes);
  };
  parallel_for(m_, 1 + (1 << 13) / std::max<int64_t>(columns_, 1), [&](int64_t begin, int64_t end) {
    for (int64_t m = begin; m < end; ++m) {
      int8_t* codes = Space::at<int8_t>(b.workspace, codes_) + m * stride_;
      std::fill(codes + columns_, codes + stride_, int8_t{0});
      for (int64_t g = 0; g < groups_; ++g)
        round_group(m * columns_ + g * size_, codes + g * size_,
                    Space::at(b.workspace, units_)[m * groups_ + g],
                    Space::at(b.workspace, sums_)[m * groups_ + g]);
    }
  });
}

}  // namespace nnl
