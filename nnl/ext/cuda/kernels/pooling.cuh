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

// Item i of a space (outer, a, b, c, channels), and what it is made of.
struct Spot {
  unsigned outer, channel, width;  // the first of its channels; how many there are
  int at[3], begin[3], end[3];
  template <class P>
  INLINE Spot(const P& p, unsigned i, int V, bool backward) {
    unsigned q = p.channels(i);
    channel = (i - q * p.channels.divisor) * V, width = p.channels.divisor * V;
#pragma unroll
    for (int d = 2; d >= 0; --d) {
      const unsigned r = p.by[2 - d](q);
      at[d] = (int)(q - r * p.by[2 - d].divisor);
      q = r;
      if (backward) p.axis[d].windows(at[d], begin[d], end[d]);
      else p.axis[d].pixels(at[d], begin[d], end[d]);
    }
    outer = q;
  }
  // f(where it is in memory, its coordinates) for each of them, of three sizes.
  template <class F>
  INLINE void for_each(int64 a, int64 b, int64 c, F&& f) const {
    for (int i = begin[0]; i < end[0]; ++i)
      for (int j = begin[1]; j < end[1]; ++j)
        for (int k = begin[2]; k < end[2]; ++k)
          f((((outer * (unsigned)a + i) * (unsigned)b + j) * (unsigned)c + k) * width + channel, i, j,
            k);
  }
};
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
  const Window* axis = p.axis;
  for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < p.n; i += gridDim.x * blockDim.x) {
    const Spot s(p, i, V, false);
    float best[V];
    int place[V];
#pragma unroll
    for (int l = 0; l < V; ++l) best[l] = mode == MAX ? -infinity() : 0.0f, place[l] = -1;
    s.for_each(axis[0].size, axis[1].size, axis[2].size, [&](unsigned from, int a, int b, int c) {
      float v[V];
      load<V>(v, p.x + from);
      const int tap = place_in(axis, a, b, c, s.at[0], s.at[1], s.at[2]);
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
      const float scale = share<mode>(axis, s.at[0], s.at[1], s.at[2]);
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
  const Window* axis = p.axis;
  for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < p.n; i += gridDim.x * blockDim.x) {
    const Spot s(p, i, V, true);
    float sum[V];
#pragma unroll
    for (int l = 0; l < V; ++l) sum[l] = 0.0f;
    s.for_each(axis[0].out, axis[1].out, axis[2].out, [&](unsigned from, int a, int b, int c) {
      float v[V];
      load<V>(v, p.x + from);
      if (mode == MAX) {
        const int tap = place_in(axis, s.at[0], s.at[1], s.at[2], a, b, c);
        const Pack<short, V> own = *(const Pack<short, V>*)(p.arg + from);
#pragma unroll
        for (int l = 0; l < V; ++l) sum[l] += own.v[l] == tap ? v[l] : 0.0f;
      } else {
        const float scale = mode == SUM ? 1.0f : share<mode>(axis, a, b, c);
#pragma unroll
        for (int l = 0; l < V; ++l) sum[l] += v[l] * scale;
      }
    });
    store<V>(p.y + i * V, sum);
  }
}
