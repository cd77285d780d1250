/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NNL_SCAN_H
#define NNL_SCAN_H

/* Sums or products of all up to each element, along the axis in the middle of (outer, n, inner). */
static void nnl_scan(int outer, int n, int inner, int product, int exclusive, int reverse,
                     const float* x, float* y) {
  for (int k = 0; k < outer * inner; k++) {
    const int at = k / inner * n * inner + k % inner;
    float total = product ? 1.0f : 0.0f;
    for (int i = 0; i < n; i++) {
      const int j = at + (reverse ? n - 1 - i : i) * inner;
      const float next = product ? total * x[j] : total + x[j];
      y[j] = exclusive ? total : next;
      total = next;
    }
  }
}

#endif
