// SPDX-License-Identifier: Apache-2.0
#include "nnl/model.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <utility>

#include "lowering.h"
#include "nnl/parameter_files.h"
#include "nnl/program_file.h"
#include "nnl/runner.h"
#include "nnl/threads.h"
#include "one_at_a_time.h"
#include "safetensors.h"
#include "shared_arrays.h"

namespace nnl {
namespace {

const std::string kOneThread =
    "a Model has one thread at a time, make one for each of the same ModelFile";

}  // namespace

void Tensor::check_idle() const {
  if (runner_ && runner_->running())
    throw ValueError(name_ + " is used by a run in another thread: " + kOneThread);
}

void Tensor::check_count(size_t count) const {
  check_idle();
  if (count != static_cast<size_t>(size()))
    throw ValueError(name_ + " has " + std::to_string(size()) + " elements, got " +
                     std::to_string(count));
}

void Tensor::bind(void* data) {
  if (!runner_) throw ValueError(name_ + " is neither an input nor an output: it cannot be bound");
  if (!data) throw ValueError(name_ + " cannot be bound to nothing");
  check_idle();
  data_ = data;
  runner_->bind(value_, data);
}

// ---- files ----

struct ModelFile::State {
  explicit State(const std::string& path) : file(path) {
    for (const auto& [name, array] : file.arrays())
      arrays.by_name.emplace(name, SharedArray(array.spec, array.data));
  }

  const ProgramData& program(const std::string& wanted) const {
    std::string names;
    for (const auto& [name, found] : file.programs()) {
      if (name == wanted || (wanted.empty() && file.programs().size() == 1)) return found;
      names += (names.empty() ? "'" : ", '") + name + "'";
    }
    if (names.empty()) throw ValueError(file.path() + " has no programs");
    throw ValueError(file.path() + " has the programs " + names +
                     (wanted.empty() ? ": say which one" : ", not '" + wanted + "'"));
  }

  SharedArray& array(const std::string& name) {
    const auto found = arrays.by_name.find(name);
    if (found == arrays.by_name.end()) throw ValueError("there is no tensor '" + name + "'");
    return found->second;
  }

  // What runners of a program have made once of its arrays, as these were in one version.
  struct Prepared {
    std::shared_ptr<Memory> memory;
    uint64_t version = 0;
  };

  ProgramFile file;
  SharedArrays arrays;
  // By program, and by the threads it runs on: kernels for other numbers may want another order.
  std::map<std::pair<const ProgramData*, int>, std::weak_ptr<Prepared>> prepared;
};

ModelFile::ModelFile(const std::string& path) : state_(std::make_shared<State>(path)) {}

const std::string& ModelFile::path() const { return state_->file.path(); }

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

struct Model::State {
  State(ModelFile of, const std::string& wanted)
      : file(std::move(of)), shared(*file.state_), program(shared.program(wanted)) {
    const ThreadScope scope;
    const std::unique_lock<std::shared_mutex> alone(shared.arrays.mutex);
    try {
      runner = std::make_unique<Runner>(program, [this](int i) { return given(i); }, true);
      share_prepared();
      find_written();
      refresh();
    } catch (const ValueError& e) {
      throw ValueError(file.path() + ": " + e.what());
    }
    for (const auto& [name, i] : runner->outputs())
      outputs.push_back({name, runner->spec(i), runner->data(i), runner.get(), i});
    for (Tensor& x : inputs) x.runner_ = runner.get();
  }

  const ProgramValue& value(int i) const { return program.values[static_cast<size_t>(i)]; }

  void* given(int i) {
    const ProgramValue& v = value(i);
    if (v.role == ProgramValue::Role::input) {
      memories.push_back(std::make_unique<Memory>(v.spec.bytes()));
      void* data = std::memset(memories.back()->data(), 0, v.spec.bytes());
      inputs.push_back({v.name, v.spec, data, nullptr, i});
      return data;
    }
    const ProgramValue& source = value(v.copies ? v.copies : i);
    SharedArray& array = shared.array(source.name);
    const Spec& spec = array.plain().spec;
    if (spec.dtype != source.spec.dtype || spec.shape != source.spec.shape)
      throw ValueError("damaged: '" + source.name + "' is " + spec.text() + ", wanted " +
                       source.spec.text());
    Form& form = array.form(v.spec);
    uses[i] = {&array, &form};
    return form.data;
  }

  void share_prepared() {
    auto& known = shared.prepared[{&program, threads()}];
    prepared = known.lock();
    if (prepared && prepared->memory->bytes() == runner->prepared()->bytes()) {
      runner->share_prepared(prepared->memory);
    } else {
      prepared = std::make_shared<ModelFile::State::Prepared>();
      prepared->memory = runner->prepared();
      known = prepared;
    }
  }

  void find_written() {
    for (int i : runner->written())
      if (const auto use = uses.find(i); use != uses.end()) written.push_back(use->second);
  }

  // Brings the arrays into the form in which this program reads them. Needs them alone.
  void refresh() {
    if (seen == shared.arrays.version) return;
    for (auto& [i, use] : uses) use.array->refresh(*use.form);
    uint64_t newest = 1;
    for (int i : runner->prepared_from()) newest = std::max(newest, uses.at(i).array->version());
    if (prepared->version < newest) {
      runner->prepare();
      prepared->version = newest;
    }
    seen = shared.arrays.version;
  }

  template <class Run>
  void run(Run&& one) {
    const OneAtATime only(running, "this model is running already: " + kOneThread);
    SharedArrays& arrays = shared.arrays;
    if (!written.empty()) {
      const std::unique_lock<std::shared_mutex> alone(arrays.mutex);
      refresh();
      seen = ++arrays.version;
      for (Use& use : written) use.array->written(*use.form, seen);
      return one();
    }
    std::shared_lock<std::shared_mutex> reading(arrays.mutex);
    while (seen != arrays.version) {
      reading.unlock();
      {
        const std::unique_lock<std::shared_mutex> alone(arrays.mutex);
        refresh();
      }
      reading.lock();
    }
    one();
  }

  struct Use {
    SharedArray* array;
    Form* form;
  };

  ModelFile file;
  ModelFile::State& shared;
  const ProgramData& program;
  std::unique_ptr<Runner> runner;
  std::vector<std::unique_ptr<Memory>> memories;  // of inputs
  std::vector<Tensor> inputs, outputs;
  std::map<int, Use> uses;  // by given value
  std::vector<Use> written;
  std::atomic<bool> running{false};
  uint64_t seen = 0;  // the version of the arrays that the forms and what is prepared have
  std::shared_ptr<ModelFile::State::Prepared> prepared;
};

Model::Model(const std::string& path, const std::string& program)
    : Model(ModelFile(path), program) {}
Model::Model(const ModelFile& file, const std::string& program)
    : state_(std::make_unique<State>(file, program)) {}
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
  state_->run([this] { state_->runner->run(); });
}

std::vector<StepCost> Model::steps() const {
  std::vector<StepCost> found;
  for (const ProgramStep& s : state_->program.steps)
    found.push_back({s.label, s.op, s.flops, s.bytes, 0});
  return found;
}

std::vector<StepCost> Model::profile() {
  std::vector<double> seconds(state_->program.steps.size());
  state_->run([&] { state_->runner->run_timed(seconds); });
  std::vector<StepCost> found = steps();
  for (size_t i = 0; i < found.size(); ++i) found[i].seconds = seconds[i];
  return found;
}

const ModelFile& Model::file() const { return state_->file; }

size_t Model::arena_bytes() const { return state_->runner->arena_bytes(); }

}  // namespace nnl
