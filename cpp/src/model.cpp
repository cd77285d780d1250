// SPDX-License-Identifier: Apache-2.0
#include "nnl/model.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "nnl/kernel.h"
#include "nnl/memory_plan.h"
#include "nnl/plan.h"
#include "nnl/program_file.h"
#include "nnl/threads.h"

namespace nnl {
namespace {

constexpr const char* convert = "to_layout";

Signature signature_of(const Spec& in, const Spec& out) {
  Signature s;
  s.in = {in}, s.in_given = {true}, s.out = {out};
  return s;
}

std::unique_ptr<Kernel> conversion(const char* op, const Spec& in, const Spec& out) {
  auto kernel = make_kernel(op, signature_of(in, out));
  if (!kernel)
    throw ValueError(std::string(op) + " has no kernel for " + in.text() + " to " + out.text());
  return kernel;
}

void run_once(Kernel& kernel, const void* in, void* out) {
  const ThreadScope scope;
  const Memory scratch(kernel.workspace());
  void* ins[] = {const_cast<void*>(in)};
  void* outs[] = {out};
  kernel.run({ins, outs, scratch.data()});
}

// One number in every element of an array of any type.
void fill(void* data, const Spec& spec, double value) {
  const Spec one{{}, DType::f32, Layout::plain};
  const auto n = static_cast<size_t>(spec.size());
  const auto put = [&](auto v) { std::fill_n(static_cast<decltype(v)*>(data), n, v); };
  switch (spec.dtype) {
    case DType::f32:
      return put(static_cast<float>(value));
    case DType::f64:
      return put(value);
    case DType::i8:
      return put(static_cast<int8_t>(value));
    case DType::u8:
    case DType::boolean:
      return put(static_cast<uint8_t>(value));
    case DType::i16:
      return put(static_cast<int16_t>(value));
    case DType::u16:
      return put(static_cast<uint16_t>(value));
    case DType::i32:
      return put(static_cast<int32_t>(value));
    case DType::u32:
      return put(static_cast<uint32_t>(value));
    case DType::i64:
      return put(static_cast<int64_t>(value));
    case DType::u64:
      return put(static_cast<uint64_t>(value));
    default:
      break;  // 16-bit floats
  }
  const float wide = static_cast<float>(value);
  uint16_t narrow = 0;
  run_once(*conversion("cast", one, {{}, spec.dtype, Layout::plain}), &wide, &narrow);
  put(narrow);
}

// From the steps of a program to kernels, with the steps that fused ones were where these decline.
class Lowering {
 public:
  struct Call {
    std::string label;
    std::unique_ptr<Kernel> kernel;
    std::vector<int> in, out;
  };

  explicit Lowering(const ProgramData& program) : values(program.values) {
    for (const ProgramStep& step : program.steps) add(step);
  }

  std::vector<ProgramValue> values;  // those of the program, then those that only this has
  std::vector<Call> calls;

 private:
  const Spec& spec(int i) const { return values[static_cast<size_t>(i)].spec; }

  void add(const ProgramStep& step) {
    if (step.view && step.writes.empty()) return;  // its memory is that of its input
    auto kernel = kernel_of(step, step.in, step.out);
    if (kernel) {
      calls.push_back({step.label, std::move(kernel), step.in, step.out});
      return;
    }
    if (step.parts.empty()) {
      std::string ins;
      for (int i : step.in) ins += (ins.empty() ? "" : ", ") + (i ? spec(i).text() : "nothing");
      throw ValueError(step.label + ": this build has no kernel of " + step.op + " for " + ins);
    }
    std::map<int, int> plain;
    for (const ProgramStep& part : step.parts) add_plain(part, plain);
    for (int o : step.out)
      if (const auto made = plain.find(o); made != plain.end()) change_order(made->second, o);
  }

  // A part of a fused step, over arrays in the plain order.
  void add_plain(const ProgramStep& part, std::map<int, int>& plain) {
    ProgramStep step = part;
    step.parts.clear();
    if (part.writes.empty())  // an update does not mind any order, if all arrays have it
      for (int& i : step.in) i = in_plain_order(i, plain);
    for (int& o : step.out) {
      const bool is_view = part.view && part.writes.empty();
      if (!is_view && (spec(o).layout == Layout::plain || !part.writes.empty())) continue;
      ProgramValue v;
      v.spec = spec(o), v.spec.layout = Layout::plain;
      v.root =
          is_view ? values[static_cast<size_t>(step.in[0])].root : static_cast<int>(values.size());
      plain[o] = static_cast<int>(values.size());
      values.push_back(v);
      o = plain[o];
    }
    if (part.view && part.writes.empty()) return;
    if (auto kernel = kernel_of(step, step.in, step.out)) {
      calls.push_back({step.label, std::move(kernel), step.in, step.out});
      return;
    }
    if (part.parts.empty())
      throw ValueError(step.label + ": this build has no kernel of " + step.op);
    for (const ProgramStep& inner : part.parts) add_plain(inner, plain);
  }

