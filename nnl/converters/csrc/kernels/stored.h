/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NNL_STORED_H
#define NNL_STORED_H

#include <math.h>
#include <stdint.h>

/* A real number in 8 bits, by the inverse of the scale and what stands for 0. */
static inline int8_t nnl_stored(float v, float inverse, int zero) {
  v = roundf(v * inverse) + (float)zero;
  return v > -128.0f ? v < 127.0f ? (int8_t)v : 127 : -128;
}

#endif
