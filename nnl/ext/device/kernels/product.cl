// SPDX-License-Identifier: Apache-2.0
// Only OpenCL has words for this: a GPU of NVIDIA's has cuDNN and cuBLAS.
//
// c[z][m][n] = sum over k of a[z][m][k] b[z][k][n], plus a bias; matrices with any strides, and the
// patches of convolutions, which are never written to memory (implicit GEMM).
//
// A block makes TM x TN of c, each thread RM rows of W columns. Parts of KB steps of a and b go through
// local memory, as float32. With A_DIRECT only b does: where a block is one thread wide, local memory
// would serve every element of a once.

// Strides are in elements. An image is (batch, channels, size 0, size 1, size 2).
typedef struct {
  i64 m, n, k, zs, splits;
  i64 a_m, a_k, a_rest;             // k of a is (k / a_inner, rest)
  Divisor a_inner;
  i64 b_k, b_n, bias_z, bias_m, bias_n;
  Divisor columns, c_columns;       // places of b and columns of c in one image
  i64 b_image, c_image, c_m;        // distances of images and of rows of c
  Divisor inner, tap[2];            // k as (channel, tap 0, tap 1, tap 2): of a channel, of 0, of 1
  Divisor at[2];                    // columns as (place 0, place 1, place 2): sizes 1 and 2
  i64 size[3], stride[3], pad[3], dilation[3], channel;
  Axis a_z[ZA], b_z[ZB], c_z[ZC];   // where matrix z begins
} ProductP;

#define TM (RM * LY)
#define TN (W * LX)
#define PLAIN 0
#define PATCHES 1       // b[k][n]: what tap k sees at place n
#define SCATTERED 2     // b[k][n]: the place of which tap k sees pixel n, 0 if there is none
#define PATCHES_ACROSS 3  // b[k][n]: what tap n sees at place k

// What a tap sees at a place of one axis, or -1.
INLINE int seen(const ProductP* p, int axis, int place, int tap) {
  if (FORM == SCATTERED) {
    const int q = place + (int)p->pad[axis] - tap * (int)p->dilation[axis];
    const int s = (int)p->stride[axis], o = s == 1 ? q : q / s;
    return q >= 0 && o * s == q && o < (int)p->size[axis] ? o : -1;
  }
  const int i = place * (int)p->stride[axis] - (int)p->pad[axis] + tap * (int)p->dilation[axis];
  return i >= 0 && i < (int)p->size[axis] ? i : -1;
}

// What tap `k`, a number of (channel, taps), sees at the W places from `n` on, which are numbers of
// (image, places), written `step` apart; 0 from place `limit` on. Places that go in order through one
// row of an image are found without dividing again.
INLINE void patch_row(GLOBAL const B* b, LOCAL float* to, unsigned step, unsigned k, unsigned n,
                      unsigned limit, const ProductP* p) {
  const unsigned channel = quotient(p->inner, k);
  unsigned t = k - channel * p->inner.divisor;
  const unsigned t0 = quotient(p->tap[0], t);
  t -= t0 * p->tap[0].divisor;
  const unsigned t1 = quotient(p->tap[1], t), t2 = t - t1 * p->tap[1].divisor;
  const int reach = (int)(t2 * (unsigned)p->dilation[2]) - (int)p->pad[2];
  const int shift = FORM == SCATTERED ? -reach : reach;
  unsigned l = 0;
  while (l < W) {
    const unsigned image = quotient(p->columns, n);
    unsigned q = n - image * p->columns.divisor;
    const unsigned q0 = quotient(p->at[0], q);
    q -= q0 * p->at[0].divisor;
    const unsigned q1 = quotient(p->at[1], q), q2 = q - q1 * p->at[1].divisor;
    const unsigned run = least_of(W - l, p->at[1].divisor - q2);
    const int i0 = seen(p, 0, q0, t0), i1 = seen(p, 1, q1, t1);
    const bool none = (i0 | i1) < 0 || n >= limit;
    GLOBAL const B* row = b + (none ? 0 : image * (unsigned)p->b_image +
        channel * (unsigned)p->channel + (i0 * (unsigned)p->size[1] + i1) * (unsigned)p->size[2]);
    const int first = (int)q2 + shift;
    const bool inside = first >= 0 && first + (int)run <= (int)p->size[2] && n + run <= limit;
    if (inside && !none && p->stride[2] == 1) {  // neighbours
      if (run == W) {
        for (int j = 0; j < W; ++j) to[j * step] = FLOAT(B, row[first + j]);
        return;
      }
      NOT_UNROLLED for (unsigned j = 0; j < run; ++j)
        to[(l + j) * step] = FLOAT(B, row[first + (int)j]);
    } else {
      NOT_UNROLLED for (unsigned j = 0; j < run; ++j) {
        const int i2 = none || n + j >= limit ? -1 : seen(p, 2, q2 + j, t2);
        to[(l + j) * step] = i2 < 0 ? 0.0f : FLOAT(B, row[i2]);
      }
    }
    l += run, n += run;
  }
}

