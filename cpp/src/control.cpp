// SPDX-License-Identifier: Apache-2.0
#include "control.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
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
  explicit Inner(const ProgramData& program)
      : runner_((check(program), program), [](int) { return nullptr; }) {
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
  // Args: place: (position of an input) -> that of the same among the step's, -1 for none.
  template <class Place>
  void check_written(const std::vector<int>& places, Place&& place) const {
    for (int i : runner_.written())
      for (size_t k = 0; k < inputs_.size(); ++k)
        if (inputs_[k] == i && !std::count(places.begin(), places.end(), place(k)))
          throw ValueError("a program inside writes what the step does not");
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
      branch.check_written(step.writes, [](size_t k) { return static_cast<int>(k) + 1; });
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

size_t aligned(size_t bytes) { return (bytes + 63) / 64 * 64; }

// while: trips, x... -> carried..., stacked..., the number of trips. x are values that the body
// gives anew, arrays of which it gets one row at each trip, and what stays the same.
class While : public Kernel {
 public:
  While(const ProgramStep& step, const Signature& s)
      : body_(single(step, "body")),
        x_(s.in.size() - !s.in.empty()),
        y_(s.out.size()),
        going_(s.in.size()) {
    const Spec count{{}, DType::i64, Layout::plain}, flag{{}, DType::boolean, Layout::plain};
    const Attributes attributes = Attributes::of(step.attributes);
    if (s.in.empty() || !same(s.in[0], count)) throw ValueError("trips is not one int64");
    if (s.out.empty() || !same(s.out.back(), count)) throw ValueError("it gives no count of trips");
    const int64_t most = static_cast<int64_t>(s.in.size()) - 1;
    const int64_t n = attributes.integer("carried"), m = attributes.integer("scanned");
    if (n < 0 || m < 0 || n > most || m > most - n || n > static_cast<int64_t>(s.out.size()) - 1)
      throw ValueError("it carries or scans more than there is");
    carried_ = static_cast<size_t>(n), scanned_ = static_cast<size_t>(m);
    backwards_ = attributes.flag("backwards");
    rows_ = attributes.has("rows") ? attributes.integer("rows") : -1;
    std::vector<Spec> inside(s.in.begin() + 1, s.in.end()), outside(s.out.begin(), s.out.end() - 1);
    for (size_t k = 0; k < carried_; ++k)
      if (!same(inside[k], outside[k])) throw ValueError("it carries other values than it gives");
    for (size_t k = carried_; k < carried_ + scanned_; ++k) take_row(inside[k]);
    for (size_t k = carried_; k < outside.size(); ++k) take_row(outside[k]);
    body_.check_inputs(inside);
    body_.check_outputs(outside);
    body_.check_written(step.writes, [&](size_t k) { return place(k); });
    if (step.programs.count("condition")) {
      if (backwards_) throw ValueError("a loop that goes backwards has a condition");
      condition_ = std::make_unique<Inner>(single(step, "condition"));
      const auto first = inside.begin() + n;
      inside.erase(first, first + m);
      condition_->check_inputs(inside);
      condition_->check_outputs({flag});
      condition_->check_written(step.writes,
                                [&](size_t k) { return place(k < carried_ ? k : k + scanned_); });
    }
    for (const Spec& spec : s.in) in_bytes_.push_back(row_bytes(spec));
    for (const Spec& spec : s.out) out_bytes_.push_back(row_bytes(spec));
    for (size_t k = 0; k < carried_; ++k) {
      sizes_.push_back(s.in[k + 1].bytes());
      places_.push_back(half_);
      half_ += aligned(sizes_.back());
    }
  }

  size_t workspace() const override { return 2 * half_ + 64; }

  void run(const Buffers& b) override {
    auto* memory = static_cast<std::byte*>(b.workspace);
    auto* goes_on = reinterpret_cast<uint8_t*>(memory + 2 * half_);
    int64_t most = std::max<int64_t>(*b.input<int64_t>(0), 0), done = 0;
    if (rows_ >= 0) most = std::min(most, rows_);
    std::copy_n(b.in + 1, x_.size(), x_.begin());
    for (; done < most; ++done) {
      if (condition_) {
        void* flag = goes_on;
        const auto end = std::copy_n(x_.begin(), carried_, going_.begin());
        std::copy(x_.begin() + static_cast<std::ptrdiff_t>(carried_ + scanned_), x_.end(), end);
        condition_->run(going_.data(), &flag);
        if (!*goes_on) break;
      }
      const auto row = static_cast<size_t>(backwards_ ? most - 1 - done : done);
      for (size_t k = carried_; k < carried_ + scanned_; ++k)
        x_[k] = static_cast<std::byte*>(b.in[k + 1]) + row * in_bytes_[k + 1];
      for (size_t k = 0; k < carried_; ++k) y_[k] = memory + (done % 2 ? half_ : 0) + places_[k];
      for (size_t k = carried_; k + 1 < y_.size(); ++k)
        y_[k] = b.output<std::byte>(k) + row * out_bytes_[k];
      body_.run(x_.data(), y_.data());
      std::copy_n(y_.begin(), carried_, x_.begin());
    }
    for (size_t k = 0; k < carried_; ++k) std::memcpy(b.out[k], x_[k], sizes_[k]);
    for (size_t k = carried_; k + 1 < y_.size(); ++k)  // rows of trips that there were not
      std::memset(b.output<std::byte>(k) + static_cast<size_t>(done) * out_bytes_[k], 0,
                  static_cast<size_t>(rows_ - done) * out_bytes_[k]);
    *b.output<int64_t>(y_.size() - 1) = done;
  }

 private:
  static const ProgramData& single(const ProgramStep& step, const std::string& name) {
    const auto& found = programs_of(step, name);
    if (found.size() != 1) throw ValueError("it has several of " + name);
    return found[0];
  }

  // The spec of one row of an array with a row for each trip.
  void take_row(Spec& spec) const {
    if (rows_ < 0 || spec.shape.empty() || spec.shape[0] != rows_)
      throw ValueError(spec.text() + " has not a row for each trip");
    spec.shape.erase(spec.shape.begin());
  }

  static size_t row_bytes(Spec spec) {
    if (!spec.shape.empty()) spec.shape.erase(spec.shape.begin());
    return spec.bytes();
  }

  // Where the body's input k is among those of the step, if it may be written.
  int place(size_t k) const { return k < carried_ + scanned_ ? -1 : static_cast<int>(k) + 1; }

  Inner body_;
  std::unique_ptr<Inner> condition_;  // null: every trip is followed by another
  size_t carried_, scanned_;
  int64_t rows_;  // -1 for none
  bool backwards_;
  std::vector<void*> x_, y_, going_;
  std::vector<size_t> in_bytes_, out_bytes_;  // of a row
  std::vector<size_t> sizes_, places_;        // of what is carried
  size_t half_ = 0;                           // bytes of all that
};

}  // namespace

std::unique_ptr<Kernel> control_kernel(const ProgramStep& step, const Signature& signature) {
  if (std::count(signature.in_given.begin(), signature.in_given.end(), false))
    throw ValueError("it lacks an input");
  if (step.op == "switch") return std::make_unique<Switch>(step, signature);
  if (step.op == "while") return std::make_unique<While>(step, signature);
  throw ValueError("there are no programs inside of " + step.op);
}

std::unique_ptr<Kernel> control_kernel(const ProgramData& program) {
  const ProgramStep& step = program.steps.at(0);
  Signature s;
  const auto spec = [&](int i) { return program.values[static_cast<size_t>(i)].spec; };
  for (int i : step.in) s.in.push_back(spec(i)), s.in_given.push_back(i != 0);
  for (int o : step.out) s.out.push_back(spec(o));
  return control_kernel(step, s);
}

}  // namespace nnl
