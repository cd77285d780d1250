// SPDX-License-Identifier: Apache-2.0
// The words of shared kernels in OpenCL C 1.2.

#pragma OPENCL FP_CONTRACT OFF
#define GLOBAL __global
#define LOCAL __local
#define INLINE static inline __attribute__((always_inline))
#define BARRIER() barrier(CLK_LOCAL_MEM_FENCE)
#define BLOCK_X ((unsigned)get_group_id(0))
#define BLOCK_Y ((unsigned)get_group_id(1))
#define BLOCK_Z ((unsigned)get_group_id(2))
#define THREAD_X ((unsigned)get_local_id(0))
#define THREAD_Y ((unsigned)get_local_id(1))
#define SIDE_X ((unsigned)get_local_size(0))
#define SIDE_Y ((unsigned)get_local_size(1))
// One step of a loop over [0, n) that all threads share: the grid has a thread for each.
#define EACH(i, n) \
  for (unsigned i = get_global_id(0), go_##i = 1; go_##i && i < (unsigned)(n); go_##i = 0)

typedef char i8;
typedef uchar u8;
typedef ushort u16;
typedef long i64;
typedef ulong u64;

#ifdef POCL_DEVICE_ADDRESS_BITS  // mul_hi, vload and vstore are calls of functions there
#define HIGH_32(a, b) ((unsigned)((u64)(a) * (b) >> 32))
typedef float packed1;
typedef float packed2 __attribute__((ext_vector_type(2), aligned(4)));
typedef float packed4 __attribute__((ext_vector_type(4), aligned(4)));
typedef float packed8 __attribute__((ext_vector_type(8), aligned(4)));
typedef float packed16 __attribute__((ext_vector_type(16), aligned(4)));
#define VECTOR_AT(W, space, p) (*(space const CAT(packed, W)*)(p))
#define PUT_VECTOR(W, p, v) *(GLOBAL CAT(packed, W)*)(p) = (v)
// PoCL runs all threads of a block through each step of a loop that is the same for all, and leaves
// their values in memory in between. A start that depends on the thread makes it a thread's own.
#define ALONE(start) ((start) + (THREAD_X >> 31))
#define NOT_UNROLLED _Pragma("clang loop vectorize(disable) unroll(disable)")
#define SHORT_CODE NOT_UNROLLED  // compiled in half the time
#else
#define HIGH_32 mul_hi
#define VECTOR_AT(W, space, p) CAT(vload, W)(0, p)
#define PUT_VECTOR(W, p, v) CAT(vstore, W)(v, 0, p)
#define ALONE(start) (start)
#define NOT_UNROLLED
#define SHORT_CODE UNROLL
#endif
#define HIGH_64 mul_hi
#define FLOAT_AS_BITS as_uint
#define BITS_AS_FLOAT as_float
#define ROUNDED_PRODUCT(a, b) ((a) * (b))
#define ROUNDED_SUM(a, b) ((a) + (b))
#ifdef HAS_DOUBLE
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
typedef double real;
#define BITS_AS_REAL as_double
#else
typedef float real;
INLINE float BITS_AS_REAL(u64 u) {  // of a double, which the device does not have
  const int e = (int)(u >> 52 & 0x7ff) - 1023;
  const float m = e == -1023 ? 0.0f : 1.0f + (float)(u & 0xfffffffffffffUL) * 0x1p-52f;
  return ldexp(u >> 63 ? -m : m, e);
}
#endif

typedef struct {
  u16 bits;
} f16;
typedef struct {
  u16 bits;
} bf16;
INLINE float float_of_f16(f16 x) { return vload_half(0, (const half*)&x.bits); }
INLINE f16 f16_of(float x) {
  f16 y;
  vstore_half_rte(x, 0, (half*)&y.bits);
  return y;
}
INLINE bf16 bf16_of(float x) {
  const unsigned u = as_uint(x);
  const bf16 y = {x != x ? (u16)0x7fff : (u16)((u + 0x7fffu + (u >> 16 & 1u)) >> 16)};
  return y;
}

#define READ(V, T, y, p) \
  for (int l_ = 0; l_ < V; ++l_) (y)[l_] = (p)[l_]
#define WRITE(V, T, p, y) READ(V, T, p, y)

// Lanes: elements that a thread computes at a time, one vector of W floats. The macro `lane` is its
// type. Functions of vectors are many times as fast as loops where the device is a processor.
typedef float float1;
#define LANE_TYPE(W) CAT(float, W)
#define LANES(W, x) CAT(float, W) x[1]
#define EACH_LANE(W, l) for (int l = 0; l < 1; ++l)
#define LANE(x, m) ((float*)(x))[m]
#define WHERE(condition, a, b) ((condition) ? (lane)(a) : (lane)(b))
#define LOAD_LANES(W, T, x, p) CAT(load_lanes_, T)(W, x, p)
#define STORE_LANES(W, T, p, x) CAT(store_lanes_, T)(W, x, p)
#define vload1(i, p) (p)[i]
#define vstore1(v, i, p) (p)[i] = (v)
#define vload_half1 vload_half
#define vstore_half1_rte vstore_half_rte
#define load_lanes_f32(W, x, p) (x)[0] = VECTOR_AT(W, GLOBAL, p)
// In two parts, as vload_half alone may be a macro.
#define load_lanes_f16(W, x, p) (x)[0] = CAT(vload_ha, CAT(lf, W))(0, (GLOBAL const half*)(p))
#define store_lanes_f32(W, x, p) PUT_VECTOR(W, p, (x)[0])
#define store_lanes_f16(W, x, p) \
  CAT(vstore_ha, CAT(CAT(lf, W), _rte))((x)[0], 0, (GLOBAL half*)(p))
#define lane_by_lane(T, W, x, p) for (int m_ = 0; m_ < W; ++m_) LANE(x, m_) = FLOAT(T, (p)[m_])
#define to_lane_by_lane(T, W, x, p) for (int m_ = 0; m_ < W; ++m_) (p)[m_] = CAST(T, LANE(x, m_))
#define load_lanes_bf16(W, x, p) lane_by_lane(bf16, W, x, p)
#define store_lanes_bf16(W, x, p) to_lane_by_lane(bf16, W, x, p)
#define load_lanes_b8(W, x, p) lane_by_lane(b8, W, x, p)
#define store_lanes_b8(W, x, p) to_lane_by_lane(b8, W, x, p)
#define load_lanes_i8(W, x, p) lane_by_lane(i8, W, x, p)
#define store_lanes_i8(W, x, p) to_lane_by_lane(i8, W, x, p)
#define load_lanes_u8(W, x, p) lane_by_lane(u8, W, x, p)
#define store_lanes_u8(W, x, p) to_lane_by_lane(u8, W, x, p)
#define load_lanes_i16(W, x, p) lane_by_lane(i16, W, x, p)
#define store_lanes_i16(W, x, p) to_lane_by_lane(i16, W, x, p)
#define load_lanes_u16(W, x, p) lane_by_lane(u16, W, x, p)
#define store_lanes_u16(W, x, p) to_lane_by_lane(u16, W, x, p)
#define load_lanes_i32(W, x, p) lane_by_lane(i32, W, x, p)
#define store_lanes_i32(W, x, p) to_lane_by_lane(i32, W, x, p)
#define load_lanes_u32(W, x, p) lane_by_lane(u32, W, x, p)
#define store_lanes_u32(W, x, p) to_lane_by_lane(u32, W, x, p)
#define load_lanes_i64(W, x, p) lane_by_lane(i64, W, x, p)
#define store_lanes_i64(W, x, p) to_lane_by_lane(i64, W, x, p)
#define load_lanes_u64(W, x, p) lane_by_lane(u64, W, x, p)
#define store_lanes_u64(W, x, p) to_lane_by_lane(u64, W, x, p)

#define fabsf fabs
#define sqrtf sqrt
#define expf exp
#define exp2f exp2
#define expm1f expm1
#define logf log
#define log1pf log1p
#define sinf sin
#define cosf cos
#define tanf tan
#define sinhf sinh
#define coshf cosh
// 1 from 9.02 on, where PoCL leaves the float below: gradients multiply 1 - y^2 by large numbers.
#define tanhf(a) WHERE(fabs(a) > 9.02f, copysign((lane)1.0f, (lane)(a)), tanh(a))
#define asinf asin
#define acosf acos
#define atanf atan
#define asinhf asinh
#define acoshf acosh
#define atanhf atanh
#define erff erf
#define roundf round
#define ceilf ceil
#define floorf floor
#define powf pow
#define atan2f atan2
#define fmodf fmod
#define fmaf fma
#define fmaxf fmax
#define fminf fmin

#define FLOATS(W) CAT(float, W)

INLINE float join(int kind, float a, float b);

// Over the threads with the same THREAD_Y; every one gets the result. SIDE_X is a power of two.
INLINE float reduce_in_team(int kind, float v, LOCAL float* shared) {
  const unsigned base = THREAD_Y * SIDE_X, x = THREAD_X;
  BARRIER();
  shared[base + x] = v;
  for (unsigned h = SIDE_X / 2; h > 0; h /= 2) {
    BARRIER();
    if (x < h) shared[base + x] = join(kind, shared[base + x], shared[base + x + h]);
  }
  BARRIER();
  return shared[base];
}
