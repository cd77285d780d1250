// SPDX-License-Identifier: Apache-2.0
// Run a program from a file: a network, or a whole training step.
//
//   nnl::Model model("lenet.nnlp");
//   model.input("x").copy_from(pixels, count);
//   model.run();
//   const float* y = model.output("y").data<float>();
#pragma once
#include <memory>
#include <string>
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

// An input or output of a model: memory with a name and a spec. 16-bit floats are uint16_t here.
class NNL_API Tensor {
 public:
  Tensor(std::string name, Spec spec, void* data)
      : name_(std::move(name)), spec_(std::move(spec)), data_(data) {}

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
    copy_bytes(values, count);
  }

 private:
  friend class Model;
  template <class T>
  void check() const {
    if (!is_type<T>(spec_.dtype))
      throw ValueError(name_ + " is " + spec_.text() + ", asked for as another type");
  }
  void copy_bytes(const void* values, size_t count);

  std::string name_;
  Spec spec_;
  void* data_;
};

// A program, ready to run. Different models may run in different threads at once.
//
// What a training step writes, parameters and states, stays in the model; the file never changes.
class NNL_API Model {
 public:
  // Args: program: its name; may be left out where the file has one.
  // ValueError: the file is damaged or newer, has no such program, or a step has no kernel in this
  // build; the text says which.
  explicit Model(const std::string& path, const std::string& program = "");
  ~Model();
  Model(Model&&) noexcept;
  Model& operator=(Model&&) noexcept;

  std::vector<Tensor>& inputs();
  std::vector<Tensor>& outputs();
  // By name. ValueError: there is none; the text lists those that are there.
  Tensor& input(const std::string& name);
  Tensor& output(const std::string& name);
  Tensor& output(size_t i) { return outputs().at(i); }

  // Reads the input from this memory from now on, instead of from its own; it must stay there.
  void bind(const std::string& input, void* data);

  // Throws ValueError for values that a function does not take; the text says which function.
  void run();

  // The present values of a parameter or a state in the plain order, of the spec in the file.
  Tensor parameter(const std::string& name);
  std::vector<std::string> parameters() const;

  size_t arena_bytes() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace nnl
