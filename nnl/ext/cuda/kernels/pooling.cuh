// SPDX-License-Identifier: Apache-2.0
// Windows over up to three axes of (outer, size..., channels). Every thread makes V neighbouring
// channels of one result; gradients are gathered by pixel, so nothing is added up by several
// threads.

enum { MAX, SUM, AVERAGE, AVERAGE_WITH_PAD };

struct Window {
  int64 size, out, kernel, pad;
  Divisor stride;
  INLINE int first(int o) const { return o * (int)stride.divisor - (int)pad; }
  // The pixels [begin, end) of window o.
  INLINE void pixels(int o, int& begin, int& end) const {
    begin = max(first(o), 0), end = min(first(o) + (int)kernel, (int)size);
  }
  // The windows [begin, end) that see pixel i.
  INLINE void windows(int i, int& begin, int& end) const {
    const int q = i + (int)pad, low = q - (int)kernel + 1;
    begin = low <= 0 ? 0 : (int)stride((unsigned)low + stride.divisor - 1);
    end = min((int)out, (int)stride((unsigned)q) + 1);
  }
  template <int mode>
  INLINE int count(int o) const {
    if (mode == AVERAGE_WITH_PAD) return min((int)kernel, (int)(size + pad) - first(o));
    return min(first(o) + (int)kernel, (int)size) - max(first(o), 0);
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
// f(i, j, k) for all between begin and end.
template <class F>
INLINE void for_each(const int* begin, const int* end, F&& f) {
  for (int i = begin[0]; i < end[0]; ++i)
    for (int j = begin[1]; j < end[1]; ++j)
      for (int k = begin[2]; k < end[2]; ++k) f(i, j, k);
}
// Which element of its window a pixel is.
INLINE int place_in(const Window* axis, int i, int j, int k, int a, int b, int c) {
  return ((i - axis[0].first(a)) * (int)axis[1].kernel + j - axis[1].first(b)) *
             (int)axis[2].kernel + k - axis[2].first(c);
}
// What an average is multiplied by.
template <int mode>
INLINE float share(const Window* axis, int a, int b, int c) {
  return 1.0f / (float)(axis[0].template count<mode>(a) * axis[1].template count<mode>(b) *
                        axis[2].template count<mode>(c));
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
    for_each(b, e, [&](int i0, int i1, int i2) {
      const unsigned pixel = ((outer * (unsigned)p.axis[0].size + i0) *
                              (unsigned)p.axis[1].size + i1) * (unsigned)p.axis[2].size + i2;
      float v[V];
      load<V>(v, p.x + pixel * width + c * V);
      const int tap = place_in(p.axis, i0, i1, i2, at[0], at[1], at[2]);
#pragma unroll
      for (int l = 0; l < V; ++l) {
        if (mode != MAX) {
          best[l] += v[l];
        } else if (v[l] > best[l] || place[l] < 0 || (v[l] != v[l] && best[l] == best[l])) {
          best[l] = v[l], place[l] = tap;
        }
      }
    });
    if (mode == AVERAGE || mode == AVERAGE_WITH_PAD) {
      const float scale = share<mode>(p.axis, at[0], at[1], at[2]);
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
    for_each(b, e, [&](int o0, int o1, int o2) {
      const unsigned window = ((outer * (unsigned)p.axis[0].out + o0) *
                               (unsigned)p.axis[1].out + o1) * (unsigned)p.axis[2].out + o2;
      const unsigned from = window * width + c * V;
      float v[V];
      load<V>(v, p.x + from);
      if (mode == MAX) {
        const int tap = place_in(p.axis, at[0], at[1], at[2], o0, o1, o2);
        const Pack<short, V> a = *(const Pack<short, V>*)(p.arg + from);
#pragma unroll
        for (int l = 0; l < V; ++l) sum[l] += a.v[l] == tap ? v[l] : 0.0f;
      } else {
        const float scale = mode == SUM ? 1.0f : share<mode>(p.axis, o0, o1, o2);
#pragma unroll
        for (int l = 0; l < V; ++l) sum[l] += v[l] * scale;
      }
    });
    store<V>(p.y + i * V, sum);
  }
}
