// SPDX-License-Identifier: Apache-2.0
// The words of shared kernels in CUDA C.

#define GLOBAL
#define LOCAL
#define INLINE __device__ __forceinline__
#define BARRIER __syncthreads
#define BLOCK_X blockIdx.x
#define BLOCK_Y blockIdx.y
#define THREAD_X threadIdx.x
#define THREAD_Y threadIdx.y
#define SIDE_X blockDim.x
#define SIDE_Y blockDim.y
// A loop over [0, n) that all threads share; the grid has as many blocks as the device holds.
#define EACH(i, n) \
  for (unsigned i = BLOCK_X * SIDE_X + THREAD_X; i < (unsigned)(n); i += gridDim.x * SIDE_X)

typedef signed char i8;
typedef unsigned char u8;
typedef unsigned short u16;
typedef long long i64;
typedef unsigned long long u64;
typedef double real;

#define HIGH_32 __umulhi
#define HIGH_64 __umul64hi
#define FLOAT_AS_BITS __float_as_uint
#define BITS_AS_FLOAT __uint_as_float
#define BITS_AS_REAL(u) __longlong_as_double((i64)(u))
#define ROUNDED_PRODUCT __fmul_rn
#define ROUNDED_SUM __fadd_rn

struct f16 {
  u16 bits;
};
struct bf16 {
  u16 bits;
};
INLINE float float_of_f16(f16 x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
}
INLINE f16 f16_of(float x) {
  f16 y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
  return y;
}
INLINE bf16 bf16_of(float x) {
  bf16 y;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
  return y;
}

// V neighbours in accesses of up to 16 bytes. p is aligned to them.
template <class T, int n>
struct alignas(sizeof(T) * n) Pack {
  T v[n];
};
template <int V, class T>
INLINE void read(T* y, const T* p) {
  constexpr int C = V * sizeof(T) > 16 ? 16 / sizeof(T) : V;
#pragma unroll
  for (int c = 0; c < V; c += C) {
    const Pack<T, C> a = *(const Pack<T, C>*)(p + c);
#pragma unroll
    for (int l = 0; l < C; ++l) y[c + l] = a.v[l];
  }
}
template <int V, class T>
INLINE void write(T* p, const T* y) {
  constexpr int C = V * sizeof(T) > 16 ? 16 / sizeof(T) : V;
#pragma unroll
  for (int c = 0; c < V; c += C) {
    Pack<T, C> a;
#pragma unroll
    for (int l = 0; l < C; ++l) a.v[l] = y[c + l];
    *(Pack<T, C>*)(p + c) = a;
  }
}
#define READ(V, T, y, p) read<V, T>(y, p)
#define WRITE(V, T, p, y) write<V, T>(p, y)

// Lanes: elements that a thread computes at a time, W floats in a loop.
#define LANE_TYPE(W) float
#define LANES(W, x) float x[W]
#define EACH_LANE(W, l) UNROLL for (int l = 0; l < W; ++l)
#define LANE(x, m) x[m]
#define WHERE(condition, a, b) ((condition) ? (a) : (b))
#define LOAD_LANES(W, T, x, p) LOAD(W, T, x, p)
#define STORE_LANES(W, T, p, x) STORE(W, T, p, x)

INLINE float join(int kind, float a, float b);

// Over the threads with the same THREAD_Y; every one gets the result. SIDE_X is a power of two of at
// most 32, or that of all threads of the block.
INLINE float reduce_in_team(int kind, float v, float* shared) {
  const unsigned width = SIDE_X < 32 ? SIDE_X : 32;
  for (unsigned d = width / 2; d > 0; d /= 2) v = join(kind, v, __shfl_xor_sync(~0u, v, d));
  if (SIDE_X <= 32) return v;
  __syncthreads();
  if (THREAD_X % 32 == 0) shared[THREAD_X / 32] = v;
  __syncthreads();
  v = shared[0];
  for (unsigned k = 1; k < SIDE_X / 32; ++k) v = join(kind, v, shared[k]);
  return v;
}
