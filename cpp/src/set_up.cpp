// SPDX-License-Identifier: Apache-2.0
#include "set_up.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "nnl/threads.h"

namespace nnl {
namespace {

thread_local SetUp* current = nullptr;

}  // namespace

SetUp::SetUp() : outer_(std::exchange(current, this)) {}

SetUp::~SetUp() { current = outer_; }

void SetUp::later(std::function<void()> part) {
  if (!current) return part();
  current->parts_.push_back(std::move(part));
}

// Threads of its own, not those of OpenMP: they would spin for a while when they are done, and this
// thread would wait for all of them, although it can do the rest alone where they get no processor.
void SetUp::finish() {
  const std::vector<std::function<void()>> parts = std::exchange(parts_, {});
  std::atomic<size_t> next{0};
  std::exception_ptr error;
  std::mutex mutex;
  const auto work = [&] {
    for (size_t i; (i = next++) < parts.size();) try {
        parts[i]();
      } catch (...) {
        const std::lock_guard<std::mutex> only(mutex);
        if (!error) error = std::current_exception();
      }
  };
  const size_t most = std::min<size_t>(static_cast<size_t>(threads()), parts.size() / 3);
  std::vector<std::thread> helpers(most ? most - 1 : 0);
  for (std::thread& helper : helpers) helper = std::thread(work);
  work();
  for (std::thread& helper : helpers) helper.join();
  if (error) std::rethrow_exception(error);
}

}  // namespace nnl
