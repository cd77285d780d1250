// SPDX-License-Identifier: Apache-2.0
// A call of an op that is done at once, or later in a co-executed step: what it is given, and what
// it makes.
#pragma once
#include "core_classes.h"

namespace nnl {

constexpr Py_ssize_t most_inputs = 16;

struct Called {
  explicit Called(PyObject* called) : op(called) {}

  PyObject* const op;
  Py_ssize_t count = 0;
  PyObject* inputs[most_inputs];  // borrowed from the caller
  nanobind::object attrs, target, bound, edges;
  PyObject* again = nullptr;  // the mode `recompute`
  bool arrays = false;        // whether an input is no Variable
  bool need = false;          // whether a node has to be made
};

inline const Core* core;

// The dictionary of a threading.local in this thread, borrowed: it lives as long as the thread
// does.
class OfThread {
 public:
  PyObject* of(PyObject* local) {  // null where there is none
    const uint64_t thread = PyThreadState_GetID(PyThreadState_Get());
    if (known_ != thread) {
      auto found = nanobind::steal(PyObject_GetAttrString(local, "__dict__"));
      if (!found.is_valid() || !PyDict_CheckExact(found.ptr())) return nullptr;
      dict_ = found.ptr();
      known_ = thread;
    }
    return dict_;
  }

 private:
  uint64_t known_ = 0;  // numbers of threads are never used again
  PyObject* dict_ = nullptr;
};

// The modes of this thread, borrowed.
inline PyObject* modes_of_this_thread() {
  static thread_local OfThread modes;
  return modes.of(core->modes);
}

// The array of an input that is given; null for what is neither Variable nor NdArray.
PyObject* data_of(PyObject* x);

// An array of a spec, in which these are put.
nanobind::object new_array(PyObject* spec, nanobind::object&& bufs, PyObject* record);

// The node that has made a tuple of arrays.
nanobind::object new_node(const Called& called, PyObject* results);

// A handle on output `index` of a node, or on a leaf where that is None.
nanobind::object new_variable(const Called& called, PyObject* node, Py_ssize_t index, PyObject* nd);

// What the caller of an op gets of a tuple of arrays: the visible ones, as handles.
PyObject* visible(const Called& called, PyObject* node, PyObject* results);

// Nodes that edges depend on, in the order of their creation, and whether gradients can go through
// them: nnl/core/arrays/bulk.py says it. Both throw nb::python_error.
nanobind::list captured(const nanobind::list& outputs);
bool plain(const nanobind::list& nodes);

// Puts a call off in a co-executed step, if that needs nothing but what its paths know; false
// where the deferred step has to see to it. The result is null with an error.
bool put_off(const Called& called, PyObject* deferred, PyObject** result);

// Tells the watch of a co-executed step of a call of Variables; false with an error.
bool tell_watch(const Called& called, PyObject* watch);

// Notes that an array is about to be written in a space, as NdArray.touch does; false where there
// is more to see to.
bool renew_usual(PyObject* nd, PyObject* space);

// Adds to the count of a key, which is not there while it is 0.
void count(PyObject* counts, PyObject* key, Py_ssize_t more);

// Graph.key(deferred) of nnl/coexec/deferring/backward.py; null with an error.
PyObject* graph_key(PyObject* graph, PyObject* deferred);

}  // namespace nnl
