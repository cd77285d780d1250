// SPDX-License-Identifier: Apache-2.0
// Backward passes of co-executed steps that were seen before: nnl/coexec/deferring/backward.py says
// what they are. What is unusual is left to it.
#include <algorithm>
#include <exception>
#include <vector>

#include "later.h"

namespace nb = nanobind;

namespace nnl {

namespace {

// Whether a gradient is lazily zero, in memory that is its own, as far as that is seen at once.
bool is_fresh(PyObject* grad) {
  PyObject* record = core->NdArray.record.of(grad);
  PyObject* fill = core->Record.fill.of(record);
  return !PyDict_GET_SIZE(core->NdArray.bufs.of(grad)) && PyLong_CheckExact(fill) &&
         PyLong_AsLong(fill) == 0 && core->Record.own.of(record) == Py_None;
}

// DeferredStep.becomes(into, number, spec): 1 for yes, 0 for no, -1 with an error.
int becomes(PyObject* deferred, PyObject* into, PyObject* number, PyObject* spec) {
  const RecordClass& Record = core->Record;
  if (!is_fresh(into) || core->Spec.is_half.on(spec)) {
    PyObject* args[] = {deferred, into, number, spec};
    nb::object done = nb::steal(PyObject_Vectorcall(later->becomes, args, 4, nullptr));
    return done.is_valid() ? PyObject_IsTrue(done.ptr()) : -1;
  }
  Py_SETREF(core->NdArray.spec.of(into), Py_NewRef(spec));
  PyObject* record = lasting(into, core->NdArray.record.of(into));
  nb::object id = nb::steal(PyLong_FromVoidPtr(into)),
             pair = nb::steal(PyTuple_Pack(2, number, into));
  if (!record || !id.is_valid() || !pair.is_valid()) return -1;
  Py_SETREF(Record.fill.of(record), Py_NewRef(Py_None));
  Py_SETREF(Record.work.of(record), Py_NewRef(deferred));
  Py_SETREF(Record.number.of(record), Py_NewRef(number));
  return PyDict_SetItem(later->DeferredStep.taken.of(deferred), id.ptr(), pair.ptr()) == 0 ? 1 : -1;
}

// The array of the gradient of a leaf; none with an error.
nb::object gradient_of(PyObject* leaf) {
  static PyObject* const grad = text("grad");
  PyObject* own = core->Value.own_grad.of(leaf);
  if (core->Value.node.of(leaf) == Py_None && own != Py_None) return nb::borrow(own);
  return nb::steal(PyObject_GetAttr(leaf, grad));
}

// A pass that is done once more, to the graph that the path has made.
class Again {
 public:
  Again(PyObject* deferred, PyObject* known) : deferred_(deferred), known_(known) {}

  // Whether the gradients of leaves are as they were the first time: all of them lazily zero.
  bool fits(PyObject* leaves) {
    const Py_ssize_t n = PyList_GET_SIZE(leaves);
    PyObject *shares = later->Pass.shares.of(known_), *ends = later->Pass.ends.of(known_);
    if (!PyList_CheckExact(ends) || PyList_GET_SIZE(shares) != n) return false;
    std::vector<PyObject*> first;
    for (Py_ssize_t i = 0; i < n; ++i) {
      grads_.push_back(gradient_of(PyList_GET_ITEM(leaves, i)));
      const Py_ssize_t share = PyLong_AsSsize_t(PyList_GET_ITEM(shares, i));
      if (!grads_.back().is_valid() || !grads_[static_cast<size_t>(share)].is(grads_.back()))
        return false;
      if (share == i) first.push_back(grads_.back().ptr());
    }
    std::sort(first.begin(), first.end());
    if (std::adjacent_find(first.begin(), first.end()) != first.end()) return false;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(ends); ++i)
      if (!is_fresh(grad_of(PyList_GET_ITEM(ends, i)))) return false;
    return true;
  }