  int in_plain_order(int i, std::map<int, int>& plain) {
    if (const auto known = plain.find(i); known != plain.end()) return known->second;
    if (!i || spec(i).layout == Layout::plain) return i;
    ProgramValue v;
    v.spec = spec(i), v.spec.layout = Layout::plain, v.root = static_cast<int>(values.size());
    values.push_back(v);
    plain[i] = v.root;
    change_order(i, v.root);
    return v.root;
  }

  void change_order(int from, int to) {
    if (from != to && spec(to).layout != spec(from).layout)
      calls.push_back({convert, conversion(convert, spec(from), spec(to)), {from}, {to}});
  }

  std::unique_ptr<Kernel> kernel_of(const ProgramStep& step, const std::vector<int>& in,
                                    const std::vector<int>& out) {
    static const std::vector<std::string> names = kernel_names();
    Signature s;
    for (int i : in) {
      s.in_given.push_back(i != 0);
      s.in.push_back(i ? spec(i) : Spec{});
    }
    for (int o : out) s.out.push_back(spec(o));
    if (std::binary_search(names.begin(), names.end(), step.op)) {
      s.attributes = Attributes(step.attributes);
      return make_kernel(step.op, s);
    }
    const auto is_float = [](const Spec& x) { return x.dtype <= DType::bf16; };
    if (step.code.empty() || out.size() != 1 || !is_float(s.out[0]) || in.empty() || !in[0] ||
        !is_float(s.in[0]) || std::count(in.begin(), in.end(), 0) ||
        step.shapes.size() != in.size())
      return nullptr;
    std::unordered_map<std::string, Attribute> asked;
    asked["code"] = step.code, asked["constants"] = step.constants;
    asked["outputs"] =
        std::vector<int64_t>{static_cast<int64_t>(in.size() + step.code.size() / 4 - 1)};
    std::vector<int64_t> seen;
    bool other = false;
    for (size_t k = 0; k < in.size(); ++k) {
      other = other || step.shapes[k] != s.in[k].shape;
      const size_t rank = s.out[0].shape.size();
      if (step.shapes[k].size() > rank) return nullptr;
      seen.insert(seen.end(), rank - step.shapes[k].size(), 1);
      seen.insert(seen.end(), step.shapes[k].begin(), step.shapes[k].end());
    }
    if (other) asked["shapes"] = seen;
    s.attributes = Attributes(std::move(asked));
    return make_kernel("fused_elementwise", s);
  }
};

}  // namespace

void Tensor::copy_bytes(const void* values, size_t count) {
  if (count != static_cast<size_t>(size()))
    throw ValueError(name_ + " has " + std::to_string(size()) + " elements, got " +
                     std::to_string(count));
  std::memcpy(data_, values, spec_.bytes());
}

struct Model::State {
  State(const std::string& path, const std::string& wanted) : file(path) {
    program = &chosen(wanted);
    try {
      build();
    } catch (const ValueError& e) {
      throw ValueError(path + ": " + e.what());
    }
  }

  const ProgramData& chosen(const std::string& wanted) const {
    std::string names;
    for (const auto& [name, found] : file.programs()) {
      if (name == wanted || (wanted.empty() && file.programs().size() == 1)) return found;
      names += (names.empty() ? "'" : ", '") + name + "'";
    }
    throw ValueError(file.path() + " has the programs " + names +
                     (wanted.empty() ? ": say which one" : ", not '" + wanted + "'"));
  }

  size_t root(int i) const { return static_cast<size_t>(values[static_cast<size_t>(i)].root); }

