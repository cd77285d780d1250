// SPDX-License-Identifier: Apache-2.0
// When work of streams runs: as late as CUDA allows, unless told otherwise.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "memory.h"

namespace emu {

using Work = std::function<void()>;

// A piece of work in the order of some stream.
struct Node {
  std::vector<std::shared_ptr<Node>> after;  // what it waits for
  Work work;                                 // empty for a mark
  int device = 0;
  bool done = false;
  std::int64_t nanoseconds = 0;  // when it was done
};
using Task = std::shared_ptr<Node>;

// What is recorded: work, and which of the earlier pieces each waits for.
struct Graph {
  struct Step {
    Work work;
    std::vector<std::size_t> after;
  };
  std::vector<Step> steps;
};

enum class Mode { global, thread_local_, relaxed };  // of a recording

struct Stream;

// A recording that is going on.
struct Capture {
  std::shared_ptr<Graph> graph = std::make_shared<Graph>();
  Stream* origin;
  Mode mode;
  std::uint64_t thread;
  bool valid = true;
  std::set<Stream*> streams;
};

struct Stream {
  int device = 0;
  unsigned flags = 0;
  int priority = 0;
  bool blocking = true;  // whether it keeps its order with the legacy stream
  bool legacy = false;
  Task last;
  std::shared_ptr<Capture> capture;
  std::vector<std::size_t> tail;  // what its next step in the graph waits for
  int asked = 0;                  // how often it was asked whether it is ready
};

struct Event {
  unsigned flags = 0;
  int device = 0;
  Task mark;
  std::shared_ptr<Capture> capture;  // in which it was recorded last
  std::vector<std::size_t> tail;
  int asked = 0;
};

enum class Order { late, early, random };

// Runs work. One thread at a time does; the state is locked while none of the work runs.
class Schedule {
 public:
  // order: "late", "early" or "random:SEED".
  Schedule(const std::string& order, Addresses& memory);

  using Lock = std::unique_lock<std::mutex>;
  std::mutex& mutex() { return mutex_; }

  // Queue behind other work. Called with the lock.
  Task add(Lock& lock, int device, Work work, std::vector<Task> after);
  // Run what these wait for, and them. False at once within work that runs, where CUDA forbids it.
  bool finish(Lock& lock, const std::vector<Task>& tasks);
  bool finish_all(Lock& lock, int device);
  // Whether a task is done; work goes on a little at each question.
  bool ask(Lock& lock, const Task& task, int& asked);
  // Run a graph's steps in some order that it allows.
  void replay(const Graph& graph);

  static bool inside();  // whether the current thread runs work
  // What a piece of work did wrong, by device; the device takes no more.
  std::function<void(int device, const std::string& what)> failed;
  std::function<bool(int device)> is_broken;
  std::function<void()> afterwards;  // called when work has been run

 private:
  void run(Lock& lock, const Task& task);
  void go_on(Lock& lock, std::size_t count);  // of what nobody waits for
  Task ready_one();
  std::vector<Task> needed(const std::vector<Task>& tasks) const;
  bool begin(Lock& lock);
  void end(Lock& lock);

  std::mutex mutex_;
  std::condition_variable idle_;
  bool running_ = false;
  Order order_;
  std::mt19937_64 random_;
  Addresses& memory_;
  std::deque<Task> pending_;  // in the order in which it came
};

}  // namespace emu
