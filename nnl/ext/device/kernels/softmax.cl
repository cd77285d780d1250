// SPDX-License-Identifier: Apache-2.0
// Softmax, its logarithm and their gradients, along one axis of an array seen as (outer, n, inner).

enum { SOFTMAX, LOG_SOFTMAX, SOFTMAX_BACKWARD, LOG_SOFTMAX_BACKWARD };
#define BACKWARD (KIND == SOFTMAX_BACKWARD || KIND == LOG_SOFTMAX_BACKWARD)

// a: the scores, or what arrives at the result; b: the result, or for SOFTMAX a mask of MASK axes.
typedef struct {
  i64 outer, n, inner;
  u64 scale;
  Axis mask[MASK > 0 ? MASK : 1];
} AlongP;

// What the first pass joins, and what the second adds up.
INLINE float term(float a, float b, float top) {
  if (!BACKWARD) return expf(a - top);
  return KIND == SOFTMAX_BACKWARD ? a * b : a;
}
INLINE float result(float a, float b, float top, float total, float scale) {
  if (KIND == SOFTMAX) return expf(a - top) / total;
  if (KIND == LOG_SOFTMAX) return a - top - logf(total);
  if (KIND == SOFTMAX_BACKWARD) return scale * (b * (a - total));
  return a - expf(b) * total;
}

// Threads of a team of SIDE_X share a row. It is read once where its K packs of V elements per
// thread stay in registers; for K = 0 it is read again for every pass.
#define HELD (K > 0 ? K : 1)
#define PLACE(k) (((k)*SIDE_X + THREAD_X) * V)
#if K > 0
#define FOR_PACKS(k, n) UNROLL for (unsigned k = 0; k < K; ++k) if (PLACE(k) < n)
#define SLOT(k) k
#else
#define FOR_PACKS(k, n) for (unsigned k = 0; PLACE(k) < n; ++k)
#define SLOT(k) 0
#endif

INLINE void read_pack(GLOBAL const A* a, GLOBAL const B* b, unsigned at, float* va, float* vb,
                      const AlongP* p) {
  LOAD(V, A, va, a + at);
#if MASK > 0
  UNROLL for (int l = 0; l < V; ++l) {
    const B m = b[place_of(MASK, at + l, p->mask, 0)];
    va[l] = va[l] * NUMBER(p->scale) + (FLAGS ? (VALUE(B, m) != 0 ? 0.0f : -infinity()) : FLOAT(B, m));
  }
#else
  if (BACKWARD) LOAD(V, B, vb, b + at);
  if (KIND == SOFTMAX) UNROLL for (int l = 0; l < V; ++l) va[l] *= NUMBER(p->scale);
#endif
}

INLINE void along_rows(GLOBAL const A* pa, GLOBAL const B* pb, GLOBAL Y* py, LOCAL float* shared,
                       const AlongP* p) {
  const unsigned row = BLOCK_X * SIDE_Y + THREAD_Y;
  const unsigned n = row < p->outer ? (unsigned)p->n : 0, base = row * (unsigned)p->n;
  float a[HELD][V], b[HELD][V], top = start_of(LARGEST), total = 0.0f;
  FOR_PACKS(k, n) {
    if (K == 0 && BACKWARD) break;
    read_pack(pa, pb, base + PLACE(k), a[SLOT(k)], b[SLOT(k)], p);
    UNROLL for (int l = 0; l < V; ++l) top = join(LARGEST, top, a[SLOT(k)][l]);
  }
  if (!BACKWARD) top = reduce_in_team(LARGEST, top, shared);
  FOR_PACKS(k, n) {
    if (K == 0) read_pack(pa, pb, base + PLACE(k), a[0], b[0], p);
    UNROLL for (int l = 0; l < V; ++l) total += term(a[SLOT(k)][l], b[SLOT(k)][l], top);
  }
  total = reduce_in_team(SUMS, total, shared);
  FOR_PACKS(k, n) {
    if (K == 0) read_pack(pa, pb, base + PLACE(k), a[0], b[0], p);
    UNROLL for (int l = 0; l < V; ++l)
      a[SLOT(k)][l] = result(a[SLOT(k)][l], b[SLOT(k)][l], top, total, NUMBER(p->scale));
    STORE(V, Y, py + base + PLACE(k), a[SLOT(k)]);
  }
}

// One thread for each place in (outer, inner); neighbours read neighbours.
INLINE void along_columns(GLOBAL const A* pa, GLOBAL const B* pb, GLOBAL Y* py, const AlongP* p) {
  const unsigned inner = (unsigned)p->inner, size = inner * (unsigned)p->n;
  EACH(i, p->outer * p->inner) {
    const unsigned o = i / inner, base = o * size + (i - o * inner);
    float top = start_of(LARGEST), total = 0.0f;
    for (unsigned e = base; !BACKWARD && e < base + size; e += inner)
      top = join(LARGEST, top, FLOAT(A, pa[e]));
    for (unsigned e = base; e < base + size; e += inner)
      total += term(FLOAT(A, pa[e]), BACKWARD ? FLOAT(B, pb[e]) : 0.0f, top);
    for (unsigned e = base; e < base + size; e += inner) {
      const float b = BACKWARD ? FLOAT(B, pb[e]) : 0.0f;
      py[e] = CAST(Y, result(FLOAT(A, pa[e]), b, top, total, NUMBER(p->scale)));
    }
  }
}
