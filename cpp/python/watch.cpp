// SPDX-License-Identifier: Apache-2.0
// What a co-executed step tells its watch: Watch.call() of nnl/coexec/watch.py says what that
// means.
#include "called.h"

namespace nb = nanobind;

namespace nnl {

namespace {

struct WatchClass : Class {
  using Class::Class;
  Slot seen = slot("_seen"), hash = slot("_hash"), made = slot("_made"), calls = slot("_calls"),
       often = slot("_often"), rest = slot("_rest");
};

// What of nnl.coexec.watch calls work with. Made once; it stays until the process ends.
struct Names {
  explicit Names(const nb::module_& watch)
      : Watch(watch.attr("Watch")), passed(kept(watch.attr("PASSED"))), module(kept(watch)) {}
  const WatchClass Watch;
  PyObject *passed, *module;
};

Names* names;

uint64_t mix(uint64_t hash, uint64_t more) { return (hash * 1000003) ^ more; }

// How many of a list of numbers that grow are not above one.
Py_ssize_t not_above(PyObject* numbers, long long number) {
  Py_ssize_t begin = 0, end = PyList_GET_SIZE(numbers);
  while (begin < end) {
    const Py_ssize_t middle = (begin + end) / 2;
    if (PyLong_AsLongLong(PyList_GET_ITEM(numbers, middle)) > number)
      end = middle;
    else
      begin = middle + 1;
  }
  return begin;
}

bool set(PyObject*& slot, PyObject* value) {
  if (value) Py_XSETREF(slot, value);
  return value;
}

bool add(PyObject*& slot, Py_ssize_t more) {
  return !more || set(slot, PyLong_FromSsize_t(PyLong_AsSsize_t(slot) + more));
}

}  // namespace

bool tell_watch(const Called& called, PyObject* watch) {
  if (!names) names = new Names(nb::module_::import_("nnl.coexec.watch"));
  const WatchClass& Watch = names->Watch;
  if (!Watch.exactly(watch)) {
    static PyObject* const call = text("call");
    return nb::steal(PyObject_CallMethodObjArgs(watch, call, called.op, called.bound.ptr(),
                                                called.edges.ptr(), nullptr))
        .is_valid();
  }
  const int passed = PySet_Contains(names->passed, core->Op.name.of(called.op));
  if (passed) return passed > 0;
  PyObject *made = Watch.made.of(watch), *seen = Watch.seen.of(watch);
  uint64_t hash = PyLong_AsUnsignedLongLongMask(Watch.hash.of(watch));
  hash = mix(hash, reinterpret_cast<uintptr_t>(called.bound.ptr()));
  bool need = false;
  for (Py_ssize_t i = 0; i < called.count; ++i) {
    PyObject* edge = PyTuple_GET_ITEM(called.edges.ptr(), i);
    if (edge == Py_None || !core->Value.need_grad.on(edge)) continue;
    need = true;
    PyObject* node = core->Value.node.of(edge);
    if (node == Py_None) continue;
    const long long seq = PyLong_AsLongLong(core->Node.seq.of(node));
    hash = mix(hash, static_cast<uint64_t>(not_above(made, seq)));
  }
  nb::object now = nb::steal(PyIter_Next(core->numbers));
  if (!now.is_valid() || PyList_Append(made, now.ptr()) < 0) return false;
  if (!set(Watch.hash.of(watch), PyLong_FromUnsignedLongLong(hash))) return false;
  PyObject* key = Watch.hash.of(watch);
  PyObject* before = PyDict_GetItemWithError(seen, key);
  nb::object times = nb::steal(PyLong_FromSsize_t(before ? PyLong_AsSsize_t(before) + 1 : 1));
  if (!times.is_valid() || PyDict_SetItem(seen, key, times.ptr()) < 0) return false;
  nb::object often = nb::steal(PyObject_GetAttrString(names->module, "OFTEN"));
  if (!often.is_valid()) return false;
  const bool is_often = PyObject_RichCompareBool(times.ptr(), often.ptr(), Py_GT) == 1;
  return add(Watch.calls.of(watch), 1) && add(Watch.often.of(watch), is_often) &&
         add(Watch.rest.of(watch), need ? 2 : 0);
}

}  // namespace nnl