  // Numbers what the pass reads and the path has not read; false for what is unusual.
  bool numbers() const {
    PyObject *read = later->Pass.given.of(known_), *given = later->DeferredStep.given.of(deferred_);
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(read); ++i) {
      PyObject* nd = PyList_GET_ITEM(read, i);
      const Py_ssize_t next = -2 - PyList_GET_SIZE(given);
      if (!core->NdArray.has(nd)) return false;
      nb::object number = number_of(deferred_, nd);
      if (!number.is_valid() || PyLong_AsSsize_t(number.ptr()) != next) return false;
    }
    return true;
  }

  // Puts its calls off, and lets the gradients become their results; false with an error.
  bool go(PyObject* nodes) const {
    PyObject *specs = later->Pass.specs.of(known_), *ends = later->Pass.ends.of(known_);
    const Py_ssize_t first = PyList_GET_SIZE(later->DeferredStep.made.of(deferred_));
    if (!go_to(deferred_, later->Pass.place.of(known_), PyList_GET_SIZE(specs))) return false;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(ends); ++i) {
      PyObject *end = PyList_GET_ITEM(ends, i), *number = PyTuple_GET_ITEM(end, 1);
      PyObject* spec = PyList_GET_ITEM(specs, PyLong_AsSsize_t(number) - first);
      if (becomes(deferred_, grad_of(end), number, spec) < 0) return false;
    }
    free_all(nodes);
    return true;
  }

 private:
  PyObject* grad_of(PyObject* end) const {
    return grads_[static_cast<size_t>(PyLong_AsSsize_t(PyTuple_GET_ITEM(end, 0)))].ptr();
  }

  // Drops what the nodes that it has gone through keep, and their gradients but for the last one's.
  void free_all(PyObject* nodes) const {
    PyObject* visited = later->Pass.nodes.of(known_);
    const Py_ssize_t last = PyList_GET_SIZE(nodes) - 1;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(visited); ++i) {
      const Py_ssize_t at = PyLong_AsSsize_t(PyTuple_GET_ITEM(PyList_GET_ITEM(visited, i), 0));
      PyObject* node = PyList_GET_ITEM(nodes, at);
      Py_SETREF(core->Node.saved.of(node), Py_NewRef(Py_None));
      if (at != last) Py_SETREF(core->Node.grads.of(node), Py_NewRef(Py_None));
    }
  }

  PyObject *const deferred_, *const known_;
  std::vector<nb::object> grads_;  // of all leaves
};

// The passes that are known of an output of the path; none where it is not of the path alone.
nb::object passes_of(PyObject* deferred, PyObject* output, PyObject* grad, PyObject* clear) {
  static PyObject* const now = text("now");
  const NodeClass& Node = core->Node;
  PyObject *node = core->Value.node.of(output), *edges = later->DeferredStep.edges.of(deferred);
  PyObject* live = Node.live.of(node);
  if (live == Py_None || !later->Edges.plain.on(edges)) return {};
  const Py_ssize_t index = core->Value.index.number(output);
  nb::object nd = nb::steal(PyObject_CallNoArgs(PyTuple_GET_ITEM(live, index)));
  if (!nd.is_valid() || nd.is_none()) return {};
  PyObject* record = core->NdArray.record.of(nd);
  if (core->Record.work.of(record) != deferred) return {};
  PyObject* number = core->Record.number.of(record);
  PyObject* maker = PyDict_GetItemWithError(later->Edges.makers.of(edges), number);
  nb::object epoch = nb::steal(PyObject_GetAttr(later->epoch, now));
  if (!maker || PyObject_RichCompareBool(maker, Node.seq.of(node), Py_EQ) != 1) return {};
  if (!epoch.is_valid() ||
      PyObject_RichCompareBool(epoch.ptr(), later->Edges.epoch.of(edges), Py_EQ) != 1)
    return {};
  const Py_ssize_t given = PyList_GET_SIZE(later->DeferredStep.given.of(deferred));
  nb::object count = nb::steal(PyLong_FromSsize_t(given));
  nb::object key = nb::steal(PyTuple_Pack(4, number, grad, clear, count.ptr()));
  PyObject* passes = later->PathNode.passes.of(later->DeferredStep.at.of(deferred));
  return nb::borrow(key.is_valid() ? PyDict_GetItemWithError(passes, key.ptr()) : nullptr);
}

