// SPDX-License-Identifier: Apache-2.0
// Sixteen float32 at a time, loaded from and stored to any floating element type.
#pragma once
#include <cmath>
#include <initializer_list>
#include <type_traits>
#include <utility>

#include "nnl/kernel.h"
#include "nnl/threads.h"
#include "real.h"
#include "simd.h"

#define NNL_INLINE inline __attribute__((always_inline))

namespace nnl {

constexpr int kLanes = 16;
using Lanes = float __attribute__((vector_size(64)));
using LaneBits = uint32_t __attribute__((vector_size(64)));
using LaneInts = int32_t __attribute__((vector_size(64)));

NNL_INLINE Lanes all(float x) { return Lanes{} + x; }

NNL_INLINE Lanes load(const float* p) {
  Lanes v;
  __builtin_memcpy(&v, p, sizeof(v));
  return v;
}
NNL_INLINE Lanes load(const bf16* p) {
  uint16_t __attribute__((vector_size(32))) half;
  __builtin_memcpy(&half, p, sizeof(half));
  return reinterpret_cast<Lanes>(__builtin_convertvector(half, LaneBits) << 16);
}
NNL_INLINE Lanes load(const f16* p) {
#ifdef __AVX512F__
  return reinterpret_cast<Lanes>(
      _mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))));
#else
  Lanes v;
  for (int i = 0; i < kLanes; ++i) v[i] = to_float(p[i]);
  return v;
#endif
}

NNL_INLINE void store(float* p, Lanes v) { __builtin_memcpy(p, &v, sizeof(v)); }
NNL_INLINE void store(bf16* p, Lanes v) {
#ifdef __AVX512BF16__  // takes subnormal numbers for 0
  const auto half = _mm512_cvtneps_pbh(reinterpret_cast<__m512>(v));
#else
  const LaneBits u = reinterpret_cast<LaneBits>(v);
  const LaneBits rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  const LaneBits nan = (u >> 16) | 0x40u;
  const auto half =
      __builtin_convertvector(v != v ? nan : rounded, uint16_t __attribute__((vector_size(32))));
#endif
  __builtin_memcpy(p, &half, sizeof(half));
}
NNL_INLINE void store(f16* p, Lanes v) {
#ifdef __AVX512F__
  _mm256_storeu_si256(
      reinterpret_cast<__m256i*>(p),
      _mm512_maskz_cvtps_ph(0xffff, reinterpret_cast<__m512>(v), _MM_FROUND_TO_NEAREST_INT));
#else
  for (int i = 0; i < kLanes; ++i) p[i] = to_f16(v[i]);
#endif
}

// An address whose element type is known at set-up only: for mixtures of types, which are rare.
struct Any {
  void* p;
  DType type;
  Any operator+(int64_t n) const {
    return {static_cast<char*>(p) + n * (type == DType::f32 ? 4 : 2), type};
  }
};
NNL_INLINE Lanes load(Any a) {
  if (a.type == DType::f32) return load(static_cast<const float*>(a.p));
  if (a.type == DType::bf16) return load(static_cast<const bf16*>(a.p));
  return load(static_cast<const f16*>(a.p));
}
NNL_INLINE void store(Any a, Lanes v) {
  if (a.type == DType::f32) return store(static_cast<float*>(a.p), v);
  if (a.type == DType::bf16) return store(static_cast<bf16*>(a.p), v);
  return store(static_cast<f16*>(a.p), v);
}

