// SPDX-License-Identifier: Apache-2.0
// Loops over the arrays of a step. nnl/core/lists.py says what they do; these are only faster.
#include <utility>

#include "called.h"

namespace nb = nanobind;
using namespace nnl;

void bind_lists(nb::module_& m);

namespace {

// What an array holds in a space; null for nothing.
PyObject* buffer(PyObject* nd, PyObject* space) {
  return PyDict_GetItemWithError(core->NdArray.bufs.of(nd), space);
}

bool renew(PyObject* nd, PyObject* space) {
  const RecordClass& Record = core->Record;
  PyObject* record = core->NdArray.record.of(nd);
  const bool alone = Record.own.of(record) == Py_None && Record.views.of(record) == Py_None &&
                     Record.work.of(record) == Py_None;
  if (!alone || !Record.version.number(record)) return false;
  if (PyDict_GET_SIZE(core->NdArray.bufs.of(nd)) != 1 || !buffer(nd, space)) return false;
  nb::object version = nb::steal(PyIter_Next(core->versions));
  if (!version.is_valid()) throw nb::python_error();
  for (const Slot* s : {&Record.fill, &Record.cleared, &Record.early})
    Py_SETREF(s->of(record), Py_NewRef(s->of(core->plain)));
  Py_SETREF(Record.version.of(record), version.release().ptr());
  return true;
}

nb::list renewed(const nb::list& arrays, nb::str space) {
  nb::list others;
  for (nb::handle pair : arrays) {
    PyObject *nd = PyTuple_GET_ITEM(pair.ptr(), 0), *where = PyTuple_GET_ITEM(pair.ptr(), 1);
    if (PyObject_RichCompareBool(where, space.ptr(), Py_EQ) != 1 || !renew(nd, where))
      others.append(pair);
  }
  return others;
}

nb::list moved(const nb::list& given, const nb::list& slots, nb::str space) {
  nb::list found;
  for (nb::handle pair : given) {
    PyObject* buf = buffer(PyTuple_GET_ITEM(pair.ptr(), 1), space.ptr());
    const Py_ssize_t slot = PyLong_AsSsize_t(PyTuple_GET_ITEM(pair.ptr(), 0));
    if (!buf || PyList_GET_ITEM(slots.ptr(), slot) != buf) found.append(pair);
  }
  return found;
}

nb::list unlike(const nb::list& arrays, const nb::list& others) {
  nb::list found;
  for (size_t i = 0, n = std::min(arrays.size(), others.size()); i < n; ++i) {
    PyObject *a = arrays[i].ptr(), *b = others[i].ptr();
    if (core->NdArray.bufs.of(a) != core->NdArray.bufs.of(b))
      found.append(nb::make_tuple(nb::borrow(a), nb::borrow(b)));
  }
  return found;
}

void give_back(const nb::list& given, const nb::dict& before, nb::object work) {
  const ArrayClass& NdArray = core->NdArray;
  for (nb::handle nd : given)
    Py_SETREF(core->Record.work.of(NdArray.record.of(nd)), Py_NewRef(work.ptr()));
  for (auto [number, bufs] : before) {
    PyObject* nd = PyList_GET_ITEM(given.ptr(), -2 - PyLong_AsSsize_t(number.ptr()));
    if (PyDict_Update(NdArray.bufs.of(nd), bufs.ptr()) < 0) throw nb::python_error();
  }
}

nb::dict living(const nb::list& made) {
  nb::dict found;
  for (size_t i = 0; i < made.size(); ++i) {
    PyObject* nd = PyList_GET_ITEM(made.ptr(), static_cast<Py_ssize_t>(i));
    if (nd != Py_None && (Py_REFCNT(nd) > 1 || Py_REFCNT(core->NdArray.bufs.of(nd)) > 1))
      found[nb::int_(i)] = nb::borrow(nd);
  }
  return found;
}

}  // namespace

void bind_lists(nb::module_& m) {
  m.def("renewed", &renewed);
  m.def("moved", &moved);
  m.def("unlike", &unlike);
  m.def("give_back", &give_back, nb::arg(), nb::arg(), nb::arg().none());
  m.def("living", &living);
}
