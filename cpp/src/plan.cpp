// SPDX-License-Identifier: Apache-2.0
#include "nnl/plan.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <new>

#ifdef __linux__
#include <sys/mman.h>
#endif

#include "nnl/errors.h"
#include "nnl/threads.h"
#include "one_at_a_time.h"

namespace nnl {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

int64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

size_t alignment(size_t bytes) { return bytes >= kHugePage ? kHugePage : 64; }

}  // namespace

Memory::Memory(size_t bytes)
    : bytes_(bytes),
      data_(static_cast<std::byte*>(
          ::operator new(bytes ? bytes : 1, std::align_val_t{alignment(bytes)}))) {
#ifdef __linux__
  // A hint: without huge pages everything works, with more misses of the page table.
  if (bytes >= kHugePage) madvise(data_, bytes / kHugePage * kHugePage, MADV_HUGEPAGE);
#endif
}

Memory::~Memory() { ::operator delete(data_, std::align_val_t{alignment(bytes_)}); }

Plan::Plan(std::vector<int64_t> offsets, size_t arena_bytes, bool own)
    : offsets_(std::move(offsets)), arena_bytes_(arena_bytes), pointers_(offsets_.size(), nullptr) {
  if (own) use_arena(std::make_shared<Memory>(arena_bytes));
}

void Plan::use_arena(std::shared_ptr<Memory> arena) {
  if (arena->bytes() < arena_bytes_)
    throw ValueError("an arena of " + std::to_string(arena->bytes()) + " bytes is too small for " +
                     std::to_string(arena_bytes_));
  // what has been bound elsewhere stays there
  const std::byte* const before = arena_ ? arena_->data() : nullptr;
  for (size_t i = 0; i < offsets_.size(); ++i)
    if (offsets_[i] != outside && pointers_[i] == (before ? before + offsets_[i] : nullptr))
      pointers_[i] = arena->data() + offsets_[i];
  arena_ = std::move(arena);
  for (Step& step : steps_) step.scratch = scratch_of(step.workspace);
  stale_ = true;
}

namespace {

int scope_threads() {
  const ThreadScope scope;
  return threads();
}

}  // namespace

void Plan::add(std::string name, std::shared_ptr<Kernel> kernel, std::vector<int> in,
               std::vector<int> out, int64_t workspace_offset) {
  if (!kernel) throw ValueError(name + ": there is no kernel to add to the plan");
  Step step;
  step.name = std::move(name);
  step.kernel = std::move(kernel);
  step.pointers.resize(in.size() + out.size());
  step.in = std::move(in);
  step.out = std::move(out);
  const int made_for = scope_threads();
  threads_ = threads_ ? std::min(threads_, made_for) : made_for;
  step.workspace = workspace_offset;
  step.scratch = scratch_of(workspace_offset);
  steps_.push_back(std::move(step));
  times_.push_back(0);
  starts_.push_back(0);
  stale_ = true;
}

void Plan::bind(int slot, void* data) {
  auto& p = pointers_[static_cast<size_t>(slot)];
  if (p == data) return;
  p = data;
  stale_ = true;
}

void Plan::refresh() {
  for (Step& step : steps_) {
    size_t k = 0;
    for (int i : step.in) step.pointers[k++] = pointers_[static_cast<size_t>(i)];
    for (int o : step.out) step.pointers[k++] = pointers_[static_cast<size_t>(o)];
  }
  stale_ = false;
}

void Plan::run_step(Step& step) {
  void* const* p = step.pointers.data();
  try {
    step.kernel->run({p, p + step.in.size(), step.scratch});
  } catch (const ValueError& e) {
    const std::string what = e.what();
    throw what.rfind(step.name, 0) == 0 ? e : ValueError(step.name + ": " + what);
  }
}

namespace {

const std::string kRunning =
    "this graph is running already: other graphs may run in other threads, one graph runs in one "
    "thread at a time";

}  // namespace

void Plan::run(size_t begin, size_t end, int most) {
  const OneAtATime lock(running_, kRunning);
  const ThreadScope scope(most ? std::min(most, threads_) : threads_);
  if (stale_) refresh();
  for (at_ = begin; at_ < end; ++at_) run_step(steps_[at_]);
}

void Plan::run_timed(size_t begin, size_t end) {
  const OneAtATime lock(running_, kRunning);
  const ThreadScope scope(threads_);
  if (stale_) refresh();
  for (at_ = begin; at_ < end; ++at_) {
    starts_[at_] = now();
    run_step(steps_[at_]);
    times_[at_] = now() - starts_[at_];
  }
}

}  // namespace nnl
