// SPDX-License-Identifier: Apache-2.0
// Calls in a co-executed step. DeferredStep.apply and DeferredStep.execute in nnl/coexec say what
// that means; this does the same where the path has gone on in this way before.
#define NO_IMPORT_ARRAY
#include <utility>

#include "array_kernel.h"
#include "later.h"
#include "location.h"

namespace nb = nanobind;

namespace nnl {

namespace {

// Adds to a count in a slot.
bool count(PyObject*& slot, Py_ssize_t more) {
  PyObject* sum = PyLong_FromSsize_t(PyLong_AsSsize_t(slot) + more);
  if (!sum) return false;
  Py_SETREF(slot, sum);
  return true;
}

// Whether somebody besides its array and plans may hold a buffer, or memory of it.
bool is_held(PyObject* host) {
  // what is part of another array is rare; Python looks closer
  if (!PyArray_Check(host) || PyArray_BASE(reinterpret_cast<PyArrayObject*>(host))) return true;
  if (Py_REFCNT(host) == 1) return false;
  nb::object id = nb::steal(PyLong_FromVoidPtr(host));
  PyObject* plans = id.is_valid() ? PyDict_GetItemWithError(later->holders, id.ptr()) : nullptr;
  return Py_REFCNT(host) > 1 + (plans ? PyLong_AsSsize_t(plans) : 0);
}

}  // namespace

PyObject* lasting(PyObject* nd, PyObject* record) {
  const RecordClass& Record = core->Record;
  if (Record.version.number(record)) return record;
  nb::object now = Record.make(), version = nb::steal(PyIter_Next(core->versions));
  if (!now.is_valid() || !version.is_valid()) return nullptr;
  for (const Slot* s : Record.all()) s->begin(now, s->of(record));
  Py_SETREF(Record.version.of(now), version.release().ptr());
  PyObject*& slot = core->NdArray.record.of(nd);
  Py_SETREF(slot, now.release().ptr());
  return slot;
}

nb::object number_of(PyObject* deferred, PyObject* nd) {
  const RecordClass& Record = core->Record;
  PyObject* record = nd ? core->NdArray.record.of(nd) : nullptr;
  if (!Record.exactly(record)) return {};
  PyObject* work = Record.work.of(record);
  if (work == deferred) return nb::borrow(Record.number.of(record));
  const bool adopts = work != Py_None && work == later->DeferredStep.behind.of(deferred);
  if (!(adopts || work == Py_None) || Record.own.of(record) != Py_None) return {};
  PyObject* bufs = core->NdArray.bufs.of(nd);
  if (!adopts && !PyDict_GET_SIZE(bufs)) return {};
  PyObject* host = PyDict_GetItemWithError(bufs, later->space);
  if (host && is_held(host)) return {};
  record = lasting(nd, record);
  PyObject* given = later->DeferredStep.given.of(deferred);
  if (!record || PyList_Append(given, nd) < 0) return {};
  nb::object number = nb::steal(PyLong_FromSsize_t(-1 - PyList_GET_SIZE(given)));
  if (!number.is_valid()) return {};
  if (adopts && PySet_Add(later->DeferredStep.adopted.of(deferred), number.ptr()) < 0) return {};
  Py_SETREF(Record.work.of(record), Py_NewRef(deferred));
  Py_SETREF(Record.number.of(record), Py_NewRef(number.ptr()));
  return number;
}

bool go_to(PyObject* deferred, PyObject* place, Py_ssize_t makes) {
  const DeferredStepClass& DeferredStep = later->DeferredStep;
  if (!count(later->PathNode.visits.of(place), 1)) return false;
  if (PyList_Append(DeferredStep.path.of(deferred), place) < 0) return false;
  Py_SETREF(DeferredStep.at.of(deferred), Py_NewRef(place));
  for (; makes; --makes)
    if (PyList_Append(DeferredStep.made.of(deferred), Py_None) < 0) return false;
  return true;
}

namespace {

// Takes the value away from an array that a call writes, as DeferredStep._will_write() does.
bool will_write(PyObject* deferred, PyObject* nd, PyObject* number) {
  PyObject* before = later->DeferredStep.before.of(deferred);
  const int known = PyDict_Contains(before, number);
  if (known) return known > 0;
  PyObject* bufs = core->NdArray.bufs.of(nd);
  nb::object was = nb::steal(PyDict_New());
  if (!was.is_valid() || PyDict_SetItem(before, number, was.ptr()) < 0) return false;
  // from here on no other thread comes in between, which may publish the value that moves
  if (PyDict_Update(was.ptr(), bufs) < 0) return false;
  PyDict_Clear(bufs);
  Py_SETREF(core->Record.fill.of(core->NdArray.record.of(nd)), Py_NewRef(Py_None));
  return true;
}

// Whether an array may be written by a call: one that was there before, and has or gets a value.
bool is_writable(PyObject* deferred, PyObject* nd, PyObject* number) {
  if (PyLong_AsSsize_t(number) >= -1) return false;
  return PyDict_GET_SIZE(core->NdArray.bufs.of(nd)) ||
         PyDict_Contains(later->DeferredStep.before.of(deferred), number) > 0 ||
         PySet_Contains(later->DeferredStep.adopted.of(deferred), number) > 0;
}

// Takes the values away from the arrays that a call writes, unless one must not be written now.
bool will_write_all(PyObject* deferred, PyObject* writes, PyObject* const* datas,
                    PyObject* numbers) {
  for (auto* f : {&is_writable, &will_write})
    for (Py_ssize_t w = 0; w < PyTuple_GET_SIZE(writes); ++w) {
      const Py_ssize_t i = PyLong_AsSsize_t(PyTuple_GET_ITEM(writes, w));
      if (datas[i] != Py_None && !f(deferred, datas[i], PyTuple_GET_ITEM(numbers, i))) return false;
    }
  return true;
}

// The numbers of the inputs of a call; none for what is unusual.
nb::object numbers_of(PyObject* deferred, PyObject* bound, PyObject* const* datas,
                      Py_ssize_t count) {
  static PyObject* const left_out = PyLong_FromLong(-1);
  nb::object numbers = nb::steal(PyTuple_New(count));
  for (Py_ssize_t i = 0; numbers.is_valid() && i < count; ++i) {
    nb::object number = datas[i] == Py_None ? nb::borrow(left_out) : number_of(deferred, datas[i]);
    if (!number.is_valid()) return {};
    PyTuple_SET_ITEM(numbers.ptr(), i, number.release().ptr());
  }
  PyObject* writes = core->Bound.writes.of(bound);
  if (numbers.is_valid() && !will_write_all(deferred, writes, datas, numbers.ptr())) return {};
  return numbers;
}

// DeferredStep._numbers(datas, bound).
PyObject* numbers(PyObject* deferred, PyObject* const* args, Py_ssize_t n) {
  if (n == 2 && PyTuple_CheckExact(args[0]) && core->Bound.exactly(args[1])) {
    nb::object found =
        numbers_of(deferred, args[1], &PyTuple_GET_ITEM(args[0], 0), PyTuple_GET_SIZE(args[0]));
    if (found.is_valid() || PyErr_Occurred()) return found.release().ptr();
  }
  PyObject* all[] = {deferred, n > 0 ? args[0] : nullptr, n > 1 ? args[1] : nullptr};
  return PyObject_Vectorcall(later->numbers, all, n + 1, nullptr);
}

// The kernel that an op is bound to for these arrays; none where that is not known.
nb::object bound_of(PyObject* attrs, PyObject* target, PyObject* datas) {
  const Py_ssize_t n = PyTuple_GET_SIZE(datas);
  nb::object key = nb::steal(PyTuple_New(1 + n));
  if (!key.is_valid()) return {};
  PyTuple_SET_ITEM(key.ptr(), 0, Py_NewRef(target));
  for (Py_ssize_t i = 0; i < n; ++i) {
    PyObject* nd = PyTuple_GET_ITEM(datas, i);
    PyTuple_SET_ITEM(key.ptr(), 1 + i, Py_NewRef(nd == Py_None ? nd : core->NdArray.spec.of(nd)));
  }
  nb::object bound =
      nb::borrow(PyDict_GetItemWithError(core->Attributes.bound.of(attrs), key.ptr()));
  return core->Bound.exactly(bound.ptr()) ? bound : nb::object();
}

// DeferredStep.calls(op, attrs, arrays), where the path has gone on in this way before.
bool calls_again(PyObject* deferred, PyObject* attrs, PyObject* arrays) {
  static PyObject* const target = text("target");
  PyObject* modes = modes_of_this_thread();
  PyObject* here = modes ? PyDict_GetItemWithError(modes, target) : nullptr;
  if (!here || !core->Attributes.has(attrs) || !PyList_CheckExact(arrays)) return false;
  const Py_ssize_t n = PyList_GET_SIZE(arrays);
  nb::object bounds = nb::steal(PyTuple_New(n)), numbers = nb::steal(PyTuple_New(n));
  if (!n || !bounds.is_valid() || !numbers.is_valid()) return false;
  Py_ssize_t makes = 0;
  for (Py_ssize_t i = 0; i < n; ++i) {
    PyObject* datas = PyList_GET_ITEM(arrays, i);
    nb::object bound = PyTuple_CheckExact(datas) ? bound_of(attrs, here, datas) : nb::object();
    if (!bound.is_valid() || core->Bound.space.of(bound) != later->space) return false;
    makes += PyTuple_GET_SIZE(core->Bound.out_specs.of(bound));
    PyTuple_SET_ITEM(bounds.ptr(), i, bound.release().ptr());
  }
  for (Py_ssize_t i = 0; i < n; ++i) {
    PyObject* datas = PyList_GET_ITEM(arrays, i);
    nb::object found = numbers_of(deferred, PyTuple_GET_ITEM(bounds.ptr(), i),
                                  &PyTuple_GET_ITEM(datas, 0), PyTuple_GET_SIZE(datas));
    if (!found.is_valid()) return false;
    PyTuple_SET_ITEM(numbers.ptr(), i, found.release().ptr());
  }
  nb::object key = nb::steal(PyTuple_Pack(2, bounds.ptr(), numbers.ptr()));
  PyObject* at = later->DeferredStep.at.of(deferred);
  nb::object place = nb::borrow(
      key.is_valid() ? PyDict_GetItemWithError(later->PathNode.after.of(at), key.ptr()) : nullptr);
  return place.is_valid() && place.ptr() != later->DeferredStep.trigger.of(deferred) &&
         go_to(deferred, place.ptr(), makes);
}

PyObject* calls(PyObject* deferred, PyObject* const* args, Py_ssize_t n) {
  if (n == 3 && calls_again(deferred, args[1], args[2])) Py_RETURN_NONE;
  PyErr_Clear();  // Python looks again
  PyObject* all[] = {deferred, n > 0 ? args[0] : nullptr, n > 1 ? args[1] : nullptr,
                     n > 2 ? args[2] : nullptr};
  return PyObject_Vectorcall(later->calls, all, static_cast<size_t>(n + 1), nullptr);
}

// One call in a step. Its functions give nothing for what is unusual, perhaps with an error.
class PutOff {
 public:
  PutOff(const Called& called, PyObject* deferred)
      : called_(called), deferred_(deferred), edges_(later->DeferredStep.edges.of(deferred)) {}

