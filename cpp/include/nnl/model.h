// SPDX-License-Identifier: Apache-2.0
// Run a program from a file: a network, or a whole training step.
//
//   nnl::Model model("lenet.nnlp");
//   model.input("x").copy_from(pixels, count);
//   model.run();
//   const float* y = model.output("y").data<float>();
//
// Where a program has open sizes, inputs take other shapes:
//
//   model.input("x").resize({1, 3, 480, 640});
//
// Programs of one file share its parameters, and several runners of one program do too:
//
//   nnl::ModelFile file("lenet.nnlp");
//   nnl::Model one(file, "batch_1"), eight(file, "batch_8"), in_another_thread(file, "batch_1");
#pragma once
#include <cstring>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "nnl/errors.h"
#include "nnl/spec.h"

namespace nnl {

using Error = ValueError;  // what everything here throws

template <class T>
constexpr bool is_type(DType type) {
  return (type == DType::f32 && std::is_same_v<T, float>) ||
         (type == DType::f64 && std::is_same_v<T, double>) ||
         (type == DType::i8 && std::is_same_v<T, int8_t>) ||
         (type == DType::u8 && std::is_same_v<T, uint8_t>) ||
         (type == DType::i16 && std::is_same_v<T, int16_t>) ||
         ((type == DType::u16 || is_half(type)) && std::is_same_v<T, uint16_t>) ||
         (type == DType::i32 && std::is_same_v<T, int32_t>) ||
         (type == DType::u32 && std::is_same_v<T, uint32_t>) ||
         (type == DType::i64 && std::is_same_v<T, int64_t>) ||
         (type == DType::u64 && std::is_same_v<T, uint64_t>) ||
         (type == DType::boolean && std::is_same_v<T, bool>);
}

class ModelRunners;

// An axis of an input: an open size by its name and range, or "" and one size.
struct OpenAxis {
  std::string name;
  int64_t least, greatest, multiple;  // both bounds are allowed
};

// An input, output or parameter of a model: memory with a name and a spec. 16-bit floats are
// uint16_t here.
class NNL_API Tensor {
 public:
  const std::string& name() const { return name_; }
  const Spec& spec() const { return spec_; }
  int64_t size() const { return spec_.size(); }
  void* data() const { return data_; }

  // ValueError: the elements are of another type.
  template <class T>
  T* data() const {
    check<T>();
    return static_cast<T*>(data_);
  }

  // ValueError: other elements, or another number of them.
  template <class T>
  void copy_from(const T* values, size_t count) {
    check<T>();
    check_count(count);
    std::memcpy(data_, values, spec_.bytes());
  }

  // Gives an input of a model with open sizes another shape, for the next runs. Its elements are
  // not kept, and data() may be elsewhere. ValueError: other axes, a size that is not in its range,
  // or the input is bound to less memory.
  void resize(const Shape& shape);
  const std::vector<OpenAxis>& axes() const { return axes_; }  // of an input

  // Lets the model read an input from this memory from now on, or write an output there, instead
  // of its own; it must stay there. ValueError: other elements, or another number of them.
  //
  // Where sizes are open, `count` may be larger: the room there is, also for other sizes. A run
  // whose output needs more says so before it begins.
  template <class T>
  void bind(T* values, size_t count) {
    check<T>();
    bind(static_cast<void*>(values), count * sizeof(T));
  }
  // Strings, of a model that has some: its elements are their numbers, -1 for one that the model
  // does not know. ValueError: it holds none, another number of them, or a number of none.
  bool is_text() const { return words_ != nullptr; }
  void copy_strings(const std::vector<std::string>& values);
  std::vector<std::string> strings() const;

  void bind(void* data) { bind(data, spec_.bytes()); }  // as many bytes as the spec has
  void bind(void* data, size_t bytes);

 private:
  friend class ModelFile;
  friend class ModelRunners;
  Tensor(std::string name, Spec spec, void* data, ModelRunners* of = nullptr, int value = 0)
      : name_(std::move(name)), spec_(std::move(spec)), data_(data), of_(of), value_(value) {}

  template <class T>
  void check() const {
    if (!is_type<T>(spec_.dtype))
      throw ValueError(name_ + " is " + spec_.text() + ", asked for as another type");
  }
  void check_idle() const;
  void check_count(size_t count) const;

