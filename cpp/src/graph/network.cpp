// SPDX-License-Identifier: Apache-2.0
#include "nnl/network.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "../safetensors.h"
#include "graph.h"
#include "nnl/program_file.h"

namespace nnl {
namespace {

const ProgramData& chosen(const ProgramFile& file, const std::string& wanted) {
  std::string names;
  for (const auto& [name, program] : file.programs()) {
    if (name == wanted || (wanted.empty() && file.programs().size() == 1)) return program;
    names += (names.empty() ? "'" : ", '") + name + "'";
  }
  throw ValueError("Network: " + file.path() + " has the programs " + names +
                   (wanted.empty() ? ": say which one" : ", not '" + wanted + "'"));
}

// Steps as they were before they were fused.
void flatten(const std::vector<ProgramStep>& steps, std::vector<const ProgramStep*>& flat) {
  for (const ProgramStep& step : steps) {
    if (step.parts.empty())
      flat.push_back(&step);
    else
      flatten(step.parts, flat);
  }
}

// Steps that only say how a value lies in memory, which functions decide for themselves.
bool is_other_form(const ProgramStep& step) { return step.op == "to_layout" || step.op == "cast"; }

class Builder {
 public:
  Builder(const ProgramFile& file, const ProgramData& program, const ParameterDirectory& params,
          int64_t batch_size)
      : file_(file), program_(program), params_(params), batch_size_(batch_size) {
    std::vector<const ProgramStep*> flat;
    flatten(program.steps, flat);
    std::set<int> needed;
    for (const auto& [name, i] : program.outputs) needed.insert(i);
    std::vector<const ProgramStep*> useful;
    for (auto at = flat.rbegin(); at != flat.rend(); ++at) {
      const auto& out = (*at)->out;
      if (std::none_of(out.begin(), out.end(), [&](int o) { return needed.count(o); })) continue;
      needed.insert((*at)->in.begin(), (*at)->in.end());
      useful.push_back(*at);
    }
    for (size_t i = 1; i < program.values.size(); ++i)
      if (program.values[i].given() && (needed.count(static_cast<int>(i)) ||
                                        program.values[i].role == ProgramValue::Role::input))
        given(static_cast<int>(i));
    for (auto at = useful.rbegin(); at != useful.rend(); ++at) add(**at);
  }

  std::vector<std::pair<std::string, Variable>> inputs;

  Variable at(int i) const {
    if (!i) return {};
    const auto found = made_.find(i);
    if (found == made_.end())
      throw ValueError("Network: " + file_.path() + ": value " + std::to_string(i) +
                       " is used, and nothing makes it");
    return found->second;
  }

 private:
  void add(const ProgramStep& step) {
    if (is_other_form(step)) {
      if (step.in.size() != 1 || step.out.size() != 1)
        throw ValueError("Network: " + file_.path() + ": " + step.op +
                         " has another number of arrays");
      made_[step.out[0]] = at(step.in[0]);
      return;
    }
    if (step.op.size() > 7 && step.op.compare(step.op.size() - 7, 7, "_update") == 0)
      throw ValueError("Network: " + file_.path() + " updates parameters: nnl::Model runs it");
    std::vector<Variable> in;
    for (int i : step.in) in.push_back(at(i));
    const std::vector<Variable> out = apply(step.op, step.attributes, in);
    for (size_t o = 0; o < step.out.size() && o < out.size(); ++o) made_[step.out[o]] = out[o];
  }

  void given(int i) {
    using Role = ProgramValue::Role;
    const ProgramValue& v = program_.values[static_cast<size_t>(i)];
    Spec spec = v.spec;
    spec.layout = Layout::plain;
    if (v.role == Role::input) {
      if (batch_size_ > 0 && !spec.shape.empty()) spec.shape[0] = batch_size_;
      inputs.emplace_back(v.name, made_[i] = Variable(spec.shape));
      return;
    }
    const auto& known = file_.parameters();
    const auto named =
        std::find_if(known.begin(), known.end(), [&](const auto& p) { return p.first == v.name; });
    const Variable there = named == known.end() ? Variable() : params_.get_parameter(v.name);
    if (there) {
      made_[i] = params_.get_parameter_or_create(v.name, spec.shape, nullptr);
      return;
    }
    const Array values(spec);
    if (v.filled) {
      Array(values).fill(v.fill);
    } else {
      const auto stored = file_.arrays().find(v.name);
      if (stored == file_.arrays().end() || stored->second.spec.shape != spec.shape ||
          stored->second.spec.dtype != spec.dtype)
        throw ValueError("Network: " + file_.path() + " has no array '" + v.name + "', " +
                         spec.text());
      if (spec.bytes()) std::memcpy(values.bytes(), stored->second.data, spec.bytes());
    }
    made_[i] = Variable(values, named != known.end() && named->second);
    if (named != known.end()) params_.set_parameter(v.name, made_[i]);
  }

  const ProgramFile& file_;
  const ProgramData& program_;
  const ParameterDirectory& params_;
  const int64_t batch_size_;
  std::map<int, Variable> made_;
};

Variable named(const std::vector<std::pair<std::string, Variable>>& all, const std::string& name,
               const char* what) {
  std::string names;
  for (const auto& [known, v] : all) {
    if (known == name) return v;
    names += (names.empty() ? "'" : ", '") + known + "'";
  }
  throw ValueError(std::string("Network: there is no ") + what + " '" + name + "', only " + names);
}

}  // namespace

Network::Network(const std::string& path, const std::string& program,
                 const ParameterDirectory& params, int64_t batch_size) {
  const ProgramFile file(path, program);
  const ProgramData& data = chosen(file, program);
  Builder builder(file, data, params, batch_size);
  inputs_ = std::move(builder.inputs);
  for (const auto& [name, i] : data.outputs) outputs_.emplace_back(name, builder.at(i));
}

Variable Network::input(const std::string& name) const { return named(inputs_, name, "input"); }
Variable Network::output(const std::string& name) const { return named(outputs_, name, "output"); }

}  // namespace nnl
