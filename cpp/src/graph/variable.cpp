// SPDX-License-Identifier: Apache-2.0
#include "nnl/variable.h"

#include "graph.h"

namespace nnl {

namespace {

graph::Value& value_of(const Variable& v) {
  if (!v) throw ValueError("Variable: there is none");
  return *v.value();
}

}  // namespace

Variable::Variable(Shape shape, bool need_grad) : value_(std::make_shared<graph::Value>()) {
  value_->spec.shape = std::move(shape);
  value_->data = Array(value_->spec), value_->grad = Array(value_->spec);
  value_->need_grad = need_grad;
}

Variable::Variable(const Array& data, bool need_grad) : Variable(data.shape(), need_grad) {
  value_->data = data;
  // numbers are floating point to functions, whatever their type; these are no numbers
  const DType type = data.spec().dtype;
  if (type == DType::u64 || type == DType::boolean) value_->spec = data.spec();
}

Variable::Variable(const Variable& other, bool need_grad)
    : value_(std::make_shared<graph::Value>()) {
  const graph::Value& from = value_of(other);
  value_->spec = from.spec, value_->data = from.data, value_->grad = other.grad();
  value_->need_grad = need_grad;
}

const Shape& Variable::shape() const { return value_of(*this).spec.shape; }
int64_t Variable::size() const { return value_of(*this).spec.size(); }
Shape Variable::strides() const { return value_of(*this).spec.strides(); }
Array Variable::data() const { return value_of(*this).data; }

Array Variable::grad() const {
  graph::Value& v = value_of(*this);
  if (!v.grad) v.grad = Array(Spec{v.spec.shape});
  return v.grad;
}

Array Variable::readable(bool write_only) const {
  const graph::Value& v = value_of(*this);
  if (!write_only && !v.data.has_value())
    throw ValueError("data: the result of " + (v.node ? v.node->op : "another graph") + ", " +
                     v.spec.text() +
                     ", has no value: forward() has not computed it, or has cleared it; "
                     "set_persistent() keeps it");
  return v.data;
}

float Variable::item() const {
  if (size() != 1)
    throw ValueError("item: got " + value_of(*this).spec.text() + ", wanted one element");
  return *data<float>();
}

bool Variable::need_grad() const { return value_of(*this).need_grad; }
bool Variable::persistent() const { return value_of(*this).persistent; }

Variable& Variable::set_need_grad(bool need) {
  value_of(*this).need_grad = need;
  return *this;
}

Variable& Variable::set_persistent(bool keep) {
  value_of(*this).persistent = keep;
  return *this;
}

Variable operator-(const Variable& x) { return x * -1.0; }

#define NNL_OPERATOR(symbol, function)                               \
  Variable operator symbol(const Variable& x0, const Variable& x1) { \
    return functions::function(x0, x1);                              \
  }
NNL_OPERATOR(+, add2)
NNL_OPERATOR(-, sub2)
NNL_OPERATOR(*, mul2)
NNL_OPERATOR(/, div2)
#undef NNL_OPERATOR

Variable operator+(const Variable& x, double v) { return functions::add_scalar(x, v); }
Variable operator+(double v, const Variable& x) { return functions::add_scalar(x, v); }
Variable operator-(const Variable& x, double v) { return functions::add_scalar(x, -v); }
Variable operator-(double v, const Variable& x) { return functions::r_sub_scalar(x, v); }
Variable operator*(const Variable& x, double v) { return functions::mul_scalar(x, v); }
Variable operator*(double v, const Variable& x) { return functions::mul_scalar(x, v); }
Variable operator/(const Variable& x, double v) { return functions::mul_scalar(x, 1 / v); }
Variable operator/(double v, const Variable& x) { return functions::r_div_scalar(x, v); }

}  // namespace nnl
