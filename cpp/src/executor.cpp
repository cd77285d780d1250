// SPDX-License-Identifier: Apache-2.0
#include "nnl/executor.h"

#include <algorithm>
#include <atomic>
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
      lock.unlock();
      run();
      lock.lock();
      plan = nullptr;
      ended.notify_all();
    }
  }
};

Executor::Executor() : state_(std::make_shared<State>()) {}

Executor::~Executor() {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  state_->over = true;
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
