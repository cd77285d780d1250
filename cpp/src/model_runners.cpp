// SPDX-License-Identifier: Apache-2.0
#include "model_runners.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "nnl/threads.h"

namespace nnl {
namespace {

std::string text_of(const Shape& shape) {
  std::string s = "(";
  for (size_t i = 0; i < shape.size(); ++i) s += (i ? ", " : "") + std::to_string(shape[i]);
  return s + (shape.size() == 1 ? ",)" : ")");
}

// "(batch, 3, height)"
std::string wanted_by(const Tensor& x) {
  std::string s = "(";
  for (size_t i = 0; i < x.axes().size(); ++i) {
    const OpenAxis& a = x.axes()[i];
    s += (i ? ", " : "") + (a.name.empty() ? std::to_string(a.least) : a.name);
  }
  return s + (x.axes().size() == 1 ? ",)" : ")");
}

std::vector<OpenAxis> axes_of(const ProgramData& program, const ProgramValue& v) {
  std::vector<OpenAxis> axes;
  for (size_t i = 0; i < v.spec.shape.size(); ++i) {
    const int64_t n = v.spec.shape[i];
    axes.push_back({"", n, n, 1});
    if (v.sizes.empty() || v.sizes[i][0].kind != SizeOp::Kind::dim) continue;
    const OpenSize& dim = program.dims.at(static_cast<size_t>(v.sizes[i][0].a));
    axes.back() = {dim.name, dim.least, dim.greatest, dim.multiple};
  }
  return axes;
}

}  // namespace

const std::string one_thread =
    "a Model has one thread at a time, make one for each of the same ModelFile";

ModelRunners::ModelRunners(ModelFile of, const std::string& wanted, const std::string& device)
    : file(std::move(of)), program(file.state_->program(wanted)), shared_(*file.state_) {
  const std::unique_lock<std::shared_mutex> alone(shared_.arrays.mutex);
  try {
    std::vector<int64_t> examples;
    for (const OpenSize& dim : program.dims) examples.push_back(dim.example);
    if (!examples.empty()) moving_ = example_of(program);
    take_device(device);
    check(program);  // before anything is as large as it says
    take_given();
    fitted_.push_back(made(examples));
    Fitted& first = fitted_.front();
    find_written(*first.runner);
    use_arena(first);
    share_prepared(first);
    refresh(first);
  } catch (const ValueError& e) {
    throw ValueError(file.path() + ": " + e.what());
  }
  const Runner& runner = *fitted_.front().runner;
  for (size_t k = 0; k < runner.outputs().size(); ++k) {
    const auto counts = [k](const ProgramData::Count& c) { return c.count == k; };
    if (std::any_of(program.counts.begin(), program.counts.end(), counts)) continue;
    const auto& [name, i] = runner.outputs()[k];
    outputs.push_back({name, runner.spec(i), runner.data(i), this, i});
    shown_.push_back(k);
  }
  for (std::vector<Tensor>* ends : {&inputs, &outputs})
    for (Tensor& end : *ends)
      if (std::count(program.texts.begin(), program.texts.end(), end.name()))
        end.words_ = &program.words;
}

void ModelRunners::take_device(const std::string& name) {
  if (name.empty() || name == "cpu") return;
  const std::string kind = name.substr(0, name.find(':')), number = name.substr(kind.size());
  const bool counted = number.size() > 1 && number.size() < 6 &&
                       number.find_first_not_of("0123456789", 1) == std::string::npos;
  if (kind != "opencl" || !(number.empty() || counted))
    throw ValueError("there is no context '" + name + "', wanted 'cpu', 'opencl' or 'opencl:1'");
  device_ = &opencl::Device::of(number.empty() ? 0 : std::stoul(number.substr(1)));
  if (!file.state_->file.kernels().empty())
    stored_ = opencl::stored_kernels(file.state_->file.kernels());
  const auto found = stored_.programs.find(file.state_->name_of(program));
  if (found == stored_.programs.end())
    throw ValueError(
        "has no kernels for OpenCL: build and save it in the context 'opencl', and "
        "with sizes that are not open");
  if (found->second.size() != program.steps.size())
    throw ValueError("damaged: its kernels are for other steps");
}

// Inputs get memory of their own; arrays of the file are in the form that the program reads.
void ModelRunners::take_given() {
  given_.resize(program.values.size());
  for (size_t k = 1; k < program.values.size(); ++k) {
    const ProgramValue& v = program.values[k];
    const int i = static_cast<int>(k);
    if (!v.given() || v.filled) continue;
    if (v.role == ProgramValue::Role::input) {
      own_[i] = std::make_unique<Memory>(v.spec.bytes());
      given_[k] = std::memset(own_[i]->data(), 0, v.spec.bytes());
      inputs.push_back({v.name, v.spec, given_[k], this, i});
      inputs.back().axes_ = axes_of(program, v);
      continue;
    }
    const ProgramValue& source = value(v.copies ? v.copies : i);
    SharedArray& array = shared_.array(source.name);
    const Spec& spec = array.plain().spec;
    if (spec.dtype != source.spec.dtype || spec.shape != source.spec.shape)
      throw ValueError("damaged: '" + source.name + "' is " + spec.text() + ", wanted " +
                       source.spec.text());
    Form& form = array.form(v.spec);
    uses_[i] = {&array, &form};
    given_[k] = form.data;
  }
}

void ModelRunners::find_written(const Runner& runner) {
  for (int i : runner.written())
    if (const auto use = uses_.find(i); use != uses_.end()) written_.push_back(use->second);
}

// ---- sizes ----

void ModelRunners::resize(Tensor& x, const Shape& shape) {
  const OneAtATime only = alone();
  const std::string what = x.name() + " is resized to " + text_of(shape);
  bool fits = shape.size() == x.axes().size();
  for (size_t i = 0; fits && i < shape.size(); ++i)
    fits = !x.axes()[i].name.empty() || shape[i] == x.axes()[i].least;
  if (!fits) throw ValueError(what + ", wanted " + wanted_by(x));
  double bytes = static_cast<double>(bytes_of(x.spec().dtype));
  for (size_t i = 0; i < shape.size(); ++i) {
    const OpenAxis& a = x.axes()[i];
    bytes *= static_cast<double>(std::max<int64_t>(shape[i], 1));
    if (a.name.empty()) continue;
    try {
      OpenSize{a.name, 0, a.least, a.greatest, a.multiple}.check(shape[i]);
    } catch (const ValueError& e) {
      throw ValueError(what + ": axis " + std::to_string(i) + ": " + e.what());
    }
  }
  if (bytes > 0x1p62) throw ValueError(what + ", which is larger than any memory");
  if (shape == x.spec_.shape) return;
  Spec spec = x.spec_;
  spec.shape = shape;
  if (x.room_) {
    if (spec.bytes() > x.room_)
      throw ValueError(what + ", " + std::to_string(spec.bytes()) + " bytes, and bound to " +
                       std::to_string(x.room_) + ": bind more memory before");
  } else if (auto& own = own_.at(x.value_); spec.bytes() > own->bytes()) {
    own = std::make_unique<Memory>(spec.bytes());
    x.data_ = std::memset(own->data(), 0, spec.bytes());
  }
  x.spec_ = std::move(spec);
  changed_ = true;
}

void ModelRunners::bind(Tensor& t, void* data, size_t bytes) {
  const OneAtATime only = alone();
  if (program.dims.empty()) {
    fitted_.front().runner->bind(t.value_, data);
  } else {
    t.room_ = std::max<size_t>(bytes, 1);
    changed_ = true;
  }
  t.data_ = data;
}

std::vector<int64_t> ModelRunners::sizes() const {
  std::vector<int64_t> found;
  for (const OpenSize& dim : program.dims) {
    int64_t size = -1;
    for (const Tensor& x : inputs)
      for (size_t i = 0; i < x.axes().size(); ++i) {
        const int64_t n = x.spec().shape[i];
        if (x.axes()[i].name != dim.name) continue;
        if (size >= 0 && n != size)
          throw ValueError(x.name() + " has the shape " + text_of(x.spec().shape) + ": " +
                           dim.name + " is " + std::to_string(n) + ", and " + std::to_string(size) +
                           " in another input or axis: resize both");
        size = n;
      }
    found.push_back(size < 0 ? dim.example : size);
  }
  return found;
}

void ModelRunners::fit() {
  std::vector<int64_t> wanted = sizes();
  auto found = std::find_if(fitted_.begin(), fitted_.end(),
                            [&](const Fitted& f) { return f.sizes == wanted; });
  std::list<Fitted> fresh;
  if (found == fitted_.end()) {
    try {
      fresh.push_back(made(std::move(wanted)));
    } catch (const ValueError& e) {
      throw ValueError(file.path() + ": " + e.what());
    }
  }
  Fitted& next = fresh.empty() ? *found : fresh.front();
  const Runner& runner = *next.runner;
  for (size_t k = 0; k < outputs.size(); ++k) {
    const Spec& spec = runner.spec(runner.outputs()[shown_[k]].second);
    if (outputs[k].room_ && spec.bytes() > outputs[k].room_)
      throw ValueError(outputs[k].name() + " is " + spec.text() + ", " +
                       std::to_string(spec.bytes()) + " bytes, and bound to " +
                       std::to_string(outputs[k].room_) + ": bind more memory");
  }
  if (fresh.empty()) {
    fitted_.splice(fitted_.begin(), fitted_, found);
  } else {
    use_arena(next);
    const std::unique_lock<std::shared_mutex> alone(shared_.arrays.mutex);
    share_prepared(next);
    fitted_.splice(fitted_.begin(), fresh);
    if (fitted_.size() > most) fitted_.pop_back();
  }
  bind_all(*fitted_.front().runner);
  changed_ = false;
}

ModelRunners::Fitted ModelRunners::made(std::vector<int64_t> sizes) {
  const ThreadScope scope;
  if (!sizes.empty()) move_to(moving_, sizes);
  const ProgramData& at_sizes = sizes.empty() ? program : moving_;
  const auto given = [this](int i) { return given_[static_cast<size_t>(i)]; };
  Fitted fitted;
  std::shared_ptr<opencl::Space> space;
  if (device_) {
    const auto& steps = stored_.programs.at(file.state_->name_of(program));
    space = std::make_shared<opencl::Space>(*device_, stored_, steps);
  }
  fitted.runner = std::make_unique<Runner>(at_sizes, given, true, false, std::move(space));
  fitted.sizes = std::move(sizes);
  return fitted;
}

void ModelRunners::use_arena(Fitted& fitted) {
  const size_t bytes = fitted.runner->arena_bytes();
  if (arena_ && arena_->bytes() >= bytes) return fitted.runner->use_arena(arena_);
  arena_ = std::make_shared<Memory>(bytes);
  for (Fitted& other : fitted_) other.runner->use_arena(arena_);
  fitted.runner->use_arena(arena_);
}

void ModelRunners::bind_all(Runner& runner) {
  for (const Tensor& x : inputs) runner.bind(x.value_, x.data_);
  for (size_t k = 0; k < outputs.size(); ++k) {
    Tensor& y = outputs[k];
    y.value_ = runner.outputs()[shown_[k]].second;
    if (y.room_) runner.bind(y.value_, y.data_);
    y.spec_ = runner.spec(y.value_);
    y.data_ = runner.data(y.value_);
  }
}

void ModelRunners::cut(const Runner& runner) {
  for (const ProgramData::Count& c : program.counts) {
    const auto shown = std::find(shown_.begin(), shown_.end(), c.of) - shown_.begin();
    Tensor& y = outputs.at(static_cast<size_t>(shown));
    const Spec& full = runner.spec(y.value_);
    const int64_t most = full.shape[c.axis];
    const int64_t n = *static_cast<const int64_t*>(runner.data(runner.outputs()[c.count].second));
    if (n < 0 || n > most)
      throw ValueError(file.path() + ": " + y.name() + ": at_most: count holds " +
                       std::to_string(n) + ", wanted 0 to " + std::to_string(most));
    size_t row = bytes_of(full.dtype), many = 1;
    for (size_t i = 0; i < full.shape.size(); ++i)
      (i < c.axis   ? many
       : i > c.axis ? row
                    : many) *= i == c.axis ? 1 : static_cast<size_t>(full.shape[i]);
    auto* data = static_cast<std::byte*>(y.data_);
    const size_t kept = static_cast<size_t>(n) * row, all = static_cast<size_t>(most) * row;
    for (size_t i = 1; i < many; ++i) std::memmove(data + i * kept, data + i * all, kept);
    y.spec_ = full;
    y.spec_.shape[c.axis] = n;
  }
}

// ---- arrays ----

void ModelRunners::share_prepared(Fitted& fitted) {
  auto& known = shared_.prepared[{&program, threads()}];
  const auto& wanted = fitted.runner->prepared();
  size_t bytes = 0;
  const auto aligned = [](size_t n) { return (n + 63) / 64 * 64; };
  for (const Runner::Prepared& p : wanted) {
    fitted.prepared.push_back(known[p.key].lock());
    if (!fitted.prepared.back()) bytes += aligned(p.bytes);
  }
  const auto memory = bytes ? std::make_shared<Memory>(bytes) : nullptr;
  bytes = 0;
  for (size_t i = 0; i < wanted.size(); ++i) {
    auto& array = fitted.prepared[i];
    if (!array) {
      array = std::make_shared<PreparedArray>();
      array->memory = {memory, memory->data() + bytes};
      bytes += aligned(wanted[i].bytes);
      known[wanted[i].key] = array;
    }
    fitted.runner->share_prepared(i, array->memory);
  }
}

// Brings the arrays into the form in which this program reads them. Needs them alone.
void ModelRunners::refresh(Fitted& fitted) {
  if (fitted.seen == shared_.arrays.version) return;
  for (auto& [i, use] : uses_) use.array->refresh(*use.form);
  uint64_t newest = 1;
  for (int i : fitted.runner->prepared_from())
    newest = std::max(newest, uses_.at(i).array->version());
  for (size_t i = 0; i < fitted.prepared.size(); ++i) {
    if (fitted.prepared[i]->version >= newest) continue;
    fitted.runner->prepare(i);
    fitted.prepared[i]->version = newest;
  }
  fitted.runner->upload();
  fitted.seen = shared_.arrays.version;
}

}  // namespace nnl
