// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <atomic>
#include <string>

#include "nnl/errors.h"

namespace nnl {

// Marks something as running; two runs at once would write to the same memory.
class OneAtATime {
 public:
  // ValueError, with this text: it is running already.
  OneAtATime(std::atomic<bool>& running, const std::string& text) : running_(running) {
    if (running_.exchange(true)) throw ValueError(text);
  }
  ~OneAtATime() { running_ = false; }
  OneAtATime(const OneAtATime&) = delete;
  OneAtATime& operator=(const OneAtATime&) = delete;

 private:
  std::atomic<bool>& running_;
};

}  // namespace nnl
