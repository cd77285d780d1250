// SPDX-License-Identifier: Apache-2.0
// The largest or smallest element of each group of a Split (patterns.py), and where it is: the first
// of equal ones, NaN before all.

template <class X, class Y, class I>
struct ExtremumP {
  const X* x;
  Y* y;      // null where only places are asked for
  I* place;  // counted through the elements of the group
  Groups g;
};

struct Best {
  float value;
  unsigned place;
};
template <bool largest>
INLINE bool before(Best a, Best b) {
  const bool a_nan = a.value != a.value, b_nan = b.value != b.value;
  if (a_nan != b_nan) return a_nan;
  if (!a_nan && a.value != b.value) return largest ? a.value > b.value : a.value < b.value;
  return a.place < b.place;
}

// One warp for each group whose elements are neighbours; x has 32 threads.
template <bool largest, class X, class Y, class I>
INLINE void extremum_rows(const ExtremumP<X, Y, I>& p) {
  const unsigned group = blockIdx.x * blockDim.y + threadIdx.y;
  const bool inside = group < p.g.groups;
  Best best = {largest ? -infinity() : infinity(), ~0u};
  for (unsigned e = threadIdx.x; inside && e < p.g.reduced; e += 32) {
    const Best own = {to_float(p.x[p.g.element(group, e)]), e};
    if (before<largest>(own, best)) best = own;
  }
  for (int d = 16; d > 0; d /= 2) {
    Best other;
    other.value = __shfl_xor_sync(~0u, best.value, d);
    other.place = __shfl_xor_sync(~0u, best.place, d);
    if (before<largest>(other, best)) best = other;
  }
  if (!inside || threadIdx.x) return;
  if (p.y) p.y[group] = from_float<Y>(best.value);
  p.place[group] = (I)best.place;
}

// One thread for each group; neighbours in memory belong to neighbouring groups.
template <bool largest, class X, class Y, class I>
INLINE void extremum_columns(const ExtremumP<X, Y, I>& p) {
  for (unsigned k = blockIdx.x * blockDim.x + threadIdx.x; k < p.g.groups;
       k += gridDim.x * blockDim.x) {
    const unsigned group = k / (unsigned)p.g.k2, column = k - group * (unsigned)p.g.k2;
    Best best = {largest ? -infinity() : infinity(), ~0u};
    for (unsigned e = 0; e < p.g.reduced; ++e) {
      const Best own = {to_float(p.x[p.g.element(group, e) + column]), e};
      if (before<largest>(own, best)) best = own;
    }
    if (p.y) p.y[k] = from_float<Y>(best.value);
    p.place[k] = (I)best.place;
  }
}

// y[group] = x at the place that an index names in its group, and the way back into zeros. A
// negative index, or one that is too large, names none.
template <class X, class I, class Y>
struct ChosenP {
  const X* x;
  const I* place;
  Y* y;
  Groups g;
};
template <bool back, class X, class I, class Y>
INLINE void chosen(const ChosenP<X, I, Y>& p) {
  for (unsigned k = blockIdx.x * blockDim.x + threadIdx.x; k < p.g.groups;
       k += gridDim.x * blockDim.x) {
    const unsigned group = k / (unsigned)p.g.k2, column = k - group * (unsigned)p.g.k2;
    const int64 e = (int64)p.place[k];
    const bool named = e >= 0 && e < p.g.reduced;
    const unsigned at = named ? p.g.element(group, (unsigned)e) + column : 0;
    if (!back)
      p.y[k] = from_float<Y>(named ? to_float(p.x[at]) : e < 0 ? 0.0f : not_a_number());
    else if (named)
      p.y[at] = from_float<Y>(to_float(p.x[k]));
  }
}
