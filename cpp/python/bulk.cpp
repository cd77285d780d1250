// SPDX-License-Identifier: Apache-2.0
// Loops over the arrays of a step. nnl/core/arrays/bulk.py says what they do; these are only
// faster.
#define NO_IMPORT_ARRAY
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <unordered_set>
#include <utility>
#include <vector>

#include "array_kernel.h"
#include "called.h"

namespace nb = nanobind;
using namespace nnl;

void bind_bulk(nb::module_& m);

namespace {

// What an array holds in a space; null for nothing.
PyObject* buffer(PyObject* nd, PyObject* space) {
  return PyDict_GetItemWithError(core->NdArray.bufs.of(nd), space);
}

// What Record.renew() does, with what another record says.
void renew(PyObject* record, PyObject* now) {
  const RecordClass& Record = core->Record;
  nb::object version = nb::steal(PyIter_Next(core->versions));
  if (!version.is_valid()) throw nb::python_error();
  for (const Slot* s : {&Record.fill, &Record.cleared, &Record.early})
    Py_SETREF(s->of(record), Py_NewRef(s->of(now)));
  for (const Slot* s : {&Record.own, &Record.views}) Py_SETREF(s->of(record), Py_NewRef(Py_None));
  Py_SETREF(Record.version.of(record), version.release().ptr());
}

}  // namespace

bool nnl::renew_usual(PyObject* nd, PyObject* space) {
  const RecordClass& Record = core->Record;
  PyObject* record = core->NdArray.record.of(nd);
  const bool alone = Record.own.of(record) == Py_None && Record.views.of(record) == Py_None &&
                     Record.work.of(record) == Py_None;
  if (!alone || !Record.version.number(record)) return false;
  if (PyDict_GET_SIZE(core->NdArray.bufs.of(nd)) != 1 || !buffer(nd, space)) return false;
  renew(record, core->plain);
  return true;
}

void nnl::count(PyObject* counts, PyObject* key, Py_ssize_t more) {
  PyObject* found = PyDict_GetItemWithError(counts, key);
  const Py_ssize_t now = (found ? PyLong_AsSsize_t(found) : 0) + more;
  if (PyErr_Occurred()) throw nb::python_error();
  if (now) {
    nb::object number = nb::steal(PyLong_FromSsize_t(now));
    if (!number.is_valid() || PyDict_SetItem(counts, key, number.ptr()) < 0)
      throw nb::python_error();
  } else if (found && PyDict_DelItem(counts, key) < 0) {
    throw nb::python_error();
  }
}

