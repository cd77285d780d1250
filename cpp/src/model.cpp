// SPDX-License-Identifier: Apache-2.0
#include "nnl/model.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "lowering.h"
#include "model_runners.h"
#include "nnl/parameter_files.h"
#include "nnl/threads.h"
#include "safetensors.h"

namespace nnl {
void Tensor::check_idle() const {
  if (of_ && of_->running())
    throw ValueError(name_ + " is used by a run in another thread: " + one_thread);
}

void Tensor::check_count(size_t count) const {
  check_idle();
  if (count != static_cast<size_t>(size()))
    throw ValueError(name_ + " has " + std::to_string(size()) + " elements, got " +
                     std::to_string(count));
}

void Tensor::bind(void* data, size_t bytes) {
  if (!of_) throw ValueError(name_ + " is neither an input nor an output: it cannot be bound");
  if (!data) throw ValueError(name_ + " cannot be bound to nothing");
  check_idle();
  const bool open = !of_->program.dims.empty(), takes = of_->is_input(*this);
  if (open ? takes && bytes < spec_.bytes() : bytes != of_->full_bytes(*this))
    throw ValueError(name_ + " is " + spec_.text() + ", " + std::to_string(spec_.bytes()) +
                     " bytes, got " + std::to_string(bytes));
  of_->bind(*this, data, bytes);
}

void Tensor::resize(const Shape& shape) {
  if (!of_ || !of_->is_input(*this))
    throw ValueError(name_ + " is no input of a model: it cannot be resized");
  of_->resize(*this, shape);
}

void Tensor::copy_strings(const std::vector<std::string>& values) {
  const bool whole = spec_.dtype == DType::i64;
  if (!words_ || !(whole || spec_.dtype == DType::f32))
    throw ValueError(name_ + " takes no strings");
  check_count(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const auto found = std::find(words_->begin(), words_->end(), values[i]);
    const int64_t number = found == words_->end() ? -1 : found - words_->begin();
    if (whole)
      static_cast<int64_t*>(data_)[i] = number;
    else
      static_cast<float*>(data_)[i] = static_cast<float>(number);
  }
}

std::vector<std::string> Tensor::strings() const {
  if (!words_) throw ValueError(name_ + " holds no strings");
  std::vector<std::string> found;
  for (int64_t i = 0; i < size(); ++i) {
    const double number = spec_.dtype == DType::f32   ? static_cast<const float*>(data_)[i]
                          : spec_.dtype == DType::i64 ? static_cast<const int64_t*>(data_)[i]
                                                      : -1;
    if (!(number >= 0 && number < static_cast<double>(words_->size())))
      throw ValueError(name_ + " is a string that the model does not know");
    found.push_back((*words_)[static_cast<size_t>(number)]);
  }
  return found;
}

// ---- files ----

ModelFile::ModelFile(const std::string& path) : state_(std::make_shared<State>(path)) {}

const std::string& ModelFile::path() const { return state_->file.path(); }

std::string_view ModelFile::language() const { return state_->file.language(); }

std::vector<std::string> ModelFile::programs() const {
  std::vector<std::string> names;
  for (const auto& [name, program] : state_->file.programs()) names.push_back(name);
  return names;
}

std::vector<std::string> ModelFile::parameters() const {
  std::vector<std::string> names;
  for (const auto& [name, array] : state_->arrays.by_name) names.push_back(name);
  return names;
}

Tensor ModelFile::parameter(const std::string& name) const {
  SharedArrays& arrays = state_->arrays;
  const auto found = arrays.by_name.find(name);
  if (found == arrays.by_name.end()) throw ValueError(path() + " has no parameter '" + name + "'");
  const std::unique_lock<std::shared_mutex> alone(arrays.mutex);
  Form& plain = found->second.plain();
  found->second.refresh(plain);
  return {name, plain.spec, plain.data};
}

void ModelFile::set_parameter(const std::string& name, const void* values, size_t bytes) {
  SharedArrays& arrays = state_->arrays;
  const auto found = arrays.by_name.find(name);
  if (found == arrays.by_name.end()) throw ValueError(path() + " has no parameter '" + name + "'");
  const std::unique_lock<std::shared_mutex> alone(arrays.mutex);
  Form& plain = found->second.plain();
  if (bytes != plain.spec.bytes())
    throw ValueError(name + " is " + plain.spec.text() + ", " + std::to_string(plain.spec.bytes()) +
                     " bytes, got " + std::to_string(bytes));
  if (bytes) std::memcpy(plain.data, values, bytes);
  found->second.written(plain, ++arrays.version);
}

void ModelFile::reset(const std::string& name) {
  const ProgramFile fresh(path());
  const auto found = fresh.arrays().find(name);
  if (found == fresh.arrays().end()) throw ValueError(path() + " has no parameter '" + name + "'");
  set_parameter(name, found->second.data, found->second.spec.bytes());
}

void ModelFile::save_parameters(const std::string& path) const {
  if (state_->file.parameters().empty()) throw ValueError(this->path() + " has no parameters");
  std::vector<StoredParameter> stored;
  const std::unique_lock<std::shared_mutex> alone(state_->arrays.mutex);
  for (const auto& [name, need_grad] : state_->file.parameters()) {
    SharedArray& array = state_->array(name);
    array.refresh(array.plain());
    stored.push_back({name, array.plain().spec, array.plain().data, need_grad});
  }
  write_parameters(path, stored);
}

void ModelFile::load_parameters(const std::string& path) {
  const StoredParameters stored = read_parameters(path);
  SharedArrays& arrays = state_->arrays;
  const std::unique_lock<std::shared_mutex> alone(arrays.mutex);
  struct Fitting {
    SharedArray& array;
    const StoredParameter& stored;
    std::unique_ptr<Kernel> cast;  // null: the types are the same
  };
  std::vector<Fitting> all;
  for (const StoredParameter& p : stored.all) {
    const auto found = arrays.by_name.find(p.name);
    if (found == arrays.by_name.end()) continue;
    const Spec& spec = found->second.plain().spec;
    if (p.spec.shape != spec.shape)
      throw ValueError(path + ": '" + p.name + "' is " + p.spec.text() + ", " + this->path() +
                       " has " + spec.text());
    const bool same = p.spec.dtype == spec.dtype || !spec.size();
    all.push_back({found->second, p, same ? nullptr : conversion("cast", p.spec, spec)});
  }
  if (all.empty()) throw ValueError(path + " has no parameter of " + this->path());
  ++arrays.version;
  for (Fitting& one : all) {
    Form& plain = one.array.plain();
    if (!plain.spec.size()) continue;
    if (one.cast) {
      run_once(*one.cast, one.stored.data, plain.data);
    } else {
      std::memcpy(plain.data, one.stored.data, plain.spec.bytes());
    }
    one.array.written(plain, arrays.version);
  }
}

// ---- programs ----

Model::Model(const std::string& path, const std::string& program)
    : Model(ModelFile(path), program) {}
Model::Model(const ModelFile& file, const std::string& program) : Model(file, {"cpu"}, program) {}
Model::Model(const std::string& path, Context context, const std::string& program)
    : Model(ModelFile(path), context, program) {}
Model::Model(const ModelFile& file, Context context, const std::string& program) {
  if (context.size() != 1)
    throw ValueError("Model: the context has " + std::to_string(context.size()) +
                     " names, wanted one, such as {\"opencl\"}");
  state_ = std::make_unique<ModelRunners>(file, program, *context.begin());
}
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
  if (names.empty()) throw ValueError("the model has no " + what + ", asked for '" + name + "'");
  throw ValueError("the model has the " + what + " " + names + ", not '" + name + "'");
}

}  // namespace

