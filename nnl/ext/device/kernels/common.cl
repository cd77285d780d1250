// SPDX-License-Identifier: Apache-2.0
// What all kernels share, in the common part of CUDA C and OpenCL C: element types, loads and stores,
// division by numbers known to the host, reductions, Philox.
//
// A kernel is a function of arrays and of one structure of numbers. Element types (X, Y ...) and sizes
// (V: elements of a thread at a time) are macros: see Code in module.py, which puts the sources
// together. A number with a fraction is a u64, the bits of a double: see REAL.

#define CAT_(a, b) a##b
#define CAT(a, b) CAT_(a, b)
#define UNROLL _Pragma("unroll")
#define REAL(u) BITS_AS_REAL(u)
#define NUMBER(u) ((float)BITS_AS_REAL(u))

// ---- element types ----

typedef float f32;
typedef short i16;
typedef int i32;
typedef unsigned u32;
typedef struct {
  u8 bits;
} b8;

INLINE float float_of_bf16(bf16 x) { return BITS_AS_FLOAT((unsigned)x.bits << 16); }
INLINE b8 b8_of(int x) {
  b8 y;
  y.bits = x ? 1 : 0;
  return y;
}

// VALUE: an element as a number of C; CAST: an element that is a number; FLOAT: VALUE in float.
#define VALUE(T, x) CAT(value_of_, T)(x)
#define CAST(T, v) CAT(cast_to_, T)(v)
#define FLOAT(T, x) ((float)VALUE(T, x))
#define value_of_f32(x) (x)
#define value_of_f64(x) (x)
#define value_of_f16(x) float_of_f16(x)
#define value_of_bf16(x) float_of_bf16(x)
#define value_of_b8(x) ((x).bits ? 1 : 0)
#define value_of_i8(x) (x)
#define value_of_u8(x) (x)
#define value_of_i16(x) (x)
#define value_of_u16(x) (x)
#define value_of_i32(x) (x)
#define value_of_u32(x) (x)
#define value_of_i64(x) (x)
#define value_of_u64(x) (x)
#define cast_to_f32(v) ((f32)(v))
#define cast_to_f64(v) ((f64)(v))
#define cast_to_f16(v) f16_of((float)(v))
#define cast_to_bf16(v) bf16_of((float)(v))
#define cast_to_b8(v) b8_of((v) != 0)
#define cast_to_i8(v) ((i8)(v))
#define cast_to_u8(v) ((u8)(v))
#define cast_to_i16(v) ((i16)(v))
#define cast_to_u16(v) ((u16)(v))
#define cast_to_i32(v) ((i32)(v))
#define cast_to_u32(v) ((u32)(v))
#define cast_to_i64(v) ((i64)(v))
#define cast_to_u64(v) ((u64)(v))
#if !defined(__OPENCL_VERSION__) || defined(HAS_DOUBLE)
typedef double f64;
#endif

INLINE float infinity(void) { return BITS_AS_FLOAT(0x7f800000u); }
INLINE float not_a_number(void) { return BITS_AS_FLOAT(0x7fc00000u); }

// ---- memory ----

// V neighbours of an array of T as float, and back.
#define LOAD(V, T, y, p)                                           \
  do {                                                             \
    T q_[V];                                                       \
    READ(V, T, q_, p);                                             \
    UNROLL for (int m_ = 0; m_ < V; ++m_)(y)[m_] = FLOAT(T, q_[m_]); \
  } while (0)
#define STORE(V, T, p, y)                                          \
  do {                                                             \
    T q_[V];                                                       \
    UNROLL for (int m_ = 0; m_ < V; ++m_) q_[m_] = CAST(T, (y)[m_]); \
    WRITE(V, T, p, q_);                                            \
  } while (0)

// ---- integers ----

// n / divisor for n < 2^31, by a product: Granlund and Montgomery, Division by Invariant Integers
// using Multiplication, PLDI 1994. Filled in by `divisor` in module.py.
typedef struct {
  unsigned divisor, factor, shift, unused;
} Divisor;
INLINE unsigned quotient(Divisor d, unsigned n) { return (HIGH_32(n, d.factor) + n) >> d.shift; }

// An axis of a pattern, see patterns.py.
typedef struct {
  Divisor size;
  i64 stride;
} Axis;

// Where element i of a space of `rank` axes finds its value.
INLINE int place_of(int rank, unsigned i, const Axis* axes, i64 offset) {
  int place = (int)offset;
  UNROLL for (int k = rank - 1; k > 0; --k) {
    const unsigned q = quotient(axes[k].size, i);
    place += (int)(i - q * axes[k].size.divisor) * (int)axes[k].stride;
    i = q;
  }
  return place + (int)i * (int)axes[0].stride;
}

INLINE unsigned least_of(unsigned a, unsigned b) { return a < b ? a : b; }
INLINE int lower(int a, int b) { return a < b ? a : b; }
INLINE int higher(int a, int b) { return a > b ? a : b; }

// Split of patterns.py: element ((((k0 R0 + r0) K1 + k1) R1 + r1) K2 + k2).
typedef struct {
  Divisor k1, r1;
  i64 r0, k2, groups, reduced, splits;
} Groups;
// Element r of the group (k0, k1); its neighbours along k2 follow.
INLINE unsigned element_of(const Groups* g, unsigned group, unsigned r) {
  const unsigned k0 = quotient(g->k1, group), a = quotient(g->r1, r);
  return (((k0 * (unsigned)g->r0 + a) * g->k1.divisor + (group - k0 * g->k1.divisor)) *
              g->r1.divisor + (r - a * g->r1.divisor)) * (unsigned)g->k2;
}

// ---- reductions ----

enum { SUMS, PRODUCTS, LARGEST, SMALLEST };
INLINE float start_of(int kind) {
  if (kind == LARGEST) return -infinity();
  return kind == SMALLEST ? infinity() : kind == PRODUCTS ? 1.0f : 0.0f;
}
INLINE float join(int kind, float a, float b) {  // NaN before all
  if (kind == LARGEST) return a > b || a != a ? a : b;
  if (kind == SMALLEST) return a < b || a != a ? a : b;
  return kind == PRODUCTS ? a * b : a + b;
}

// The same of lanes.
#define JOIN_SUMS(a, b) ((a) + (b))
#define JOIN_PRODUCTS(a, b) ((a) * (b))
#define JOIN_LARGEST(a, b) WHERE((a) > (b) || (a) != (a), a, b)
#define JOIN_SMALLEST(a, b) WHERE((a) < (b) || (a) != (a), a, b)

// ---- random words ----

// Philox 4x64-10, the numbers of numpy.random.Philox(key, counter).random_raw(): block i is four
// words. Source: Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, SC 2011.
INLINE void philox(u64 key, u64 counter, u64 i, u64* y) {
  const u64 m0 = 0xD2E7470EE14C6C93ul, m1 = 0xCA5A826395121157ul;
  u64 c0 = counter + i + 1, c1 = c0 <= i ? 1 : 0, c2 = 0, c3 = 0, k0 = key, k1 = 0;
  UNROLL for (int round = 0; round < 10; ++round) {
    const u64 a = HIGH_64(m0, c0), b = HIGH_64(m1, c2), low0 = m0 * c0, low1 = m1 * c2;
    c0 = b ^ c1 ^ k0, c1 = low1, c2 = a ^ c3 ^ k1, c3 = low0;
    k0 += 0x9E3779B97F4A7C15ul, k1 += 0xBB67AE8584CAA73Bul;
  }
  y[0] = c0, y[1] = c1, y[2] = c2, y[3] = c3;
}