  // Whether the call is the next one of a path, at `place`, or is done at once as nothing is put
  // off any more, with `done` then.
  bool find() {
    if (!is_usual()) return false;
    nb::object numbers = numbers_of_inputs();
    if (!numbers.is_valid()) return false;
    nb::object key = nb::none();
    if (called_.need && !(key = key_of_edges(numbers.ptr())).is_valid()) return false;
    PyObject* at = later->DeferredStep.at.of(deferred_);
    nb::object whole = nb::steal(PyTuple_Pack(3, called_.bound.ptr(), numbers.ptr(), key.ptr()));
    if (!whole.is_valid()) return false;
    place_ = nb::borrow(PyDict_GetItemWithError(later->PathNode.after.of(at), whole.ptr()));
    if (!place_.is_valid() && !(place_ = new_place(whole.ptr(), numbers.ptr())).is_valid())
      return false;
    return is_left() || place_.ptr() != later->DeferredStep.trigger.of(deferred_);
  }

  bool is_left() const { return place_.is_none(); }

  // What the call gives where nothing is put off any more.
  PyObject* at_once() const {
    static PyObject* const name = text("at_once");
    nb::object inputs = nb::steal(PyTuple_New(called_.count));
    if (!inputs.is_valid()) return nullptr;
    for (Py_ssize_t i = 0; i < called_.count; ++i)
      PyTuple_SET_ITEM(inputs.ptr(), i, Py_NewRef(called_.inputs[i]));
    return PyObject_CallMethodObjArgs(deferred_, name, called_.op, called_.attrs.ptr(),
                                      inputs.ptr(), nullptr);
  }

