// SPDX-License-Identifier: Apache-2.0
// Runner: a program made of kernels, over memory that is planned in advance.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "nnl/plan.h"
#include "nnl/program.h"

namespace nnl {

struct Call;  // lowering.h
struct Lowered;
namespace opencl {
class Space;
}

// Values are called by their numbers in the program. A runner runs in one thread at a time;
// different ones may run at once, also over the same given memory where no program writes it.
class NNL_API Runner {
 public:
  // Gives the memory of a given value, of the spec that it has in the program. It stays the
  // caller's, and must stay there until the runner ends or another is bound. Asked once for each
  // given value but constants of one number, in their order.
  using Given = std::function<void*(int value)>;

  // Args: program: one that check() has seen.
  //   prepare: whether weights that the program does not write are packed for its kernels once;
  //   prepare() must be called then before the first run, and when they have changed.
  //   own: whether it has memory of its own for what it computes; if not, use_arena() gives it.
  //   device: runs the steps that it has kernels for; upload() must be called then before the first
  //   run, and when given values that are no inputs have changed. Weights are not packed with it.
  // ValueError: a step has no kernel in this build, or reads what no step has made.
  Runner(const ProgramData& program, const Given& given, bool prepare = false, bool own = true,
         std::shared_ptr<opencl::Space> device = nullptr);
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  // Reads or writes a given value or an output there from now on.
  void bind(int value, void* data);

  // Memory of a given value, an output or another kept value.
  void* data(int value) const;

  // What the program gives: names, and the numbers to ask data() for. All in the plain order.
  const std::vector<std::pair<std::string, int>>& outputs() const { return outputs_; }
  const Spec& spec(int value) const { return values_[static_cast<size_t>(value)].spec; }

  // The whole program, then what a run hands on to the next one. Allocates nothing. Throws
  // ValueError for values that a function does not take; the text says which function.
  void run();

  // One of the two parts of a program that is cut in two, such as forward and backward.
  void run_part(bool second);

  // Runs, and adds the seconds that each step of the program has taken to `seconds`.
  void run_timed(std::vector<double>& seconds);

  // Packs weights again. prepared_from: the given values that this reads.
  void prepare();
  const std::vector<int>& prepared_from() const { return prepared_from_; }

  // An array that is prepared. Two of one key hold the same, in runners of one program over the
  // same given memory, at whatever sizes: one memory will do for both.
  struct Prepared {
    std::string key;
    size_t bytes;
  };
  const std::vector<Prepared>& prepared() const { return prepared_; }
  // Lets one of them lie there from now on; prepares it.
  void share_prepared(size_t i, std::shared_ptr<std::byte> memory);
  void prepare(size_t i);

  // Copies to the device what stays there between runs.
  void upload();

  // The given values that a run changes.
  const std::vector<int>& written() const { return written_; }

  bool running() const { return plan_->running(); }
  size_t arena_bytes() const { return plan_->arena_bytes(); }
  void use_arena(const std::shared_ptr<Memory>& arena) { plan_->use_arena(arena); }

 private:
  struct Carry {
    int to, from;  // roots; 0 for zeros
    size_t bytes;
  };
  struct Place {
    int root;
    std::vector<size_t> calls;  // that make it, in their order
    std::shared_ptr<std::byte> memory;
  };
  void place_prepared(const std::vector<Call>& calls, std::vector<bool>& outside, size_t named);
  void find_written(const ProgramData& program, const std::map<int, int>& copies);
  int root(int value) const { return values_[static_cast<size_t>(value)].root; }
  void add_crossings(Lowered& lowered, const std::vector<int>& kept);
  void hand_on();

  std::vector<ProgramValue> values_;
  std::vector<std::pair<std::string, int>> outputs_;
  std::vector<std::unique_ptr<Memory>> constants_;
  std::unique_ptr<Plan> plan_;
  std::vector<size_t> steps_;     // of the calls of the plan
  size_t prepare_ = 0, cut_ = 0;  // where the plan's calls for every run begin; the second part
  std::vector<Prepared> prepared_;
  std::vector<Place> places_;  // of each of them
  std::vector<int> prepared_from_, written_;
  std::vector<Carry> carries_;
  std::shared_ptr<opencl::Space> device_;
  std::vector<int> resident_;  // roots of given values that stay on it
};

// The kernel of a program's only step, which has programs inside.
// ValueError: they do not fit what it reads and makes, or a step of theirs has no kernel.
NNL_API std::unique_ptr<Kernel> control_kernel(const ProgramData& program);

}  // namespace nnl
