// SPDX-License-Identifier: Apache-2.0
// Plan: a graph lowered to kernels over memory that is fixed in advance.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "nnl/kernel.h"

namespace nnl {

// Memory aligned for vector loads, in huge pages where the system has them.
class NNL_API Memory {
 public:
  explicit Memory(size_t bytes);
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  size_t bytes_;
  std::byte* data_;
};

// Steps over slots. A slot lies in the arena at an offset, or is bound to memory from outside
// before a run. Different plans may run in different threads at once; a second run of one plan,
// while the first is going on, is an error.
class NNL_API Plan {
 public:
  static constexpr int64_t outside = -1;  // offset of a slot that is bound by the caller

  // One slot per offset; slot 0 is the input that is left out (null).
  // Args: own: whether it has an arena of its own; use_arena() must be called before a run if not.
  Plan(std::vector<int64_t> offsets, size_t arena_bytes, bool own = true);

  // Appends a step. `name` is for messages and profiles. Several may have one kernel. ValueError:
  // no kernel.
  void add(std::string name, std::shared_ptr<Kernel> kernel, std::vector<int> in,
           std::vector<int> out, int64_t workspace_offset);

  void bind(int slot, void* data);
  void* data(int slot) const { return pointers_[static_cast<size_t>(slot)]; }

  // Runs the steps [begin, end), on no more than `most` threads unless that is 0. An exception of a
  // kernel comes out with the step's name in front.
  void run(size_t begin, size_t end, int most = 0);

  // The same, adding nanoseconds to times()[step] and keeping when each step started.
  void run_timed(size_t begin, size_t end);

  bool running() const { return running_; }

  size_t size() const { return steps_.size(); }
  // Whether output o of a step may lie in the memory of its input i, as Kernel says it.
  bool may_overwrite(size_t step, size_t o, size_t i) const {
    return steps_.at(step).kernel->may_overwrite(o, i);
  }
  size_t at() const { return at_; }  // the step whose exception has ended the latest run
  const std::vector<int64_t>& times() const { return times_; }    // of the latest timed run, ns
  const std::vector<int64_t>& starts() const { return starts_; }  // ns since the clock's epoch
  // The arena, which lives as long as somebody holds it: arrays in it do not need the plan.
  const std::shared_ptr<Memory>& arena() const { return arena_; }
  size_t arena_bytes() const { return arena_bytes_; }  // that it needs

  // Runs in this memory from now on, which has as many bytes or more. Plans that run one after the
  // other may have the same.
  void use_arena(std::shared_ptr<Memory> arena);

 private:
  struct Step {
    std::string name;
    std::shared_ptr<Kernel> kernel;
    std::vector<int> in, out;
    std::vector<void*> pointers;  // of inputs, then of outputs
    int64_t workspace;            // offset
    void* scratch;
  };
  void* scratch_of(int64_t offset) const {
    return offset == outside || !arena_ ? nullptr : arena_->data() + offset;
  }
  void run_step(Step& step);
  void refresh();

  std::vector<int64_t> offsets_;
  size_t arena_bytes_;
  std::shared_ptr<Memory> arena_;
  std::vector<void*> pointers_;
  std::vector<Step> steps_;
  std::vector<int64_t> times_, starts_;
  size_t at_ = 0;
  int threads_ = 0;  // that the kernels were made for: scratch memory has room for so many
  std::atomic<bool> running_{false};
  bool stale_ = true;  // a bound address has changed since the steps' pointers were filled in
};

}  // namespace nnl
