// SPDX-License-Identifier: Apache-2.0
#include "strided_copy.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <type_traits>

#include "convert.h"
#include "nnl/errors.h"
#include "nnl/threads.h"
#include "simd.h"

namespace nnl {
namespace {

constexpr int64_t band = 64;  // columns of the source that a band of tiles reads: whole lines
constexpr int64_t tile = 16;
constexpr size_t most_axes = 32;

template <class T, class S>
inline T converted(S x) {
  if constexpr (std::is_same_v<S, T>)
    return x;
  else
    return from_float<T>(to_float(x));
}

#ifdef __AVX512BW__
// 16 elements as 32 bits each: their own, or those of the float32 if the types differ. The forms
// with a mask, because gcc 12 warns of its own header in the others.
constexpr __mmask16 all = 0xffff;

template <bool same, class S>
inline __m512i load_16(const S* x) {
  if constexpr (sizeof(S) == 4) {
    return _mm512_maskz_loadu_epi32(all, x);
  } else {
    const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
    if constexpr (same) return _mm512_maskz_cvtepu16_epi32(all, half);
    if constexpr (std::is_same_v<S, f16>)
      return _mm512_castps_si512(_mm512_maskz_cvtph_ps(all, half));
    return _mm512_maskz_slli_epi32(all, _mm512_maskz_cvtepu16_epi32(all, half), 16);
  }
}

template <bool same, class T>
inline void store_16(__m512i v, T* y) {
  if constexpr (sizeof(T) == 4) {
    _mm512_mask_storeu_epi32(y, all, v);
  } else if constexpr (same) {
    _mm512_mask_cvtepi32_storeu_epi16(y, all, v);
  } else {
    alignas(64) float x[16];
    _mm512_mask_storeu_epi32(x, all, v);
    store(x, y, 16);
  }
}

// 16 x 16 elements: pairs, fours, then quarters of registers change places.
template <bool same, class S, class T>
inline void transpose_16(const S* x, int64_t x_stride, T* y, int64_t y_stride) {
  __m512i a[16], b[16];
  constexpr __mmask8 m8 = 0xff;
  for (int i = 0; i < 16; ++i) a[i] = load_16<same>(x + i * x_stride);
  for (int i = 0; i < 16; i += 2) {
    b[i] = _mm512_maskz_unpacklo_epi32(all, a[i], a[i + 1]);
    b[i + 1] = _mm512_maskz_unpackhi_epi32(all, a[i], a[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    a[i] = _mm512_maskz_unpacklo_epi64(m8, b[i], b[i + 2]);
    a[i + 1] = _mm512_maskz_unpackhi_epi64(m8, b[i], b[i + 2]);
    a[i + 2] = _mm512_maskz_unpacklo_epi64(m8, b[i + 1], b[i + 3]);
    a[i + 3] = _mm512_maskz_unpackhi_epi64(m8, b[i + 1], b[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    const __m512i low = _mm512_maskz_shuffle_i32x4(all, a[i], a[i + 4], 0x88);
    const __m512i high = _mm512_maskz_shuffle_i32x4(all, a[i], a[i + 4], 0xdd);
    const __m512i low2 = _mm512_maskz_shuffle_i32x4(all, a[i + 8], a[i + 12], 0x88);
    const __m512i high2 = _mm512_maskz_shuffle_i32x4(all, a[i + 8], a[i + 12], 0xdd);
    b[i] = _mm512_maskz_shuffle_i32x4(all, low, low2, 0x88);
    b[i + 8] = _mm512_maskz_shuffle_i32x4(all, low, low2, 0xdd);
    b[i + 4] = _mm512_maskz_shuffle_i32x4(all, high, high2, 0x88);
    b[i + 12] = _mm512_maskz_shuffle_i32x4(all, high, high2, 0xdd);
  }
  for (int i = 0; i < 16; ++i) store_16<same>(b[i], y + i * y_stride);
}
#endif

// y[r, c] = x[c, r] over rows r and columns c; x is contiguous along r, y along c.
template <class S, class T>
void transpose_tile(const S* x, int64_t x_stride, T* y, int64_t y_stride, int64_t rows,
                    int64_t columns) {
#ifdef __AVX512BW__
  if constexpr (sizeof(S) == 2 || sizeof(S) == 4) {
    if (rows == tile && columns == tile)
      return transpose_16<std::is_same_v<S, T>>(x, x_stride, y, y_stride);
  }
#endif
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c) y[r * y_stride + c] = converted<T>(x[c * x_stride + r]);
}

template <class S, class T>
void copy_row(const S* x, int64_t step, T* y, int64_t to_step, int64_t n) {
  if (to_step != 1) {
    for (int64_t i = 0; i < n; ++i) y[i * to_step] = converted<T>(x[i * step]);
  } else if (step == 0) {
    std::fill(y, y + n, converted<T>(*x));
  } else if (step == -1) {
    const S* last = x - (n - 1);
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) y[i] = converted<T>(last[n - 1 - i]);
  } else if (step != 1) {
    for (int64_t i = 0; i < n; ++i) y[i] = converted<T>(x[i * step]);
  } else if constexpr (std::is_same_v<S, T>) {
    if (n * static_cast<int64_t>(sizeof(T)) >= 1024)
      std::memcpy(y, x, static_cast<size_t>(n) * sizeof(T));
    else
      for (int64_t i = 0; i < n; ++i) y[i] = x[i];
  } else if constexpr (std::is_same_v<S, float>) {
    store(x, y, n);
  } else if constexpr (std::is_same_v<T, float>) {
    load(x, y, n);
  } else {
    for (int64_t i = 0; i < n; ++i) y[i] = converted<T>(x[i]);
  }
}

// Counts through axes of a copy and keeps both places.
class Counter {
 public:
  Counter(const std::vector<StridedCopy::Axis>& axes, int64_t start) : axes_(axes) {
    for (size_t a = axes_.size(); a-- > 0; start /= axes_[a].size) {
      index_[a] = start % axes_[a].size;
      source += index_[a] * axes_[a].source;
      target += index_[a] * axes_[a].target;
    }
  }
  void next() {
    for (size_t a = axes_.size(); a-- > 0;) {
      source += axes_[a].source;
      target += axes_[a].target;
      if (++index_[a] < axes_[a].size) return;
      source -= axes_[a].source * axes_[a].size;
      target -= axes_[a].target * axes_[a].size;
      index_[a] = 0;
    }
  }
  int64_t source = 0, target = 0;

 private:
  const std::vector<StridedCopy::Axis>& axes_;
  int64_t index_[most_axes];
};

}  // namespace

StridedCopy::StridedCopy(const Shape& shape, const Shape& source, int64_t from, const Shape& target,
                         int64_t to, DType source_type, DType target_type)
    : from_(from), to_(to), loop_(loop_of(source_type, target_type)) {
  std::vector<Axis> all;
  for (size_t a = 0; a < shape.size(); ++a) {
    size_ *= shape[a];
    if (shape[a] != 1) all.push_back({shape[a], source[a], target[a]});
  }
  std::stable_sort(all.begin(), all.end(), [](const Axis& p, const Axis& q) {
    return std::llabs(p.target) > std::llabs(q.target);
  });
  for (const Axis& a : all) {  // neighbours that both sides have side by side become one
    if (!outer_.empty() && outer_.back().source == a.source * a.size &&
        outer_.back().target == a.target * a.size)
      outer_.back() = {outer_.back().size * a.size, a.source, a.target};
    else
      outer_.push_back(a);
  }
  if (outer_.size() > most_axes) throw ValueError("more than 32 axes");
  if (size_ == 0) return;
  if (!outer_.empty()) {
    inner_ = outer_.back();
    outer_.pop_back();
  }
  int64_t elements = inner_.size;
  parts_ = size_ / elements;
  if (outer_.empty()) {  // one row, of which every thread takes a part
    parts_ = size_;
    elements = 1;
  } else if (inner_.target == 1 && inner_.source != 1 && inner_.source != 0) {
    auto is_across = [](const Axis& a) { return a.source == 1 && a.size >= 4; };
    auto found = std::find_if(outer_.begin(), outer_.end(), is_across);
    if (found != outer_.end()) {
      transposes_ = true;
      across_ = *found;
      outer_.erase(found);
      parts_ = size_ / (across_.size * inner_.size) * bands();
      elements = std::min(band, across_.size) * inner_.size;
    }
  }
  grain_ = std::max<int64_t>(1, (1 << 15) / elements);
}

template <class S, class T>
void StridedCopy::copy(const void* from, void* to, int64_t begin, int64_t end) const {
  const S* x = static_cast<const S*>(from) + from_;
  T* y = static_cast<T*>(to) + to_;
  if (outer_.empty() && !transposes_) {
    copy_row(x + begin * inner_.source, inner_.source, y + begin * inner_.target, inner_.target,
             end - begin);
    return;
  }
  if (!transposes_) {
    Counter place(outer_, begin);
    for (int64_t row = begin; row < end; ++row, place.next())
      copy_row(x + place.source, inner_.source, y + place.target, inner_.target, inner_.size);
    return;
  }
  Counter place(outer_, begin / bands());
  for (int64_t part = begin, b = begin % bands(); part < end; ++part) {
    const int64_t first = b * band, last = std::min(first + band, across_.size);
    for (int64_t c = 0; c < inner_.size; c += tile)
      for (int64_t r = first; r < last; r += tile)
        transpose_tile(x + place.source + c * inner_.source + r, inner_.source,
                       y + place.target + r * across_.target + c, across_.target,
                       std::min(tile, last - r), std::min(tile, inner_.size - c));
    if (++b == bands()) {
      b = 0;
      place.next();
    }
  }
}

int64_t StridedCopy::bands() const { return (across_.size + band - 1) / band; }

void StridedCopy::run(const void* x, void* y) const {
  parallel_for(parts_, grain_,
               [&](int64_t begin, int64_t end) { (this->*loop_)(x, y, begin, end); });
}

StridedCopy::Loop StridedCopy::loop_of(DType source, DType target) {
  if (source == target) {
    switch (bytes_of(source)) {
      case 1:
        return &StridedCopy::copy<uint8_t, uint8_t>;
      case 2:
        return &StridedCopy::copy<uint16_t, uint16_t>;
      case 4:
        return &StridedCopy::copy<uint32_t, uint32_t>;
      default:
        return &StridedCopy::copy<uint64_t, uint64_t>;
    }
  }
  const bool from_bf16 = source == DType::bf16, to_bf16 = target == DType::bf16;
  if (source == DType::f32)
    return to_bf16 ? &StridedCopy::copy<float, bf16> : &StridedCopy::copy<float, f16>;
  if (target == DType::f32)
    return from_bf16 ? &StridedCopy::copy<bf16, float> : &StridedCopy::copy<f16, float>;
  return to_bf16 ? &StridedCopy::copy<f16, bf16> : &StridedCopy::copy<bf16, f16>;
}

bool StridedCopy::takes(DType source, DType target) {
  return source == target || (is_float(source) && is_float(target));
}

}  // namespace nnl
