// SPDX-License-Identifier: Apache-2.0
// What all CUDA kernels share: element types, loads and stores of up to 16 bytes, division by
// numbers known to the host, reductions within a block, Philox.
//
// Sources are put together by module.py without #include, for NVRTC. Tests compile the same text
// with g++ (NNL_SHIM), where a block's threads take turns.

#ifndef NNL_SHIM
#define KERNEL(name, Params) \
  extern "C" __global__ void __launch_bounds__(256) name(const __grid_constant__ Params p)
#define INLINE __device__ __forceinline__
#define UNCHECKED  // tests do not watch what such a function accesses
#endif

typedef long long int64;
typedef unsigned long long uint64;

// ---- element types ----

struct f16 {
  unsigned short bits;
};
struct bf16 {
  unsigned short bits;
};
struct bool8 {
  unsigned char bits;
};

template <class T>
INLINE float to_float(T x) {
  return (float)x;
}
template <>
INLINE float to_float(bool8 x) {
  return x.bits ? 1.0f : 0.0f;
}
template <>
INLINE float to_float(bf16 x) {
  return __uint_as_float((unsigned)x.bits << 16);
}
template <>
INLINE float to_float(f16 x) {
#ifdef NNL_SHIM
  return shim::to_float(x.bits);
#else
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
#endif
}

template <class T>
struct From {
  static INLINE T value(float x) { return (T)x; }
};
template <>
struct From<bool8> {
  static INLINE bool8 value(float x) { return {(unsigned char)(x != 0.0f)}; }
};
template <>
struct From<f16> {
  static INLINE f16 value(float x) {
#ifdef NNL_SHIM
    return {shim::to_half(x)};
#else
    f16 y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
#endif
  }
};
template <>
struct From<bf16> {
  static INLINE bf16 value(float x) {
#ifdef NNL_SHIM
    const unsigned u = __float_as_uint(x);
    return {(unsigned short)(x != x ? 0x7fff : (u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
#else
    bf16 y;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
#endif
  }
};
template <class T>
INLINE T from_float(float x) {
  return From<T>::value(x);
}

INLINE float infinity() { return __uint_as_float(0x7f800000u); }
INLINE float not_a_number() { return __uint_as_float(0x7fc00000u); }

// ---- memory ----

template <class T, int n>
struct alignas(sizeof(T) * n) Pack {
  T v[n];
};

// V neighbours as float32. p is aligned to the accesses: V elements, or 16 bytes if that is less.
template <int V, class T>
INLINE void load(float* y, const T* p) {
  constexpr int C = V * sizeof(T) > 16 ? 16 / sizeof(T) : V;
#pragma unroll
  for (int c = 0; c < V; c += C) {
    const Pack<T, C> a = *(const Pack<T, C>*)(p + c);
#pragma unroll
    for (int l = 0; l < C; ++l) y[c + l] = to_float(a.v[l]);
  }
}
template <int V, class T>
INLINE void store(T* p, const float* y) {
  constexpr int C = V * sizeof(T) > 16 ? 16 / sizeof(T) : V;
#pragma unroll
  for (int c = 0; c < V; c += C) {
    Pack<T, C> a;
#pragma unroll
    for (int l = 0; l < C; ++l) a.v[l] = from_float<T>(y[c + l]);
    *(Pack<T, C>*)(p + c) = a;
  }
}

// ---- integers ----

// n / divisor for n < 2^31, by a product: Granlund and Montgomery, Division by Invariant Integers
// using Multiplication, PLDI 1994. Filled in by Divisor in module.py.
struct Divisor {
  unsigned divisor, factor, shift, unused;
  INLINE unsigned operator()(unsigned n) const { return (__umulhi(n, factor) + n) >> shift; }
};

// An axis of a pattern, see patterns.py.
struct Axis {
  Divisor size;
  int64 stride;
};

// Where element i of a space of `rank` axes finds its value.
template <int rank>
INLINE int place_of(unsigned i, const Axis* axes, int64 offset) {
  int place = (int)offset;
#pragma unroll
  for (int k = rank - 1; k > 0; --k) {
    const unsigned q = axes[k].size(i);
    place += (int)(i - q * axes[k].size.divisor) * (int)axes[k].stride;
    i = q;
  }
  return place + (int)i * (int)axes[0].stride;
}

INLINE unsigned thread_in_block() { return threadIdx.x + blockDim.x * threadIdx.y; }

// ---- reductions; every thread gets the result ----

struct Sum {
  static INLINE float start() { return 0.0f; }
  static INLINE float join(float a, float b) { return a + b; }
};
struct Product {
  static INLINE float start() { return 1.0f; }
  static INLINE float join(float a, float b) { return a * b; }
};
struct Max {  // NaN before all
  static INLINE float start() { return -infinity(); }
  static INLINE float join(float a, float b) { return a > b || a != a ? a : b; }
};
struct Min {
  static INLINE float start() { return infinity(); }
  static INLINE float join(float a, float b) { return a < b || a != a ? a : b; }
};

// Over `width` neighbouring threads of a warp, a power of two.
template <class R>
INLINE float reduce_in_warp(float v, int width) {
  for (int d = width / 2; d > 0; d /= 2) v = R::join(v, __shfl_xor_sync(~0u, v, d));
  return v;
}

// Over a block whose size is a multiple of 32. Each call must get memory that no other call is
// still reading: `shared` is 8 floats.
template <class R>
INLINE float reduce_in_block(float v, float* shared) {
  const unsigned t = thread_in_block(), warps = blockDim.x * blockDim.y / 32;
  v = reduce_in_warp<R>(v, 32);
  __syncthreads();
  if (t % 32 == 0) shared[t / 32] = v;
  __syncthreads();
  v = shared[0];
  for (unsigned k = 1; k < warps; ++k) v = R::join(v, shared[k]);
  return v;
}

// ---- random words ----

// Philox 4x64-10, the numbers of numpy.random.Philox(key, counter).random_raw(): block i is four
// words. Source: Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, SC 2011.
INLINE void philox(uint64 key, uint64 counter, uint64 i, uint64* y) {
  const uint64 m0 = 0xD2E7470EE14C6C93ull, m1 = 0xCA5A826395121157ull;
  uint64 c0 = counter + i + 1, c1 = c0 <= i ? 1 : 0, c2 = 0, c3 = 0, k0 = key, k1 = 0;
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint64 a = __umul64hi(m0, c0), b = __umul64hi(m1, c2), low0 = m0 * c0, low1 = m1 * c2;
    c0 = b ^ c1 ^ k0, c1 = low1, c2 = a ^ c3 ^ k1, c3 = low0;
    k0 += 0x9E3779B97F4A7C15ull, k1 += 0xBB67AE8584CAA73Bull;
  }
  y[0] = c0, y[1] = c1, y[2] = c2, y[3] = c3;
}