Tensor& Model::input(const std::string& name) { return named(inputs(), name, "inputs"); }
Tensor& Model::output(const std::string& name) { return named(outputs(), name, "outputs"); }
Tensor& Model::output(size_t i) {
  if (i < outputs().size()) return outputs()[i];
  throw ValueError("the model has " + std::to_string(outputs().size()) + " outputs, asked for " +
                   std::to_string(i) + ", counted from 0");
}

void Model::run() {
  state_->run([this](Runner& runner) {
    runner.run();
    state_->cut(runner);
  });
}

void Model::prepare() {
  state_->run([](Runner&) {});
}

std::vector<StepCost> Model::steps() const {
  std::vector<StepCost> found;
  for (const ProgramStep& s : state_->program.steps)
    found.push_back({s.label, s.op, s.flops, s.bytes, 0});
  return found;
}

std::vector<StepCost> Model::profile() {
  std::vector<double> seconds(state_->program.steps.size());
  state_->run([&](Runner& runner) {
    runner.run_timed(seconds);
    state_->cut(runner);
  });
  std::vector<StepCost> found = steps();
  for (size_t i = 0; i < found.size(); ++i) found[i].seconds = seconds[i];
  return found;
}

const ModelFile& Model::file() const { return state_->file; }

size_t Model::arena_bytes() const { return state_->arena_bytes(); }

}  // namespace nnl
