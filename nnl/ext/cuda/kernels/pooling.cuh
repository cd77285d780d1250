// SPDX-License-Identifier: Apache-2.0
// Windows over up to three axes of (outer, size..., channels). Every thread makes V neighbouring
// channels of one result; gradients are gathered by pixel, so nothing is added up by several
// threads.

enum { MAX, SUM, AVERAGE, AVERAGE_WITH_PAD };

struct Window {
  int64 size, out, kernel, stride, pad;
  // The pixels [begin, end) of window o.
  INLINE void pixels(int o, int& begin, int& end) const {
    const int first = o * (int)stride - (int)pad;
    begin = max(first, 0), end = min(first + (int)kernel, (int)size);
  }
  // The windows [begin, end) that see pixel i.
  INLINE void windows(int i, int& begin, int& end) const {
    const int q = i + (int)pad, low = q - (int)kernel + 1;
    begin = low <= 0 ? 0 : (low + (int)stride - 1) / (int)stride;
    end = min((int)out, q / (int)stride + 1);
  }
  template <int mode>
  INLINE int count(int o) const {
    const int first = o * (int)stride - (int)pad;
    if (mode == AVERAGE_WITH_PAD) return min((int)kernel, (int)(size + pad) - first);
    return min(first + (int)kernel, (int)size) - max(first, 0);
  }
};

template <class X, class Y>
struct PoolP {
  const X* x;
  Y* y;
  short* arg;  // null, or for each window the place of its first maximum
  int64 n;     // threads' worth of results
  Divisor channels, by[3];  // groups of V channels; sizes of what is made, the last axis first
  Window axis[3];
};

// Where item i of a space (outer, a, b, c, channels) is: its coordinates.
template <class P>
INLINE unsigned locate(const P& p, unsigned i, unsigned& c, int* at) {
  unsigned q = p.channels(i);
  c = i - q * p.channels.divisor;
#pragma unroll
  for (int d = 0; d < 3; ++d) {
    const unsigned r = p.by[d](q);
    at[2 - d] = (int)(q - r * p.by[d].divisor);
    q = r;
  }
  return q;
}

template <int mode, int V, class X, class Y>
INLINE void pool(const PoolP<X, Y>& p) {
  for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < p.n; i += gridDim.x * blockDim.x) {
    unsigned c;
    int at[3], b[3], e[3];
    const unsigned outer = locate(p, i, c, at), width = p.channels.divisor * V;
#pragma unroll
    for (int d = 0; d < 3; ++d) p.axis[d].pixels(at[d], b[d], e[d]);
    float best[V];
    int place[V];
#pragma unroll
    for (int l = 0; l < V; ++l) best[l] = mode == MAX ? -infinity() : 0.0f, place[l] = -1;
    for (int i0 = b[0]; i0 < e[0]; ++i0)
      for (int i1 = b[1]; i1 < e[1]; ++i1)
        for (int i2 = b[2]; i2 < e[2]; ++i2) {
          const unsigned pixel = ((outer * (unsigned)p.axis[0].size + i0) *
                                  (unsigned)p.axis[1].size + i1) * (unsigned)p.axis[2].size + i2;
          float v[V];
          load<V>(v, p.x + pixel * width + c * V);
          const int tap = ((i0 - at[0] * (int)p.axis[0].stride + (int)p.axis[0].pad) *
                           (int)p.axis[1].kernel + i1 - at[1] * (int)p.axis[1].stride +
                           (int)p.axis[1].pad) * (int)p.axis[2].kernel + i2 -
                          at[2] * (int)p.axis[2].stride + (int)p.axis[2].pad;
#pragma unroll
          for (int l = 0; l < V; ++l) {
            if (mode != MAX) {
              best[l] += v[l];
            } else if (v[l] > best[l] || place[l] < 0 || (v[l] != v[l] && best[l] == best[l])) {
              best[l] = v[l], place[l] = tap;
            }
          }
        }
    if (mode == AVERAGE || mode == AVERAGE_WITH_PAD) {
      const float scale = 1.0f / (float)(p.axis[0].template count<mode>(at[0]) *
                                         p.axis[1].template count<mode>(at[1]) *
                                         p.axis[2].template count<mode>(at[2]));
#pragma unroll
      for (int l = 0; l < V; ++l) best[l] *= scale;
    }
    if (p.y) store<V>(p.y + i * V, best);
    if (mode == MAX && p.arg) {
      Pack<short, V> a;
#pragma unroll
      for (int l = 0; l < V; ++l) a.v[l] = (short)place[l];
      *(Pack<short, V>*)(p.arg + i * V) = a;
    }
  }
}

// x is the gradient of the windows, y that of the pixels.
template <int mode, int V, class X, class Y>
INLINE void pool_backward(const PoolP<X, Y>& p) {
  for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < p.n; i += gridDim.x * blockDim.x) {
    unsigned c;
    int at[3], b[3], e[3];
    const unsigned outer = locate(p, i, c, at), width = p.channels.divisor * V;
#pragma unroll
    for (int d = 0; d < 3; ++d) p.axis[d].windows(at[d], b[d], e[d]);
    float sum[V];
#pragma unroll
    for (int l = 0; l < V; ++l) sum[l] = 0.0f;
    for (int o0 = b[0]; o0 < e[0]; ++o0)
      for (int o1 = b[1]; o1 < e[1]; ++o1)
        for (int o2 = b[2]; o2 < e[2]; ++o2) {
          const unsigned window = ((outer * (unsigned)p.axis[0].out + o0) *
                                   (unsigned)p.axis[1].out + o1) * (unsigned)p.axis[2].out + o2;
          const unsigned from = window * width + c * V;
          float v[V];
          load<V>(v, p.x + from);
          if (mode == MAX) {
            const int tap = ((at[0] - o0 * (int)p.axis[0].stride + (int)p.axis[0].pad) *
                             (int)p.axis[1].kernel + at[1] - o1 * (int)p.axis[1].stride +
                             (int)p.axis[1].pad) * (int)p.axis[2].kernel + at[2] -
                            o2 * (int)p.axis[2].stride + (int)p.axis[2].pad;
            const Pack<short, V> a = *(const Pack<short, V>*)(p.arg + from);
#pragma unroll
            for (int l = 0; l < V; ++l) sum[l] += a.v[l] == tap ? v[l] : 0.0f;
          } else {
            float scale = 1.0f;
            if (mode != SUM)
              scale = 1.0f / (float)(p.axis[0].template count<mode>(o0) *
                                     p.axis[1].template count<mode>(o1) *
                                     p.axis[2].template count<mode>(o2));
#pragma unroll
            for (int l = 0; l < V; ++l) sum[l] += v[l] * scale;
          }
        }
    store<V>(p.y + i * V, sum);
  }
}
