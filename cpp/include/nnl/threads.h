// SPDX-License-Identifier: Apache-2.0
// The one thread pool: OpenMP's, which oneDNN uses too.
#pragma once
#include <algorithm>
#include <cstdint>

#include "nnl/errors.h"

#ifdef _OPENMP
#include <omp.h>
#endif

namespace nnl {

// How many threads a parallel region started here uses.
NNL_API int threads();

// How many threads all runs and set-ups that begin from now on use, whichever thread starts them.
NNL_API void set_threads(int n);

// While it lives, parallel regions started by this thread, oneDNN's too, use the number given to
// set_threads, and no more than `most` unless that is 0. OpenMP's own setting belongs to one
// thread.
class NNL_API ThreadScope {
 public:
  explicit ThreadScope(int most = 0);
  ~ThreadScope();
  ThreadScope(const ThreadScope&) = delete;
  ThreadScope& operator=(const ThreadScope&) = delete;

 private:
  int before_;
};

// f(begin, end) over [0, n), in parts of at least `grain` items, one part per thread. Waking the
// threads costs some microseconds: a grain should be worth that.
template <class F>
void parallel_for(int64_t n, [[maybe_unused]] int64_t grain, F&& f) {
#ifdef _OPENMP
  const int parts = static_cast<int>(std::min<int64_t>(threads(), n / std::max<int64_t>(grain, 1)));
  if (parts > 1 && !omp_in_parallel()) {
#pragma omp parallel num_threads(parts)
    {
      const int64_t i = omp_get_thread_num(), k = omp_get_num_threads();
      const int64_t begin = n * i / k, end = n * (i + 1) / k;
      if (begin < end) f(begin, end);
    }
    return;
  }
#endif
  if (n > 0) f(static_cast<int64_t>(0), n);
}

}  // namespace nnl