// The first n < 16 lanes; the others are `rest`.
template <class T>
NNL_INLINE Lanes load_part(T* p, int64_t n, float rest = 0.0f) {
#ifdef __AVX512F__
  const auto kept = static_cast<__mmask16>((1u << n) - 1u);
  if constexpr (sizeof(T) == 4)
    return reinterpret_cast<Lanes>(_mm512_mask_loadu_ps(_mm512_set1_ps(rest), kept, p));
#endif
#if defined(__AVX512BW__) && defined(__AVX512VL__)
  if constexpr (sizeof(T) == 2) {
    std::remove_const_t<T> half[kLanes];
    const __m256i bits = _mm256_maskz_loadu_epi16(kept, p);
    __builtin_memcpy(half, &bits, sizeof(half));
    const Lanes v = load(half);
    return rest == 0.0f ? v
                        : reinterpret_cast<Lanes>(_mm512_mask_mov_ps(_mm512_set1_ps(rest), kept,
                                                                     reinterpret_cast<__m512>(v)));
  }
#endif
  Lanes v = all(rest);
  for (int64_t i = 0; i < n; ++i) v[i] = to_float(p[i]);
  return v;
}
template <class T>
NNL_INLINE void store_part(T* p, Lanes v, int64_t n) {
  for (int64_t i = 0; i < n; ++i) p[i] = from_float<T>(v[i]);
}
NNL_INLINE Lanes load_part(Any a, int64_t n, float rest = 0.0f) {
  if (a.type == DType::f32) return load_part(static_cast<const float*>(a.p), n, rest);
  if (a.type == DType::bf16) return load_part(static_cast<const bf16*>(a.p), n, rest);
  return load_part(static_cast<const f16*>(a.p), n, rest);
}
NNL_INLINE void store_part(Any a, Lanes v, int64_t n) {
  if (a.type == DType::f32) return store_part(static_cast<float*>(a.p), v, n);
  if (a.type == DType::bf16) return store_part(static_cast<bf16*>(a.p), v, n);
  return store_part(static_cast<f16*>(a.p), v, n);
}

// n lanes of 16: `whole` is known by the compiler, so that only the last step of a loop branches.
template <bool whole, class P>
NNL_INLINE Lanes get(P p, int64_t n, float rest = 0.0f) {
  if constexpr (whole) return load(p);
  return load_part(p, n, rest);
}
template <bool whole, class P>
NNL_INLINE void put(P p, Lanes v, int64_t n) {
  if constexpr (whole) return store(p, v);
  return store_part(p, v, n);
}

// Calls f(offset, lanes, whole) over [0, n): whole is std::true_type but for the last, shorter
// step.
template <class F>
NNL_INLINE void by_lanes(int64_t n, F&& f) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) f(i, int64_t{kLanes}, std::true_type{});
  if (i < n) f(i, n - i, std::false_type{});
}

// f(0), ..., f(N - 1), each with its number as a constant: arrays of vectors then stay in
// registers, which they do not where loops in loops run over them.
template <class F, int... i>
NNL_INLINE void unroll(F&& f, std::integer_sequence<int, i...>) {
  (f(std::integral_constant<int, i>{}), ...);
}
template <int N, class F>
NNL_INLINE void unroll(F&& f) {
  unroll(f, std::make_integer_sequence<int, N>{});
}
#define NNL_EACH(i) [&](auto i) __attribute__((always_inline))

// Lanes i and i + 8, then i and i + 4, ... are combined by f.
template <class F>
NNL_INLINE float fold(Lanes v, F&& f) {
  v = f(v, NNL_SHUFFLE(v, v, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7));
  v = f(v, NNL_SHUFFLE(v, v, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3));
  v = f(v, NNL_SHUFFLE(v, v, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1));
  v = f(v, NNL_SHUFFLE(v, v, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0));
  return v[0];
}
NNL_INLINE Lanes larger(Lanes a, Lanes b) { return a > b ? a : b; }
NNL_INLINE float sum_of(Lanes v) {
  return fold(v, [](Lanes a, Lanes b) { return a + b; });
}
NNL_INLINE float max_of(Lanes v) {  // of numbers; NaN may be lost
  return fold(v, [](Lanes a, Lanes b) { return larger(a, b); });
}

// The fold of each of 16 vectors, in the lanes of one: halves are put together and combined, four
// times.
template <class V, class F>
NNL_INLINE V folds(const V (&s)[16], F&& f) {
  V a[8], b[4], c[2];
  unroll<8>(NNL_EACH(i) {
    a[i] = f(
        NNL_SHUFFLE(s[i], s[i + 8], 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23),
        NNL_SHUFFLE(s[i], s[i + 8], 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31));
  });
  unroll<4>(NNL_EACH(i) {
    b[i] =
        f(NNL_SHUFFLE(a[i], a[i + 4], 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27),
          NNL_SHUFFLE(a[i], a[i + 4], 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31));
  });
  unroll<2>(NNL_EACH(i) {
    c[i] =
        f(NNL_SHUFFLE(b[i], b[i + 2], 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29),
          NNL_SHUFFLE(b[i], b[i + 2], 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31));
  });
  return f(NNL_SHUFFLE(c[0], c[1], 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30),
           NNL_SHUFFLE(c[0], c[1], 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31));
}

