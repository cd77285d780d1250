// SPDX-License-Identifier: Apache-2.0
// What calls of ops make: arrays, nodes and handles, as nnl/core/graph/dispatch.py does.
#include <algorithm>
#include <utility>

#include "called.h"

namespace nb = nanobind;

namespace nnl {

namespace {

PyObject* data_or_none(PyObject* x) { return x == Py_None ? x : core->Variable.data.of(x); }

// The arrays that the gradient's rule names.
nb::object kept_by(const Called& called, PyObject* results) {
  const OpClass& Op = core->Op;
  PyObject *ins = Op.kept_inputs.of(called.op), *outs = Op.kept_outputs.of(called.op);
  const Py_ssize_t n = PyTuple_GET_SIZE(ins), m = PyTuple_GET_SIZE(outs);
  nb::object saved = nb::steal(PyTuple_New(n + m));
  if (!saved.is_valid()) return saved;
  const auto position = [](PyObject* pairs, Py_ssize_t k) {
    return PyLong_AsSsize_t(PyTuple_GET_ITEM(PyTuple_GET_ITEM(pairs, k), 1));
  };
  for (Py_ssize_t k = 0; k < n; ++k) {
    const Py_ssize_t i = position(ins, k);
    PyObject* x = nullptr;
    if (Op.variadic.on(called.op) && i == PyTuple_GET_SIZE(Op.inputs.of(called.op)) - 1) {
      x = PyTuple_New(called.count - i);
      for (Py_ssize_t j = i; x && j < called.count; ++j)
        PyTuple_SET_ITEM(x, j - i, Py_NewRef(data_or_none(called.inputs[j])));
      if (!x) return {};
    } else {
      x = Py_NewRef(data_or_none(called.inputs[i]));
    }
    PyTuple_SET_ITEM(saved.ptr(), k, x);
  }
  for (Py_ssize_t k = 0; k < m; ++k) {
    PyObject* y = results;
    if (!Op.variadic_out.on(called.op)) y = PyTuple_GET_ITEM(results, position(outs, k));
    PyTuple_SET_ITEM(saved.ptr(), n + k, Py_NewRef(y));
  }
  return saved;
}

}  // namespace

PyObject* data_of(PyObject* x) {
  PyObject* nd = core->Variable.has(x) ? core->Variable.data.of(x) : x;
  return core->NdArray.has(nd) ? nd : nullptr;
}

nb::object new_array(PyObject* spec, nb::object&& bufs, PyObject* record) {
  const ArrayClass& NdArray = core->NdArray;
  nb::object nd = NdArray.make();
  if (!nd.is_valid() || !bufs.is_valid()) return {};
  NdArray.spec.begin(nd, spec);
  NdArray.bufs.begin(nd, std::move(bufs));
  NdArray.record.begin(nd, record);
  return nd;
}

nb::object new_node(const Called& called, PyObject* results) {
  const NodeClass& Node = core->Node;
  const Py_ssize_t n = PyTuple_GET_SIZE(results);
  nb::object live = nb::steal(PyTuple_New(n)), saved = kept_by(called, results);
  nb::object node = Node.make(), number = nb::steal(PyIter_Next(core->numbers));
  if (!live.is_valid() || !saved.is_valid() || !node.is_valid() || !number.is_valid()) return {};
  for (Py_ssize_t i = 0; i < n; ++i) {
    PyObject* ref = PyWeakref_NewRef(PyTuple_GET_ITEM(results, i), nullptr);
    if (!ref) return {};
    PyTuple_SET_ITEM(live.ptr(), i, ref);
  }
  Node.op.begin(node, called.op);
  Node.attrs.begin(node, called.attrs.ptr());
  Node.inputs.begin(node, called.edges.ptr());
  Node.out_specs.begin(node, core->Bound.out_specs.of(called.bound));
  Node.target.begin(node, called.target.ptr());
  Node.need_grad.begin(node, Py_True);
  Node.live.begin(node, std::move(live));
  Node.saved.begin(node, std::move(saved));
  Node.seq.begin(node, std::move(number));
  for (const Slot* s : {&Node.outs, &Node.grads, &Node.info, &Node.origin}) s->begin(node, Py_None);
  return node;
}

nb::object new_variable(const Called& called, PyObject* node, Py_ssize_t index, PyObject* nd) {
  static PyObject* const unnamed = text("");
  const ValueClass& Value = core->Value;
  nb::object edge = Value.make(), number = nb::steal(PyLong_FromSsize_t(index));
  nb::object v = core->Variable.make();
  if (!edge.is_valid() || !number.is_valid() || !v.is_valid()) return {};
  const bool leaf = node == Py_None;
  Value.node.begin(edge, node);
  Value.index.begin(edge, std::move(number));
  Value.spec.begin(edge, core->NdArray.spec.of(nd));
  Value.need_grad.begin(edge, leaf ? Py_False : Py_True);
  Value.data.begin(edge, leaf ? nd : Py_None);
  Value.own_grad.begin(edge, Py_None);
  Value.persistent.begin(edge, Py_False);
  Value.recompute.begin(edge, called.again);
  Value.name.begin(edge, unnamed);
  core->Variable.edge.begin(v, std::move(edge));
  core->Variable.data.begin(v, nd);
  core->Variable.sessions.begin(v, Py_None);
  core->Variable.info.begin(v, Py_None);
  return v;
}

PyObject* visible(const Called& called, PyObject* node, PyObject* results) {
  const auto result = [&](Py_ssize_t i) {
    PyObject* nd = PyTuple_GET_ITEM(results, i);
    return called.arrays ? nb::borrow(nd) : new_variable(called, node, i, nd);
  };
  if (core->Bound.single.on(called.bound.ptr())) return result(0).release().ptr();
  const Py_ssize_t n = PyTuple_GET_SIZE(results), most = core->Op.visible.number(called.op);
  const bool hides = most < PyTuple_GET_SIZE(core->Op.outputs.of(called.op));
  if (hides && most == 1) return result(0).release().ptr();
  const Py_ssize_t shown = hides ? std::min(most, n) : n;
  nb::object ys = nb::steal(PyTuple_New(shown));
  if (!ys.is_valid()) return nullptr;
  for (Py_ssize_t i = 0; i < shown; ++i) {
    nb::object y = result(i);
    if (!y.is_valid()) return nullptr;
    PyTuple_SET_ITEM(ys.ptr(), i, y.release().ptr());
  }
  return ys.release().ptr();
}

}  // namespace nnl
