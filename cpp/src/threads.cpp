// SPDX-License-Identifier: Apache-2.0
#include "nnl/threads.h"

#include <algorithm>
#include <atomic>
#include <string>

#include "nnl/errors.h"

namespace nnl {
namespace {

std::atomic<int> wanted{0};  // 0: nobody has said, OpenMP's setting holds

}  // namespace

int threads() {
#ifdef _OPENMP
  return omp_get_max_threads();
#else
  return 1;
#endif
}

void set_threads(int n) {
  if (n < 1) throw ValueError("set_threads: n is " + std::to_string(n) + ", wanted 1 or more");
  wanted = n;
#ifdef _OPENMP
  omp_set_num_threads(n);
#endif
}

ThreadScope::ThreadScope(int most) : before_(threads()) {
  int n = wanted ? wanted.load() : before_;
  if (most) n = std::min(n, most);
#ifdef _OPENMP
  if (n != before_) omp_set_num_threads(n);
#endif
}

ThreadScope::~ThreadScope() {
#ifdef _OPENMP
  if (threads() != before_) omp_set_num_threads(before_);
#endif
}

}  // namespace nnl