namespace {

nb::list renewed(const nb::list& arrays, nb::str space) {
  nb::list others;
  for (nb::handle pair : arrays) {
    PyObject *nd = PyTuple_GET_ITEM(pair.ptr(), 0), *where = PyTuple_GET_ITEM(pair.ptr(), 1);
    if (PyObject_RichCompareBool(where, space.ptr(), Py_EQ) != 1 || !renew_usual(nd, where))
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

bool is_held(nb::handle nd, nb::str space, const nb::dict& holders) {
  static PyObject* const base = text("base");
  static PyObject* const mmap = kept(nb::module_::import_("mmap").attr("mmap"));
  PyObject* buf = buffer(nd.ptr(), space.ptr());
  if (!buf) throw nb::key_error("bufs");
  const Py_ssize_t references = Py_REFCNT(buf);
  nb::object of = nb::steal(PyObject_GetAttr(buf, base));
  if (!of.is_valid()) throw nb::python_error();
  if (!of.is_none() && PyObject_IsInstance(of.ptr(), mmap) != 1) return true;
  nb::object id = nb::steal(PyLong_FromVoidPtr(buf));
  PyObject* known = PyDict_GetItemWithError(holders.ptr(), id.ptr());
  return references > 1 + (known ? PyLong_AsSsize_t(known) : 0);
}

bool unchanged(const nb::dict& arrays, const nb::dict& seen, nb::str space,
               const nb::dict& holders) {
  for (auto [slot, nd] : arrays) {
    PyObject* was = PyDict_GetItemWithError(seen.ptr(), slot.ptr());
    PyObject* now = core->Record.version.of(core->NdArray.record.of(nd.ptr()));
    if (!was || PyObject_RichCompareBool(was, now, Py_EQ) != 1) return false;
    if (is_held(nd, space, holders)) return false;
  }
  return true;
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

void put_back(const nb::list& given, const nb::dict& before) {
  for (auto [number, bufs] : before) {
    PyObject* nd = PyList_GET_ITEM(given.ptr(), -2 - PyLong_AsSsize_t(number.ptr()));
    if (PyDict_Update(core->NdArray.bufs.of(nd), bufs.ptr()) < 0) throw nb::python_error();
  }
}

void become(const nb::list& arrays, const nb::list& others) {
  const ArrayClass& NdArray = core->NdArray;
  for (size_t i = 0, n = std::min(arrays.size(), others.size()); i < n; ++i) {
    nb::object a = arrays[i], b = others[i];
    if (NdArray.bufs.of(a) == NdArray.bufs.of(b)) continue;
    PyObject* record = NdArray.record.of(b);
    if (core->Record.work.of(NdArray.record.of(a)) != Py_None ||
        !core->Record.version.number(record)) {
      a.attr("become")(b);
      continue;
    }
    for (const Slot* s : {&NdArray.spec, &NdArray.bufs, &NdArray.record})
      Py_SETREF(s->of(a), Py_NewRef(s->of(b)));
  }
}

std::vector<Py_ssize_t> references(const nb::list& items,
                                   const std::vector<Py_ssize_t>& positions) {
  std::vector<Py_ssize_t> counts;
  counts.reserve(positions.size());
  for (const Py_ssize_t i : positions) counts.push_back(Py_REFCNT(PyList_GET_ITEM(items.ptr(), i)));
  return counts;
}

void count_all(const nb::dict& counts, const nb::list& keys, Py_ssize_t more) {
  for (nb::handle key : keys) count(counts.ptr(), key.ptr(), more);
}

void give_back(const nb::list& given, const nb::dict& before, nb::object work) {
  const ArrayClass& NdArray = core->NdArray;
  for (nb::handle nd : given)
    Py_SETREF(core->Record.work.of(NdArray.record.of(nd)), Py_NewRef(work.ptr()));
  put_back(given, before);
}

nb::dict hand_over(const nb::list& given, const nb::dict& live, const nb::dict& taken,
                   const nb::dict& before, nb::handle work) {
  const auto record_of = [](nb::handle nd) { return core->NdArray.record.of(nd); };
  const auto hand = [&](nb::handle nd) {
    PyObject*& now = core->Record.work.of(record_of(nd));
    if (now != Py_None) Py_SETREF(now, Py_NewRef(work.ptr()));  // else it was overwritten
  };
  for (nb::handle nd : given) Py_SETREF(core->Record.work.of(record_of(nd)), Py_NewRef(work.ptr()));
  for (auto [number, nd] : live) hand(nd);
  for (auto [id, pair] : taken) hand(PyTuple_GET_ITEM(pair.ptr(), 1));
  nb::dict buffers;
  for (auto [number, was] : before) {
    PyObject* nd = PyList_GET_ITEM(given.ptr(), -2 - PyLong_AsSsize_t(number.ptr()));
    PyObject* bufs = core->NdArray.bufs.of(nd);
    nb::object copy = nb::steal(PyDict_Copy(bufs));
    if (!copy.is_valid()) throw nb::python_error();
    buffers[number] = copy;
    PyDict_Clear(bufs);
  }
  return buffers;
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

// An item of a dictionary by a number or id, borrowed; null for none.
PyObject* item(PyObject* dict, PyObject* key) {
  PyObject* found = PyDict_GetItemWithError(dict, key);
  if (!found && PyErr_Occurred()) throw nb::python_error();
  return found;
}

// Gives a record its next work.
void go_on(PyObject* record, PyObject* then) {
  PyObject* work = Py_None;
  if (PyDict_GET_SIZE(then)) {
    nb::object id = nb::steal(PyLong_FromVoidPtr(record));
    PyObject* next = item(then, id.ptr());
    if (next) work = next;
  }
  Py_SETREF(core->Record.work.of(record), Py_NewRef(work));
}

void go_on_from(const nb::list& arrays, nb::handle work, const nb::dict& then) {
  for (nb::handle nd : arrays) {
    PyObject* record = core->NdArray.record.of(nd);
    if (core->Record.work.of(record) == work.ptr()) go_on(record, then.ptr());
  }
}

void give_up(PyObject* record) {
  static PyObject* const text = kept(nb::module_::import_("nnl.core.arrays.bulk").attr("GIVEN_UP"));
  Py_SETREF(core->Record.cleared.of(record), Py_NewRef(text));
}

void set_buffer(PyObject* nd, PyObject* space, PyObject* buf) {
  if (PyDict_SetItem(core->NdArray.bufs.of(nd), space, buf) < 0) throw nb::python_error();
}

// Whether a buffer is no part of another array.
bool is_whole(PyObject* buf) {
  static PyObject* const base = text("base");
  if (PyArray_Check(buf)) return !PyArray_BASE(reinterpret_cast<PyArrayObject*>(buf));
  nb::object of = nb::steal(PyObject_GetAttr(buf, base));
  if (!of.is_valid()) PyErr_Clear();
  return !of.is_valid() || of.is_none();
}

void publish(const nb::dict& values, const nb::dict& live, const nb::dict& taken,
             const nb::dict& then) {
  const RecordClass& Record = core->Record;
  for (auto [number, array] : live) {
    PyObject *nd = array.ptr(), *record = core->NdArray.record.of(nd);
    if (Record.work.of(record) == Py_None) continue;  // it was overwritten
    renew(record, core->plain);
    PyObject* value = item(values.ptr(), number.ptr());
    if (value)
      set_buffer(nd, PyTuple_GET_ITEM(value, 0), PyTuple_GET_ITEM(value, 1));
    else
      give_up(record);
    go_on(record, then.ptr());
  }
  std::unordered_set<Py_ssize_t> handed;
  for (auto [id, pair] : taken) {
    PyObject *number = PyTuple_GET_ITEM(pair.ptr(), 0), *nd = PyTuple_GET_ITEM(pair.ptr(), 1);
    PyObject *record = core->NdArray.record.of(nd), *value = item(values.ptr(), number);
    if (!value) {
      give_up(record);
    } else {
      nb::object space = nb::borrow(PyTuple_GET_ITEM(value, 0));
      nb::object buf = nb::borrow(PyTuple_GET_ITEM(value, 1));
      const bool own = !item(live.ptr(), number) && is_whole(buf.ptr()) &&
                       handed.insert(PyLong_AsSsize_t(number)).second;
      if (!own) buf = buf.attr("copy")();
      if (Record.own.of(record) == Py_None)
        renew(record, core->plain);
      else
        buf = nb::borrow(record).attr("take")(space, buf);
      PyDict_Clear(core->NdArray.bufs.of(nd));
      set_buffer(nd, space.ptr(), buf.ptr());
    }
    go_on(record, then.ptr());
  }
}

// NdArray.zeroing.
bool is_zero(PyObject* nd) {
  static PyObject* const zero = PyLong_FromLong(0);
  PyObject* fill = core->Record.fill.of(core->NdArray.record.of(nd));
  if (PyDict_GET_SIZE(core->NdArray.bufs.of(nd)) || fill == Py_None) return false;
  const int is = fill == zero ? 1 : PyObject_RichCompareBool(fill, zero, Py_EQ);
  if (is < 0) throw nb::python_error();
  return is;
}

struct RunningClass : Class {
  using Class::Class;
  Slot thread = slot("thread"), taken = slot("_taken"), busy = slot("_busy"), over = slot("_over");
};

// Running.let_go(nd) of nnl.coexec, where the array gets its value from what runs and nobody waits
// for that; false for all else.
bool let_go(PyObject* work, PyObject* nd) {
  static const RunningClass* const Running =
      new RunningClass(nb::module_::import_("nnl.coexec.deferring.running").attr("Running"));
  if (!Running->exactly(work) || Running->busy.on(work) || Running->over.on(work)) return false;
  if (PyLong_AsUnsignedLong(Running->thread.of(work)) != PyThread_get_thread_ident()) return false;
  nb::object id = nb::steal(PyLong_FromVoidPtr(nd));
  PyObject* taken = Running->taken.of(work);
  if (!id.is_valid() || !item(taken, id.ptr())) return false;
  if (PyDict_DelItem(taken, id.ptr()) < 0) throw nb::python_error();
  Py_SETREF(core->Record.work.of(core->NdArray.record.of(nd)), Py_NewRef(Py_None));
  return true;
}

// The variable of an entry of a solver, and its gradient.
std::pair<nb::object, nb::object> variable_of(nb::handle entry) {
  static PyObject* const variable = text("variable");
  nb::object v = nb::steal(PyObject_GetAttr(entry.ptr(), variable));
  if (!v.is_valid()) throw nb::python_error();
  PyObject* edge = core->Variable.edge.of(v);
  nb::object grad = nb::borrow(core->Value.own_grad.of(edge));
  if (core->Value.node.of(edge) != Py_None || grad.is_none()) grad = nb::borrow(edge).attr("grad");
  return {v, grad};
}

void zero_gradients(const nb::list& entries) {
  static PyObject* const zero =
      kept(nb::module_::import_("nnl.core.arrays.memory_record").attr("ZERO"));
  const RecordClass& Record = core->Record;
  for (nb::handle entry : entries) {
    const auto [v, nd] = variable_of(entry);
    PyObject*& record = core->NdArray.record.of(nd);
    if (Record.own.of(record) != Py_None) {
      nd.attr("zero")();
      continue;
    }
    nb::object work = nb::borrow(Record.work.of(record));
    if (!work.is_none() && !let_go(work.ptr(), nd.ptr())) work.attr("let_go")(nd);
    PyDict_Clear(core->NdArray.bufs.of(nd));
    if (Record.version.number(record))
      renew(record, zero);
    else
      Py_SETREF(record, Py_NewRef(zero));
  }
}

nb::list to_update(const nb::list& entries) {
  static PyObject* const inputs = text("inputs");
  nb::list found;
  for (nb::handle entry : entries) {
    auto [w, grad] = variable_of(entry);
    nb::object rest = nb::steal(PyObject_GetAttr(entry.ptr(), inputs));
    if (!rest.is_valid()) throw nb::python_error();
    if (is_zero(grad.ptr())) continue;
    const Py_ssize_t n = PyTuple_GET_SIZE(rest.ptr());
    nb::object datas = nb::steal(PyTuple_New(2 + n));
    PyTuple_SET_ITEM(datas.ptr(), 0, Py_NewRef(core->Variable.data.of(w)));
    PyTuple_SET_ITEM(datas.ptr(), 1, grad.release().ptr());
    for (Py_ssize_t i = 0; i < n; ++i) {
      PyObject* v = PyTuple_GET_ITEM(rest.ptr(), i);
      PyTuple_SET_ITEM(datas.ptr(), 2 + i, Py_NewRef(v == Py_None ? v : core->Variable.data.of(v)));
    }
    found.append(datas);
  }
  return found;
}

}  // namespace

nb::list nnl::captured(const nb::list& outputs) {
  const NodeClass& Node = core->Node;
  std::unordered_set<PyObject*> seen;
  std::vector<PyObject*> stack;
  std::vector<std::pair<long long, PyObject*>> order;
  const auto meet = [&](PyObject* v) {
    PyObject* node = v == Py_None ? v : core->Value.node.of(v);
    if (node == Py_None || !seen.insert(node).second) return;
    stack.push_back(node);
    order.emplace_back(PyLong_AsLongLong(Node.seq.of(node)), node);
  };
  for (nb::handle v : outputs) meet(v.ptr());
  while (!stack.empty()) {
    PyObject* inputs = Node.inputs.of(stack.back());
    stack.pop_back();
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(inputs); ++i) meet(PyTuple_GET_ITEM(inputs, i));
  }
  std::sort(order.begin(), order.end());
  nb::list nodes;
  for (const auto& [seq, node] : order) nodes.append(nb::borrow(node));
  return nodes;
}

bool nnl::plain(const nb::list& nodes) {
  static PyObject* const shows_inputs = text("shows_inputs");
  const NodeClass& Node = core->Node;
  for (nb::handle node : nodes) {
    if (Node.live.of(node) == Py_None || Node.saved.of(node) == Py_None) return false;
    PyObject* inputs = Node.inputs.of(node);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(inputs); ++i) {
      PyObject* v = PyTuple_GET_ITEM(inputs, i);
      if (v != Py_None && core->Value.persistent.of(v) != Py_False) return false;
    }
    nb::object shows = nb::steal(PyObject_GetAttr(Node.attrs.of(node), shows_inputs));
    if (!shows.is_valid()) throw nb::python_error();
    if (PyObject_IsTrue(shows.ptr())) return false;
  }
  return true;
}

namespace {

// keep(*kept): the collector of circles goes through these no more.
PyObject* keep(PyObject*, PyObject* const* args, Py_ssize_t n) {
  for (Py_ssize_t i = 0; i < n; ++i)
    if (PyObject_GC_IsTracked(args[i])) PyObject_GC_UnTrack(args[i]);
  Py_RETURN_NONE;
}

PyMethodDef keep_method = {"keep", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(&keep)),
                           METH_FASTCALL, nullptr};

}  // namespace

void bind_bulk(nb::module_& m) {
  m.attr("keep") = nb::steal(PyCFunction_New(&keep_method, nullptr));
  m.def("renewed", &renewed);
  m.def("moved", &moved);
  m.def("is_held", &is_held);
  m.def("unchanged", &unchanged);
  m.def("unlike", &unlike);
  m.def("become", &become);
  m.def("references", &references);
  m.def("count", &count_all);
  m.def("give_back", &give_back, nb::arg(), nb::arg(), nb::arg().none());
  m.def("put_back", &put_back);
  m.def("hand_over", &hand_over);
  m.def("go_on", &go_on_from);
  m.def("living", &living);
  m.def("publish", &publish);
  m.def("zero_gradients", &zero_gradients);
  m.def("to_update", &to_update);
  m.def("captured", &captured);
  m.def("plain", &plain);
}
