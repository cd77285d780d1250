/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NNL_SORT_H
#define NNL_SORT_H

/* Whether a comes before b: NaN is last. */
static inline int nnl_before(float a, float b) { return a < b || (b != b && a == a); }

/* In order along the axis in the middle of (outer, n, inner), equal elements as they were. Either
   result may be NULL; `work` has 2 n elements. */
static void nnl_sort(int outer, int n, int inner, int reverse, const float* x, float* y,
                     float* index, float* work) {
  const float sign = reverse ? -1.0f : 1.0f;
  for (int k = 0; k < outer * inner; k++) {
    const int at = k / inner * n * inner + k % inner;
    float *from = work, *to = work + n;
    for (int i = 0; i < n; i++) from[i] = (float)i;
    for (int width = 1; width < n; width *= 2) {
      for (int start = 0; start < n; start += 2 * width) {
        const int middle = start + width < n ? start + width : n;
        const int end = middle + width < n ? middle + width : n;
        int a = start, b = middle;
        for (int i = start; i < end; i++) {
          const int second =
              a == middle || (b < end && nnl_before(sign * x[at + (int)from[b] * inner],
                                                    sign * x[at + (int)from[a] * inner]));
          to[i] = second ? from[b++] : from[a++];
        }
      }
      float* other = from;
      from = to;
      to = other;
    }
    for (int i = 0; i < n; i++) {
      if (y) y[at + i * inner] = x[at + (int)from[i] * inner];
      if (index) index[at + i * inner] = from[i];
    }
  }
}

#endif