INLINE void product(GLOBAL const A* a, GLOBAL const B* b, GLOBAL const S* bias, GLOBAL C* c,
                    GLOBAL float* parts, LOCAL float* as, LOCAL float* bs, const ProductP* p) {
#pragma OPENCL FP_CONTRACT ON
  const unsigned z = BLOCK_Z / (unsigned)p->splits, part = BLOCK_Z - z * (unsigned)p->splits;
  const unsigned m0 = BLOCK_Y * TM, n0 = BLOCK_X * TN, id = THREAD_Y * LX + THREAD_X;
  const unsigned threads = LX * LY, M = (unsigned)p->m, N = (unsigned)p->n;
  a += place_of(ZA, z, p->a_z, 0), b += place_of(ZB, z, p->b_z, 0);
  const unsigned parts_of_k = ((unsigned)p->k + (unsigned)p->splits - 1) / (unsigned)p->splits;
  const unsigned share = (parts_of_k + KB - 1) / KB * KB;
  const unsigned begin = part * share, end = least_of((unsigned)p->k, begin + share);
  FLOATS(W) sum[RM];
  UNROLL for (int r = 0; r < RM; ++r) sum[r] = 0.0f;
  for (unsigned k0 = begin; k0 < end; k0 += KB) {
    BARRIER();
    const unsigned steps = least_of(KB, end - k0);
#if A_DIRECT
#elif A_ACROSS  // neighbours in a are neighbours along m
#pragma unroll 1
    for (unsigned e = id; e < KB * TM; e += threads) {
      const unsigned k = e / TM, m = e - k * TM;
      GLOBAL const A* from = a + (m0 + m) * p->a_m + (k0 + k) * p->a_k;
      if (k < steps) as[k * TM + m] = m0 + m < M ? FLOAT(A, *from) : 0.0f;
    }
#else
#pragma unroll 1
    for (unsigned e = id; e < KB / W * TM; e += threads) {
      const unsigned m = e / (KB / W), k = (e - m * (KB / W)) * W;
      GLOBAL const A* from = a + (m0 + m) * p->a_m;
#if A_PARTS
      unsigned q = quotient(p->a_inner, k0 + k), rest = k0 + k - q * p->a_inner.divisor;
      NOT_UNROLLED for (int j = 0; j < W && k + j < steps; ++j) {
        as[(k + j) * TM + m] = m0 + m < M ? FLOAT(A, from[q * p->a_k + rest * p->a_rest]) : 0.0f;
        if (++rest == p->a_inner.divisor) rest = 0, ++q;
      }
#else
      from += (k0 + k) * p->a_k;
      if (m0 + m < M && k + W <= steps) {
        for (int j = 0; j < W; ++j) as[(k + j) * TM + m] = FLOAT(A, from[j * p->a_k]);
      } else {
        NOT_UNROLLED for (int j = 0; j < W && k + j < steps; ++j)
          as[(k + j) * TM + m] = m0 + m < M ? FLOAT(A, from[j * p->a_k]) : 0.0f;
      }
#endif
    }
#endif
#if FORM == PATCHES || FORM == SCATTERED
#pragma unroll 1
    for (unsigned e = id; e < KB * LX; e += threads) {
      const unsigned k = e / LX, n = (e - k * LX) * W;
      LOCAL float* to = bs + k * TN + n;
      if (k < steps) patch_row(b, to, 1, k0 + k, n0 + n, N, p);
    }
#elif FORM == PATCHES_ACROSS
#pragma unroll 1
    for (unsigned e = id; e < KB / W * TN; e += threads) {
      const unsigned n = e / (KB / W), k = (e - n * (KB / W)) * W;
      LOCAL float* to = bs + k * TN + n;
      if (k >= steps) continue;
      if (n0 + n < N) {
        patch_row(b, to, TN, n0 + n, k0 + k, end, p);
      } else {
        NOT_UNROLLED for (int j = 0; j < W; ++j) to[j * TN] = 0.0f;
      }
    }
#elif B_ACROSS  // neighbours in b are neighbours along k
#pragma unroll 1
    for (unsigned e = id; e < KB / W * TN; e += threads) {
      const unsigned n = e / (KB / W), k = (e - n * (KB / W)) * W;
      GLOBAL const B* from = b + (k0 + k) + (n0 + n) * p->b_n;
      NOT_UNROLLED for (int j = 0; j < W && k + j < steps; ++j)
        bs[(k + j) * TN + n] = n0 + n < N ? FLOAT(B, from[j]) : 0.0f;
    }
#else
#pragma unroll 1
    for (unsigned e = id; e < KB * LX; e += threads) {
      const unsigned k = e / LX, n = (e - k * LX) * W;
      LOCAL float* to = bs + k * TN + n;
      GLOBAL const B* from = b + (k0 + k) * p->b_k + (n0 + n) * p->b_n;
      if (k >= steps) continue;
      if (n0 + n + W <= N) {
        for (int j = 0; j < W; ++j) to[j] = FLOAT(B, from[j * p->b_n]);
      } else {
        NOT_UNROLLED for (int j = 0; j < W; ++j)
          to[j] = n0 + n + j < N ? FLOAT(B, from[j * p->b_n]) : 0.0f;
      }
    }
#endif
    BARRIER();
    FLOATS(W) own[RM];
    UNROLL for (int r = 0; r < RM; ++r) own[r] = sum[r];
#if A_DIRECT
    const unsigned first = m0 + THREAD_Y * RM;
    unsigned row[RM];  // those behind the last are not written
    UNROLL for (int r = 0; r < RM; ++r) row[r] = least_of(first + r, M - 1) * (unsigned)p->a_m;
    unsigned q = quotient(p->a_inner, k0), rest = k0 - q * p->a_inner.divisor;
#endif
#pragma unroll 1
    for (unsigned k = ALONE(0); k < steps; ++k) {
      const FLOATS(W) v = VECTOR_AT(W, LOCAL, bs + k * TN + THREAD_X * W);
#if A_DIRECT
      GLOBAL const A* u = a + q * (unsigned)p->a_k + rest * (unsigned)p->a_rest;
      UNROLL for (int r = 0; r < RM; ++r) own[r] = FLOAT(A, u[row[r]]) * v + own[r];
      if (++rest == p->a_inner.divisor) rest = 0, ++q;
#else
      LOCAL const float* u = as + k * TM + THREAD_Y * RM;
      UNROLL for (int r = 0; r < RM; ++r) own[r] = u[r] * v + own[r];
#endif
    }
    UNROLL for (int r = 0; r < RM; ++r) sum[r] = own[r];
  }
  const unsigned n = n0 + THREAD_X * W, image0 = quotient(p->c_columns, n);
  const bool whole = n + W <= N, in_one = whole && quotient(p->c_columns, n + W - 1) == image0;
  SHORT_CODE for (int r = 0; r < RM; ++r) {
    const unsigned m = m0 + THREAD_Y * RM + r;
    if (m >= M) break;
    GLOBAL float* part_at = parts + (BLOCK_Z * (u64)M + m) * N + n;
    const u64 of_c = place_of(ZC, z, p->c_z, 0) + m * (u64)p->c_m;
    const u64 of_bias = z * p->bias_z + m * p->bias_m;
    if (p->splits > 1 && whole) {
      PUT_VECTOR(W, part_at, sum[r]);
      continue;
    }
    if (p->splits == 1 && in_one && !p->bias_n) {
      const FLOATS(W) y = sum[r] + (bias ? FLOAT(S, bias[of_bias]) : 0.0f);
      const u64 at = of_c + image0 * (u64)p->c_image + (n - image0 * p->c_columns.divisor);
      STORE_LANES(W, C, c + at, &y);
      continue;
    }
    SHORT_CODE for (int j = 0; j < W; ++j) {
      if (n + j >= N) break;
      const float value = ((const float*)&sum[r])[j];
      if (p->splits > 1) {
        part_at[j] = value;
        continue;
      }
      const unsigned image = quotient(p->c_columns, n + j);
      const float more = bias ? FLOAT(S, bias[of_bias + (n + j) * p->bias_n]) : 0.0f;
      c[of_c + image * (u64)p->c_image + (n + j - image * p->c_columns.divisor)] =
          CAST(C, value + more);
    }
  }
}

// The sum of the parts of each element, in their order.
INLINE void join_parts(GLOBAL const float* parts, GLOBAL C* c, const ProductP* p) {
  const unsigned M = (unsigned)p->m, N = (unsigned)p->n;
  EACH(e, p->zs * p->m * p->n) {
    const unsigned z = e / (M * N), rest = e - z * M * N, m = rest / N, n = rest - m * N;
    float sum = 0.0f;
    for (unsigned s = 0; s < p->splits; ++s) sum += parts[(z * (u64)p->splits + s) * M * N + rest];
    const unsigned image = quotient(p->c_columns, n);
    c[place_of(ZC, z, p->c_z, 0) + image * (u64)p->c_image + m * (u64)p->c_m +
      (n - image * p->c_columns.divisor)] = CAST(C, sum);
  }
}
