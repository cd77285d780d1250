// SPDX-License-Identifier: Apache-2.0
#define NO_IMPORT_ARRAY
#include "plan_buffers.h"

#include <utility>
#include <vector>

#include "array_kernel.h"
#include "called.h"

namespace nb = nanobind;
using namespace nnl;

namespace {

PyArrayObject* array_of(nb::handle x) { return reinterpret_cast<PyArrayObject*>(x.ptr()); }

std::vector<npy_intp> to_shape(PyObject* sizes) {
  std::vector<npy_intp> shape;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(sizes); ++i)
    shape.push_back(PyLong_AsSsize_t(PyTuple_GET_ITEM(sizes, i)));
  return shape;
}

void set_item(const nb::list& list, Py_ssize_t i, const nb::object& x) {
  if (PyList_SetItem(list.ptr(), i, x.inc_ref().ptr()) < 0) throw nb::python_error();
}

// Takes a key out of a dictionary; null where it is not there.
nb::object popped(const nb::dict& dict, PyObject* key) {
  nb::object found = nb::borrow(PyDict_GetItemWithError(dict.ptr(), key));
  if (found.is_valid() && PyDict_DelItem(dict.ptr(), key) < 0) throw nb::python_error();
  return found;
}

}  // namespace

nb::list bind_arrays(Plan& plan, const nb::list& given, const nb::list& slots,
                     const nb::dict& views, const nb::dict& held, const nb::dict& seen,
                     const nb::dict& holders) {
  static PyObject* const space = text("host");
  nb::list others;
  for (nb::handle pair : given) {
    PyObject* slot = PyTuple_GET_ITEM(pair.ptr(), 0);
    PyObject* bufs = core->NdArray.bufs.of(PyTuple_GET_ITEM(pair.ptr(), 1));
    nb::object buf = nb::borrow(PyDict_GetItemWithError(bufs, space));
    if (!buf.is_valid() || !PyArray_Check(buf.ptr()) || !PyArray_IS_C_CONTIGUOUS(array_of(buf)) ||
        PyDict_Contains(views.ptr(), slot)) {
      others.append(pair);
      continue;
    }
    popped(seen, slot);
    const nb::object before = popped(held, slot);
    if (before.is_valid()) count(holders.ptr(), before.ptr(), -1);
    nb::object id = nb::steal(PyLong_FromVoidPtr(buf.ptr()));
    held[nb::handle(slot)] = id;
    count(holders.ptr(), id.ptr(), 1);
    const Py_ssize_t at = PyLong_AsSsize_t(slot);
    plan.bind(static_cast<int>(at), PyArray_DATA(array_of(buf)));
    set_item(slots, at, buf);
  }
  return others;
}

void renew_buffers(Plan& plan, const nb::list& slots, const nb::list& buffers) {
  for (nb::handle what : buffers) {
    const Py_ssize_t slot = PyLong_AsSsize_t(PyTuple_GET_ITEM(what.ptr(), 0));
    auto* type = reinterpret_cast<PyArray_Descr*>(PyTuple_GET_ITEM(what.ptr(), 2));
    const nb::object buf = empty_array(to_shape(PyTuple_GET_ITEM(what.ptr(), 1)), type);
    PyObject* views = PyTuple_GET_ITEM(what.ptr(), 3);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(views); ++i) {
      PyObject* view = PyTuple_GET_ITEM(views, i);
      std::vector<npy_intp> shape = to_shape(PyTuple_GET_ITEM(view, 1));
      PyArray_Dims dims{shape.data(), static_cast<int>(shape.size())};
      const nb::object x = nb::steal(PyArray_Newshape(array_of(buf), &dims, NPY_CORDER));
      if (!x.is_valid()) throw nb::python_error();
      set_item(slots, PyLong_AsSsize_t(PyTuple_GET_ITEM(view, 0)), x);
    }
    plan.bind(static_cast<int>(slot), PyArray_DATA(array_of(buf)));
    set_item(slots, slot, buf);
  }
}
