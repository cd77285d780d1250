// SPDX-License-Identifier: Apache-2.0
#include "nnl/threads.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <string>

#if defined _OPENMP && !defined _WIN32
#include <pthread.h>
#endif

#include "nnl/errors.h"

namespace nnl {
namespace {

using Clock = std::chrono::steady_clock;

std::atomic<int> wanted{0};  // 0: nobody has said, OpenMP's setting holds
thread_local Clock::time_point used;

#if defined _OPENMP && !defined _WIN32
// A fork copies the thread that calls it and none of those that help it, which the copy would wait
// for. So it lets them go before; both processes start new ones when they need some.
[[maybe_unused]] const int follows_forks =
    pthread_atfork([] { omp_pause_resource_all(omp_pause_hard); }, nullptr, nullptr);
#endif

// How long threads of GNU OpenMP look for work before they sleep.
std::chrono::nanoseconds waking_time() {
  const char* policy = std::getenv("OMP_WAIT_POLICY");
  const char* count = std::getenv("GOMP_SPINCOUNT");
  const bool active = policy && (*policy == 'a' || *policy == 'A');
  const double looks = count ? std::strtod(count, nullptr) : active ? 3e10 : policy ? 0 : 3e5;
  return std::chrono::nanoseconds(static_cast<int64_t>(20 * std::min(looks, 1e9)));
}

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

bool helpers_are_awake() {
  static const auto waking = waking_time();
  return Clock::now() - used < waking;
}

void helpers_were_used() { used = Clock::now(); }

}  // namespace nnl
