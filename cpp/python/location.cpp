// SPDX-License-Identifier: Apache-2.0
#include "location.h"

#include <nanobind/nanobind.h>

#include <unordered_map>
#include <utility>

namespace nb = nanobind;

void bind_location(nb::module_& m);

namespace {

PyObject* passed;  // nnl.core.arguments.origin.PASSED

struct Place {
  int line = 0, end_line = 0, column = -1, end_column = -1;
  bool operator==(const Place& p) const {
    return line == p.line && end_line == p.end_line && column == p.column &&
           end_column == p.end_column;
  }
};

// Instructions of a code that frames were at, with the first ones of the same place in the source.
// One by one: a step that is new meets many codes, at few of their instructions.
class Starts {
 public:
  explicit Starts(PyCodeObject* code) : code_(code) {
    const int found = PySet_Contains(passed, reinterpret_cast<PyObject*>(code));
    if (found < 0) throw nb::python_error();
    counts_ = !found;
  }

  // Whether the code counts at all.
  bool counts() const { return counts_; }

  int of(int at) {
    const auto found = known_.find(at);
    if (found != known_.end()) return found->second;
    const Place here = place(at);
    int first = at;
    if (here.column >= 0)  // columns may be left out
      while (first && place(first - 1) == here) --first;
    return known_[at] = first;
  }

 private:
  Place place(int at) const {
    Place p;
    if (!PyCode_Addr2Location(code_, 2 * at, &p.line, &p.column, &p.end_line, &p.end_column))
      throw nb::python_error();
    return p;
  }

  PyCodeObject* code_;
  bool counts_;
  std::unordered_map<int, int> known_;
};

// That of every code that was met; it is kept alive with them.
std::unordered_map<PyCodeObject*, Starts> known;
constexpr size_t most_known = 10'000;  // programs that make code as they run must not fill memory

Starts& starts(PyCodeObject* code) {
  const auto found = known.find(code);
  if (found != known.end()) return found->second;
  Starts fresh(code);
  if (known.size() == most_known) {
    std::unordered_map<PyCodeObject*, Starts> old;
    old.swap(known);
    for (auto& entry : old) Py_DECREF(entry.first);
  }
  Py_INCREF(code);
  return known.emplace(code, std::move(fresh)).first->second;
}

}  // namespace

namespace nnl {

uint64_t location(PyFrameObject* stop) {
  uint64_t hash = 0;
  nb::object frame = nb::borrow(reinterpret_cast<PyObject*>(PyEval_GetFrame()));
  while (frame.is_valid() && frame.ptr() != reinterpret_cast<PyObject*>(stop)) {
    auto* f = reinterpret_cast<PyFrameObject*>(frame.ptr());
    nb::object code = nb::steal(reinterpret_cast<PyObject*>(PyFrame_GetCode(f)));
    Starts& places = starts(reinterpret_cast<PyCodeObject*>(code.ptr()));
    if (places.counts()) {
      const int at = PyFrame_GetLasti(f) / 2;
      hash = (hash ^ reinterpret_cast<uintptr_t>(code.ptr())) * 0x9E3779B97F4A7C15;
      hash += static_cast<uint64_t>(at < 0 ? at : places.of(at));
      hash ^= hash >> 29;
    }
    frame = nb::steal(reinterpret_cast<PyObject*>(PyFrame_GetBack(f)));
  }
  return hash;
}

}  // namespace nnl

namespace {

// location(stop=None), by position: nanobind's own call takes longer than the work.
PyObject* location_of(PyObject*, PyObject* const* args, Py_ssize_t n) {
  PyFrameObject* stop = nullptr;
  if (n > 0 && args[0] != Py_None) {
    if (!PyFrame_Check(args[0])) {
      PyErr_Format(PyExc_TypeError, "location: stop is %s, wanted a frame or None",
                   Py_TYPE(args[0])->tp_name);
      return nullptr;
    }
    stop = reinterpret_cast<PyFrameObject*>(args[0]);
  }
  try {
    return PyLong_FromUnsignedLongLong(nnl::location(stop));
  } catch (nb::python_error& e) {
    e.restore();
    return nullptr;
  }
}

PyMethodDef method = {"location",
                      reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(&location_of)),
                      METH_FASTCALL, "What nnl.core.arguments.origin says, faster."};

}  // namespace

void bind_location(nb::module_& m) {
  m.def("location_by", [](nb::object of) {
    passed = of.release().ptr();
    return nb::steal(PyCFunction_New(&method, nullptr));
  });
}
