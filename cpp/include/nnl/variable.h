// SPDX-License-Identifier: Apache-2.0
// Array and Variable: values, and the handles of which networks are written.
//
//   nnl::Variable x({64, 1, 28, 28}), t({64, 1});
//   nnl::Variable loss = f::mean(f::softmax_cross_entropy(network(x), t));
//   loss.forward();
//   loss.backward();
//
// Both are handles: copies are the same array, the same variable. What is built once runs as one
// program over planned memory; with AutoForward every function runs when it is called.
#pragma once
#include <cstddef>
#include <initializer_list>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "nnl/spec.h"

namespace nnl {

namespace graph {
struct Storage;
struct Value;
}  // namespace graph

template <class T>
constexpr DType dtype_of() {
  if constexpr (std::is_same_v<T, float>)
    return DType::f32;
  else if constexpr (std::is_same_v<T, double>)
    return DType::f64;
  else if constexpr (std::is_same_v<T, bool>)
    return DType::boolean;
  else if constexpr (std::is_same_v<T, int8_t>)
    return DType::i8;
  else if constexpr (std::is_same_v<T, uint8_t>)
    return DType::u8;
  else if constexpr (std::is_same_v<T, int16_t>)
    return DType::i16;
  else if constexpr (std::is_same_v<T, uint16_t>)
    return DType::u16;
  else if constexpr (std::is_same_v<T, int32_t>)
    return DType::i32;
  else if constexpr (std::is_same_v<T, uint32_t>)
    return DType::u32;
  else if constexpr (std::is_integral_v<T> && sizeof(T) == 8)
    return std::is_signed_v<T> ? DType::i64 : DType::u64;
  else
    static_assert(sizeof(T) == 0, "no array has elements of this type");
}

// Several whole numbers: a shape, axes, sizes of a window.
struct NNL_API Integers : std::vector<int64_t> {
  Integers() = default;
  Integers(std::initializer_list<int64_t> values) : vector(values) {}
  Integers(const std::vector<int64_t>& values) : vector(values) {}
  Integers(const std::vector<int>& values) : vector(values.begin(), values.end()) {}
};

// An array of any element type. It has no memory until somebody asks for it; one that nobody has
// written is lazily zero.
class NNL_API Array {
 public:
  Array() = default;  // no array
  Array(std::nullptr_t) {}
  explicit Array(Spec spec);

  explicit operator bool() const { return storage_ != nullptr; }
  const Spec& spec() const;
  const Shape& shape() const { return spec().shape; }
  int64_t size() const { return spec().size(); }

  void fill(double value);
  void zero();             // lazily
  bool is_zero() const;    // lazily zero
  bool has_value() const;  // not only planned, as results are before forward()
  void copy_from(const Array& other);

  // The elements as T. An array of another type is converted to it, and has it from then on;
  // write_only: its elements may be anything.
  template <class T>
  T* data(bool write_only = false) const {
    return static_cast<T*>(as(dtype_of<T>(), write_only));
  }

  void* bytes() const;  // the elements as they are

  Array* operator->() { return this; }  // for programs that hold pointers to arrays
  const Array* operator->() const { return this; }

 private:
  friend struct graph::Storage;
  void* as(DType type, bool write_only) const;
  std::shared_ptr<graph::Storage> storage_;
};

// A value in a network: given by the program (a leaf), or what a function makes of others.
class NNL_API Variable {
 public:
  Variable() = default;  // none, as for a bias that is left out
  explicit Variable(Shape shape, bool need_grad = false);
  explicit Variable(std::initializer_list<int64_t> shape, bool need_grad = false)
      : Variable(Shape(shape), need_grad) {}
  explicit Variable(const Array& data, bool need_grad = false);
  // A leaf with the same data and gradient, where backward() ends.
  Variable(const Variable& other, bool need_grad);
  // For programs that hold variables by pointers.
  template <class T, class = std::enable_if_t<std::is_base_of_v<Variable, T>>>
  Variable(const std::shared_ptr<T>& pointer) : Variable(pointer ? *pointer : Variable()) {}

  explicit operator bool() const { return value_ != nullptr; }
  const Shape& shape() const;
  int64_t size() const;
  int64_t ndim() const { return static_cast<int64_t>(shape().size()); }
  Shape strides() const;

  Array data() const;
  Array grad() const;
  // The elements, as Array::data gives them. ValueError: it has no value yet, or it was cleared.
  template <class T>
  T* data(bool write_only = false) const {
    return readable(write_only).template data<T>(write_only);
  }
  template <class T>
  T* grad(bool write_only = false) const {
    return grad().template data<T>(write_only);
  }
  float item() const;  // of one element

  bool need_grad() const;
  Variable& set_need_grad(bool need);
  // Whether value and gradient stay readable whatever forward() and backward() clear.
  bool persistent() const;
  Variable& set_persistent(bool keep = true);

  // Computes it. Args:
  //   clear_buffer: only to look at the result: backward() cannot follow, and only what is
  //     persistent stays readable besides the result.
  //   clear_no_need_grad: backward() can follow; otherwise the same. Without both, everything that
  //     the program holds a Variable of stays readable.
  void forward(bool clear_buffer = false, bool clear_no_need_grad = false) const;

  // Adds its gradient, times `grad`, to the gradients of all leaves that need one; those that are
  // lazily zero become it. Args:
  //   grad: a number, which grad() is filled with; or an array of the shape, nullptr for grad().
  //   clear_buffer: ignored, as what backward() needs is planned to be cleared.
  void backward(double grad = 1, bool clear_buffer = false) const;
  void backward(const Array& grad, bool clear_buffer = false) const;

  // ---- NNabla's names ----
  Variable variable() const { return *this; }
  Variable* operator->() { return this; }
  const Variable* operator->() const { return this; }
  Variable* get() { return this; }
  template <class T, class Context>
  T* cast_data_and_get_pointer(const Context&, bool write_only = false) const {
    return data<T>(write_only);
  }
  template <class T, class Context>
  const T* get_data_pointer(const Context&) const {
    return data<T>();
  }
  template <class T, class Context>
  T* cast_grad_and_get_pointer(const Context&, bool write_only = false) const {
    return grad<T>(write_only);
  }

  // For the library.
  explicit Variable(std::shared_ptr<graph::Value> value) : value_(std::move(value)) {}
  const std::shared_ptr<graph::Value>& value() const { return value_; }

 private:
  Array readable(bool write_only) const;
  std::shared_ptr<graph::Value> value_;
};

NNL_API Variable operator-(const Variable& x);
#define NNL_OPERATOR(op)                                                \
  NNL_API Variable operator op(const Variable& x0, const Variable& x1); \
  NNL_API Variable operator op(const Variable& x, double value);        \
  NNL_API Variable operator op(double value, const Variable& x);
NNL_OPERATOR(+)
NNL_OPERATOR(-)
NNL_OPERATOR(*)
NNL_OPERATOR(/)
#undef NNL_OPERATOR

// While one lives, every function of this thread runs when it is called.
class NNL_API AutoForward {
 public:
  explicit AutoForward(bool on = true) : before_(enabled()) { set(on); }
  ~AutoForward() { set(before_); }
  AutoForward(const AutoForward&) = delete;
  AutoForward& operator=(const AutoForward&) = delete;

  static bool enabled();
  static void set(bool on);

 private:
  bool before_;
};

}  // namespace nnl
