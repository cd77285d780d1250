// SPDX-License-Identifier: Apache-2.0
#include "nnl/threads.h"

#include <string>

#include "nnl/errors.h"

namespace nnl {

int threads() {
#ifdef _OPENMP
  return omp_get_max_threads();
#else
  return 1;
#endif
}

void set_threads(int n) {
  if (n < 1) throw ValueError("set_threads: n is " + std::to_string(n) + ", wanted 1 or more");
#ifdef _OPENMP
  omp_set_num_threads(n);
#endif
}

}  // namespace nnl
