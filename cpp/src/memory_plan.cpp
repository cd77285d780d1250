// SPDX-License-Identifier: Apache-2.0
#include "nnl/memory_plan.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace nnl {

size_t plan_memory(std::vector<Interval>& intervals) {
  std::vector<size_t> order(intervals.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto weight = [&](size_t i) {
    const Interval& x = intervals[i];
    return static_cast<double>(x.bytes) * std::sqrt(static_cast<double>(x.last - x.first + 1));
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return weight(a) > weight(b); });
  const auto rounded = [](size_t bytes) { return static_cast<int64_t>((bytes + 63) / 64 * 64); };
  constexpr int64_t most = int64_t{1} << 62;
  std::vector<size_t> placed;  // by offset
  int64_t arena = 0;
  for (size_t i : order) {
    Interval& x = intervals[i];
    const int64_t size = rounded(x.bytes);
    int64_t top = 0, best = -1, smallest = 0;
    for (size_t j : placed) {
      const Interval& y = intervals[j];
      if (y.first > x.last || y.last < x.first) continue;
      const int64_t gap = y.offset - top;
      if (gap >= size && (best < 0 || gap < smallest)) best = top, smallest = gap;
      top = std::max(top, y.offset + rounded(y.bytes));
    }
    x.offset = best < 0 ? top : best;
    if (x.offset > most - size) throw ValueError("what is computed is larger than any memory");
    arena = std::max(arena, x.offset + size);
    const auto after =
        std::upper_bound(placed.begin(), placed.end(), x.offset,
                         [&](int64_t at, size_t j) { return at < intervals[j].offset; });
    placed.insert(after, i);
  }
  return static_cast<size_t>(arena);
}

}  // namespace nnl
