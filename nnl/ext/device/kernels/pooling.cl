// SPDX-License-Identifier: Apache-2.0
// Windows over RANK axes, three at most, of (outer, size..., channels); axes in front have size 1. Every thread makes V neighbouring
// channels of one result; gradients are gathered by pixel, so nothing is added up by several
// threads.

enum { MAX, SUM, AVERAGE, AVERAGE_WITH_PAD };

typedef struct {
  i64 size, out, kernel_size, pad;
  Divisor stride;
} Window;
INLINE int first_of(const Window* w, int o) { return o * (int)w->stride.divisor - (int)w->pad; }
INLINE int count_of(const Window* w, int o) {
  const int first = first_of(w, o), kernel_size = (int)w->kernel_size;
  if (MODE == AVERAGE_WITH_PAD) return lower(kernel_size, (int)(w->size + w->pad) - first);
  return lower(first + kernel_size, (int)w->size) - higher(first, 0);
}

// arg: null, or for each window the place of its first maximum.
typedef struct {
  i64 n;                    // threads' worth of results
  Divisor channels, by[3];  // groups of V channels; sizes of what is made, the last axis first
  Window axis[3];
} PoolP;

// Item i of a space (outer, a, b, c, channels), and what it is made of.
typedef struct {
  unsigned outer, channel, width;  // the first of its channels; how many there are
  int at[3], begin[3], end[3];
} Spot;
INLINE Spot spot_of(const PoolP* p, unsigned i, bool backward) {
  Spot s;
  unsigned q = quotient(p->channels, i);
  s.channel = (i - q * p->channels.divisor) * V, s.width = p->channels.divisor * V;
  UNROLL for (int d = 0; d < 3 - RANK; ++d) s.at[d] = s.begin[d] = 0, s.end[d] = 1;
  UNROLL for (int d = 2; d >= 3 - RANK; --d) {
    const unsigned r = quotient(p->by[2 - d], q);
    const Window* w = p->axis + d;
    const int at = s.at[d] = (int)(q - r * p->by[2 - d].divisor);
    q = r;
    if (backward) {  // the windows that see this pixel
      const int above = at + (int)w->pad, low = above - (int)w->kernel_size + 1;
      s.begin[d] = low <= 0 ? 0 : (int)quotient(w->stride, (unsigned)low + w->stride.divisor - 1);
      s.end[d] = lower((int)w->out, (int)quotient(w->stride, (unsigned)above) + 1);
    } else {  // the pixels of this window
      const int first = first_of(w, at);
      s.begin[d] = higher(first, 0), s.end[d] = lower(first + (int)w->kernel_size, (int)w->size);
    }
  }
  s.outer = q;
  return s;
}
// For each of them: its coordinates a, b, c.
#define FOR_PLACES(s, a, b, c)                  \
  for (int a = s.begin[0]; a < s.end[0]; ++a)   \
    for (int b = s.begin[1]; b < s.end[1]; ++b) \
      for (int c = s.begin[2]; c < s.end[2]; ++c)
// Where it is in memory, in an array of these sizes.
#define PLACE_IN(s, axis, size, a, b, c)                                     \
  ((ALONG(1, ALONG(0, s.outer, axis[0].size, a), axis[1].size, b) * (unsigned)axis[2].size + c) * \
       s.width + s.channel)
#define ALONG(d, place, size, i) (d < 3 - RANK ? (place) : (place) * (unsigned)(size) + (i))

// Which element of window (a, b, c) the pixel (i, j, k) is.
INLINE int tap_of(const Window* axis, int i, int j, int k, int a, int b, int c) {
  const int above = RANK > 2 ? (i - first_of(axis, a)) * (int)axis[1].kernel_size : 0;
  const int row = RANK > 1 ? (above + j - first_of(axis + 1, b)) * (int)axis[2].kernel_size : 0;
  return row + k - first_of(axis + 2, c);
}
// What an average is multiplied by.
INLINE float share(const Window* axis, int a, int b, int c) {
  return 1.0f / (float)(count_of(axis, a) * count_of(axis + 1, b) * count_of(axis + 2, c));
}

INLINE void pool(GLOBAL const X* x, GLOBAL Y* y, GLOBAL short* arg, const PoolP* p) {
  const Window* axis = p->axis;
  EACH(i, p->n) {
    const Spot s = spot_of(p, i, false);
    float best[V];
    int place[V];
    UNROLL for (int l = 0; l < V; ++l) best[l] = MODE == MAX ? -infinity() : 0.0f, place[l] = -1;
    FOR_PLACES(s, a, b, c) {
      float v[V];
      LOAD(V, X, v, x + PLACE_IN(s, axis, size, a, b, c));
      const int tap = tap_of(axis, a, b, c, s.at[0], s.at[1], s.at[2]);
      UNROLL for (int l = 0; l < V; ++l) {
        // of data, so no branches: they would be guessed wrong
        const bool more = (v[l] > best[l]) | (place[l] < 0) | ((v[l] != v[l]) & (best[l] == best[l]));
        if (MODE == MAX) place[l] = more ? tap : place[l];
        best[l] = MODE != MAX ? best[l] + v[l] : more ? v[l] : best[l];
      }
    }
    if (MODE >= AVERAGE) {
      const float scale = share(axis, s.at[0], s.at[1], s.at[2]);
      UNROLL for (int l = 0; l < V; ++l) best[l] *= scale;
    }
    if (y) STORE(V, Y, y + i * V, best);
    if (MODE == MAX && arg) {
      short places[V];
      UNROLL for (int l = 0; l < V; ++l) places[l] = (short)place[l];
      WRITE(V, short, arg + i * V, places);
    }
  }
}

// x is the gradient of the windows, y that of the pixels.
INLINE void pool_backward(GLOBAL const X* x, GLOBAL Y* y, GLOBAL const short* arg, const PoolP* p) {
  const Window* axis = p->axis;
  EACH(i, p->n) {
    const Spot s = spot_of(p, i, true);
    float sum[V];
    UNROLL for (int l = 0; l < V; ++l) sum[l] = 0.0f;
    FOR_PLACES(s, a, b, c) {
      const unsigned from = PLACE_IN(s, axis, out, a, b, c);
      float v[V];
      LOAD(V, X, v, x + from);
      if (MODE == MAX) {
        const int tap = tap_of(axis, s.at[0], s.at[1], s.at[2], a, b, c);
        short own[V];
        READ(V, short, own, arg + from);
        UNROLL for (int l = 0; l < V; ++l) sum[l] += own[l] == tap ? v[l] : 0.0f;
      } else {
        const float scale = MODE == SUM ? 1.0f : share(axis, a, b, c);
        UNROLL for (int l = 0; l < V; ++l) sum[l] += v[l] * scale;
      }
    }
    STORE(V, Y, y + i * V, sum);
  }
}
