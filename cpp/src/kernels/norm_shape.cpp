// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "norm.h"

namespace nnl {
namespace {

// Neighbours that are one axis to x, to the means and to gamma become one.
std::vector<NormAxis> merged(std::vector<NormAxis> axes) {
  std::stable_sort(axes.begin(), axes.end(),
                   [](const NormAxis& a, const NormAxis& b) { return a.x > b.x; });
  std::vector<NormAxis> y;
  for (const NormAxis& b : axes) {
    if (b.n == 1) continue;
    if (!y.empty()) {
      NormAxis& a = y.back();
      if (a.reduced == b.reduced && a.x == b.n * b.x && a.stat == b.n * b.stat &&
          a.param == b.n * b.param) {
        a = {a.n * b.n, b.x, b.stat, b.param, a.reduced};
        continue;
      }
    }
    y.push_back(b);
  }
  return y;
}

// Offsets of all places along some axes; the last axis varies fastest.
std::vector<int64_t> offsets(const std::vector<NormAxis>& axes, int64_t NormAxis::* stride) {
  std::vector<int64_t> y{0};
  for (const NormAxis& a : axes) {
    std::vector<int64_t> next;
    next.reserve(y.size() * static_cast<size_t>(a.n));
    for (int64_t o : y)
      for (int64_t i = 0; i < a.n; ++i) next.push_back(o + i * (a.*stride));
    y = std::move(next);
  }
  return y;
}

// Few channels leave most of a vector idle: k neighbours along the reduced axis become one with k
// times the channels.
void widen(NormShape& s) {
  const int64_t c = s.inner;
  if (c >= kLanes) return;
  for (int64_t k = 64 / c; k > 1; --k) {
    if (s.reduced % k) continue;
    s.reduced /= k;
    s.inner *= k;
    for (int64_t i = c; i < s.inner; ++i) {
      s.stat_of.push_back(s.stat_of[static_cast<size_t>(i - c)]);
      s.param_of.push_back(s.param_of[static_cast<size_t>(i - c)]);
    }
    return;
  }
}

bool see_by_channel(const std::vector<NormAxis>& axes, NormShape& s) {
  size_t i = 0;
  const bool led = !axes.empty() && !axes[0].reduced;
  if (led) i = 1;
  if (i + 2 > axes.size()) return false;
  const NormAxis& r = axes[i];
  if (!r.reduced || r.param) return false;
  const std::vector<NormAxis> inner(axes.begin() + static_cast<int64_t>(i) + 1, axes.end());
  if (inner.back().reduced && inner.back().n > r.n) return false;
  s.by_channel = true;
  if (led) s.outer = axes[0].n, s.outer_stat = axes[0].stat, s.outer_param = axes[0].param;
  s.reduced = r.n;
  for (int64_t o : offsets(inner, &NormAxis::stat)) s.stat_of.push_back(static_cast<int32_t>(o));
  for (int64_t o : offsets(inner, &NormAxis::param)) s.param_of.push_back(static_cast<int32_t>(o));
  s.inner = static_cast<int64_t>(s.stat_of.size());
  widen(s);
  return true;
}

}  // namespace

bool see(std::vector<NormAxis> axes, NormShape& s) {
  s.size = 1, s.count = 1;
  for (const NormAxis& a : axes) {
    s.size *= a.n;
    if (a.reduced) s.count *= a.n;
    if (!a.reduced) s.stats *= a.n;
  }
  if (s.size == 0) return true;
  axes = merged(std::move(axes));
  if (!axes.empty() && axes.back().x != 1) return false;
  if (see_by_channel(axes, s)) return true;
  if (!axes.empty() && axes.back().reduced && axes.back().param < 2) {
    s.row = axes.back().n;
    s.row_param = axes.back().param;
    axes.pop_back();
  }
  std::vector<NormAxis> kept, reduced;
  for (const NormAxis& a : axes) (a.reduced ? reduced : kept).push_back(a);
  s.kept_x = offsets(kept, &NormAxis::x);
  s.kept_stat = offsets(kept, &NormAxis::stat);
  s.kept_param = offsets(kept, &NormAxis::param);
  s.reduced_x = offsets(reduced, &NormAxis::x);
  s.reduced_param = offsets(reduced, &NormAxis::param);
  return true;
}

bool same_order(const Spec& a, const Spec& b) {
  if (a.shape != b.shape) return false;
  const Shape at_a = a.strides(), at_b = b.strides();
  for (size_t i = 0; i < a.shape.size(); ++i)
    if (a.shape[i] != 1 && at_a[i] != at_b[i]) return false;
  return true;
}

std::vector<NormAxis> axes_of(const Spec& x, const Spec& stat, const Spec* p,
                              const std::vector<bool>& reduced, int64_t channel, int64_t groups) {
  const Shape at_x = x.strides(), at_stat = stat.strides();
  const Shape at_p = p ? p->strides() : Shape(x.shape.size(), 0);
  std::vector<NormAxis> axes;
  const auto add = [&](int64_t n, int64_t step, int64_t step_p) {
    const size_t i = axes.size();
    axes.push_back({n, step, reduced[i] ? 0 : at_stat[i], step_p, reduced[i]});
  };
  for (size_t i = 0; i < x.shape.size(); ++i) {
    const int64_t n = x.shape[i], step_p = p && p->shape[i] != 1 ? at_p[i] : 0;
    if (groups && static_cast<int64_t>(i) == channel) {
      add(groups, at_x[i] * (n / groups), step_p * (n / groups));
      add(n / groups, at_x[i], step_p);
    } else {
      add(n, at_x[i], step_p);
    }
  }
  return axes;
}

}  // namespace nnl
