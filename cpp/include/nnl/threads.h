// SPDX-License-Identifier: Apache-2.0
// The one thread pool: OpenMP's, which oneDNN uses too.
#pragma once
#include <algorithm>
#include <cstdint>
#include <exception>

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

// Whether the threads that helped this one last are still looking for work. They sleep soon after:
// to wake them takes some 70 us, to be joined by them before that one or two.
NNL_API bool helpers_are_awake();

// Threads have helped this one up to now.
NNL_API void helpers_were_used();

// f(begin, end) over [0, n), in parts of at least `grain` items, one part per thread. A grain
// should be worth some microseconds. Sleeping threads are only woken for many of them; a grain of 1
// is work that the caller has divided. What f throws in a thread is thrown on, of several the one
// of the first part: an exception that leaves a parallel region would end the process.
template <class F>
void parallel_for(int64_t n, [[maybe_unused]] int64_t grain, F&& f) {
#ifdef _OPENMP
  constexpr int64_t worth_waking = 32;
  const int64_t grains = n / std::max<int64_t>(grain, 1);
  const int parts = static_cast<int>(std::min<int64_t>(threads(), grains));
  if (parts > 1 && !omp_in_parallel() &&
      (grain <= 1 || grains >= worth_waking || helpers_are_awake())) {
    std::exception_ptr thrown;
    int64_t thrower = n;
#pragma omp parallel num_threads(parts)
    {
      const int64_t i = omp_get_thread_num(), k = omp_get_num_threads();
      const int64_t begin = n * i / k, end = n * (i + 1) / k;
      try {
        if (begin < end) f(begin, end);
      } catch (...) {
#pragma omp critical(nnl_thrown)
        if (begin < thrower) {
          thrown = std::current_exception();
          thrower = begin;
        }
      }
    }
    helpers_were_used();
    if (thrown) std::rethrow_exception(thrown);
    return;
  }
#endif
  if (n > 0) f(static_cast<int64_t>(0), n);
}

}  // namespace nnl
