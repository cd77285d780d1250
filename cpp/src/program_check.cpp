// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>

#include "nnl/program.h"
#include "nnl/rules.h"
#include "open_program.h"

namespace nnl {
namespace {

// Kernels convert between floating-point types while they read and write.
bool is_converted(DType type) { return type == DType::f32 || is_half(type); }

// So do loops over elements with whole numbers of 8 bits.
bool is_converted(DType type, const ProgramStep& step) {
  const bool loop = !step.code.empty() || step.op == "fused_elementwise";
  return is_converted(type) || (loop && (type == DType::i8 || type == DType::u8));
}

}  // namespace

void check_made(const std::vector<ProgramValue>& values, const ProgramStep& step,
                const std::vector<Spec>& wanted) {
  // What nobody reads may be left out at the end, where kernels know that.
  static const std::map<std::string, size_t> fewer = {{"attention", 1},
                                                      {"batch_normalization_backward_fused", 3}};
  const auto least = fewer.find(step.op);
  if (step.out.size() > wanted.size() ||
      step.out.size() < (least == fewer.end() ? wanted.size() : least->second))
    throw ValueError(step.op + " has " + std::to_string(wanted.size()) + " outputs, not " +
                     std::to_string(step.out.size()));
  for (size_t k = 0; k < step.out.size(); ++k) {
    const Spec& found = values[static_cast<size_t>(step.out[k])].spec;
    const bool same_type = found.dtype == wanted[k].dtype ||
                           (is_converted(found.dtype, step) && is_converted(wanted[k].dtype, step));
    if (found.shape != wanted[k].shape || !same_type)
      throw ValueError(step.op + " gives " + wanted[k].text() + ", not " + found.text());
  }
}

namespace {

class Check {
 public:
  explicit Check(const ProgramData& program) : values_(program.values) {
    for (size_t i = 1; i < values_.size(); ++i)
      if (at(values_[i].root).spec.dtype != values_[i].spec.dtype)
        throw ValueError("value " + std::to_string(i) + " is no view of its root");
    for (const ProgramStep& step : program.steps) add(step);
  }

 private:
  const ProgramValue& at(int i) const { return values_[static_cast<size_t>(i)]; }

  void add(const ProgramStep& step) {
    static const std::vector<std::string> known = rule_names();
    try {
      const bool has_rule = std::binary_search(known.begin(), known.end(), step.op);
      if (!step.programs.empty()) check_memory(step);
      if (has_rule || !step.code.empty()) {  // or else no kernel
        check_memory(step);
        const Signature s = signature_of(step);
        if (has_rule) check_made(values_, step, infer(step.op, s));
        if (!step.code.empty()) check_code(step, s);
      }
    } catch (const ValueError& e) {
      throw ValueError(step.label + ": " + e.what());
    }
    for (const ProgramStep& part : step.parts) add(part);
  }

  // What a step makes is nothing else's memory, unless the step is there to change that.
  void check_memory(const ProgramStep& step) const {
    const bool updates = step.op.size() > 7 && step.op.substr(step.op.size() - 7) == "_update";
    for (int o : step.out) {
      if (step.view ? at(o).root != at(step.in[0]).root : at(o).root != o && !updates)
        throw ValueError("value " + std::to_string(o) + " is other values' memory");
      if (std::count(step.out.begin(), step.out.end(), o) > 1)
        throw ValueError("value " + std::to_string(o) + " is made twice");
    }
    if (step.view && !step.writes.empty() && !updates && step.op != "assign" && step.op != "store")
      throw ValueError(step.op + " changes no array");
    const auto packed = step.attributes.find("packed");
    if (step.op == "pack_convolution" || step.op == "pack_weights" ||
        (packed != step.attributes.end() && packed->second == Attribute(true)))
      throw ValueError("packed weights belong to one machine, and into no file");
  }

  Signature signature_of(const ProgramStep& step) const {
    Signature s;
    s.attributes = Attributes::of(step.attributes);
    for (int i : step.in) {
      s.in_given.push_back(i != 0);
      s.in.push_back(i ? at(i).spec : Spec{});
    }
    return s;
  }

  // The program that an element-wise step may be asked for as.
  void check_code(const ProgramStep& step, Signature s) const {
    if (step.shapes.size() != step.in.size() || step.out.size() != 1)
      throw ValueError("its element-wise program is for other arrays");
    const size_t rank = at(step.out[0]).spec.shape.size();
    std::vector<int64_t> seen;
    for (const Shape& shape : step.shapes) {
      if (shape.size() > rank) throw ValueError("its element-wise program is for other arrays");
      seen.insert(seen.end(), rank - shape.size(), 1);
      seen.insert(seen.end(), shape.begin(), shape.end());
    }
    const std::vector<int64_t> none;
    const auto last = static_cast<int64_t>(step.in.size() + step.code.size() / 4) - 1;
    s.attributes = Attributes({{"code", step.code},
                               {"constants", step.constants},
                               {"outputs", std::vector<int64_t>{last}},
                               {"shape", at(step.out[0]).spec.shape},
                               {"shapes", seen},
                               {"reductions", none},
                               {"axes", none},
                               {"keep_dims", none},
                               {"scales", none}});
    check_made(values_, step, infer("fused_elementwise", s));
  }

  const std::vector<ProgramValue>& values_;
};

}  // namespace

void check(const ProgramData& program) { Check{program}; }

}  // namespace nnl
