// SPDX-License-Identifier: Apache-2.0
#include "lowering.h"

#include <algorithm>
#include <cstring>
#include <list>
#include <map>
#include <set>

#include "control.h"
#include "kernels/convert.h"
#include "nnl/packing.h"
#include "nnl/plan.h"
#include "nnl/threads.h"
#include "opencl/space.h"
#include "set_up.h"

namespace nnl {
namespace {

constexpr const char* convert = "to_layout";

// An output that is another value too, such as an input handed through.
class Copy : public Kernel {
 public:
  explicit Copy(size_t bytes) : bytes_(bytes) {}
  void run(const Buffers& b) override { std::memcpy(b.out[0], b.in[0], bytes_); }

 private:
  size_t bytes_;
};

class Lowering {
 public:
  Lowering(const ProgramData& program, bool prepare, opencl::Space* device)
      : program_(program), device_(device) {
    done.values = program.values;
    for (ProgramValue& v : done.values)  // of open sizes that make a picture one pixel
      if (v.spec.layout == Layout::channels_last &&
          v.spec.size() == v.spec.shape[0] * v.spec.shape[1])
        v.spec.layout = Layout::plain;
    packs_ = prepare && std::none_of(program.steps.begin(), program.steps.end(),
                                     [](const ProgramStep& s) { return s.second; });
    for (const ProgramStep& step : program.steps) note_written(step);
    for (const ProgramStep& step : program.steps) {
      at_ = static_cast<size_t>(&step - program.steps.data());
      add(step);
      if (!step.second) done.cut = done.calls.size();
      cut_ = cut_ || step.second;
    }
    add_outputs();
    add_carries();
    const auto rest = std::stable_partition(done.calls.begin(), done.calls.end(),
                                            [](const Call& c) { return c.once; });
    done.prepared = static_cast<size_t>(rest - done.calls.begin());
    if (packs_ || !cut_) done.cut = done.calls.size();
  }

  Lowered done;

 private:
  const ProgramValue& value(int i) const { return done.values[static_cast<size_t>(i)]; }
  const Spec& spec(int i) const { return value(i).spec; }

  void call(std::string label, std::shared_ptr<Kernel> kernel, std::vector<int> in,
            std::vector<int> out, const ProgramStep* of = nullptr) {
    settled_.push_back(std::all_of(in.begin(), in.end(), [this](int i) { return settles(i); }));
    for (int o : out) maker_[value(o).root] = done.calls.size();
    done.calls.push_back(
        {std::move(label), std::move(kernel), std::move(in), std::move(out), at_, false, of, ""});
  }

  int new_value(const Spec& spec, Layout layout) {
    ProgramValue v;
    v.spec = spec, v.spec.layout = layout, v.root = static_cast<int>(done.values.size());
    done.values.push_back(v);
    return v.root;
  }