  void build() {
    Lowering lowered(*program);
    values = std::move(lowered.values);
    std::vector<Interval> intervals;
    std::vector<int> interval_of(values.size(), -1);
    copy_of.clear();
    for (size_t i = 1; i < values.size(); ++i)
      if (values[i].copies) copy_of[values[i].copies] = static_cast<int>(i);
    const auto is_outside = [&](int i) {
      const auto result = program->results.find(i);
      return values[root(i)].given() ||
             (result != program->results.end() && copy_of.count(result->second));
    };
    const auto& calls = lowered.calls;
    std::vector<int> workspaces(calls.size(), -1);
    const auto use = [&](int i, size_t t, size_t until) {
      if (!i || is_outside(i)) return;
      int& at = interval_of[root(i)];
      if (at < 0) {
        at = static_cast<int>(intervals.size());
        intervals.push_back({t, t, values[root(i)].spec.bytes()});
      }
      auto& interval = intervals[static_cast<size_t>(at)];
      interval.last = std::max(interval.last, until);
    };
    for (size_t t = 0; t < calls.size(); ++t) {
      for (int i : calls[t].in) {
        if (i && !is_outside(i) && interval_of[root(i)] < 0)
          throw ValueError(calls[t].label + ": reads a value that nothing has made");
        use(i, t, t);
      }
      for (int o : calls[t].out) use(o, t, t);
      if (const size_t bytes = calls[t].kernel->workspace()) {
        workspaces[t] = static_cast<int>(intervals.size());
        intervals.push_back({t, t, bytes});
      }
    }
    for (int k : program->kept) {
      if (!is_outside(k) && interval_of[root(k)] < 0)
        throw ValueError("value " + std::to_string(k) + " is kept, and nothing makes it");
      use(k, calls.size(), calls.size());
    }
    const size_t arena = plan_memory(intervals);
    std::vector<int64_t> offsets(values.size(), Plan::outside);
    for (size_t i = 1; i < values.size(); ++i)
      if (interval_of[i] >= 0) offsets[i] = intervals[static_cast<size_t>(interval_of[i])].offset;
    plan = std::make_unique<Plan>(offsets, arena);
    for (size_t t = 0; t < calls.size(); ++t) {
      auto& call = lowered.calls[t];
      for (int& i : call.in) i = static_cast<int>(root(i));
      for (int& o : call.out) o = static_cast<int>(root(o));
      const int at = workspaces[t];
      plan->add(call.label, std::move(call.kernel), call.in, call.out,
                at < 0 ? Plan::outside : intervals[static_cast<size_t>(at)].offset);
    }
    bind_given();
    for (const auto& [name, i] : program->outputs) add_output(name, i);
    for (const auto& [to, from] : program->carries) {
      const Spec& spec = values[static_cast<size_t>(to)].spec;
      std::unique_ptr<Kernel> change;
      if (from && values[static_cast<size_t>(from)].spec.layout != spec.layout)
        change = conversion(convert, values[static_cast<size_t>(from)].spec, spec);
      carries.push_back({static_cast<int>(root(to)), from ? static_cast<int>(root(from)) : 0,
                         spec.bytes(), std::move(change)});
    }
  }

  void* own(size_t bytes) {
    memories.push_back(std::make_unique<Memory>(bytes));
    return memories.back()->data();
  }

  void bind_given() {
    using Role = ProgramValue::Role;
    for (size_t i = 1; i < values.size(); ++i) {
      const ProgramValue& v = values[i];
      if (!v.given() || v.copies) continue;
      const int slot = static_cast<int>(i);
      if (v.role == Role::input) {
        plan->bind(slot, own(v.spec.bytes()));
        std::memset(plan->data(slot), 0, v.spec.bytes());
        inputs.emplace_back(v.name, v.spec, plan->data(slot));
        input_slots[v.name] = slot;
      } else if (v.filled) {
        plan->bind(slot, own(v.spec.bytes()));
        fill(plan->data(slot), v.spec, v.fill);
      } else {
        plan->bind(slot, stored(v));
        slots_by_name[v.name] = slot;
      }
    }
    for (const auto& [source, copy] : copy_of) {
      const Spec& spec = values[static_cast<size_t>(copy)].spec;
      plan->bind(copy, own(spec.bytes()));
      const Spec& from = values[static_cast<size_t>(source)].spec;
      run_once(*conversion("cast", from, spec), plan->data(source), plan->data(copy));
    }
    for (const auto& [made, weight] : program->results)
      if (const auto copy = copy_of.find(weight); copy != copy_of.end())
        plan->bind(made, plan->data(copy->second));
  }

