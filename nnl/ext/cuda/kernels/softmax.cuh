// SPDX-License-Identifier: Apache-2.0
// Softmax, its logarithm, their gradients, and the cross entropies of labels, along one axis of an
// array seen as (outer, n, inner).

enum { SOFTMAX, LOG_SOFTMAX, SOFTMAX_BACKWARD, LOG_SOFTMAX_BACKWARD };

// a: the scores, or what arrives at the result; b: the result, or for SOFTMAX a mask of `rank` axes.
template <class A, class B, class Y, int rank>
struct AlongP {
  const A* a;
  const B* b;
  Y* y;
  int64 outer, n, inner;
  double scale;
  Axis mask[rank];
};

template <class M>
INLINE float mask_value(M m) {
  return to_float(m);
}
template <>
INLINE float mask_value(bool8 m) {
  return m.bits ? 0.0f : -infinity();
}
template <>
INLINE float mask_value(signed char m) {
  return m ? 0.0f : -infinity();
}
template <>
INLINE float mask_value(unsigned char m) {
  return m ? 0.0f : -infinity();
}

// What the first pass joins, and what the second adds up.
template <int kind>
INLINE float term(float a, float b, float top) {
  if (kind == SOFTMAX || kind == LOG_SOFTMAX) return expf(a - top);
  return kind == SOFTMAX_BACKWARD ? a * b : a;
}
template <int kind>
INLINE float result(float a, float b, float top, float total, float scale) {
  if (kind == SOFTMAX) return expf(a - top) / total;
  if (kind == LOG_SOFTMAX) return a - top - logf(total);
  if (kind == SOFTMAX_BACKWARD) return scale * (b * (a - total));
  return a - expf(b) * total;
}

// Threads of a team of blockDim.x share a row. It is read once where its K packs of V elements per
// thread stay in registers; for K = 0 it is read again for every pass.
template <int V, int K, class F>
INLINE void for_packs(unsigned n, F&& f) {
  const unsigned step = blockDim.x * V;
  if (K > 0) {
#pragma unroll
    for (int k = 0; k < (K > 0 ? K : 1); ++k)
      if (k * step + threadIdx.x * V < n) f(k, k * step + threadIdx.x * V);
  } else {
    for (unsigned e = threadIdx.x * V; e < n; e += step) f(0, e);
  }
}
template <class R>
INLINE float reduce_in_team(float v, float* shared) {
  return blockDim.x > 32 ? reduce_in_block<R>(v, shared) : reduce_in_warp<R>(v, blockDim.x);
}

template <int kind, int mask_rank, int V, int K, class A, class B, class Y, int rank>
INLINE void along_rows(const AlongP<A, B, Y, rank>& p) {
  __shared__ float shared[2][8];
  const unsigned row = blockIdx.x * blockDim.y + threadIdx.y;
  const unsigned n = row < p.outer ? (unsigned)p.n : 0, base = row * (unsigned)p.n;
  constexpr int held = K > 0 ? K : 1;
  constexpr bool backward = kind == SOFTMAX_BACKWARD || kind == LOG_SOFTMAX_BACKWARD;
  float a[held][V], b[held][V], top = Max::start(), total = 0.0f;
  auto read = [&](int k, unsigned e) {
    load<V>(a[k], p.a + base + e);
    if (backward) load<V>(b[k], p.b + base + e);
    if (kind == SOFTMAX) {
#pragma unroll
      for (int l = 0; l < V; ++l) {
        a[k][l] *= (float)p.scale;
        if (mask_rank > 0)
          a[k][l] += mask_value(p.b[place_of<rank>(base + e + l, p.mask, 0)]);
      }
    }
  };
  for_packs<V, K>(n, [&](int k, unsigned e) {
    if (K == 0 && backward) return;
    read(k, e);
#pragma unroll
    for (int l = 0; l < V; ++l) top = Max::join(top, a[k][l]);
  });
  if (!backward) top = reduce_in_team<Max>(top, shared[0]);
  for_packs<V, K>(n, [&](int k, unsigned e) {
    if (K == 0) read(k, e);
#pragma unroll
    for (int l = 0; l < V; ++l) total += term<kind>(a[k][l], b[k][l], top);
  });
  total = reduce_in_team<Sum>(total, shared[1]);
  for_packs<V, K>(n, [&](int k, unsigned e) {
    if (K == 0) read(k, e);
#pragma unroll
    for (int l = 0; l < V; ++l)
      a[k][l] = result<kind>(a[k][l], b[k][l], top, total, (float)p.scale);
    store<V>(p.y + base + e, a[k]);
  });
}

