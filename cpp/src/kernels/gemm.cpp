// SPDX-License-Identifier: Apache-2.0
#include "gemm.h"

#include <algorithm>
#include <type_traits>

#include "vector16.h"

namespace nnl::gemm {
namespace {

typedef float Vector __attribute__((vector_size(kLanes * sizeof(float)), aligned(4)));

// Rows of b that one pass takes: a panel of 256 x 64 floats is 64 KiB of the second cache.
constexpr int64_t kDepth = 256;

template <int M, int V>
void tile(const float* a, int64_t row, int64_t col, const float* b, float* c, int64_t ldc,
          int64_t n, int64_t k, bool add) {
  Vector sum[M][V];
  for (int i = 0; i < M; ++i)
    for (int v = 0; v < V; ++v) sum[i][v] = Vector{};
  for (int64_t p = 0; p < k; ++p, b += V * kLanes) {
    Vector bv[V];
    for (int v = 0; v < V; ++v) bv[v] = *reinterpret_cast<const Vector*>(b + v * kLanes);
    for (int i = 0; i < M; ++i) {
      const float x = a[i * row + p * col];
      for (int v = 0; v < V; ++v) sum[i][v] += bv[v] * x;
    }
  }
  if (n == V * kLanes) {
    for (int i = 0; i < M; ++i)
      for (int v = 0; v < V; ++v) {
        Vector* to = reinterpret_cast<Vector*>(c + i * ldc + v * kLanes);
        *to = add ? *to + sum[i][v] : sum[i][v];
      }
    return;
  }
  for (int i = 0; i < M; ++i) {
    float edge[V * kLanes];
    for (int v = 0; v < V; ++v) *reinterpret_cast<Vector*>(edge + v * kLanes) = sum[i][v];
    float* to = c + i * ldc;
    for (int64_t j = 0; j < n; ++j) to[j] = add ? to[j] + edge[j] : edge[j];
  }
}

using Tile = void (*)(const float*, int64_t, int64_t, const float*, float*, int64_t, int64_t,
                      int64_t, bool);

template <int M>
Tile of_width(int64_t width) {
  switch (width / kLanes) {
    case 1:
      return tile<M, 1>;
#ifdef __AVX512F__
    case 3:
      return tile<M, 3>;
    case 4:
      return tile<M, 4>;
#endif
    default:
      return tile<M, 2>;
  }
}

Tile tile_for(int64_t m, int64_t width) {
  switch (m) {
    case 1:
      return of_width<1>(width);
    case 2:
      return of_width<2>(width);
    case 3:
      return of_width<3>(width);
    case 4:
      return of_width<4>(width);
    case 5:
      return of_width<5>(width);
    default:
      return of_width<6>(width);
  }
}

// 16 neighbours. Inline: a call for every line would cost more than the line.
template <class T>
inline void load_line(const T* p, v16& v) {
  if constexpr (std::is_same_v<T, f16>) {
    float line[16];
    load(p, line, 16);
    load16(line, v);
  } else {
    load16(p, v);
  }
}

}  // namespace

template <class T>
void pack(const T* b, int64_t row, int64_t col, int64_t k, int64_t n, float* out) {
  for (int64_t j0 = 0; j0 < n; j0 += kPanel) {
    const int64_t real = std::min(kPanel, n - j0), width = padded(real);
    const T* from = b + j0 * col;
    if (col == 1 && real == width && width % 16 == 0) {
      for (int64_t i = 0; i < k; ++i)
        for (int64_t j = 0; j < width; j += 16) {
          v16 v;
          load_line(from + i * row + j, v);
          store16(out + i * width + j, v);
        }
    } else if (col == 1) {
      for (int64_t i = 0; i < k; ++i) {
        for (int64_t j = 0; j < real; ++j) out[i * width + j] = to_float(from[i * row + j]);
        for (int64_t j = real; j < width; ++j) out[i * width + j] = 0.0f;
      }
    } else {  // columns lie together in memory: read a line of each at a time
      int64_t i0 = 0;
      if (row == 1 && real == width && real % 16 == 0)
        for (; i0 + 16 <= k; i0 += 16)
          for (int64_t j = 0; j < real; j += 16) {
            v16 block[16];
            for (int64_t c = 0; c < 16; ++c) load_line(from + i0 + (j + c) * col, block[c]);
            transpose16(block);
            for (int64_t r = 0; r < 16; ++r) store16(out + (i0 + r) * width + j, block[r]);
          }
      for (; i0 < k; i0 += 16) {
        const int64_t end = std::min<int64_t>(i0 + 16, k);
        for (int64_t j = 0; j < real; ++j)
          for (int64_t i = i0; i < end; ++i) out[i * width + j] = to_float(from[i * row + j * col]);
        for (int64_t j = real; j < width; ++j)
          for (int64_t i = i0; i < end; ++i) out[i * width + j] = 0.0f;
      }
    }
    out += k * width;
  }
}

template void pack(const float*, int64_t, int64_t, int64_t, int64_t, float*);
template void pack(const bf16*, int64_t, int64_t, int64_t, int64_t, float*);
template void pack(const f16*, int64_t, int64_t, int64_t, int64_t, float*);

void multiply(const float* a, int64_t row, int64_t col, const float* packed, float* c, int64_t ldc,
              int64_t m, int64_t n, int64_t k, bool add) {
  if (k == 0 && !add) {
    for (int64_t i = 0; i < m; ++i) std::fill_n(c + i * ldc, n, 0.0f);
    return;
  }
  for (int64_t p = 0; p < k; p += kDepth) {
    const int64_t depth = std::min(kDepth, k - p);
    const float* panel = packed;
    for (int64_t j = 0; j < n; j += kPanel) {
      const int64_t real = std::min(kPanel, n - j), width = padded(real);
      const Tile whole = tile_for(kRows, width);
      const float* from = a + p * col;
      const float* b = panel + p * width;
      int64_t i = 0;
      for (; i + kRows <= m; i += kRows)
        whole(from + i * row, row, col, b, c + i * ldc + j, ldc, real, depth, add || p);
      if (i < m)
        tile_for(m - i, width)(from + i * row, row, col, b, c + i * ldc + j, ldc, real, depth,
                               add || p);
      panel += k * width;
    }
  }
}

}  // namespace nnl::gemm
