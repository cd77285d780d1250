// SPDX-License-Identifier: Apache-2.0
// One step of a solver for many parameters: a kernel is given the arrays of all, and picks those of
// its parameter: number i.

// bad: null, or finite_check's answer: if one is true nothing is changed.
INLINE bool is_bad(GLOBAL const b8* bad) { return bad && (bad[0].bits || bad[1].bits); }

// What a block works on: chunks of parameters, `first` being the number of the first of each.
INLINE unsigned parameter_of(const i64* first, i64 count) {
  unsigned low = 0, high = (unsigned)count;
  while (high - low > 1) {
    const unsigned middle = (low + high) / 2;
    if (first[middle] <= (i64)BLOCK_X) low = middle; else high = middle;
  }
  return low;
}
#define OF_BLOCK parameter_of(p->first, p->count)
#define OF_THREAD (BLOCK_X * SIDE_X + THREAD_X)

#ifdef RULE
typedef struct {
  u64 a[8], gradient_scale, gradient_decay;
  i64 count, chunk;  // elements of a block's share
  i64 size[MOST], first[MOST + 1];
} UpdateP;

// t and the constants: one thread for each parameter. lr is a double.
INLINE void prepare_update(unsigned i, GLOBAL i64* t, GLOBAL const u64* lr, GLOBAL const b8* bad,
                           GLOBAL float* constants, const UpdateP* p) {
  if (is_bad(bad)) return;
  float c[10];
  real a[8];
  UNROLL for (int k = 0; k < 10; ++k) c[k] = 0.0f;
  UNROLL for (int k = 0; k < 8; ++k) a[k] = REAL(p->a[k]);
  *t += 1;
  CAT(RULE, _constants)(a, (real)*t, REAL(*lr), c);
  UNROLL for (int k = 0; k < 10; ++k) constants[10 * i + k] = c[k];
}

// Writes back states if they move here; w and y at the end. scale: null, or what gradients are
// divided by.
#define UPDATE_PART(V, begin, end, FINAL, MOVES, CHANGE)                                         \
  for (unsigned k = begin + THREAD_X * V; k < end; k += SIDE_X * V) {                            \
    float wv[V], gv[V], sv[STATES + 1][V];                                                       \
    LOAD(V, W, wv, w + k);                                                                       \
    LOAD(V, G, gv, g + k);                                                                       \
    if (STATES > 0) LOAD(V, S, sv[0], s0 + k);                                                   \
    if (STATES > 1) LOAD(V, S, sv[STATES > 1 ? 1 : 0], s1 + k);                                  \
    if (STATES > 2) LOAD(V, S, sv[STATES > 2 ? 2 : 0], s2 + k);                                  \
    UNROLL for (int l = 0; l < V; ++l) {                                                         \
      float own[STATES + 1];                                                                     \
      UNROLL for (int s = 0; s < STATES; ++s) own[s] = sv[s][l];                                 \
      const float arrived = scale ? gv[l] / loss_scale : gv[l];                                  \
      const float slope = arrived * NUMBER(p->gradient_scale) + wv[l] * NUMBER(p->gradient_decay); \
      CHANGE;                                                                                    \
      UNROLL for (int s = 0; s < STATES; ++s) sv[s][l] = own[s];                                 \
    }                                                                                            \
    if (MOVES && STATES > 0) STORE(V, S, s0 + k, sv[0]);                                         \
    if (MOVES && STATES > 1) STORE(V, S, s1 + k, sv[STATES > 1 ? 1 : 0]);                        \
    if (MOVES && STATES > 2) STORE(V, S, s2 + k, sv[STATES > 2 ? 2 : 0]);                        \
    if (FINAL) STORE(V, W, w + k, wv);                                                           \
    if (FINAL && y && (GLOBAL char*)y != (GLOBAL char*)w) STORE(V, Y, y + k, wv);                \
  }
// This block's elements: WIDE at a time as far as arrays start at 16 bytes.
#define UPDATE_BLOCK(FINAL, MOVES, CHANGE)                                                       \
  const unsigned begin = (BLOCK_X - (unsigned)p->first[i]) * (unsigned)p->chunk;                 \
  const unsigned end = least_of((unsigned)p->size[i], begin + (unsigned)p->chunk);               \
  const u64 bits = (u64)w | (u64)g | (u64)s0 | (u64)s1 | (u64)s2 | (u64)y;                       \
  const unsigned whole = bits % 16 ? begin : begin + (end - begin) / WIDE * WIDE;                \
  const float loss_scale = scale ? *scale : 1.0f; /* read once: writing w might change it */     \
  float c[10];                                                                                   \
  UNROLL for (int k = 0; k < 10; ++k) c[k] = constants[10 * i + k];                              \
  UPDATE_PART(WIDE, begin, whole, FINAL, MOVES, CHANGE)                                          \
  UPDATE_PART(1, whole, end, FINAL, MOVES, CHANGE)

