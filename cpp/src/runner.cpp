// SPDX-License-Identifier: Apache-2.0
#include "nnl/runner.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "lowering.h"
#include "nnl/memory_plan.h"
#include "opencl/space.h"

namespace nnl {
namespace {

// Where the values that kernels compute lie in one arena.
class Placement {
 public:
  // Args: outside: roots whose memory is not the arena's. kept: roots that are read after a run.
  Placement(const std::vector<ProgramValue>& values, const std::vector<Call>& calls,
            const std::vector<bool>& outside, const std::vector<int>& kept)
      : values_(values), outside_(outside), at_(values.size(), -1), last_(values.size(), 0) {
    const size_t end = calls.size();
    for (size_t t = 0; t < end; ++t) {
      for (int i : calls[t].in) last_[root(i)] = t;
      for (int o : calls[t].out) last_[root(o)] = t;
    }
    for (int k : kept) last_[root(k)] = end;
    for (size_t t = 0; t < end; ++t) add(calls[t], t);
    for (int k : kept)
      if (!outside_[root(k)] && at_[root(k)] < 0)
        throw ValueError("value " + std::to_string(k) + " is kept, and nothing makes it");
    arena = plan_memory(intervals_);
    for (size_t i = 1; i < values.size(); ++i) offsets.push_back(offset(at_[i]));
    for (int w : scratch_) workspaces.push_back(offset(w));
  }

  std::vector<int64_t> offsets{Plan::outside}, workspaces;
  size_t arena;

 private:
  size_t root(int i) const { return static_cast<size_t>(values_[static_cast<size_t>(i)].root); }

  int64_t offset(int at) const {
    return at < 0 ? Plan::outside : intervals_[static_cast<size_t>(at)].offset;
  }

  void add(const Call& call, size_t t) {
    for (int i : call.in)
      if (i && !outside_[root(i)] && at_[root(i)] < 0)
        throw ValueError(call.label + ": reads a value that nothing has made");
    for (size_t o = 0; o < call.out.size(); ++o) {
      const size_t r = root(call.out[o]);
      if (outside_[r] || at_[r] >= 0) continue;
      at_[r] = taken_over(call, o, t);
      if (at_[r] < 0) {
        at_[r] = static_cast<int>(intervals_.size());
        intervals_.push_back({t, t, values_[r].spec.bytes()});
      }
      Interval& x = intervals_[static_cast<size_t>(at_[r])];
      x.last = std::max(x.last, last_[r]);
    }
    const size_t bytes = call.kernel->workspace();
    scratch_.push_back(bytes ? static_cast<int>(intervals_.size()) : -1);
    if (bytes) intervals_.push_back({t, t, bytes});
  }

  // The memory of an input that dies here and that output o may be written over; -1 for none.
  int taken_over(const Call& call, size_t o, size_t t) const {
    for (int i : call.in) {
      const size_t r = root(i);
      const int at = at_[r];
      if (at < 0 || last_[r] != t || intervals_[static_cast<size_t>(at)].last != t) continue;
      const bool taken =
          std::any_of(call.out.begin(), call.out.end(), [&](int q) { return at_[root(q)] == at; });
      const auto fits = [&](size_t j) {
        return root(call.in[j]) != r || call.kernel->may_overwrite(o, j);
      };
      size_t j = 0;
      while (j < call.in.size() && fits(j)) ++j;
      if (!taken && j == call.in.size() &&
          values_[r].spec.bytes() == values_[root(call.out[o])].spec.bytes())
        return at;
    }
    return -1;
  }

