// SPDX-License-Identifier: Apache-2.0
// Random arrays and dropout, with the numbers of the CPU. The state is key and counter in device
// memory: `advance_random` moves it on after the kernel that draws, so that a replayed graph draws
// new numbers.

INLINE float uniform_32(unsigned half_word) { return (float)(half_word >> 8) * 0x1p-24f; }

typedef struct {
  i64 blocks;
} AdvanceP;
INLINE void advance_random(GLOBAL u64* state, const AdvanceP* p) {
  if (THREAD_X == 0) state[1] += (u64)p->blocks;
}

// Eight 32-bit numbers for elements 8 i .. 8 i + 7, the lower half of a word first.
INLINE void halves(GLOBAL const u64* state, unsigned i, unsigned* h) {
  u64 w[4];
  philox(state[0], state[1], i, w);
  UNROLL for (int k = 0; k < 4; ++k) h[2 * k] = (unsigned)w[k], h[2 * k + 1] = (unsigned)(w[k] >> 32);
}

#ifdef DROPOUT
typedef struct {
  i64 n, least;
  u64 scale;
} DropoutP;
INLINE void dropout(GLOBAL const X* x, GLOBAL const u64* state, GLOBAL Y* y, GLOBAL u8* mask,
                    const DropoutP* p) {
  EACH(i, (p->n + 7) / 8) {
    unsigned h[8];
    halves(state, i, h);
    const unsigned at = 8 * i, n = least_of(8u, (unsigned)p->n - at);
    const float scale = NUMBER(p->scale);
    u8 m[8];
    float v[8];
    UNROLL for (int k = 0; k < 8; ++k) m[k] = h[k] >= (unsigned)p->least;
    if (ALIGNED && n == 8) {
      LOAD(8, X, v, x + at);
      UNROLL for (int k = 0; k < 8; ++k) v[k] = v[k] * (float)m[k] * scale;
      WRITE(8, u8, mask + at, m);
      STORE(8, Y, y + at, v);
    } else {
      for (unsigned k = 0; k < n; ++k)
        mask[at + k] = m[k], y[at + k] = CAST(Y, FLOAT(X, x[at + k]) * (float)m[k] * scale);
    }
  }
}
#endif

typedef struct {
  i64 n;
  u64 a, b, most;
} DrawP;

#ifdef DRAW_UNIFORM
// a + b u, at most `most`
INLINE void draw_uniform(GLOBAL const u64* state, GLOBAL Y* y, const DrawP* p) {
  EACH(i, (p->n + 7) / 8) {
    unsigned h[8];
    halves(state, i, h);
    const float a = NUMBER(p->a), b = NUMBER(p->b), most = NUMBER(p->most);
    for (unsigned k = 0; k < least_of(8u, (unsigned)p->n - 8 * i); ++k) {
      // rounded in between, as numpy does
      const Y drawn = CAST(Y, ROUNDED_SUM(ROUNDED_PRODUCT(uniform_32(h[k]), b), a));
      const float v = FLOAT(Y, drawn);
      y[8 * i + k] = CAST(Y, v > most ? most : v);
    }
  }
}
#endif

#ifdef NEEDS_DOUBLE
INLINE double uniform_64(u64 word) { return (double)(word >> 11) * 0x1p-53; }

// Integers a .. a + b - 1, one word each.
INLINE void draw_integers(GLOBAL const u64* state, GLOBAL i32* y, const DrawP* p) {
  EACH(i, (p->n + 3) / 4) {
    u64 w[4];
    philox(state[0], state[1], i, w);
    for (unsigned k = 0; k < least_of(4u, (unsigned)p->n - 4 * i); ++k)
      y[4 * i + k] = (int)((i64)floor(uniform_64(w[k]) * REAL(p->b)) + (i64)REAL(p->a));
  }
}

// Box and Muller: pair i is made of words i and half + i, half of the elements rounded up.
INLINE void draw_normal(GLOBAL const u64* state, GLOBAL Y* y, const DrawP* p) {
  const unsigned half_n = (unsigned)((p->n + 1) / 2);
  EACH(i, half_n) {
    u64 u[4], v[4];
    philox(state[0], state[1], i / 4, u);
    philox(state[0], state[1], (half_n + i) / 4, v);
    u64 first = 0, second = 0;
    UNROLL for (unsigned k = 0; k < 4; ++k) {
      first = i % 4 == k ? u[k] : first;
      second = (half_n + i) % 4 == k ? v[k] : second;
    }
    const double radius = sqrt(-2.0 * log1p(-uniform_64(first)));
    const double angle = 2.0 * uniform_64(second);  // in units of pi
    const double s = radius * sinpi(angle), c = radius * cospi(angle);
    const float a = NUMBER(p->a), b = NUMBER(p->b);  // rounded in between, as numpy does
    y[2 * i] = CAST(Y, ROUNDED_SUM(ROUNDED_PRODUCT((float)c, b), a));
    if (2 * i + 1 < p->n) y[2 * i + 1] = CAST(Y, ROUNDED_SUM(ROUNDED_PRODUCT((float)s, b), a));
  }
}
#endif