  // Goes to that place; returns what the call gives.
  PyObject* go() {
    PyObject* specs = core->Bound.out_specs.of(called_.bound);
    PyObject* made = later->DeferredStep.made.of(deferred_);
    const Py_ssize_t n = PyTuple_GET_SIZE(specs), first = PyList_GET_SIZE(made);
    nb::object results = nb::steal(PyTuple_New(n));
    if (!results.is_valid()) return nullptr;
    for (Py_ssize_t i = 0; i < n; ++i) {
      nb::object record = pending(first + i);
      if (!record.is_valid()) return nullptr;
      nb::object nd = new_array(PyTuple_GET_ITEM(specs, i), nb::steal(PyDict_New()), record.ptr());
      if (!nd.is_valid()) return nullptr;
      PyTuple_SET_ITEM(results.ptr(), i, nd.release().ptr());
    }
    nb::object node = nb::none();
    if (called_.need && !(node = new_node(called_, results.ptr())).is_valid()) return nullptr;
    nb::object ys = nb::steal(visible(called_, node.ptr(), results.ptr()));
    if (!ys.is_valid() || !count(later->PathNode.visits.of(place_), 1)) return nullptr;
    if (PyList_Append(later->DeferredStep.path.of(deferred_), place_.ptr()) < 0) return nullptr;
    PyObject* visited = later->DeferredStep.visited.of(deferred_);
    if (here_.is_valid() && PyDict_SetItem(visited, here_.ptr(), times_.ptr()) < 0) return nullptr;
    for (Py_ssize_t i = 0; i < n; ++i) {
      PyObject* nd = PyTuple_GET_ITEM(results.ptr(), i);
      if (PyList_Append(made, nd) < 0) return nullptr;
      if (!called_.need) continue;
      PyObject* number = core->Record.number.of(core->NdArray.record.of(nd));
      PyObject* seq = core->Node.seq.of(node);
      if (PyDict_SetItem(later->Edges.makers.of(edges_), number, seq) < 0) return nullptr;
    }
    Py_SETREF(later->DeferredStep.at.of(deferred_), place_.release().ptr());
    return ys.release().ptr();
  }