// Goes backward as it was done before; false for what is unusual, and nothing has been done then.
bool backward_again(PyObject* deferred, PyObject* output, PyObject* grad, PyObject* clear) {
  static PyObject* const rewired = text("rewired");
  if (!core->Value.exactly(output) || clear != Py_True) return false;
  if (!PyLong_CheckExact(grad) && !PyFloat_CheckExact(grad)) return false;
  nb::object passes = passes_of(deferred, output, grad, clear);
  if (!passes.is_valid()) return false;
  auto* node_class = reinterpret_cast<PyObject*>(core->Node.type);
  nb::object other = nb::steal(PyObject_GetAttr(node_class, rewired));
  if (!other.is(Py_False)) return false;
  nb::list outputs;
  outputs.append(nb::borrow(output));
  const nb::list nodes = captured(outputs);
  if (!plain(nodes)) return false;
  PyObject* leaves = later->Edges.leaves.of(later->DeferredStep.edges.of(deferred));
  for (nb::handle known : passes) {
    Again again(deferred, known.ptr());
    if (later->Pass.place.of(known) == later->DeferredStep.trigger.of(deferred)) return false;
    if (!again.fits(leaves)) continue;
    nb::object given = nb::cast(PyList_GET_SIZE(later->DeferredStep.given.of(deferred)));
    if (again.numbers()) {
      if (!again.go(nodes.ptr())) throw nb::python_error();
      return true;
    }
    PyErr_Clear();
    nb::borrow(deferred).attr("forget")(given);
  }
  return false;
}

}  // namespace

PyObject* become(PyObject*, PyObject* const* args, Py_ssize_t n) {
  if (n != 4) return PyErr_Format(PyExc_TypeError, "become: got %zd arguments, wanted 4", n);
  PyObject *deferred = args[0], *leaves = args[1], *sums = args[2], *specs = args[3];
  const Py_ssize_t made = PyList_GET_SIZE(later->DeferredStep.made.of(deferred));
  const Py_ssize_t first = made - PyList_GET_SIZE(specs);
  nb::object rest = nb::steal(PyList_New(0));
  for (Py_ssize_t i = 0; rest.is_valid() && i < PyList_GET_SIZE(sums); ++i) {
    PyObject* sum = PyList_GET_ITEM(sums, i);
    PyObject* leaf = PyList_GET_ITEM(leaves, PyLong_AsSsize_t(PyTuple_GET_ITEM(sum, 0)));
    PyObject* number = PyTuple_GET_ITEM(sum, 1);
    nb::object into = gradient_of(leaf);
    if (!into.is_valid()) return nullptr;
    const Py_ssize_t at = PyLong_AsSsize_t(number) - first;
    const int done = at < 0 ? 0 : becomes(deferred, into.ptr(), number, PyList_GET_ITEM(specs, at));
    if (done < 0) return nullptr;
    nb::object pair = nb::steal(done ? nullptr : PyTuple_Pack(2, into.ptr(), number));
    if (!done && (!pair.is_valid() || PyList_Append(rest.ptr(), pair.ptr()) < 0)) return nullptr;
  }
  return rest.release().ptr();
}

PyObject* backward(PyObject* deferred, PyObject* const* args, Py_ssize_t n) {
  try {
    if (n == 3 && backward_again(deferred, args[0], args[1], args[2])) Py_RETURN_NONE;
  } catch (nb::python_error& e) {
    e.restore();
    return nullptr;
  } catch (const std::exception& e) {
    PyErr_SetString(PyExc_RuntimeError, e.what());
    return nullptr;
  }
  PyErr_Clear();  // Python looks again
  PyObject* all[] = {deferred, n > 0 ? args[0] : nullptr, n > 1 ? args[1] : nullptr,
                     n > 2 ? args[2] : nullptr};
  return PyObject_Vectorcall(later->backward, all, static_cast<size_t>(n + 1), nullptr);
}

}  // namespace nnl
