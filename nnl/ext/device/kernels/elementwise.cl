// SPDX-License-Identifier: Apache-2.0
// What instructions of element-wise programs call, on lanes.

#define sigmoid_of(a) (1.0f / (1.0f + expf(-(a))))
#define softplus_of(a) (WHERE((a) > 0.0f, a, 0.0f) + log1pf(expf(-fabsf(a))))
// With e = e^x and n = e (e + 2), tanh(ln(1 + e)) is n / (n + 2): 1 from x = 20 on.
#define ratio_of(n) ((n) / ((n) + 2.0f))
#define up_to_20(x) expf(WHERE((x) < 20.0f || (x) != (x), x, 20.0f))
#define mish_of(x) ((x) * ratio_of(up_to_20(x) * (up_to_20(x) + 2.0f)))
// (cos x - sinc x) / x, by its series near 0 where that cancels; z: x squared.
#define slope_series(z)                                                    \
  (1.0f - (1.0f - (1.0f - (1.0f - (1.0f - (z) * (1.0f / 130.0f)) *         \
   (z) * (1.0f / 88.0f)) * (z) * (1.0f / 54.0f)) * (z) * (1.0f / 28.0f)) * \
   (z) * (1.0f / 10.0f))
#define sinc_slope(x)                                                                   \
  WHERE((x) * (x) >= 0.25f, (cosf(x) - sinf(x) / WHERE((x) == 0.0f, 1.0f, x)) / (x),    \
        slope_series((x) * (x)) * (x) * (-1.0f / 3.0f))
