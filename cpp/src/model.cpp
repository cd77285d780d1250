// SPDX-License-Identifier: Apache-2.0
#include "nnl/model.h"

#include <cstring>
#include <map>
#include <utility>

#include "lowering.h"
#include "nnl/program_file.h"
#include "nnl/runner.h"

namespace nnl {

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

  void build() {
    runner = std::make_unique<Runner>(*program, [this](int i) { return given(i); });
    for (const auto& [name, i] : runner->outputs())
      outputs.emplace_back(name, runner->spec(i), runner->data(i));
  }

  void* own(size_t bytes) {
    memories.push_back(std::make_unique<Memory>(bytes));
    return memories.back()->data();
  }

  void* given(int i) {
    const ProgramValue& v = program->values[static_cast<size_t>(i)];
    if (v.role == ProgramValue::Role::input) {
      void* data = std::memset(own(v.spec.bytes()), 0, v.spec.bytes());
      inputs.emplace_back(v.name, v.spec, data);
      input_values[v.name] = i;
      return data;
    }
    if (v.copies) {
      const Spec& from = program->values[static_cast<size_t>(v.copies)].spec;
      void* data = own(v.spec.bytes());
      run_once(*conversion("cast", from, v.spec), memory_of(v.copies), data);
      return data;
    }
    stored[v.name] = i;
    return memory_of(i);
  }

  // The memory of a parameter, a state or a constant: the file's, or another order of it.
  void* memory_of(int i) {
    void*& data = known[i];
    if (data) return data;
    const ProgramValue& v = program->values[static_cast<size_t>(i)];
    const auto found = file.arrays().find(v.name);
    if (found == file.arrays().end())
      throw ValueError("damaged: there is no tensor '" + v.name + "'");
    const FileArray& array = found->second;
    if (array.spec.dtype != v.spec.dtype || array.spec.shape != v.spec.shape)
      throw ValueError("damaged: '" + v.name + "' is " + array.spec.text() + ", wanted " +
                       v.spec.text());
    if (v.spec.layout == Layout::plain) return data = array.data;
    data = own(v.spec.bytes());
    run_once(*conversion("to_layout", array.spec, v.spec), array.data, data);
    return data;
  }

  ProgramFile file;
  const ProgramData* program = nullptr;
  std::unique_ptr<Runner> runner;
  std::vector<std::unique_ptr<Memory>> memories;
  std::vector<Tensor> inputs, outputs;
  std::map<std::string, int> input_values, stored;
  std::map<int, void*> known;
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
  state_->runner->bind(state_->input_values.at(name), data);
}

void Model::run() { state_->runner->run(); }

Tensor Model::parameter(const std::string& name) {
  State& s = *state_;
  const auto found = s.stored.find(name);
  if (found == s.stored.end()) throw ValueError(s.file.path() + " has no parameter '" + name + "'");
  const FileArray& array = s.file.arrays().at(name);
  void* data = s.runner->data(found->second);
  if (data != array.data)
    run_once(*conversion("to_layout", s.runner->spec(found->second), array.spec), data, array.data);
  return {name, array.spec, array.data};
}

std::vector<std::string> Model::parameters() const {
  std::vector<std::string> names;
  for (const auto& [name, value] : state_->stored) names.push_back(name);
  return names;
}

size_t Model::arena_bytes() const { return state_->runner->arena_bytes(); }

}  // namespace nnl