  const std::vector<ProgramValue>& values_;
  const std::vector<bool>& outside_;
  std::vector<int> at_;  // the interval of a root; -1 for none
  std::vector<size_t> last_;
  std::vector<Interval> intervals_;
  std::vector<int> scratch_;
};

}  // namespace

Runner::Runner(const ProgramData& program, const Given& given, bool prepare, bool own,
               std::shared_ptr<opencl::Space> device)
    : device_(std::move(device)) {
  Lowered lowered = lower(program, prepare && !device_, device_.get());
  values_ = std::move(lowered.values);
  outputs_ = std::move(lowered.outputs);
  prepare_ = lowered.prepared, cut_ = lowered.cut;
  std::vector<bool> outside(values_.size(), false);
  outside[0] = true;
  std::map<int, int> copies;  // given value -> its copy in 16 bits
  for (size_t i = 1; i < values_.size(); ++i) {
    if (values_[i].given()) outside[i] = true;
    if (values_[i].copies) copies[values_[i].copies] = static_cast<int>(i);
  }
  for (auto [made, weight] : program.results)
    if (copies.count(weight)) outside[static_cast<size_t>(made)] = true;
  place_prepared(lowered.calls, outside, program.values.size());
  find_written(program, copies);
  std::vector<int> kept = program.kept;
  for (const auto& [name, i] : outputs_) kept.push_back(i);
  for (auto [to, from] : lowered.carries) kept.push_back(from);
  if (device_) {
    if (!copies.empty())
      throw ValueError("copies of weights in 16 bits are not kept on devices: save it in float32");
    add_crossings(lowered, kept);
  }
  const Placement placed(values_, lowered.calls, outside, kept);
  if (device_) {
    std::vector<size_t> bytes(values_.size(), 0);
    for (const Call& call : lowered.calls)
      if (call.on_device)
        for (const auto& values : {call.in, call.out})
          for (int i : values)
            if (i && outside[static_cast<size_t>(root(i))])
              bytes[static_cast<size_t>(root(i))] = spec(root(i)).bytes();
    device_->place(placed.arena, placed.offsets, bytes);
  }
  plan_ = std::make_unique<Plan>(placed.offsets, placed.arena, own);
  for (Call& call : lowered.calls) {
    for (int& i : call.in) i = root(i);
    for (int& o : call.out) o = root(o);
    plan_->add(call.label, std::move(call.kernel), call.in, call.out,
               placed.workspaces[steps_.size()]);
    steps_.push_back(call.step);
  }
  for (size_t i = 1; i < values_.size(); ++i) {
    const ProgramValue& v = values_[i];
    if (!v.given()) continue;
    const int n = static_cast<int>(i);
    if (v.filled) {
      constants_.push_back(std::make_unique<Memory>(v.spec.bytes()));
      plan_->bind(n, constants_.back()->data());
      fill(plan_->data(n), v.spec, v.fill);
    } else {
      plan_->bind(n, given(n));
    }
  }
  if (own)
    for (size_t i = 0; i < prepared_.size(); ++i) {
      const auto memory = std::make_shared<Memory>(prepared_[i].bytes);
      share_prepared(i, {memory, memory->data()});
    }
  for (auto [made, weight] : program.results)
    if (const auto copy = copies.find(weight); copy != copies.end())
      plan_->bind(made, plan_->data(copy->second));
  for (auto [to, from] : lowered.carries)
    carries_.push_back({root(to), from ? root(from) : 0, spec(to).bytes()});
}

namespace {

// What an array that calls make once depends on, besides what the given values hold: two runners of
// a program, at other sizes, find by it what they may share.
std::string key_of(const std::vector<Call>& calls, const std::vector<size_t>& makers,
                   const std::vector<ProgramValue>& values, size_t named, int value) {
  std::string key;
  std::map<int, size_t> own;  // values that only these kernels have, numbered here
  const auto add_value = [&](int i) {
    const auto at = static_cast<size_t>(i);
    key += at < named ? " v" + std::to_string(i)
                      : " n" + std::to_string(own.emplace(i, own.size()).first->second);
    if (i) key += values[at].spec.text();
  };
  for (size_t t : makers) {
    const Call& call = calls[t];
    key += std::to_string(call.step) + (call.of ? call.of->op + text_of_open(*call.of) : "") + ":" +
           call.layout;
    for (int i : call.in) add_value(i);
    key += " ->";
    for (int o : call.out) add_value(o);
    key += "\n";
  }
  add_value(value);
  return key;
}

}  // namespace

// What calls that run once make for the others lies in memory of its own.
void Runner::place_prepared(const std::vector<Call>& calls, std::vector<bool>& outside,
                            size_t named) {
  std::map<int, std::set<size_t>> made;  // root -> the calls behind it
  std::set<int> from;
  for (size_t t = 0; t < prepare_; ++t) {
    std::set<size_t> behind{t};
    for (int i : calls[t].in) {
      if (const auto maker = made.find(root(i)); maker != made.end())
        behind.insert(maker->second.begin(), maker->second.end());
      if (const auto& v = values_[static_cast<size_t>(root(i))]; v.given() && !v.filled)
        from.insert(root(i));
    }
    for (int o : calls[t].out) made[root(o)] = behind;
  }
  for (size_t t = prepare_; t < calls.size(); ++t)
    for (int i : calls[t].in) {
      const int r = root(i);
      const auto maker = made.find(r);
      if (maker == made.end() || outside[static_cast<size_t>(r)]) continue;
      outside[static_cast<size_t>(r)] = true;
      const std::vector<size_t> behind(maker->second.begin(), maker->second.end());
      prepared_.push_back({key_of(calls, behind, values_, named, r), spec(r).bytes()});
      places_.push_back({r, behind, nullptr});
    }
  prepared_from_.assign(from.begin(), from.end());
}

void Runner::share_prepared(size_t i, std::shared_ptr<std::byte> memory) {
  Place& place = places_.at(i);
  place.memory = std::move(memory);
  plan_->bind(place.root, place.memory.get());
}

void Runner::prepare() { plan_->run(0, prepare_); }

void Runner::prepare(size_t i) {
  for (size_t t : places_.at(i).calls) plan_->run(t, t + 1);
}

// Puts a copy where a call reads what the other side has written last, and where what is read after
// a run, or by the next one, is on the wrong side at the end.
void Runner::add_crossings(Lowered& lowered, const std::vector<int>& kept) {
  const size_t n = values_.size();
  std::vector<char> on_host(n, false), on_device(n, false), stays(n, false);
  for (size_t i = 1; i < n; ++i) on_host[i] = values_[i].given();
  std::set<int> carried;
  for (const auto& [to, from] : lowered.carries) carried.insert(root(to));
  for (const Call& call : lowered.calls)
    if (call.on_device)
      for (int i : call.in)
        if (const ProgramValue& v = values_[static_cast<size_t>(root(i))];
            v.given() && v.role != ProgramValue::Role::input && !carried.count(root(i)))
          stays[static_cast<size_t>(root(i))] = on_device[static_cast<size_t>(root(i))] = true;
  std::vector<Call> calls;
  const auto bring = [&](int value, bool device, size_t step) {
    const int r = root(value);
    const auto at = static_cast<size_t>(r);
    std::vector<char>& there = device ? on_device : on_host;
    if (!r || there[at] || !(on_host[at] || on_device[at])) return;
    auto copy = device_->copy(r, spec(r).bytes(), device);
    const char* label = device ? "copy to the device" : "copy to the host";
    calls.push_back({label, std::move(copy), {r}, {r}, step, false, nullptr, ""});
    there[at] = true;
  };
  for (Call& call : lowered.calls) {
    const bool device = call.on_device;
    const size_t step = call.step;
    for (int i : call.in) bring(i, device, step);
    const auto changes = [&](int i) {
      const auto at = static_cast<size_t>(root(i));
      on_device[at] = device, on_host[at] = !device;
    };
    for (int o : call.out) changes(o);
    if (call.of)
      for (int p : call.of->writes) changes(call.in[static_cast<size_t>(p)]);
    calls.push_back(std::move(call));
  }
  const size_t last = calls.empty() ? 0 : calls.back().step;
  for (int i : kept) bring(i, false, last);
  for (int i : written_) bring(i, false, last);
  for (size_t i = 1; i < n; ++i)
    if (stays[i]) bring(static_cast<int>(i), true, last), resident_.push_back(static_cast<int>(i));
  lowered.calls = std::move(calls);
  lowered.cut = cut_ = lowered.calls.size();
}

void Runner::upload() {
  for (int r : resident_) device_->upload(r, plan_->data(r), spec(r).bytes());
}

void Runner::find_written(const ProgramData& program, const std::map<int, int>& copies) {
  std::set<int> found;
  const auto note = [&](int i) {
    if (i && values_[static_cast<size_t>(root(i))].given()) found.insert(root(i));
  };
  const std::function<void(const ProgramStep&)> note_step = [&](const ProgramStep& step) {
    for (int p : step.writes) note(step.in[static_cast<size_t>(p)]);
    for (int o : step.out)
      if (!step.view) note(o);
    for (const ProgramStep& part : step.parts) note_step(part);
  };
  for (const ProgramStep& step : program.steps) note_step(step);
  for (auto [to, from] : program.carries) note(to);
  for (auto [made, weight] : program.results)
    if (const auto copy = copies.find(weight); copy != copies.end()) note(copy->second);
  written_.assign(found.begin(), found.end());
}

void Runner::bind(int value, void* data) { plan_->bind(root(value), data); }

void* Runner::data(int value) const { return plan_->data(root(value)); }

void Runner::hand_on() {
  for (const Carry& c : carries_) {
    if (c.from) {
      std::memcpy(plan_->data(c.to), plan_->data(c.from), c.bytes);
    } else {
      std::memset(plan_->data(c.to), 0, c.bytes);
    }
  }
}

void Runner::run() {
  plan_->run(prepare_, plan_->size());
  hand_on();
}

void Runner::run_part(bool second) {
  plan_->run(second ? cut_ : prepare_, second ? plan_->size() : cut_);
}

void Runner::run_timed(std::vector<double>& seconds) {
  if (device_) device_->is_timed = true;
  plan_->run_timed(prepare_, plan_->size());
  if (device_) device_->is_timed = false;
  hand_on();
  for (size_t t = prepare_; t < steps_.size(); ++t)
    seconds.at(steps_[t]) += static_cast<double>(plan_->times()[t]) * 1e-9;
}

}  // namespace nnl
