// SPDX-License-Identifier: Apache-2.0
// The largest or smallest element of each group of a Split (patterns.py), and where it is: the first
// of equal ones, NaN before all.

#ifdef IS_LARGEST
// Whether a comes before b.
INLINE bool before(float a, unsigned a_place, float b, unsigned b_place) {
  const bool a_nan = a != a, b_nan = b != b;
  if (a_nan != b_nan) return a_nan;
  if (!a_nan && a != b) return IS_LARGEST ? a > b : a < b;
  return a_place < b_place;
}
INLINE float worst(void) { return IS_LARGEST ? -infinity() : infinity(); }

// A team for each group whose elements are neighbours. y is null where only places are asked for;
// places are counted through the elements of the group.
INLINE void extremum_rows(GLOBAL const X* x, GLOBAL Y* y, GLOBAL I* place, LOCAL float* values,
                          LOCAL unsigned* places, const Groups* g) {
  const unsigned group = BLOCK_X * SIDE_Y + THREAD_Y, at = THREAD_Y * SIDE_X + THREAD_X;
  const bool inside = group < g->groups;
  float best = worst();
  unsigned where = ~0u;
  for (unsigned e = THREAD_X; inside && e < g->reduced; e += SIDE_X) {
    const float own = FLOAT(X, x[element_of(g, group, e)]);
    if (before(own, e, best, where)) best = own, where = e;
  }
  values[at] = best, places[at] = where;
  for (unsigned d = SIDE_X / 2; d > 0; d /= 2) {
    BARRIER();
    if (THREAD_X < d && before(values[at + d], places[at + d], values[at], places[at]))
      values[at] = values[at + d], places[at] = places[at + d];
  }
  if (!inside || THREAD_X) return;
  if (y) y[group] = CAST(Y, values[at]);
  place[group] = (I)places[at];
}

// One thread for each group; neighbours in memory belong to neighbouring groups.
INLINE void extremum_columns(GLOBAL const X* x, GLOBAL Y* y, GLOBAL I* place, const Groups* g) {
  EACH(k, g->groups) {
    const unsigned group = k / (unsigned)g->k2, column = k - group * (unsigned)g->k2;
    float best = worst();
    unsigned where = ~0u;
    for (unsigned e = 0; e < g->reduced; ++e) {
      const float own = FLOAT(X, x[element_of(g, group, e) + column]);
      if (before(own, e, best, where)) best = own, where = e;
    }
    if (y) y[k] = CAST(Y, best);
    place[k] = (I)where;
  }
}
#else

// y[group] = x at the place that an index names in its group, and (BACK) the way back into zeros. A
// negative index, or one that is too large, names none.
INLINE void chosen(GLOBAL const X* x, GLOBAL const I* place, GLOBAL Y* y, const Groups* g) {
  EACH(k, g->groups) {
    const unsigned group = k / (unsigned)g->k2, column = k - group * (unsigned)g->k2;
    const i64 e = (i64)place[k];
    const bool named = e >= 0 && e < g->reduced;
    const unsigned at = named ? element_of(g, group, (unsigned)e) + column : 0;
    if (!BACK)
      y[k] = CAST(Y, named ? FLOAT(X, x[at]) : e < 0 ? 0.0f : not_a_number());
    else if (named)
      y[at] = CAST(Y, FLOAT(X, x[k]));
  }
}
#endif