INLINE void apply_update(unsigned i, GLOBAL W* w, GLOBAL const G* g, GLOBAL S* s0, GLOBAL S* s1,
                         GLOBAL S* s2, GLOBAL Y* y, GLOBAL const b8* bad, GLOBAL const float* scale,
                         GLOBAL const float* constants, const UpdateP* p) {
  if (is_bad(bad)) return;
  UPDATE_BLOCK(true, !NORMS_MOVE, CAT(RULE, _apply)(c, &wv[l], slope, own))
}

#ifdef NORMS
// The sums of rules with norms, per block: parts[chunks][2].
INLINE void sum_update(unsigned i, GLOBAL W* w, GLOBAL const G* g, GLOBAL S* s0, GLOBAL S* s1,
                       GLOBAL S* s2, GLOBAL Y* y, GLOBAL const b8* bad, GLOBAL const float* scale,
                       GLOBAL const float* constants, GLOBAL real* parts, LOCAL float* shared,
                       const UpdateP* p) {
  if (is_bad(bad)) return;
  float a = 0.0f, b = 0.0f;
  UPDATE_BLOCK(false, NORMS_MOVE, CAT(RULE, _first)(c, wv[l], slope, own, &a, &b))
  a = reduce_in_team(SUMS, a, shared);
  b = reduce_in_team(SUMS, b, shared);
  if (THREAD_X == 0) parts[2 * BLOCK_X] = a, parts[2 * BLOCK_X + 1] = b;
}

// Adds them up in their order, by one thread for each parameter, and changes the constants.
INLINE void join_update(unsigned i, GLOBAL const b8* bad, GLOBAL float* constants,
                        GLOBAL const real* parts, const UpdateP* p) {
  if (is_bad(bad)) return;
  real sum_a = 0, sum_b = 0, a[8];
  UNROLL for (int k = 0; k < 8; ++k) a[k] = REAL(p->a[k]);
  for (i64 k = p->first[i]; k < p->first[i + 1]; ++k)
    sum_a += parts[2 * k], sum_b += parts[2 * k + 1];
  CAT(RULE, _after)(a, sum_a, sum_b, constants + 10 * i);
}
#endif
#endif

// ---- whether numbers are finite ----

#ifdef CHECK_FINITE
typedef struct {
  i64 count, chunk, size[MOST], first[MOST + 1], type[MOST];  // 0 float, 1 f16, 2 bf16
} FiniteP;

#define LOOK(T)                                                   \
  for (unsigned k = begin + THREAD_X; k < end; k += SIDE_X) {     \
    const float v = FLOAT(T, ((GLOBAL const T*)x)[k]);            \
    inf |= fabsf(v) == infinity(), nan_found |= v != v;           \
  }
// Threads that find something write the same 1 to the same place: no order matters.
INLINE void check_finite(unsigned i, GLOBAL const u8* x, GLOBAL b8* y, const FiniteP* p) {
  const unsigned begin = (BLOCK_X - (unsigned)p->first[i]) * (unsigned)p->chunk;
  const unsigned end = least_of((unsigned)p->size[i], begin + (unsigned)p->chunk);
  bool inf = false, nan_found = false;
  if (p->type[i] == 0) LOOK(f32)
  if (p->type[i] == 1) LOOK(f16)
  if (p->type[i] == 2) LOOK(bf16)
  if (inf) y[0].bits = 1;
  if (nan_found) y[1].bits = 1;
}
#endif

#ifdef FOLLOW_SCALE
typedef struct {
  u64 factor, low, high;
  i64 steps;
} ScaleP;
// counts: steps since the last change, and steps that overflowed
INLINE void follow_scale(GLOBAL const b8* bad, GLOBAL float* scale, GLOBAL i64* counts,
                         const ScaleP* p) {
  if (THREAD_X || BLOCK_X) return;
  const bool overflow = is_bad(bad);
  float now = *scale;
  i64 good = overflow ? 0 : counts[0] + 1;
  if (overflow) now = fmaxf(now / NUMBER(p->factor), NUMBER(p->low));
  if (good >= p->steps) now = fminf(now * NUMBER(p->factor), NUMBER(p->high)), good = 0;
  *scale = now;
  counts[0] = good;
  counts[1] += overflow ? 1 : 0;
}
#endif
