// SPDX-License-Identifier: Apache-2.0
#include "nnl/executor.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "nnl/errors.h"
#include "nnl/threads.h"

namespace nnl {

using Clock = std::chrono::steady_clock;

// How long the thread looks for the next run before it sleeps, if the last one came that soon. To
// wake it takes some ten microseconds, and it often begins on the core of who has woken it, who
// then waits.
constexpr std::chrono::microseconds patience(300);

struct Executor::State {
  std::mutex mutex;
  std::condition_variable begins, ended;
  Plan* plan = nullptr;  // while it runs
  size_t begin = 0, end = 0;
  std::vector<Copy> copies;
  int threads = 0;
  std::atomic<bool> stopped{false}, awaited{false};
  bool has_thread = false, over = false;
  std::exception_ptr thrown;
  std::atomic<bool> called{false};  // whether there is something to do
  Clock::time_point rest;           // since when there is nothing
  bool is_patient = false;

  void run() {  // nobody looks at `thrown` before `plan` is null again
    for (const Copy& c : copies) std::memcpy(c.to, c.from, c.bytes);
    try {
      for (size_t k = begin; k < end && !stopped; ++k) plan->run(k, k + 1, awaited ? 0 : threads);
    } catch (...) {
      thrown = std::current_exception();
    }
  }

  void work() {
    std::unique_lock<std::mutex> lock(mutex);
    while (true) {
      begins.wait(lock, [this] { return plan || over; });
      if (!plan) return;
      called.store(false, std::memory_order_relaxed);
      lock.unlock();
      run();
      lock.lock();
      plan = nullptr;
      rest = Clock::now();
      const bool looks = is_patient;
      ended.notify_all();
      if (!looks) continue;
      lock.unlock();
      look();
      lock.lock();
    }
  }

  void look() const {
    const auto end = Clock::now() + patience;
    while (!called.load(std::memory_order_acquire) && Clock::now() < end) {
      for (int i = 0; i < 10 && !called.load(std::memory_order_relaxed); ++i)
        std::this_thread::yield();
    }
  }
};

Executor::Executor() : state_(std::make_shared<State>()) {}

Executor::~Executor() {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  state_->over = true;
  state_->called.store(true, std::memory_order_release);
  state_->begins.notify_one();
}

void Executor::start(Plan& plan, size_t begin, size_t end, std::vector<Copy> copies) {
  State& s = *state_;
  {
    const std::lock_guard<std::mutex> lock(s.mutex);
    if (s.plan) throw ValueError("this executor runs a plan already");
    s.thrown = nullptr;
    s.stopped = s.awaited = false;
    s.begin = begin;
    s.copies = std::move(copies);
    s.end = end;
    s.threads = std::max(1, threads() - 1);
    s.plan = &plan;
    s.is_patient = threads() > 1 && Clock::now() - s.rest < patience;
    s.called.store(true, std::memory_order_release);
    if (!s.has_thread) {
      try {
        std::thread([state = state_] { state->work(); }).detach();
        s.has_thread = true;
      } catch (const std::system_error&) {
        s.run();  // there are too many threads: it runs here
        s.plan = nullptr;
      }
    }
  }
  s.begins.notify_one();
}

bool Executor::is_running() const {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->plan;
}

void Executor::stop() { state_->stopped = true; }

void Executor::wait() const {
  std::unique_lock<std::mutex> lock(state_->mutex);
  state_->awaited = true;
  state_->ended.wait(lock, [this] { return !state_->plan; });
  if (state_->thrown) std::rethrow_exception(state_->thrown);
}

}  // namespace nnl