  std::string name_;
  Spec spec_;
  void* data_;
  ModelRunners* of_;  // null for a parameter
  int value_;         // its number there
  size_t room_ = 0;   // bytes of the memory that it is bound to, where sizes are open
  std::vector<OpenAxis> axes_;
  const std::vector<std::string>* words_ = nullptr;
};

// A file of programs, .nnlp or .nnp, mapped, and the arrays that they share. A handle: copies are
// the same file.
//
// What training steps write stays in here; the file never changes. A run that writes has the
// arrays alone: other threads that run programs of the file wait for it, and it for them.
class NNL_API ModelFile {
 public:
  // ValueError: there is no such file, it is damaged or of a newer version. The text says which.
  explicit ModelFile(const std::string& path);

  const std::string& path() const;
  std::vector<std::string> programs() const;
  std::vector<std::string> parameters() const;  // those, states and constants
  std::string_view language() const;            // see nnl/program_file.h

  // The present values of a parameter or a state, in the plain order. They stay as they are until
  // a step that writes them runs. ValueError: there is none of that name.
  Tensor parameter(const std::string& name) const;
  // Gives it other ones, for all programs of the file. ValueError: there is none of that name, or
  // it has another number of bytes.
  void set_parameter(const std::string& name, const void* values, size_t bytes);
  // Gives it the values of the file again: lets a stream begin anew, where it is a state.
  void reset(const std::string& name);

  // Writes the parameters to .safetensors, .h5 or .protobuf, which nnl reads too, and NNabla the
  // latter two; not the states of solvers. The file appears when it is complete.
  void save_parameters(const std::string& path) const;
  // Reads those that are in such a file. ValueError: none is, or one has another shape; nothing
  // is changed then.
  void load_parameters(const std::string& path);

 private:
  friend class ModelRunners;
  struct State;
  std::shared_ptr<State> state_;
};

// A step of a program: what it costs, and how long its latest profile has taken.
struct StepCost {
  std::string label, op;  // label: "affine in fc (train.py:12)"
  int64_t flops, bytes;   // floating-point operations; bytes read and written
  double seconds;
};

// A program, ready to run, with memory of its own for all but the parameters. Runs in one thread
// at a time; different models may run at once, also those of one file.
class NNL_API Model {
 public:
  // Args: program: its name; may be left out where the file has one.
  // ValueError: the file is damaged or newer, has no such program, or a step has no kernel in this
  // build; the text says which.
  explicit Model(const std::string& path, const std::string& program = "");
  explicit Model(const ModelFile& file, const std::string& program = "");

  // On a device: {"opencl"}, or {"opencl:1"} for another than the first. The file must have been
  // saved in the context "opencl"; what has no kernels there runs on the host.
  // ValueError: also if there is no OpenCL, no such device or no kernels; a kernel does not
  // compile.
  using Context = std::initializer_list<const char*>;
  Model(const std::string& path, Context context, const std::string& program = "");
  Model(const ModelFile& file, Context context, const std::string& program = "");
  ~Model();
  Model(Model&&) noexcept;
  Model& operator=(Model&&) noexcept;

  std::vector<Tensor>& inputs();
  std::vector<Tensor>& outputs();
  // By name, or counted from 0. ValueError: there is none; the text lists those that are there.
  Tensor& input(const std::string& name);
  Tensor& output(const std::string& name);
  Tensor& output(size_t i);

  // Throws ValueError for values that a function does not take, the text says which function; and
  // where another thread runs this model now.
  // An output has the shape and the place of the latest run. Where values decide how many rows it
  // has, it has the greatest number of them before the first run, and needs memory for these.
  void run();

  // Makes ready for the present sizes of the inputs, as the first run at these does: outputs have
  // the shapes that they will then have, and no elements yet.
  void prepare();

  // Runs, and tells what each step has taken. What is prepared once, such as packed weights, is
  // not in it.
  std::vector<StepCost> profile();
  std::vector<StepCost> steps() const;  // seconds: 0

  const ModelFile& file() const;
  Tensor parameter(const std::string& name) const { return file().parameter(name); }
  void save_parameters(const std::string& path) const { file().save_parameters(path); }
  size_t arena_bytes() const;

 private:
  std::unique_ptr<ModelRunners> state_;
};

}  // namespace nnl