  // The memory of a parameter, a state or a constant: the file's, or another order of it.
  void* stored(const ProgramValue& v) {
    const auto found = file.arrays().find(v.name);
    if (found == file.arrays().end())
      throw ValueError("damaged: there is no tensor '" + v.name + "'");
    const FileArray& array = found->second;
    if (array.spec.dtype != v.spec.dtype || array.spec.shape != v.spec.shape)
      throw ValueError("damaged: '" + v.name + "' is " + array.spec.text() + ", wanted " +
                       v.spec.text());
    if (v.spec.layout == Layout::plain) return array.data;
    void* memory = own(v.spec.bytes());
    run_once(*conversion(convert, array.spec, v.spec), array.data, memory);
    return memory;
  }

  void add_output(const std::string& name, int i) {
    const Spec& spec = values[static_cast<size_t>(i)].spec;
    void* data = plan->data(static_cast<int>(root(i)));
    if (spec.layout != Layout::plain) {
      Spec plain = spec;
      plain.layout = Layout::plain;
      turned.push_back({data, own(spec.bytes()), conversion(convert, spec, plain)});
      data = turned.back().to;
      outputs.emplace_back(name, plain, data);
    } else {
      outputs.emplace_back(name, spec, data);
    }
  }

  struct Carry {
    int to, from;
    size_t bytes;
    std::unique_ptr<Kernel> change;
  };
  struct Turned {
    void *from, *to;
    std::unique_ptr<Kernel> kernel;
  };

  ProgramFile file;
  const ProgramData* program = nullptr;
  std::vector<ProgramValue> values;
  std::map<int, int> copy_of;  // given value -> its copy in 16 bits
  std::unique_ptr<Plan> plan;
  std::vector<std::unique_ptr<Memory>> memories;
  std::vector<Tensor> inputs, outputs;
  std::map<std::string, int> input_slots, slots_by_name;
  std::vector<Carry> carries;
  std::vector<Turned> turned;  // outputs that kernels have left in another order
};

Model::Model(const std::string& path, const std::string& program)
    : state_(std::make_unique<State>(path, program)) {}
Model::~Model() = default;
Model::Model(Model&&) noexcept = default;
Model& Model::operator=(Model&&) noexcept = default;

std::vector<Tensor>& Model::inputs() { return state_->inputs; }
std::vector<Tensor>& Model::outputs() { return state_->outputs; }

namespace {

Tensor& named(std::vector<Tensor>& tensors, const std::string& name, const std::string& what) {
  std::string names;
  for (Tensor& t : tensors) {
    if (t.name() == name) return t;
    names += (names.empty() ? "'" : ", '") + t.name() + "'";
  }
  throw ValueError("the model has the " + what + " " + names + ", not '" + name + "'");
}

}  // namespace

Tensor& Model::input(const std::string& name) { return named(inputs(), name, "inputs"); }
Tensor& Model::output(const std::string& name) { return named(outputs(), name, "outputs"); }

void Model::bind(const std::string& name, void* data) {
  input(name).data_ = data;
  state_->plan->bind(state_->input_slots.at(name), data);
}

void Model::run() {
  State& s = *state_;
  s.plan->run(0, s.plan->size());
  for (State::Carry& c : s.carries) {
    void* to = s.plan->data(c.to);
    if (!c.from) {
      std::memset(to, 0, c.bytes);
    } else if (c.change) {
      run_once(*c.change, s.plan->data(c.from), to);
    } else {
      std::memcpy(to, s.plan->data(c.from), c.bytes);
    }
  }
  for (State::Turned& t : s.turned) run_once(*t.kernel, t.from, t.to);
}

Tensor Model::parameter(const std::string& name) {
  State& s = *state_;
  const auto found = s.slots_by_name.find(name);
  if (found == s.slots_by_name.end())
    throw ValueError(s.file.path() + " has no parameter '" + name + "'");
  const FileArray& array = s.file.arrays().at(name);
  const Spec& spec = s.values[static_cast<size_t>(found->second)].spec;
  void* data = s.plan->data(found->second);
  if (data != array.data) run_once(*conversion(convert, spec, array.spec), data, array.data);
  return {name, array.spec, array.data};
}

std::vector<std::string> Model::parameters() const {
  std::vector<std::string> names;
  for (const auto& [name, slot] : state_->slots_by_name) names.push_back(name);
  return names;
}

size_t Model::arena_bytes() const { return state_->plan->arena()->bytes(); }

}  // namespace nnl