  void add(const ProgramStep& step) {
    if (step.view && step.writes.empty()) return;  // its memory is that of its input
    if (!step.programs.empty()) return add_control(step);
    if (device_ && add_on_device(step)) return;
    if (add_packed(step, step.in, step.out)) return;
    if (auto kernel = kernel_of(step, step.in, step.out))
      return call(step.label, std::move(kernel), step.in, step.out, &step);
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

  bool add_on_device(const ProgramStep& step) {
    const auto roots = [this](std::vector<int> values) {
      for (int& i : values) i = value(i).root;
      return values;
    };
    try {
      auto kernel = device_->kernel(at_, roots(step.in), roots(step.out));
      if (!kernel) return false;
      call(step.label, std::move(kernel), step.in, step.out, &step);
    } catch (const ValueError& e) {
      throw ValueError(step.label + ": " + e.what());
    }
    return done.calls.back().on_device = true;
  }

  void add_control(const ProgramStep& step) {
    try {
      auto kernel = control_kernel(step, signature(step.in, step.out, step));
      call(step.label, std::move(kernel), step.in, step.out, &step);
    } catch (const ValueError& e) {
      throw ValueError(step.label + ": " + e.what());
    }
  }

  // A part of a fused step, over arrays in the plain order.
  void add_plain(const ProgramStep& part, std::map<int, int>& plain) {
    const bool is_view = part.view && part.writes.empty();
    std::vector<int> in = part.in, out = part.out;
    if (part.writes.empty())  // an update does not mind any order, if all arrays have it
      for (int& i : in) i = in_plain_order(i, plain);
    for (int& o : out) {
      if (!is_view && (spec(o).layout == Layout::plain || !part.writes.empty())) continue;
      const int made = new_value(spec(o), Layout::plain);
      if (is_view) done.values.back().root = value(in[0]).root;
      o = plain[o] = made;
    }
    if (is_view) return;
    if (add_packed(part, in, out)) return;
    if (auto kernel = kernel_of(part, in, out))
      return call(part.label, std::move(kernel), std::move(in), std::move(out), &part);
    if (part.parts.empty())
      throw ValueError(part.label + ": this build has no kernel of " + part.op);
    for (const ProgramStep& inner : part.parts) add_plain(inner, plain);
  }

  int in_plain_order(int i, std::map<int, int>& plain) {
    if (const auto known = plain.find(i); known != plain.end()) return known->second;
    if (!i || spec(i).layout == Layout::plain) return i;
    plain[i] = new_value(spec(i), Layout::plain);
    change_order(i, plain[i]);
    return plain[i];
  }

  void change_order(int from, int to) {
    if (from != to && spec(to).layout != spec(from).layout)
      call(convert, conversion(convert, spec(from), spec(to)), {from}, {to});
  }

  // ---- packed weights ----

  void note_written(const ProgramStep& step) {
    for (int p : step.writes) written_.insert(value(step.in[static_cast<size_t>(p)]).root);
    for (const ProgramStep& part : step.parts) note_written(part);
  }

  // A step whose weights nothing changes reads them from where a kernel has packed them once. False
  // where its kernel takes them only as they are.
  bool add_packed(const ProgramStep& step, const std::vector<int>& in,
                  const std::vector<int>& out) {
    if (!packs_ || in.size() < 2 || out.size() != 1) return false;
    if (abilities(step.op).packs) return add_packed_convolution(step, in, out);
    std::set<size_t> behind;
    if (!in[1] || !is_settled(in[1], behind)) return false;
    Shared& product = shared(step.op, signature(in, out, step));
    if (!product.asked) product.take(packed_product(step.op, product.signature));
    if (!product.order.bytes) return false;
    std::vector<int> ins = in;
    ins[1] = new_bytes(product.order.bytes);
    call_once(step, product.packer, {in[1]}, ins[1], behind, product.order);
    call(step.label, product.kernel, std::move(ins), out);
    return true;
  }

  // Layers of one size ask for the same kernels: they are made once.
  struct Shared {
    const std::string& op;
    Signature signature;
    bool asked = false;  // for those over packed weights
    PackedOrder order;
    std::shared_ptr<Kernel> packer, kernel, unpacked;

    Shared(const std::string& o, Signature s) : op(o), signature(std::move(s)) {}
    void take(PackedKernels p) {
      asked = true, order = std::move(p.order);
      packer = std::move(p.packer), kernel = std::move(p.kernel);
    }
  };

  Shared& shared(const std::string& op, Signature s) {
    for (Shared& one : shared_) {
      const Signature& known = one.signature;
      if (one.op == op && known.in == s.in && known.in_given == s.in_given && known.out == s.out &&
          known.attributes.values() == s.attributes.values())
        return one;
    }
    return shared_.emplace_back(op, std::move(s));
  }

  int new_bytes(size_t n) {
    return new_value({{static_cast<int64_t>(n)}, DType::u8, Layout::plain}, Layout::plain);
  }

  // Packs weights, once after all calls that these are made by.
  void call_once(const ProgramStep& step, std::shared_ptr<Kernel> packer, std::vector<int> in,
                 int packed, const std::set<size_t>& behind, const PackedOrder& order) {
    call(step.label, std::move(packer), std::move(in), {packed});
    done.calls.back().once = true;
    done.calls.back().layout = order.layout;
    for (size_t t : behind) done.calls[t].once = true;
  }

  bool add_packed_convolution(const ProgramStep& step, const std::vector<int>& in,
                              const std::vector<int>& out) {
    std::vector<int> five = in;  // x, w, b, z, scale
    five.resize(5, 0);
    std::set<size_t> behind;
    if (!is_settled(five[1], behind) || !is_settled(five[4], behind)) return false;
    Shared& convolution = shared(step.op, signature(five, out, step));
    if (!convolution.asked) convolution.take(packed_convolution(convolution.signature));
    if (!convolution.order.bytes) return false;
    const int weights = new_bytes(convolution.order.bytes);
    call_once(step, convolution.packer, {0, five[1], 0, 0, five[4], 0}, weights, behind,
              convolution.order);
    call(step.label, convolution.kernel, {five[0], weights, five[2], five[3]}, out);
    return true;
  }

  // Whether a value was made of what no run changes only.
  bool settles(int i) const {
    const int root = value(i).root;
    if (!root) return true;
    if (written_.count(root) || program_.carries.count(root)) return false;
    if (value(root).given()) return value(root).role != ProgramValue::Role::input;
    const auto maker = maker_.find(root);
    return maker != maker_.end() && settled_[maker->second];
  }

  // Whether that is so of the last ones that made it; adds the calls behind it.
  bool is_settled(int weight, std::set<size_t>& behind) const {
    if (!settles(weight)) return false;
    std::vector<int> todo{weight};
    while (!todo.empty()) {
      const int root = value(todo.back()).root;
      todo.pop_back();
      if (!root) continue;
      if (written_.count(root) || program_.carries.count(root)) return false;
      if (value(root).given()) {
        if (value(root).role == ProgramValue::Role::input) return false;
        continue;
      }
      const auto maker = maker_.find(root);
      if (maker == maker_.end()) return false;
      const std::vector<int>& in = done.calls[maker->second].in;
      if (behind.insert(maker->second).second) todo.insert(todo.end(), in.begin(), in.end());
    }
    return true;
  }

  // Every output gets memory that is nothing else's, so that it can be bound to any.
  void add_outputs() {
    std::set<int> taken;
    for (auto [name, i] : program_.outputs) {
      const ProgramValue& root = value(value(i).root);
      if (spec(i).layout != Layout::plain) {
        const int plain = new_value(spec(i), Layout::plain);
        change_order(i, plain);
        i = plain;
      } else if (root.given() || program_.results.count(i) || !taken.insert(root.root).second ||
                 is_prepared(root.root)) {
        const int copy = new_value(spec(i), Layout::plain);
        call("copy", std::make_unique<Copy>(spec(i).bytes()), {i}, {copy});
        i = copy;
      }
      done.outputs.emplace_back(name, i);
    }
  }

  bool is_prepared(int root) const {
    const auto maker = maker_.find(root);
    return maker != maker_.end() && done.calls[maker->second].once;
  }

  void add_carries() {
    for (auto [to, from] : program_.carries) {
      if (from && spec(from).layout != spec(to).layout) {
        const int turned = new_value(spec(to), spec(to).layout);
        change_order(from, turned);
        from = turned;
      }
      done.carries[to] = from;
    }
  }

  Signature signature(const std::vector<int>& in, const std::vector<int>& out,
                      const ProgramStep& step) const {
    Signature s;
    s.attributes = Attributes::of(step.attributes);
    for (int i : in) {
      s.in_given.push_back(i != 0);
      s.in.push_back(i ? spec(i) : Spec{});
    }
    for (int o : out) s.out.push_back(spec(o));
    return s;
  }

  std::shared_ptr<Kernel> shared_kernel(const std::string& op, Signature s) {
    Shared& known = shared(op, std::move(s));
    if (!known.unpacked) known.unpacked = make_kernel(op, known.signature);
    return known.unpacked;
  }

  std::shared_ptr<Kernel> kernel_of(const ProgramStep& step, const std::vector<int>& in,
                                    const std::vector<int>& out) {
    static const std::vector<std::string> names = kernel_names();
    static const std::string fused = "fused_elementwise";
    // those that keep nothing from run to run, and that equal layers ask for
    static const std::set<std::string> alike = {"attention", "batch_matmul", fused,
                                                "layer_normalization"};
    Signature s = signature(in, out, step);
    if (std::binary_search(names.begin(), names.end(), step.op)) {
      return alike.count(step.op) ? shared_kernel(step.op, std::move(s)) : make_kernel(step.op, s);
    }
    // floats, and whole numbers that loops over floats read and write
    const auto takes = [](const Spec& x) {
      return x.dtype <= DType::bf16 || x.dtype == DType::i8 || x.dtype == DType::u8;
    };
    if (step.code.empty() || out.size() != 1 || !takes(s.out[0]) || in.empty() || !in[0] ||
        !(takes(s.in[0]) || s.in[0].dtype == DType::i32) || std::count(in.begin(), in.end(), 0) ||
        step.shapes.size() != in.size())
      return nullptr;
    Attributes::Map asked;
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
    return shared_kernel(fused, std::move(s));
  }

  const ProgramData& program_;
  opencl::Space* device_;
  size_t at_ = 0;  // the step that calls are for
  bool packs_, cut_ = false;
  std::set<int> written_;        // roots
  std::map<int, size_t> maker_;  // root -> the call that has made it last
  std::vector<bool> settled_;    // of calls: whether they depend on what no run changes only
  std::list<Shared> shared_;
};

}  // namespace

Lowered lower(const ProgramData& program, bool prepare, opencl::Space* device) {
  const ThreadScope scope;
  SetUp set_up;
  Lowered done = std::move(Lowering(program, prepare, device).done);
  set_up.finish();
  return done;
}

std::unique_ptr<Kernel> conversion(const char* op, const Spec& in, const Spec& out) {
  Signature s;
  s.in = {in}, s.in_given = {true}, s.out = {out};
  auto kernel = make_kernel(op, s);
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
  uint64_t one = 0;
  conversion(DType::f64, spec.dtype)(&value, &one, 1);
  const auto put = [&](auto bits) {
    std::memcpy(&bits, &one, sizeof bits);
    std::fill_n(static_cast<decltype(bits)*>(data), spec.size(), bits);
  };
  switch (bytes_of(spec.dtype)) {
    case 1:
      return put(uint8_t{});
    case 2:
      return put(uint16_t{});
    case 4:
      return put(uint32_t{});
    default:
      put(uint64_t{});
  }
}

}  // namespace nnl
