// SPDX-License-Identifier: Apache-2.0
// Executor: a thread that runs plans while its owner does something else.
#pragma once
#include <cstddef>
#include <memory>
#include <vector>

#include "nnl/plan.h"

namespace nnl {

// One run at a time. start() and wait() may be called by different threads, one at a time.
class NNL_API Executor {
 public:
  Executor();
  ~Executor();  // after the run that is going on
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // Begins to run the steps [begin, end) of a plan, which must stay until wait() has returned. It
  // takes one thread less than other runs do: the caller goes on with that one.
  // Before the first step it makes these copies, also when it is stopped.
  // ValueError: the run before has not ended.
  struct Copy {
    void* to;
    const void* from;
    size_t bytes;
  };
  void start(Plan& plan, size_t begin, size_t end, std::vector<Copy> copies = {});

  bool is_running() const;

  // Lets the latest run end before its next step.
  void stop();

  // Returns when the latest run has ended; throws what it has thrown, every time. From now on the
  // run takes all threads.
  void wait() const;

 private:
  struct State;
  std::shared_ptr<State> state_;  // the thread's too
};

}  // namespace nnl
