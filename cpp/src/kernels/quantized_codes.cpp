// SPDX-License-Identifier: Apache-2.0
#include "quantized_codes.h"

#include <algorithm>
#include <cstring>
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

namespace {

using LaneBytes = int8_t __attribute__((vector_size(16)));

// Halves to even.
NNL_INLINE LaneInts rounded(Lanes v) {
#ifdef __AVX512F__
  return reinterpret_cast<LaneInts>(_mm512_maskz_cvtps_epi32(0xffff, reinterpret_cast<__m512>(v)));
#else
  for (int i = 0; i < kLanes; ++i) v[i] = __builtin_nearbyintf(v[i]);
  return __builtin_convertvector(v, LaneInts);
#endif
}

}  // namespace

// The rounding of up to 16 groups of a row at a time: what is taken of each is then one vector.
void Rounded::round(const Buffers& b, const void* x) const {
  constexpr int64_t kPart = 512;  // numbers at a time
  const auto round_groups = [&](int64_t m, int64_t first) {
    float part[kPart];
    const int64_t groups = std::min<int64_t>(16, groups_ - first);
    // f(group, its numbers, their place in it, how many), for parts of groups, or several groups
    const auto each = [&](auto&& f) {
      const int64_t together = std::max<int64_t>(1, kPart / size_);
      for (int64_t g = 0; g < groups; g += together)
        for (int64_t at = 0; at < size_; at += kPart) {
          const int64_t some = std::min(together, groups - g), n = std::min(kPart, size_ - at);
          load_any(type_, x, m * columns_ + (first + g) * size_ + at, part, some * n);
          for (int64_t i = 0; i < some; ++i) f(g + i, part + i * n, at, n);
        }
    };
    LaneInts bits[16] = {};  // of the largest number: those of what is not finite are larger still
    each([&](int64_t g, const float* v, int64_t, int64_t n) {
      LaneInts most = bits[g];
      by_lanes(n, [&](int64_t i, int64_t lanes, auto whole) {
        const LaneInts a = reinterpret_cast<LaneInts>(get<whole()>(v + i, lanes)) & 0x7fffffff;
        most = a > most ? a : most;
      });
      bits[g] = most;
    });
    const LaneInts found = folds(bits, [](LaneInts p, LaneInts q) { return p > q ? p : q; });
    const LaneInts finite = found < 0x7f800000;
    const Lanes most = reinterpret_cast<Lanes>(found & finite);
    const Lanes scale = most > 0.0f ? 127.0f / most : Lanes{};
    int8_t* codes = Space::at<int8_t>(b.workspace, codes_) + m * stride_ + first * size_;
    Lanes sums[16] = {};
    each([&](int64_t g, const float* v, int64_t at, int64_t n) {
      const float by = scale[g];
      Lanes sum = sums[g];
      by_lanes(n, [&](int64_t i, int64_t lanes, auto whole) {
        const LaneInts c = rounded(finite[g] ? get<whole()>(v + i, lanes) * by : Lanes{});
        const LaneBytes bytes = __builtin_convertvector(c, LaneBytes);
        std::memcpy(codes + g * size_ + at + i, &bytes, static_cast<size_t>(lanes));
        sum += __builtin_convertvector(c, Lanes);
      });
      sums[g] = sum;
    });
    const Lanes unit = finite ? most / 127.0f : all(std::numeric_limits<float>::quiet_NaN());
    const int64_t at = m * groups_ + first;
    store_part(Space::at(b.workspace, units_) + at, unit, groups);
    store_part(Space::at(b.workspace, sums_) + at,
               unit * folds(sums, [](Lanes p, Lanes q) { return p + q; }), groups);
  };
  parallel_for(m_, 1 + (1 << 13) / std::max<int64_t>(columns_, 1), [&](int64_t begin, int64_t end) {
    for (int64_t m = begin; m < end; ++m) {
      int8_t* codes = Space::at<int8_t>(b.workspace, codes_) + m * stride_;
      std::fill(codes + columns_, codes + stride_, int8_t{0});
      for (int64_t g = 0; g < groups_; g += 16) round_groups(m, g);
    }
  });
}

}  // namespace nnl
