// SPDX-License-Identifier: Apache-2.0
#include "gemm.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "vector16.h"

namespace nnl::gemm {
namespace {

typedef float Vector __attribute__((vector_size(kLanes * sizeof(float)), aligned(4)));
typedef Pair Pairs __attribute__((vector_size(kLanes * sizeof(Pair)), aligned(4)));

// Rows of packed b that one pass takes: a panel of 256 x 64 floats is 64 KiB of the second cache.
constexpr int64_t kDepth = 256;

inline void add_product(Vector& sum, const Vector& b, float a) { sum += b * a; }

inline void add_product(Vector& sum, const Pairs& b, Pair a) {
#ifdef __AVX512BF16__
  const Pairs all = a - Pairs{};
  sum = (Vector)_mm512_dpbf16_ps((__m512)sum, (__m512bh)b, (__m512bh)all);
#else
  sum += (Vector)(b << 16) * from_bits(a << 16);
  sum += (Vector)(b & 0xffff0000u) * from_bits(a & 0xffff0000u);
#endif
}

// A vector of packed b.
template <class A>
struct Line {
  using type = Vector;
};
template <>
struct Line<bf16> {
  using type = Pairs;
};

// What stands beside a row of packed b.
inline void load_left(const float* a, int64_t, float& x) { x = *a; }
inline void load_left(const bf16* a, int64_t left, Pair& x) {
  x = a->value;
  if (left > 1) std::memcpy(&x, a, sizeof x);
}

// A: float, or bf16 in pairs.
template <class A, int M, int V>
void tile(const A* a, int64_t row, int64_t col, const Packed<A>* b, float* c, int64_t ldc,
          int64_t n, int64_t k, bool add) {
  constexpr int64_t step = sizeof(Packed<A>) / sizeof(A);
  using B = typename Line<A>::type;
  Vector sum[M][V];
  for (int i = 0; i < M; ++i)
    for (int v = 0; v < V; ++v) sum[i][v] = Vector{};
  const auto advance = [&](int64_t p, int64_t left) {
    B bv[V];
    for (int v = 0; v < V; ++v) bv[v] = *reinterpret_cast<const B*>(b + v * kLanes);
    for (int i = 0; i < M; ++i) {
      Packed<A> x;
      load_left(a + i * row + p * col, left, x);
      for (int v = 0; v < V; ++v) add_product(sum[i][v], bv[v], x);
    }
    b += V * kLanes;
  };
  int64_t p = 0;
  for (; p + step <= k; p += step) advance(p, step);
  if (p < k) advance(p, 1);
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

template <class A>
using Tile = void (*)(const A*, int64_t, int64_t, const Packed<A>*, float*, int64_t, int64_t,
                      int64_t, bool);

template <class A, int M>
Tile<A> of_width(int64_t width) {
  switch (width / kLanes) {
    case 1:
      return tile<A, M, 1>;
#ifdef __AVX512F__
    case 3:
      return tile<A, M, 3>;
    case 4:
      return tile<A, M, 4>;
#endif
    default:
      return tile<A, M, 2>;
  }
}

template <class A>
Tile<A> tile_for(int64_t m, int64_t width) {
  switch (m) {
    case 1:
      return of_width<A, 1>(width);
    case 2:
      return of_width<A, 2>(width);
    case 3:
      return of_width<A, 3>(width);
    case 4:
      return of_width<A, 4>(width);
    case 5:
      return of_width<A, 5>(width);
    default:
      return of_width<A, 6>(width);
  }
}

template <class A>
void multiply_tiles(const A* a, int64_t row, int64_t col, const Packed<A>* packed, float* c,
                    int64_t ldc, int64_t m, int64_t n, int64_t k, bool add) {
  constexpr int64_t step = sizeof(Packed<A>) / sizeof(A), deep = kDepth * step;
  if (k == 0 && !add) {
    for (int64_t i = 0; i < m; ++i) std::fill_n(c + i * ldc, n, 0.0f);
    return;
  }
  for (int64_t p = 0; p < k; p += deep) {
    const int64_t depth = std::min(deep, k - p);
    const Packed<A>* panel = packed;
    for (int64_t j = 0; j < n; j += kPanel) {
      const int64_t real = std::min(kPanel, n - j), width = padded(real);
      const Tile<A> whole = tile_for<A>(kRows, width);
      const A* from = a + p * col;
      const Packed<A>* b = panel + p / step * width;
      int64_t i = 0;
      for (; i + kRows <= m; i += kRows)
        whole(from + i * row, row, col, b, c + i * ldc + j, ldc, real, depth, add || p);
      if (i < m)
        tile_for<A>(m - i, width)(from + i * row, row, col, b, c + i * ldc + j, ldc, real, depth,
                                  add || p);
      panel += (k + step - 1) / step * width;
    }
  }
}

inline Pair pair(bf16 low, bf16 high) { return low.value | static_cast<Pair>(high.value) << 16; }

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

void pack(const bf16* b, int64_t row, int64_t col, int64_t k, int64_t n, Pair* out) {
  const int64_t pairs = (k + 1) / 2;
  for (int64_t j0 = 0; j0 < n; j0 += kPanel) {
    const int64_t real = std::min(kPanel, n - j0), width = padded(real);
    const bf16* from = b + j0 * col;
    int64_t p = 0;
    if (row == 1 && real % 16 == 0)  // columns lie together: 16 pairs of 16 columns at a time
      for (; 2 * p + 32 <= k; p += 16)
        for (int64_t j = 0; j < real; j += 16) {
          v16 block[16];
          for (int64_t c = 0; c < 16; ++c) std::memcpy(&block[c], from + 2 * p + (j + c) * col, 64);
          transpose16(block);
          for (int64_t r = 0; r < 16; ++r) std::memcpy(out + (p + r) * width + j, &block[r], 64);
        }
    for (; p < pairs; ++p) {
      const bf16 *low = from + 2 * p * row, *high = low + row;
      Pair* to = out + p * width;
      const bool two = 2 * p + 1 < k;
      if (two && col == 1) {
#pragma omp simd
        for (int64_t j = 0; j < real; ++j) to[j] = pair(low[j], high[j]);
      } else {
        for (int64_t j = 0; j < real; ++j)
          to[j] = pair(low[j * col], two ? high[j * col] : bf16{0});
      }
      std::fill(to + real, to + width, Pair{0});
    }
    out += pairs * width;
  }
}

void multiply(const float* a, int64_t row, int64_t col, const float* packed, float* c, int64_t ldc,
              int64_t m, int64_t n, int64_t k, bool add) {
  multiply_tiles(a, row, col, packed, c, ldc, m, n, k, add);
}

void multiply(const bf16* a, int64_t row, int64_t col, const Pair* packed, float* c, int64_t ldc,
              int64_t m, int64_t n, int64_t k, bool add) {
  multiply_tiles(a, row, col, packed, c, ldc, m, n, k, add);
}

}  // namespace nnl::gemm
