// SPDX-License-Identifier: Apache-2.0
#include "schedule.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <unordered_set>

namespace emu {
namespace {

constexpr std::size_t kMostPending =
    1024;                       // launches that a device queues before it makes one wait
constexpr int kSometimes = 16;  // after how many pieces some run in a random order
constexpr int kQuestions = 3;   // until work that nobody waits for is done

thread_local bool inside_work = false;

std::int64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

Schedule::Schedule(const std::string& order, Addresses& memory) : memory_(memory) {
  order_ = order == "early"              ? Order::early
           : order.starts_with("random") ? Order::random
                                         : Order::late;
  const std::size_t colon = order.find(':');
  random_.seed(colon == std::string::npos ? 0 : std::stoull(order.substr(colon + 1)));
}

bool Schedule::inside() { return inside_work; }

Task Schedule::add(Lock& lock, int device, Work work, std::vector<Task> after) {
  std::erase_if(after, [](const Task& t) { return !t || t->done; });
  auto task = std::make_shared<Node>();
  task->after = std::move(after);
  task->work = std::move(work);
  task->device = device;
  pending_.push_back(task);
  if (inside_work || running_) return task;
  if (order_ == Order::early)
    finish(lock, {task});
  else if (order_ == Order::random && random_() % kSometimes == 0)
    go_on(lock, kSometimes);
  else if (pending_.size() > kMostPending)  // many at a time: to begin and to end takes long
    go_on(lock, kMostPending / 2);
  return task;
}

void Schedule::go_on(Lock& lock, std::size_t count) {
  if (!begin(lock)) return;
  if (order_ == Order::random)
    for (Task t; count-- > 0 && (t = ready_one());) run(lock, t);
  else
    for (const Task& t : std::vector<Task>(pending_.begin(), pending_.begin() + count))
      run(lock, t);
  end(lock);
}

bool Schedule::begin(Lock& lock) {
  if (inside_work) return false;
  idle_.wait(lock, [this] { return !running_; });
  running_ = true;
  memory_.open();
  return true;
}

void Schedule::end(Lock& lock) {
  (void)lock;
  std::erase_if(pending_, [](const Task& t) { return t->done; });
  memory_.close();
  running_ = false;
  idle_.notify_all();
}

// Runs one task whose conditions are met, without the lock.
void Schedule::run(Lock& lock, const Task& task) {
  Work work = std::move(task->work);
  task->work = nullptr;
  task->after.clear();
  if (work && !is_broken(task->device)) {
    lock.unlock();
    inside_work = true;
    std::string wrong;
    try {
      work();
    } catch (const std::exception& e) {
      wrong = e.what();
    }
    work = nullptr;
    inside_work = false;
    lock.lock();
    if (!wrong.empty()) failed(task->device, wrong);
  }
  task->nanoseconds = now();
  task->done = true;
}

// All of it that is not done, each behind what it waits for; of several, the last one first.
std::vector<Task> Schedule::needed(const std::vector<Task>& tasks) const {
  std::vector<Task> order;
  std::unordered_set<const Node*> seen;
  std::vector<std::pair<Task, std::size_t>> path;
  for (const Task& t : tasks) {
    if (!t || t->done || !seen.insert(t.get()).second) continue;
    path.emplace_back(t, t->after.size());
    while (!path.empty()) {
      auto& [task, left] = path.back();
      if (left == 0) {
        order.push_back(task);
        path.pop_back();
        continue;
      }
      const Task next = task->after[--left];
      if (!next->done && seen.insert(next.get()).second)
        path.emplace_back(next, next->after.size());
    }
  }
  return order;
}

Task Schedule::ready_one() {
  std::vector<Task> ready;
  for (const Task& t : pending_)
    if (!t->done && std::ranges::all_of(t->after, [](const Task& a) { return a->done; }))
      ready.push_back(t);
  return ready.empty() ? nullptr : ready[random_() % ready.size()];
}

bool Schedule::finish(Lock& lock, const std::vector<Task>& tasks) {
  const auto left = [&] {
    return std::ranges::any_of(tasks, [](const Task& t) { return t && !t->done; });
  };
  if (!left()) return true;
  if (!begin(lock)) return false;
  if (order_ == Order::random)
    while (left()) run(lock, ready_one());
  else
    for (const Task& t : needed(tasks)) run(lock, t);
  afterwards();
  end(lock);
  return true;
}

bool Schedule::finish_all(Lock& lock, int device) {
  std::vector<Task> tasks;
  for (const Task& t : pending_)
    if (t->device == device) tasks.push_back(t);
  return finish(lock, {tasks.rbegin(), tasks.rend()});
}

bool Schedule::ask(Lock& lock, const Task& task, int& asked) {
  if (!task || task->done) return true;
  if (inside_work || running_ || ++asked < kQuestions) return false;
  asked = 0;
  return finish(lock, {task});
}

void Schedule::replay(const Graph& graph) {
  std::vector<std::size_t> waits(graph.steps.size()), ready;
  std::vector<std::vector<std::size_t>> next(graph.steps.size());
  for (std::size_t i = 0; i < graph.steps.size(); ++i) {
    waits[i] = graph.steps[i].after.size();
    for (const std::size_t a : graph.steps[i].after) next[a].push_back(i);
    if (waits[i] == 0) ready.push_back(i);
  }
  while (!ready.empty()) {
    const std::size_t k = order_ == Order::early    ? 0
                          : order_ == Order::random ? random_() % ready.size()
                                                    : ready.size() - 1;
    const std::size_t i = ready[k];
    ready.erase(ready.begin() + static_cast<std::ptrdiff_t>(k));
    if (graph.steps[i].work) graph.steps[i].work();
    for (const std::size_t n : next[i])
      if (--waits[n] == 0) ready.push_back(n);
  }
}

}  // namespace emu
