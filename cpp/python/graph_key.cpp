// SPDX-License-Identifier: Apache-2.0
// What the backward pass of a co-executed step depends on, where it goes through several pieces.
#include <exception>
#include <unordered_map>

#include "called.h"

namespace nb = nanobind;

namespace nnl {

namespace {

// Graph.key() of nnl/coexec/deferring/backward.py, which says what is in it.
class GraphKey {
 public:
  GraphKey(PyObject* graph, PyObject* deferred)
      : deferred_(deferred),
        nodes_(nb::steal(PyObject_GetAttrString(graph, "nodes"))),
        leaves_(nb::steal(PyObject_GetAttrString(graph, "leaves"))),
        arrays_(nb::steal(PyObject_GetAttrString(graph, "arrays"))) {}

  // The key; none with an error.
  nb::object make() {
    if (!nodes_.is_valid() || !leaves_.is_valid() || !arrays_.is_valid()) return {};
    const Py_ssize_t n = PyList_GET_SIZE(nodes_.ptr());
    for (Py_ssize_t i = 0; i < n; ++i) node_at_[PyList_GET_ITEM(nodes_.ptr(), i)] = i;
    nb::object key = nb::steal(PyTuple_New(n));
    for (Py_ssize_t i = 0; key.is_valid() && i < n; ++i) {
      nb::object part = of_node(PyList_GET_ITEM(nodes_.ptr(), i));
      if (!part.is_valid()) return {};
      PyTuple_SET_ITEM(key.ptr(), i, part.release().ptr());
    }
    return key;
  }

 private:
  nb::object of_node(PyObject* node) {
    const NodeClass& Node = core->Node;
    PyObject* inputs = Node.inputs.of(node);
    const Py_ssize_t n = PyTuple_GET_SIZE(inputs);
    nb::object specs = nb::steal(PyTuple_New(n)), edges = nb::steal(PyTuple_New(n));
    nb::object kept = kept_by(Node.saved.of(node));
    nb::object attrs = nb::steal(PyLong_FromVoidPtr(Node.attrs.of(node)));
    if (!specs.is_valid() || !edges.is_valid() || !kept.is_valid() || !attrs.is_valid()) return {};
    for (Py_ssize_t i = 0; i < n; ++i) {
      PyObject* v = PyTuple_GET_ITEM(inputs, i);
      PyObject* spec = v == Py_None ? Py_None : core->Value.spec.of(v);
      PyTuple_SET_ITEM(specs.ptr(), i, Py_NewRef(spec));
      nb::object edge = edge_of(v);
      if (!edge.is_valid()) return {};
      PyTuple_SET_ITEM(edges.ptr(), i, edge.release().ptr());
    }
    return nb::steal(PyTuple_Pack(7, Node.op.of(node), attrs.ptr(), Node.target.of(node),
                                  specs.ptr(), Node.out_specs.of(node), edges.ptr(), kept.ptr()));
  }

  nb::object edge_of(PyObject* v) {
    const ValueClass& Value = core->Value;
    if (v == Py_None || PyObject_IsTrue(Value.need_grad.of(v)) != 1) return nb::none();
    PyObject* node = Value.node.of(v);
    if (node == Py_None) return number_of(leaf_at_, v, v, leaves_);
    nb::object position = nb::steal(PyLong_FromSsize_t(node_at_.at(node)));
    if (!position.is_valid()) return {};
    return nb::steal(PyTuple_Pack(2, position.ptr(), Value.index.of(v)));
  }

  // What a node keeps: (number of the memory, spec, number on the path if it is of it) of each.
  nb::object kept_by(PyObject* saved) {
    nb::object found = nb::steal(PyList_New(0));
    const auto add = [&](PyObject* nd) {
      nb::object item = nd == Py_None ? nb::none() : of_array(nd);
      return item.is_valid() && PyList_Append(found.ptr(), item.ptr()) == 0;
    };
    for (Py_ssize_t i = 0; saved != Py_None && i < PyTuple_GET_SIZE(saved); ++i) {
      PyObject* x = PyTuple_GET_ITEM(saved, i);
      if (!PyTuple_Check(x)) {
        if (!add(x)) return {};
        continue;
      }
      for (Py_ssize_t j = 0; j < PyTuple_GET_SIZE(x); ++j)
        if (!add(PyTuple_GET_ITEM(x, j))) return {};
    }
    return nb::steal(PyList_AsTuple(found.ptr()));
  }

  nb::object of_array(PyObject* nd) {
    const ArrayClass& NdArray = core->NdArray;
    PyObject* record = NdArray.record.of(nd);
    const bool mine = core->Record.work.of(record) == deferred_;
    nb::object at = number_of(array_at_, NdArray.bufs.of(nd), nd, arrays_);
    if (!at.is_valid()) return {};
    return nb::steal(PyTuple_Pack(3, at.ptr(), NdArray.spec.of(nd),
                                  mine ? core->Record.number.of(record) : Py_None));
  }

  // The number of what is met for the first time, or once more.
  nb::object number_of(std::unordered_map<PyObject*, Py_ssize_t>& known, PyObject* id, PyObject* x,
                       const nb::object& all) {
    const auto [found, is_new] = known.emplace(id, PyList_GET_SIZE(all.ptr()));
    if (is_new && PyList_Append(all.ptr(), x) < 0) return {};
    return nb::steal(PyLong_FromSsize_t(found->second));
  }

  PyObject* const deferred_;
  nb::object nodes_, leaves_, arrays_;
  std::unordered_map<PyObject*, Py_ssize_t> node_at_, leaf_at_, array_at_;
};

}  // namespace

PyObject* graph_key(PyObject* graph, PyObject* deferred) {
  try {
    return GraphKey(graph, deferred).make().release().ptr();
  } catch (const std::exception& e) {
    PyErr_SetString(PyExc_RuntimeError, e.what());
    return nullptr;
  }
}

}  // namespace nnl
