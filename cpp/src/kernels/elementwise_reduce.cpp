// SPDX-License-Identifier: Apache-2.0
#include "elementwise_reduce.h"

#include <algorithm>

#include "nnl/errors.h"
#include "nnl/threads.h"
#include "reduction_values.h"

namespace nnl {

BlockReduction::BlockReduction(const Spec& space, const Spec& out, const std::vector<int64_t>& axes,
                               Kind kind, double scale)
    : out_(out), kind_(kind), scale_(scale) {
  const Shape dense = out.strides();
  const size_t rank = space.shape.size();
  const bool kept_dims = out.shape.size() == rank;
  if (!kept_dims && out.shape.size() + axes.size() != rank)
    throw ValueError("fused_elementwise: a reduced output is " + out.text() + ", reduced from " +
                     space.text());
  Shape strides(rank, 0);
  size_t o = 0;
  for (size_t a = 0; a < rank; ++a) {
    const bool reduced = std::find(axes.begin(), axes.end(), static_cast<int64_t>(a)) != axes.end();
    if (!reduced) strides[a] = dense[o];
    if (!reduced && out.shape[o] != space.shape[a])
      throw ValueError("fused_elementwise: a reduced output is " + out.text() + ", reduced from " +
                       space.text());
    if (kept_dims || !reduced) ++o;
  }
  pattern_ = pattern_of(space, strides);
  if (pattern_.sizes.empty()) {  // a single element
    pattern_.sizes = {1};
    pattern_.strides = {0};
  }
}

void BlockReduction::start(double* values) const {
  const double first = kind_ == sum ? Sum::start : kind_ == largest ? Max::start : Min::start;
  std::fill(values, values + size(), first);
}

template <class R>
void BlockReduction::add_as(const float* x, int64_t start, int64_t n, double* values) const {
  const int64_t step = pattern_.strides.back();
  for (Runs run(pattern_, start, n); run.left(); run.next()) {
    double* v = values + run.place();
    const float* from = x + run.done();
    if (step == 0) {
      *v = R::join(*v, reduce_run<R>(from, run.size(), 1.0f));
    } else {
#pragma omp simd
      for (int64_t i = 0; i < run.size(); ++i)
        v[i * step] = R::join(v[i * step], static_cast<double>(from[i]));
    }
  }
}

void BlockReduction::add(const float* x, int64_t start, int64_t n, double* values) const {
  if (kind_ == sum)
    add_as<Sum>(x, start, n, values);
  else if (kind_ == largest)
    add_as<Max>(x, start, n, values);
  else
    add_as<Min>(x, start, n, values);
}

void BlockReduction::finish(double* values, int64_t step, int64_t parts, void* out) const {
  parallel_for(size(), 1 << 13, [&](int64_t begin, int64_t end) {
    for (int64_t part = 1; part < parts; ++part) {
      const double* more = values + part * step;
      for (int64_t i = begin; i < end; ++i) {
        if (kind_ == sum)
          values[i] = Sum::join(values[i], more[i]);
        else if (kind_ == largest)
          values[i] = Max::join(values[i], more[i]);
        else
          values[i] = Min::join(values[i], more[i]);
      }
    }
    for (int64_t i = begin; i < end; ++i) values[i] *= scale_;
    conversion(DType::f64, out_.dtype)(values + begin, at(out, out_.dtype, begin), end - begin);
  });
}

}  // namespace nnl
