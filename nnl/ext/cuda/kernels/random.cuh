// SPDX-License-Identifier: Apache-2.0
// Random arrays and dropout, with the numbers of the CPU. The state is key and counter in device
// memory: `advance_random` moves it on after the kernel that draws, so that a replayed graph draws
// new numbers.

INLINE double uniform(uint64 word) { return (double)(word >> 11) * 0x1p-53; }
INLINE float uniform(unsigned half) { return (float)(half >> 8) * 0x1p-24f; }

struct AdvanceP {
  uint64* state;
  int64 blocks;
};
INLINE void advance_random(const AdvanceP& p) {
  if (threadIdx.x == 0) p.state[1] += (uint64)p.blocks;
}

// Eight 32-bit numbers for elements 8 i .. 8 i + 7, the lower half of a word first.
INLINE void halves(const uint64* state, unsigned i, unsigned* h) {
  uint64 w[4];
  philox(state[0], state[1], i, w);
#pragma unroll
  for (int k = 0; k < 4; ++k) h[2 * k] = (unsigned)w[k], h[2 * k + 1] = (unsigned)(w[k] >> 32);
}

#define EIGHTS(i, n)                                                             \
  for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < ((n) + 7) / 8;    \
       i += gridDim.x * blockDim.x)

template <class X, class Y>
struct DropoutP {
  const X* x;
  uint64* state;
  Y* y;
  unsigned char* mask;
  int64 n, least, aligned;
  double scale;
};
template <class X, class Y>
INLINE void dropout(const DropoutP<X, Y>& p) {
  EIGHTS(i, p.n) {
    unsigned h[8];
    halves(p.state, i, h);
    float v[8];
    const unsigned at = 8 * i, n = min(8u, (unsigned)p.n - at);
    const bool whole = p.aligned && n == 8;
    if (whole) {
      load<8>(v, p.x + at);
    } else {
      for (unsigned k = 0; k < n; ++k) v[k] = to_float(p.x[at + k]);
    }
    Pack<unsigned char, 8> m;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      m.v[k] = h[k] >= (unsigned)p.least;
      if (k < n) v[k] = v[k] * (float)m.v[k] * (float)p.scale;
    }
    if (whole) {
      *(Pack<unsigned char, 8>*)(p.mask + at) = m;
      store<8>(p.y + at, v);
    } else {
      for (unsigned k = 0; k < n; ++k) p.mask[at + k] = m.v[k], p.y[at + k] = from_float<Y>(v[k]);
    }
  }
}

template <class Y>
struct DrawP {
  uint64* state;
  Y* y;
  int64 n;
  double a, b, most;
};

// a + b u, at most `most`
template <class Y>
INLINE void draw_uniform(const DrawP<Y>& p) {
  EIGHTS(i, p.n) {
    unsigned h[8];
    halves(p.state, i, h);
    for (unsigned k = 0; k < min(8u, (unsigned)p.n - 8 * i); ++k) {
      // rounded in between, as numpy does
      const float v = to_float(from_float<Y>(__fadd_rn(__fmul_rn(uniform(h[k]), (float)p.b),
                                                       (float)p.a)));
      p.y[8 * i + k] = from_float<Y>(v > (float)p.most ? (float)p.most : v);
    }
  }
}

// Integers a .. a + b - 1, one word each.
INLINE void draw_integers(const DrawP<int>& p) {
  const unsigned step = gridDim.x * blockDim.x;
  for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < (p.n + 3) / 4; i += step) {
    uint64 w[4];
    philox(p.state[0], p.state[1], i, w);
    for (unsigned k = 0; k < min(4u, (unsigned)p.n - 4 * i); ++k)
      p.y[4 * i + k] = (int)((int64)floor(uniform(w[k]) * p.b) + (int64)p.a);
  }
}

// Box and Muller: pair i is made of words i and half + i, half of the elements rounded up.
template <class Y>
INLINE void draw_normal(const DrawP<Y>& p) {
  const unsigned step = gridDim.x * blockDim.x, half = (unsigned)((p.n + 1) / 2);
  for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < half; i += step) {
    uint64 u[4], v[4];
    philox(p.state[0], p.state[1], i / 4, u);
    philox(p.state[0], p.state[1], (half + i) / 4, v);
    uint64 first = 0, second = 0;
#pragma unroll
    for (unsigned k = 0; k < 4; ++k) {
      first = i % 4 == k ? u[k] : first;
      second = (half + i) % 4 == k ? v[k] : second;
    }
    const double radius = sqrt(-2.0 * log1p(-uniform(first)));
    const double angle = 2.0 * uniform(second);  // in units of pi
    double s, c;
    sincospi(angle, &s, &c);
    // rounded in between, as numpy does
    auto put = [&](unsigned at, double v) {
      p.y[at] = from_float<Y>(__fadd_rn(__fmul_rn((float)v, (float)p.b), (float)p.a));
    };
    put(2 * i, radius * c);
    if (2 * i + 1 < p.n) put(2 * i + 1, radius * s);
  }
}