// Sum over [0, n): f(offset, lanes, whole) gives 16 terms, of which those past `lanes` must be 0.
template <class F>
NNL_INLINE Lanes lane_sums(int64_t n, F&& f) {
  Lanes s[4] = {};
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes)
    for (int k = 0; k < 4; ++k) s[k] += f(i + k * kLanes, int64_t{kLanes}, std::true_type{});
  for (; i + kLanes <= n; i += kLanes) s[0] += f(i, int64_t{kLanes}, std::true_type{});
  if (i < n) s[1] += f(i, n - i, std::false_type{});
  return (s[0] + s[1]) + (s[2] + s[3]);
}

// e^x as fast_exp computes it, from -104 to 89.
NNL_INLINE Lanes exp_within(Lanes x) {
  constexpr float magic = 12582912.0f;  // 1.5 2^23: what is added to it is rounded to an integer
  const Lanes t = x * 1.44269504088896341f + magic, n = t - magic;
  Lanes r = x - n * 0.693145751953125f;
  r -= n * 1.42860682030941723212e-6f;
  Lanes p = 1.9875691500e-4f * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
#ifdef __AVX512F__
  return reinterpret_cast<Lanes>(_mm512_mask_scalef_ps(reinterpret_cast<__m512>(p), 0xffff,
                                                       reinterpret_cast<__m512>(p),
                                                       reinterpret_cast<__m512>(n)));
#else
  const LaneInts k = reinterpret_cast<LaneInts>(t) - 0x4b400000, half = k >> 1;
  const Lanes a = reinterpret_cast<Lanes>((half + 127) << 23);
  const Lanes b = reinterpret_cast<Lanes>((k - half + 127) << 23);
  return p * a * b;  // NaN passes through p
#endif
}
NNL_INLINE Lanes exp_of(Lanes x) {
  const Lanes bounded = x < -104.0f ? all(-104.0f) : x;
  return exp_within(bounded > 89.0f ? all(89.0f) : bounded);
}
NNL_INLINE Lanes sigmoid_of(Lanes x) { return 1.0f / (1.0f + exp_of(-x)); }
NNL_INLINE Lanes tanh_of(Lanes x) {  // as fast_tanh
  const Lanes a = x < 0.0f ? -x : x, z = x * x, bounded = a > 10.0f ? all(10.0f) : a;
  const Lanes big = 1.0f - 2.0f / (exp_within(bounded + bounded) + 1.0f);
  Lanes p = -5.70498872745e-3f * z + 2.06390887954e-2f;
  p = p * z - 5.37397155531e-2f;
  p = p * z + 1.33314422036e-1f;
  p = p * z - 3.33332819422e-1f;
  const LaneBits sign = reinterpret_cast<LaneBits>(x) & 0x80000000u;
  return a < 0.625f ? p * z * x + x
                    : reinterpret_cast<Lanes>(reinterpret_cast<LaneBits>(big) | sign);
}