// One thread for each place in (outer, inner); neighbours read neighbours.
template <int kind, class A, class B, class Y, int rank>
INLINE void along_columns(const AlongP<A, B, Y, rank>& p) {
  const unsigned inner = (unsigned)p.inner, size = inner * (unsigned)p.n;
  constexpr bool backward = kind == SOFTMAX_BACKWARD || kind == LOG_SOFTMAX_BACKWARD;
  for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < p.outer * p.inner;
       i += gridDim.x * blockDim.x) {
    const unsigned o = i / inner, base = o * size + (i - o * inner);
    float top = Max::start(), total = 0.0f;
    for (unsigned e = base; !backward && e < base + size; e += inner)
      top = Max::join(top, to_float(p.a[e]));
    for (unsigned e = base; e < base + size; e += inner)
      total += term<kind>(to_float(p.a[e]), backward ? to_float(p.b[e]) : 0.0f, top);
    for (unsigned e = base; e < base + size; e += inner) {
      const float b = backward ? to_float(p.b[e]) : 0.0f;
      p.y[e] = from_float<Y>(result<kind>(to_float(p.a[e]), b, top, total, (float)p.scale));
    }
  }
}

// ---- cross entropies ----

// A label of n or more has no meaning; a device cannot raise, so its loss is NaN. The statistics may
// be null.
template <class X, class L, class Y>
struct CrossP {
  const X* x;
  const L* label;
  Y *y, *largest, *total;
  int64 outer, n, inner;
};

// Loss i and its statistics; the line of scores begins at `base`.
template <class P>
INLINE void write_loss(const P& p, unsigned i, unsigned base, float top, float total) {
  const int64 t = (int64)p.label[i];
  float loss = t < 0 ? 0.0f : not_a_number();
  if (t >= 0 && t < p.n)
    loss = logf(total) - (to_float(p.x[base + (unsigned)(t * p.inner)]) - top);
  store<1>(p.y + i, &loss);
  if (p.largest) store<1>(p.largest + i, &top), store<1>(p.total + i, &total);
}
// What arrives at a loss, 0 where the label is negative.
template <class G>
INLINE float weight_of(int64 t, int64 n, const G* gy) {
  return t < 0 ? 0.0f : t >= n ? not_a_number() : to_float(*gy);
}

// exp(x - top) as a power of 2, in two instructions. What is rounded in top log2(e) is the same factor
// for all elements of a line, and so for their sum.
INLINE float in_powers_of_2(float x) { return __fmul_rn(x, 1.4426950408889634f); }
INLINE float exponential(float x, float top_2) {
  return exp2f(fmaf(x, 1.4426950408889634f, -top_2));
}
// -inf is no number to take differences from.
INLINE float lowered(float top) { return top == -infinity() ? 0.0f : top; }

// The sum of exponentials moves to a larger top. NaN is in the sum, if not in the top.
template <int V, class X>
INLINE void add_exponentials(const X* p, float& top, float& total) {
  float x[V], next = top;
  load<V>(x, p);
#pragma unroll
  for (int l = 0; l < V; ++l) next = fmaxf(next, x[l]);
  const float top_2 = in_powers_of_2(lowered(next));
  total *= exp2f(in_powers_of_2(top) - top_2);
#pragma unroll
  for (int l = 0; l < V; ++l) total += exponential(x[l], top_2);
  top = next;
}

// All elements of the row that begins at `base`, by a team: `pack` for V neighbours from where they
// are aligned, `one` for each at both ends.
template <int V, class F, class G>
INLINE void for_row(unsigned base, unsigned n, F&& pack, G&& one) {
  const unsigned head = min(n, (V - base % V) % V), tail = head + (n - head) / V * V;
  for (unsigned e = threadIdx.x; e < head; e += blockDim.x) one(e);
  for (unsigned e = head + threadIdx.x * V; e < tail; e += blockDim.x * V) pack(e);
  for (unsigned e = tail + threadIdx.x; e < n; e += blockDim.x) one(e);
}

