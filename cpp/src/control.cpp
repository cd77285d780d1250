// SPDX-License-Identifier: Apache-2.0
#include "control.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "nnl/runner.h"

namespace nnl {
namespace {

bool same(const Spec& a, const Spec& b) {
  return a.shape == b.shape && a.dtype == b.dtype && a.layout == b.layout;
}

// A program inside a step: its inputs and outputs lie where the step says at every run.
class Inner {
 public:
  explicit Inner(const ProgramData& program) : runner_(program, [](int) { return nullptr; }) {
    if (!program.carries.empty() || !program.results.empty())
      throw ValueError("a program inside hands values on to its next run");
    for (size_t i = 1; i < program.values.size(); ++i) {
      const ProgramValue& v = program.values[i];
      if (!v.given() || v.filled) continue;
      if (v.role != ProgramValue::Role::input || v.copies)
        throw ValueError("a program inside keeps value " + std::to_string(i));
      inputs_.push_back(static_cast<int>(i));
    }
  }

  void check_inputs(const std::vector<Spec>& wanted) const {
    bool fits = inputs_.size() == wanted.size();
    for (size_t k = 0; fits && k < wanted.size(); ++k)
      fits = same(runner_.spec(inputs_[k]), wanted[k]);
    if (!fits) throw ValueError("the inputs are others than those of a program inside");
  }

  void check_outputs(const std::vector<Spec>& wanted) const {
    bool fits = runner_.outputs().size() == wanted.size();
    for (size_t k = 0; fits && k < wanted.size(); ++k)
      fits = same(runner_.spec(runner_.outputs()[k].second), wanted[k]);
    if (!fits) throw ValueError("the outputs are others than those of a program inside");
  }

  // What it writes, the step must say that it writes.
  void check_written(const std::vector<int>& places, size_t first) const {
    for (int i : runner_.written()) {
      const auto at = std::find(inputs_.begin(), inputs_.end(), i);
      const int place = static_cast<int>(at - inputs_.begin()) + static_cast<int>(first);
      if (at != inputs_.end() && !std::count(places.begin(), places.end(), place))
        throw ValueError("a program inside writes what the step does not");
    }
  }

  void run(void* const* in, void* const* out) {
    for (size_t k = 0; k < inputs_.size(); ++k) runner_.bind(inputs_[k], in[k]);
    for (size_t k = 0; k < runner_.outputs().size(); ++k)
      runner_.bind(runner_.outputs()[k].second, out[k]);
    runner_.run();
  }

 private:
  Runner runner_;
  std::vector<int> inputs_;
};

const std::vector<ProgramData>& programs_of(const ProgramStep& step, const std::string& name) {
  const auto found = step.programs.find(name);
  if (found == step.programs.end()) throw ValueError("it has no " + name);
  return found->second;
}

// switch: index, x... -> what the branch of that number gives for x.
class Switch : public Kernel {
 public:
  Switch(const ProgramStep& step, const Signature& s) {
    if (s.in.empty() || !same(s.in[0], {{}, DType::i64, Layout::plain}))
      throw ValueError("index is not one number of int64");
    for (const ProgramData& program : programs_of(step, "branches")) {
      branches_.push_back(std::make_unique<Inner>(program));
      const Inner& branch = *branches_.back();
      branch.check_inputs({s.in.begin() + 1, s.in.end()});
      branch.check_outputs(s.out);
      branch.check_written(step.writes, 1);
    }
  }

  void run(const Buffers& b) override {
    const int64_t index = *b.input<int64_t>(0);
    const auto count = static_cast<int64_t>(branches_.size());
    if (index < 0 || index >= count)
      throw ValueError("index holds " + std::to_string(index) + ", and there are " +
                       std::to_string(count) + " branches");
    branches_[static_cast<size_t>(index)]->run(b.in + 1, b.out);
  }

 private:
  std::vector<std::unique_ptr<Inner>> branches_;
};

}  // namespace

std::unique_ptr<Kernel> control_kernel(const ProgramStep& step, const Signature& signature) {
  if (std::count(signature.in_given.begin(), signature.in_given.end(), false))
    throw ValueError("it lacks an input");
  if (step.op == "switch") return std::make_unique<Switch>(step, signature);
  throw ValueError("there are no programs inside of " + step.op);
}

}  // namespace nnl
