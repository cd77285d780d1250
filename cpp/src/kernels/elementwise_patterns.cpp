// SPDX-License-Identifier: Apache-2.0
#include "elementwise_patterns.h"

#include <algorithm>
#include <numeric>

#include "nnl/errors.h"

namespace nnl {
namespace {

constexpr size_t most_axes = 16;

}  // namespace

Pattern pattern_of(const Spec& out, const Shape& strides) {
  const Shape dense = out.strides();
  std::vector<size_t> order(out.shape.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return dense[a] > dense[b]; });
  Pattern p;
  for (size_t a : order) {
    if (out.shape[a] == 1) continue;
    if (!p.sizes.empty() && p.strides.back() == strides[a] * out.shape[a]) {
      p.sizes.back() *= out.shape[a];
      p.strides.back() = strides[a];
    } else {
      p.sizes.push_back(out.shape[a]);
      p.strides.push_back(strides[a]);
    }
  }
  if (p.sizes.size() > most_axes) throw ValueError("an input stretches along more than 16 axes");
  const bool constant = p.sizes.empty() || (p.sizes.size() == 1 && p.strides[0] == 0);
  if (constant)
    p.kind = Pattern::number;
  else if (p.sizes.size() > 1 || p.strides[0] != 1)
    p.kind = Pattern::repeated;
  if (p.kind == Pattern::repeated && p.strides[0] == 0)
    p.period =
        std::accumulate(p.sizes.begin() + 1, p.sizes.end(), int64_t{1}, std::multiplies<int64_t>());
  return p;
}

Shape strides_along(const Spec& out, const Shape& aligned, const Spec& own) {
  const Shape dense = own.strides();
  Shape strides(out.shape.size(), 0);
  const size_t lead = out.shape.size() - aligned.size();
  size_t from = 0;
  for (size_t a = 0; a < aligned.size(); ++a) {
    if (aligned[a] == 1) continue;
    while (own.shape[from] == 1) ++from;
    strides[lead + a] = dense[from++];
  }
  return strides;
}

Runs::Runs(const Pattern& pattern, int64_t start, int64_t n) : pattern_(pattern), n_(n) {
  const Shape &sizes = pattern.sizes, &strides = pattern.strides;
  for (size_t d = sizes.size(); d-- > 0; start /= sizes[d]) {
    index_[d] = start % sizes[d];
    place_ += index_[d] * strides[d];
  }
  size_ = std::min(sizes.back() - index_[sizes.size() - 1], n);
}

void Runs::next() {
  const Shape &sizes = pattern_.sizes, &strides = pattern_.strides;
  const size_t last = sizes.size() - 1;
  done_ += size_;
  index_[last] += size_;
  place_ += size_ * strides[last];
  for (size_t d = last; index_[d] == sizes[d] && d > 0; --d) {
    place_ += strides[d - 1] - sizes[d] * strides[d];
    index_[d] = 0;
    ++index_[d - 1];
  }
  size_ = std::min(sizes[last] - index_[last], n_ - done_);
}

const float* gather(const Pattern& p, const void* x, DType type, int64_t start, int64_t n,
                    float* y) {
  const Convert to_float32 = conversion(type, DType::f32);
  const int64_t step = p.strides.back();
  for (Runs run(p, start, n); run.left(); run.next()) {
    if (step == 1 && type == DType::f32 && run.size() == n)
      return static_cast<const float*>(x) + run.place();
    float* to = y + run.done();
    if (step == 1) {
      to_float32(at(x, type, run.place()), to, run.size());
    } else if (step == 0) {
      to_float32(at(x, type, run.place()), to, 1);
      std::fill(to + 1, to + run.size(), to[0]);
    } else {
      for (int64_t i = 0; i < run.size(); ++i)
        to_float32(at(x, type, run.place() + i * step), to + i, 1);
    }
  }
  return y;
}

}  // namespace nnl