// Softmax less 1 at the label, times the gradient of the loss; chosen: place of the label after e.
template <int V, class X, class Z>
INLINE void write_slopes(const X* x, Z* gx, unsigned e, int chosen, float top_2, float part,
                         float weight) {
  float v[V];
  load<V>(v, x + e);
#pragma unroll
  for (int l = 0; l < V; ++l)
    v[l] = exponential(v[l], top_2) * part - (l == chosen ? weight : 0.0f);
  store<V>(gx + e, v);
}

template <int V, class X, class L, class Y>
INLINE void cross_rows(const CrossP<X, L, Y>& p) {
  __shared__ float shared[2][8];
  const unsigned row = blockIdx.x * blockDim.y + threadIdx.y;
  const unsigned n = row < p.outer ? (unsigned)p.n : 0, base = row * (unsigned)p.n;
  float own = Max::start(), total = 0.0f;
  for_row<V>(
      base, n, [&](unsigned e) { add_exponentials<V>(p.x + base + e, own, total); },
      [&](unsigned e) { add_exponentials<1>(p.x + base + e, own, total); });
  const float top = reduce_in_team<Max>(own, shared[0]);
  total = reduce_in_team<Sum>(total * exp2f(in_powers_of_2(own) - in_powers_of_2(lowered(top))),
                              shared[1]);
  if (n && threadIdx.x == 0) write_loss(p, row, base, top, total);
}
template <class X, class L, class Y>
INLINE void cross_columns(const CrossP<X, L, Y>& p) {
  const unsigned inner = (unsigned)p.inner, size = inner * (unsigned)p.n;
  for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < p.outer * p.inner;
       i += gridDim.x * blockDim.x) {
    const unsigned o = i / inner, base = o * size + (i - o * inner);
    float top = Max::start(), total = 0.0f;
    for (unsigned e = base; e < base + size; e += inner) add_exponentials<1>(p.x + e, top, total);
    write_loss(p, i, base, top, total);
  }
}

// The gradient from the maxima and sums that the loss has left.
template <class G, class X, class L, class S, class Z>
struct CrossBackwardP {
  const G* gy;
  const X* x;
  const L* label;
  const S *largest, *total;
  Z* gx;
  int64 outer, n, inner;
  Divisor by_n, by_inner;
};
template <int V, class G, class X, class L, class S, class Z>
INLINE void cross_backward_rows(const CrossBackwardP<G, X, L, S, Z>& p) {
  const unsigned row = blockIdx.x * blockDim.y + threadIdx.y, n = (unsigned)p.n, base = row * n;
  if (row >= p.outer) return;
  const int64 t = (int64)p.label[row];
  const int chosen = t >= 0 && t < p.n ? (int)t : -1;
  const float weight = weight_of(t, p.n, p.gy + row), part = weight / to_float(p.total[row]);
  const float top_2 = in_powers_of_2(to_float(p.largest[row]));
  for_row<V>(
      base, n,
      [&](unsigned e) {
        write_slopes<V>(p.x, p.gx, base + e, chosen - (int)e, top_2, part, weight);
      },
      [&](unsigned e) {
        write_slopes<1>(p.x, p.gx, base + e, chosen - (int)e, top_2, part, weight);
      });
}
template <class G, class X, class L, class S, class Z>
INLINE void cross_backward_columns(const CrossBackwardP<G, X, L, S, Z>& p) {
  const unsigned inner = (unsigned)p.inner;
  for (unsigned e = blockIdx.x * blockDim.x + threadIdx.x; e < p.outer * p.n * p.inner;
       e += gridDim.x * blockDim.x) {
    const unsigned q = p.by_inner(e), o = p.by_n(q), k = q - o * (unsigned)p.n;
    const unsigned i = o * inner + (e - q * inner);
    const int64 t = (int64)p.label[i];
    const float weight = weight_of(t, p.n, p.gy + i), part = weight / to_float(p.total[i]);
    const float top_2 = in_powers_of_2(to_float(p.largest[i]));
    write_slopes<1>(p.x, p.gx, e, k == t ? 0 : -1, top_2, part, weight);
  }
}