 private:
  // DeferredStep._new_place(); None where the step is left.
  nb::object new_place(PyObject* key, PyObject* numbers) const {
    static PyObject* const name = text("_new_place");
    nb::object call =
        nb::steal(PyTuple_Pack(4, called_.op, called_.attrs.ptr(), called_.bound.ptr(), numbers));
    nb::object calls = nb::steal(PyTuple_Pack(1, call.ptr()));
    if (!call.is_valid() || !calls.is_valid()) return {};
    return nb::steal(PyObject_CallMethodObjArgs(deferred_, name, key, calls.ptr(),
                                                called_.arrays ? Py_None : called_.edges.ptr(),
                                                nullptr));
  }

  bool is_usual() {
    PyObject* name = core->Op.name.of(called_.op);
    if (core->Bound.space.of(called_.bound) != later->space) return false;
    if (PySet_Contains(later->at_once, name)) return false;
    return !PyDict_Contains(later->with_input, name) || number_is_the_same();
  }

  // Whether a function of an array and a number has had this number here, all the time.
  bool number_is_the_same() {
    static PyObject* const inplace = text("inplace");
    PyObject* stop = later->DeferredStep.outermost.of(deferred_);
    auto* frame = stop == Py_None ? nullptr : reinterpret_cast<PyFrameObject*>(stop);
    nb::object in_place = nb::steal(PyObject_GetAttr(called_.attrs.ptr(), inplace));
    if (in_place.ptr() != Py_False) {
      PyErr_Clear();
      if (in_place.is_valid()) return false;
    }
    nb::object here = nb::steal(PyLong_FromUnsignedLongLong(location(frame)));
    if (!here.is_valid()) return false;
    PyObject* visited = later->DeferredStep.visited.of(deferred_);
    PyObject* before = PyDict_GetItemWithError(visited, here.ptr());
    nb::object times = nb::steal(PyLong_FromSsize_t(before ? PyLong_AsSsize_t(before) + 1 : 1));
    if (!times.is_valid()) return false;
    nb::object key = nb::steal(PyTuple_Pack(3, called_.op, here.ptr(), times.ptr()));
    if (!key.is_valid()) return false;
    PyObject* known = later->Paths.attrs.of(later->DeferredStep.paths.of(deferred_));
    if (PyDict_GetItemWithError(known, key.ptr()) != called_.attrs.ptr()) return false;
    here_ = std::move(here);
    times_ = std::move(times);
    return true;
  }

  nb::object numbers_of_inputs() const {
    PyObject* datas[most_inputs];
    for (Py_ssize_t i = 0; i < called_.count; ++i)
      datas[i] = called_.inputs[i] == Py_None ? Py_None : data_of(called_.inputs[i]);
    return numbers_of(deferred_, called_.bound.ptr(), datas, called_.count);
  }

