// SPDX-License-Identifier: Apache-2.0
// Cross entropies of softmax and labels, along one axis of an array seen as (outer, n, inner).
//
// A label of n or more has no meaning; a device cannot raise, so its loss is NaN.

// exp(x - top) as a power of 2, in two instructions. What is rounded in top log2(e) is the same factor
// for all elements of a line, and so for their sum.
INLINE float in_powers_of_2(float x) { return ROUNDED_PRODUCT(x, 1.4426950408889634f); }
INLINE float exponential(float x, float top_2) {
  return exp2f(fmaf(x, 1.4426950408889634f, -top_2));
}
// -inf is no number to take differences from.
INLINE float lowered(float top) { return top == -infinity() ? 0.0f : top; }

// All elements of the row that begins at `base`, by a team: PACK for V neighbours from where they
// are aligned, ONE for each at both ends.
#define FOR_ROW(base, n, PACK, ONE)                                                         \
  do {                                                                                      \
    const unsigned head = least_of(n, (V - base % V) % V), tail = head + (n - head) / V * V; \
    for (unsigned e = THREAD_X; e < head; e += SIDE_X) ONE;                                 \
    for (unsigned e = head + THREAD_X * V; e < tail; e += SIDE_X * V) PACK;                 \
    for (unsigned e = tail + THREAD_X; e < n; e += SIDE_X) ONE;                             \
  } while (0)

#ifndef GRADIENT
typedef struct {
  i64 outer, n, inner;
} CrossP;

// Loss i and its statistics, which may be null; the line of scores begins at `base`.
INLINE void write_loss(GLOBAL const X* x, GLOBAL const L* label, GLOBAL Y* y, GLOBAL Y* largest,
                       GLOBAL Y* totals, unsigned i, unsigned base, float top, float total,
                       const CrossP* p) {
  const i64 t = (i64)label[i];
  float loss = t < 0 ? 0.0f : not_a_number();
  if (t >= 0 && t < p->n)
    loss = logf(total) - (FLOAT(X, x[base + (unsigned)(t * p->inner)]) - top);
  y[i] = CAST(Y, loss);
  if (largest) largest[i] = CAST(Y, top), totals[i] = CAST(Y, total);
}

// The sum of exponentials moves to a larger top. NaN is in the sum, if not in the top.
INLINE void add_exponentials(int width, const float* v, float* top, float* total) {
  float next = *top;
  UNROLL for (int l = 0; l < width; ++l) next = fmaxf(next, v[l]);
  const float top_2 = in_powers_of_2(lowered(next));
  *total *= exp2f(in_powers_of_2(*top) - top_2);
  UNROLL for (int l = 0; l < width; ++l) *total += exponential(v[l], top_2);
  *top = next;
}
#define ADD(width, at)                           \
  do {                                           \
    float w_[width];                             \
    LOAD(width, X, w_, x + at);                  \
    add_exponentials(width, w_, &own, &total);   \
  } while (0)

INLINE void cross_rows(GLOBAL const X* x, GLOBAL const L* label, GLOBAL Y* y, GLOBAL Y* largest,
                       GLOBAL Y* totals, LOCAL float* shared, const CrossP* p) {
  const unsigned row = BLOCK_X * SIDE_Y + THREAD_Y;
  const unsigned n = row < p->outer ? (unsigned)p->n : 0, base = row * (unsigned)p->n;
  float own = start_of(LARGEST), total = 0.0f;
  FOR_ROW(base, n, ADD(V, base + e), ADD(1, base + e));
  const float top = reduce_in_team(LARGEST, own, shared);
  total *= exp2f(in_powers_of_2(own) - in_powers_of_2(lowered(top)));
  total = reduce_in_team(SUMS, total, shared);
  if (n && THREAD_X == 0) write_loss(x, label, y, largest, totals, row, base, top, total, p);
}
INLINE void cross_columns(GLOBAL const X* x, GLOBAL const L* label, GLOBAL Y* y,
                          GLOBAL Y* largest, GLOBAL Y* totals, const CrossP* p) {
  const unsigned inner = (unsigned)p->inner, size = inner * (unsigned)p->n;
  EACH(i, p->outer * p->inner) {
    const unsigned o = i / inner, base = o * size + (i - o * inner);
    float own = start_of(LARGEST), total = 0.0f;
    for (unsigned e = base; e < base + size; e += inner) ADD(1, e);
    write_loss(x, label, y, largest, totals, i, base, own, total, p);
  }
}
#else

// The gradient from the maxima and sums that the loss has left.
typedef struct {
  i64 outer, n, inner;
  Divisor by_n, by_inner;
} CrossBackwardP;

// What arrives at a loss, 0 where the label is negative.
INLINE float weight_of(i64 t, i64 n, float gy) {
  return t < 0 ? 0.0f : t >= n ? not_a_number() : gy;
}
// Softmax less 1 at the label, times the gradient of the loss; hit: place of the label after `at`.
#define SLOPES(width, at, hit)                                                       \
  do {                                                                               \
    float w_[width];                                                                 \
    LOAD(width, X, w_, x + at);                                                      \
    UNROLL for (int l = 0; l < width; ++l)                                           \
      w_[l] = exponential(w_[l], top_2) * part - (l == (hit) ? weight : 0.0f);       \
    STORE(width, Z, gx + at, w_);                                                    \
  } while (0)

INLINE void cross_backward_rows(GLOBAL const G* gy, GLOBAL const X* x, GLOBAL const L* label,
                                GLOBAL const S* largest, GLOBAL const S* totals, GLOBAL Z* gx,
                                const CrossBackwardP* p) {
  const unsigned row = BLOCK_X * SIDE_Y + THREAD_Y, n = (unsigned)p->n, base = row * n;
  if (row >= p->outer) return;
  const i64 t = (i64)label[row];
  const int hit = t >= 0 && t < p->n ? (int)t : -1;
  const float weight = weight_of(t, p->n, FLOAT(G, gy[row])), part = weight / FLOAT(S, totals[row]);
  const float top_2 = in_powers_of_2(FLOAT(S, largest[row]));
  FOR_ROW(base, n, SLOPES(V, base + e, hit - (int)e), SLOPES(1, base + e, hit - (int)e));
}
INLINE void cross_backward_columns(GLOBAL const G* gy, GLOBAL const X* x, GLOBAL const L* label,
                                   GLOBAL const S* largest, GLOBAL const S* totals, GLOBAL Z* gx,
                                   const CrossBackwardP* p) {
  const unsigned inner = (unsigned)p->inner;
  EACH(e, p->outer * p->n * p->inner) {
    const unsigned q = quotient(p->by_inner, e), o = quotient(p->by_n, q), k = q - o * (unsigned)p->n;
    const unsigned i = o * inner + (e - q * inner);
    const i64 t = (i64)label[i];
    const float weight = weight_of(t, p->n, FLOAT(G, gy[i])), part = weight / FLOAT(S, totals[i]);
    const float top_2 = in_powers_of_2(FLOAT(S, largest[i]));
    SLOPES(1, e, k == t ? 0 : -1);
  }
}
#endif