// ln x as fast_log computes it.
NNL_INLINE Lanes log_of(Lanes x) {
#ifdef __AVX512F__  // takes subnormal numbers apart as well
  const auto v = reinterpret_cast<__m512>(x);
  Lanes e = reinterpret_cast<Lanes>(_mm512_maskz_getexp_ps(0xffff, v));
  Lanes m = reinterpret_cast<Lanes>(
      _mm512_maskz_getmant_ps(0xffff, v, _MM_MANT_NORM_1_2, _MM_MANT_SIGN_zero));
  const LaneInts high = m >= 1.41421356237309505f;
  m = (high ? 0.5f * m : m) - 1.0f;
  e = high ? e + 1.0f : e;
#else
  const LaneInts tiny = x < 1.17549435e-38f;
  const LaneBits u = reinterpret_cast<LaneBits>(tiny ? x * 8388608.0f : x);  // times 2^23
  LaneInts exponent = reinterpret_cast<LaneInts>(u >> 23) - 126 - (tiny & 23);
  Lanes m = reinterpret_cast<Lanes>((u & 0x007fffffu) | 0x3f000000u);  // in [1/2, 1)
  const LaneInts low = m < 0.707106781186547524f;
  m = low ? m + m - 1.0f : m - 1.0f;
  const Lanes e = __builtin_convertvector(exponent + low, Lanes);
#endif
  const Lanes z = m * m;
  Lanes y = log_polynomial(m) * m * z - 2.12194440e-4f * e - 0.5f * z;
  y = m + y + 0.693359375f * e;
#ifdef __AVX512F__
  // by the kind of x: NaN for NaN and below 0, -inf for 0, inf for inf
  return reinterpret_cast<Lanes>(_mm512_fixupimm_ps(
      reinterpret_cast<__m512>(y), reinterpret_cast<__m512>(x), _mm512_set1_epi32(0x03530433), 0));
#else
  y = x > 0.0f ? y : (x == 0.0f ? all(-INFINITY) : all(NAN));
  return x == INFINITY ? x : y;
#endif
}
NNL_INLINE Lanes relu(Lanes v) { return v < 0.0f ? Lanes{} : v; }  // NaN stays NaN

// The common element type of some specs, or f64 where they differ: see at_pointer.
constexpr DType kMixed = DType::f64;
inline DType common_type(std::initializer_list<const Spec*> specs) {
  DType common = kMixed;
  for (const Spec* s : specs)
    if (s) common = common == kMixed ? s->dtype : common;
  for (const Spec* s : specs)
    if (s && s->dtype != common) return kMixed;
  return common;
}

// Calls f with a null pointer of the type that kernels use for arrays of this common type.
template <class F>
auto with_pointer(DType common, F&& f) {
  switch (common) {
    case DType::f32:
      return f(static_cast<float*>(nullptr));
    case DType::bf16:
      return f(static_cast<bf16*>(nullptr));
    case DType::f16:
      return f(static_cast<f16*>(nullptr));
    default:
      return f(Any{});
  }
}
template <class P>
P pointer(void* p, DType type) {
  if constexpr (std::is_same_v<P, Any>)
    return {p, type};
  else
    return static_cast<P>(p);
}

// Small arrays (parameters, statistics) to and from float32.
inline void read_floats(const void* p, DType type, float* y, int64_t n) {
  if (type == DType::f32)
    load(static_cast<const float*>(p), y, n);
  else if (type == DType::bf16)
    load(static_cast<const bf16*>(p), y, n);
  else
    load(static_cast<const f16*>(p), y, n);
}
inline void write_floats(const float* x, void* p, DType type, int64_t n) {
  if (type == DType::f32)
    store(x, static_cast<float*>(p), n);
  else if (type == DType::bf16)
    store(x, static_cast<bf16*>(p), n);
  else
    store(x, static_cast<f16*>(p), n);
}

// How many parts to cut work of `elements` into, one per thread at most. Fixed at set-up, since
// partial sums of each part lie in the workspace.
inline int64_t parts_of(int64_t elements) {
  constexpr int64_t worth = 1 << 14;
  return std::max<int64_t>(1, std::min<int64_t>(threads(), elements / worth));
}
// f(part, begin, end) over [0, n) cut into `parts`.
template <class F>
void for_parts(int64_t parts, int64_t n, F&& f) {
  parallel_for(parts, 1, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) f(i, n * i / parts, n * (i + 1) / parts);
  });
}

// Hands out pieces of a workspace, 64-byte aligned: from null to learn its size, then at each run.
class Pieces {
 public:
  explicit Pieces(void* start = nullptr) : start_(reinterpret_cast<uintptr_t>(start)) {}
  template <class T>
  T* take(int64_t n) {
    T* p = reinterpret_cast<T*>(start_ + size_);
    size_ += (static_cast<size_t>(n) * sizeof(T) + 63) / 64 * 64;
    return p;
  }
  size_t size() const { return size_; }

 private:
  uintptr_t start_;
  size_t size_ = 0;
};

}  // namespace nnl
