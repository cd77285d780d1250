// SPDX-License-Identifier: Apache-2.0
// What generated element-wise kernels call.

INLINE float sigmoid_of(float a) { return 1.0f / (1.0f + expf(-a)); }
INLINE float softplus_of(float a) { return (a > 0.0f ? a : 0.0f) + log1pf(expf(-fabsf(a))); }
INLINE float mish_of(float x) {
  // With e = e^x and n = e (e + 2), tanh(ln(1 + e)) is n / (n + 2): 1 from x = 20 on.
  const float e = expf(x < 20.0f ? x : (x != x ? x : 20.0f)), n = e * (e + 2.0f);
  return x * (n / (n + 2.0f));
}
// (cos x - sinc x) / x, by its series near 0 where that cancels.
INLINE float sinc_slope(float x) {
  const float z = x * x;
  if (z >= 0.25f) return (cosf(x) - sinf(x) / x) / x;
  float s = 1.0f - z * (1.0f / 130.0f);
  s = 1.0f - s * z * (1.0f / 88.0f);
  s = 1.0f - s * z * (1.0f / 54.0f);
  s = 1.0f - s * z * (1.0f / 28.0f);
  s = 1.0f - s * z * (1.0f / 10.0f);
  return s * x * (-1.0f / 3.0f);
}

template <int V, class T>
INLINE void fill(float* y, const T* p) {
  const float v = to_float(*p);
#pragma unroll
  for (int l = 0; l < V; ++l) y[l] = v;
}

// Split of patterns.py: element ((((k0 R0 + r0) K1 + k1) R1 + r1) K2 + k2).
struct Groups {
  Divisor k1, r1;
  int64 r0, k2, groups, reduced, splits;
  // Element r of the group (k0, k1); its neighbours along k2 follow.
  INLINE unsigned element(unsigned group, unsigned r) const {
    const unsigned k0 = k1(group), a = r1(r);
    return (((k0 * (unsigned)r0 + a) * k1.divisor + (group - k0 * k1.divisor)) * r1.divisor +
            (r - a * r1.divisor)) * (unsigned)k2;
  }
};