  // The record of an array that the step makes.
  nb::object pending(Py_ssize_t number) {
    const RecordClass& Record = core->Record;
    static PyObject* const one = PyLong_FromLong(1);
    nb::object record = Record.make(), place = nb::steal(PyLong_FromSsize_t(number));
    if (!record.is_valid() || !place.is_valid()) return {};
    for (const Slot* s : Record.all()) s->begin(record, s->of(core->plain));
    Py_SETREF(Record.version.of(record), Py_NewRef(one));
    Py_SETREF(Record.work.of(record), Py_NewRef(deferred_));
    Py_SETREF(Record.number.of(record), place.release().ptr());
    return record;
  }

  // How gradients flow into the call, as Edges.key() says it.
  nb::object key_of_edges(PyObject* numbers) {
    const ValueClass& Value = core->Value;
    if (!begin_edges()) return {};
    nb::object key = nb::steal(PyTuple_New(called_.count));
    for (Py_ssize_t i = 0; key.is_valid() && i < called_.count; ++i) {
      PyObject* edge = PyTuple_GET_ITEM(called_.edges.ptr(), i);
      Py_ssize_t how = 0;
      if (edge != Py_None && Value.need_grad.on(edge)) {
        PyObject *node = Value.node.of(edge), *number = PyTuple_GET_ITEM(numbers, i);
        if (node == Py_None) {
          how = leaf(edge);
        } else {
          PyObject* maker = PyDict_GetItemWithError(later->Edges.makers.of(edges_), number);
          how = maker && PyObject_RichCompareBool(maker, core->Node.seq.of(node), Py_EQ) == 1;
        }
        if (!how) return {};
      }
      PyTuple_SET_ITEM(key.ptr(), i, PyLong_FromSsize_t(how));
    }
    return key;
  }

  // Notes the present epoch, at the first call with a gradient.
  bool begin_edges() const {
    PyObject*& epoch = later->Edges.epoch.of(edges_);
    if (epoch != Py_None) return true;
    static PyObject* const now = text("now");
    PyObject* present = PyObject_GetAttr(later->epoch, now);
    if (present) Py_SETREF(epoch, present);
    return present;
  }

  // 2 + the position of a leaf among those of the path; 0 with an error.
  Py_ssize_t leaf(PyObject* edge) {
    PyObject* positions = later->Edges.positions.of(edges_);
    PyObject* leaves = later->Edges.leaves.of(edges_);
    nb::object id = nb::steal(PyLong_FromVoidPtr(edge));
    if (!id.is_valid()) return 0;
    PyObject* known = PyDict_GetItemWithError(positions, id.ptr());
    if (known) return 2 + PyLong_AsSsize_t(known);
    const Py_ssize_t n = PyList_GET_SIZE(leaves);
    nb::object position = nb::steal(PyLong_FromSsize_t(n));
    if (!position.is_valid() || PyDict_SetItem(positions, id.ptr(), position.ptr()) < 0) return 0;
    return PyList_Append(leaves, edge) < 0 ? 0 : 2 + n;
  }

  const Called& called_;
  PyObject* const deferred_;
  PyObject* const edges_;
  nb::object place_, here_, times_;
};

template <auto f>
PyMethodDef method(const char* name) {
  return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(f)), METH_FASTCALL, nullptr};
}

// Lets functions of C take the place of those of nnl.coexec.
void take_over() {
  const auto deferred = nb::module_::import_("nnl.coexec.deferring.deferred_step");
  const auto passes = nb::module_::import_("nnl.coexec.deferring.backward");
  later = new Later(deferred, passes);
  static PyMethodDef of_deferred[] = {method<&numbers>("_numbers"), method<&calls>("calls"),
                                      method<&backward>("backward")};
  PyTypeObject* type = later->DeferredStep.type;
  for (PyMethodDef& m : of_deferred)
    nb::setattr(reinterpret_cast<PyObject*>(type), m.ml_name,
                nb::steal(PyDescr_NewMethod(type, &m)));
  static PyMethodDef sums = method<&become>("become");
  nb::setattr(passes, "become", nb::steal(PyCFunction_New(&sums, nullptr)));
  static PyMethodDef key = {"key", &graph_key, METH_O, nullptr};
  nb::object graph = passes.attr("Graph");
  auto* of_graph = reinterpret_cast<PyTypeObject*>(graph.ptr());
  nb::setattr(graph, "key", nb::steal(PyDescr_NewMethod(of_graph, &key)));
}

}  // namespace

bool put_off(const Called& called, PyObject* deferred, PyObject** result) {
  if (!later) take_over();
  if (!later->DeferredStep.has(deferred)) return false;
  PutOff call(called, deferred);
  if (!call.find()) return false;
  *result = call.is_left() ? call.at_once() : call.go();
  return true;
}

}  // namespace nnl
