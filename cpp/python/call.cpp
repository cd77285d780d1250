// SPDX-License-Identifier: Apache-2.0
// Calls of ops that compute at once, in C. Op.call and the interpreters in nnl/core say what a call
// means; this does the same where nothing is unusual: attributes and a kernel that were found
// before, inputs with a buffer where the kernel reads, nobody who listens. All else is left to
// Op.call.
#include <nanobind/nanobind.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "called.h"

namespace nb = nanobind;
using namespace nnl;

void bind_call(nb::module_& m);

namespace {

// Puts an item, which it takes, in a new tuple; false for none.
bool put(const nb::object& tuple, Py_ssize_t i, PyObject* item) {
  if (item) PyTuple_SET_ITEM(tuple.ptr(), i, item);
  return item;
}

// One call of an op.
class Call {
 public:
  explicit Call(PyObject* op) : called_(op) {}
  ~Call() {
    for (Py_ssize_t i = 0; i < held_; ++i) Py_XDECREF(bufs_[i + 1]);
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  // Finds all that the kernel needs; false for an unusual call, and nothing has been done then.
  bool prepare(PyObject* const* args, Py_ssize_t n, PyObject* names) {
    return computes(n ? args[0] : nullptr) && take(args, n, names) && find_kernel() && is_usual() &&
           (is_put_off()
                ? names_edges() && (!called_.arrays || core->Bound.single.on(called_.bound.ptr()))
                : read());
  }

  // What the call gives; null with an error.
  PyObject* run() {
    if (is_watched() && !tell_watch(called_, watch_.ptr())) return nullptr;
    if (is_put_off()) return put_off();
    nb::object out = nb::steal(PyObject_Vectorcall(
        core->Bound.call.of(called_.bound), bufs_ + 1,
        static_cast<size_t>(called_.count) | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr));
    if (!out.is_valid()) return nullptr;
    nb::object results = arrays(out.ptr());
    if (!results.is_valid()) return nullptr;
    nb::object node = called_.need ? new_node(called_, results.ptr()) : nb::none();
    return node.is_valid() ? visible(called_, node.ptr(), results.ptr()) : nullptr;
  }

 private:
  PyObject* mode(PyObject* name) const { return PyDict_GetItemWithError(modes_, name); }
  bool on(PyObject* name) const {
    PyObject* value = mode(name);
    return value && PyObject_IsTrue(value) == 1;
  }

  // Whether calls that begin with this input compute now, as Eager does, or in a co-executed step.
  bool computes(PyObject* first) {
    static PyObject* const interpreter = text("interpreter");
    modes_ = modes_of_this_thread();
    PyObject* now = modes_ ? mode(interpreter) : nullptr;
    if (core->Static.has(now)) {  // nnl.compile has no such `now`
      if (!core->NdArray.has(first)) return false;
      now = core->Static.now.of(now);
      records_ = true;
    }
    if (core->Deferring.exactly(now)) {
      deferred_ = nb::borrow(core->Deferring.deferred.of(now));
      watch_ = nb::borrow(core->Deferring.watch.of(now));
      return true;
    }
    return core->Eager.exactly(now);
  }

  // Inputs and attributes, as Op.parse() splits the arguments; what it has not met is unusual.
  bool take(PyObject* const* args, Py_ssize_t n, PyObject* names) {
    const OpClass& Op = core->Op;
    const Py_ssize_t given = Op.given.number(called_.op);
    if (given < 0) return false;
    const Py_ssize_t inputs = std::min(n, given);
    called_.count = Op.variadic.on(called_.op) ? n : given;
    if (called_.count >= most_inputs) return false;
    std::copy(args, args + inputs, called_.inputs);
    std::fill(called_.inputs + inputs, called_.inputs + called_.count, Py_None);
    called_.attrs = nb::borrow(attributes(args, n, names, inputs));
    if (!core->Attributes.has(called_.attrs.ptr())) return false;
    if (Op.takes_rng.on(called_.op)) {
      nb::object seed = nb::steal(PyObject_GetAttrString(called_.attrs.ptr(), "seed"));
      if (!seed.is_valid()) return false;
      stream_ = nb::steal(PyObject_CallOneArg(core->stream, seed.ptr()));
      called_.inputs[called_.count++] = stream_.ptr();
    }
    return true;
  }

  // The attributes of a call: the op's defaults, or what its table has for what is given besides
  // inputs. Borrowed; null where there is nothing.
  PyObject* attributes(PyObject* const* args, Py_ssize_t n, PyObject* names,
                       Py_ssize_t inputs) const {
    static PyObject* const n_outputs = text("n_outputs");
    static PyObject* const outputs = text("outputs");
    Py_ssize_t named = 0, by_name[most_inputs];  // positions of those given by name
    for (Py_ssize_t i = 0; names && i < PyTuple_GET_SIZE(names); ++i) {
      PyObject* name = PyTuple_GET_ITEM(names, i);
      if (name == n_outputs || (name == outputs && args[n + i] == Py_None)) continue;
      if (name == outputs || named == most_inputs) return nullptr;
      by_name[named++] = i;
    }
    PyObject* defaults = core->Op.defaults.of(called_.op);
    if (!named && defaults != Py_None && n == core->Op.arity.number(called_.op)) return defaults;
    nb::object key = nb::steal(PyTuple_New(1 + named)), rest = nb::steal(PyTuple_New(n - inputs));
    if (!key.is_valid() || !rest.is_valid()) return nullptr;
    for (Py_ssize_t i = inputs; i < n; ++i)
      if (!put(rest, i - inputs, hashable(args[i]))) return nullptr;
    put(key, 0, rest.release().ptr());
    for (Py_ssize_t i = 0; i < named; ++i) {
      nb::object value = nb::steal(hashable(args[n + by_name[i]]));
      if (!value.is_valid()) return nullptr;
      PyObject* pair = PyTuple_Pack(2, PyTuple_GET_ITEM(names, by_name[i]), value.ptr());
      if (!put(key, 1 + i, pair)) return nullptr;
    }
    PyObject* found = PyDict_GetItemWithError(core->Op.calls.of(called_.op), key.ptr());
    if (!core->Attributes.has(found) || !core->Attributes.has_zero.on(found)) return found;
    for (Py_ssize_t i = inputs; i < n; ++i)
      if (may_be_negative_zero(args[i])) return nullptr;
    for (Py_ssize_t i = 0; i < named; ++i)
      if (may_be_negative_zero(args[n + by_name[i]])) return nullptr;
    return found;
  }

  // The table takes -0.0 for 0.0; what is none of the usual types may hold one.
  static bool may_be_negative_zero(PyObject* value) {
    if (PyFloat_CheckExact(value)) {
      const double number = PyFloat_AS_DOUBLE(value);
      return number == 0 && std::signbit(number);
    }
    if (PyTuple_CheckExact(value) || PyList_CheckExact(value)) {
      PyObject** items = PySequence_Fast_ITEMS(value);
      return std::any_of(items, items + PySequence_Fast_GET_SIZE(value), may_be_negative_zero);
    }
    return !PyLong_Check(value) && !PyUnicode_CheckExact(value) && value != Py_None;
  }

  // A value as attributes are looked up by: lists as tuples.
  static PyObject* hashable(PyObject* value) {
    return PyList_CheckExact(value) ? PyList_AsTuple(value) : Py_NewRef(value);
  }

  // (target, *specs), or the specs alone without a target.
  nb::object key(PyObject* target) const {
    const Py_ssize_t first = target ? 1 : 0;
    nb::object key = nb::steal(PyTuple_New(first + called_.count));
    if (!key.is_valid()) return key;
    if (target) PyTuple_SET_ITEM(key.ptr(), 0, Py_NewRef(target));
    for (Py_ssize_t i = 0; i < called_.count; ++i) {
      PyObject* spec = Py_None;
      if (called_.inputs[i] != Py_None) {
        PyObject* nd = data_of(called_.inputs[i]);
        spec = nd ? core->NdArray.spec.of(nd) : nullptr;
        if (!spec) return {};
      }
      PyTuple_SET_ITEM(key.ptr(), first + i, Py_NewRef(spec));
    }
    return key;
  }

  bool find_kernel() {
    static PyObject* const target = text("target");
    called_.target = nb::borrow(mode(target));
    if (!called_.target.is_valid()) return false;
    if (core->Op.resolves.on(called_.op)) {
      nb::object specs = key(nullptr);
      if (!specs.is_valid()) return false;
      called_.attrs = nb::borrow(
          PyDict_GetItemWithError(core->Attributes.resolved.of(called_.attrs), specs.ptr()));
      if (!core->Attributes.has(called_.attrs.ptr())) return false;
    }
    nb::object wanted = key(called_.target.ptr());
    if (!wanted.is_valid()) return false;
    called_.bound =
        nb::borrow(PyDict_GetItemWithError(core->Attributes.bound.of(called_.attrs), wanted.ptr()));
    return core->Bound.exactly(called_.bound.ptr());
  }

  // Whether this thread computes now, and nobody wants to know.
  bool is_usual() {
    static PyObject* const no_grad = text("no_grad");
    static PyObject* const make_nodes = text("make_nodes");
    static PyObject* const recompute = text("recompute");
    static PyObject* const profiled = text("profiled");
    for (Py_ssize_t i = 0; i < called_.count; ++i) {
      PyObject* x = called_.inputs[i];
      if (x == Py_None) continue;
      if (!core->Variable.has(x)) {
        called_.arrays = true;
        continue;
      }
      PyObject* edge = core->Variable.edge.of(x);
      if (!core->Value.exactly(edge)) return false;
      PyObject* need = core->Value.need_grad.of(edge);
      if (need != Py_True && need != Py_False) return false;
      called_.need = called_.need || need == Py_True;
    }
    if (called_.arrays) {
      called_.need = false;
      return true;
    }
    if (records_ || core->hooks_active.on(core->hooks)) return false;
    called_.need =
        called_.need && core->Op.differentiable.on(called_.op) && !on(no_grad) && on(make_nodes);
    called_.again = mode(recompute);
    return called_.again && !(called_.need && on(profiled));
  }

  // The buffers of the inputs, and their edges.
  bool read() {
    static PyObject* const touch = text("touch");
    static PyObject* const host = text("host");
    space_ = nb::borrow(core->Bound.space.of(called_.bound));
    PyObject* writes = core->Bound.writes.of(called_.bound);
    if (core->Bound.view.on(called_.bound.ptr()) && space_.ptr() != host &&
        !PyTuple_GET_SIZE(writes))
      return false;
    for (; held_ < called_.count; ++held_) {
      nb::object buf = nb::none();
      if (called_.inputs[held_] != Py_None) buf = buffer(data_of(called_.inputs[held_]));
      if (!buf.is_valid()) return false;
      bufs_[held_ + 1] = buf.release().ptr();
    }
    if ((called_.need || is_watched()) && !names_edges()) return false;
    for (Py_ssize_t w = 0; w < PyTuple_GET_SIZE(writes); ++w) {
      const Py_ssize_t i = PyLong_AsSsize_t(PyTuple_GET_ITEM(writes, w));
      if (called_.inputs[i] == Py_None) continue;
      PyObject* buf = PyObject_CallMethodOneArg(data_of(called_.inputs[i]), touch, space_.ptr());
      if (!buf) return false;
      Py_SETREF(bufs_[i + 1], buf);
    }
    return true;
  }

  // What an array holds in the space of the kernel; null where nothing was written yet.
  nb::object buffer(PyObject* nd) const {
    static PyObject* const read = text("read");
    PyObject* bufs = nd ? core->NdArray.bufs.of(nd) : nullptr;
    if (!bufs || !PyDict_CheckExact(bufs)) return {};
    PyObject* found = PyDict_GetItemWithError(bufs, space_.ptr());
    if (found) return nb::borrow(found);
    PyObject* record = core->NdArray.record.of(nd);
    const bool filled = core->Record.exactly(record) && core->Record.fill.of(record) != Py_None;
    if (!filled && !PyDict_GET_SIZE(bufs)) return {};
    return nb::steal(PyObject_CallMethodOneArg(nd, read, space_.ptr()));
  }

  bool names_edges() {
    if (called_.arrays) return true;
    called_.edges = nb::steal(PyTuple_New(called_.count));
    if (!called_.edges.is_valid()) return false;
    for (Py_ssize_t i = 0; i < called_.count; ++i)
      PyTuple_SET_ITEM(
          called_.edges.ptr(), i,
          Py_NewRef(called_.inputs[i] == Py_None ? Py_None
                                                 : core->Variable.edge.of(called_.inputs[i])));
    return true;
  }

  // Whether a co-executed step is told of calls like this one; see nnl/coexec/policy/watch.py.
  bool is_watched() const { return !watch_.is_none() && !called_.arrays; }

  // Whether a co-executed step does it later; see nnl.coexec.
  bool is_put_off() const { return !deferred_.is_none(); }

  PyObject* put_off() {
    static PyObject* const apply = text("apply");
    static PyObject* const execute = text("execute");
    PyObject* result;
    if (nnl::put_off(called_, deferred_.ptr(), &result)) return result;
    if (PyErr_Occurred()) return nullptr;
    nb::object inputs = nb::steal(PyTuple_New(called_.count));
    if (!inputs.is_valid()) return nullptr;
    for (Py_ssize_t i = 0; i < called_.count; ++i) {
      PyObject* x = called_.inputs[i];
      PyTuple_SET_ITEM(inputs.ptr(), i,
                       Py_NewRef(x == Py_None || !called_.arrays ? x : data_of(x)));
    }
    if (!called_.arrays)
      return PyObject_CallMethodObjArgs(deferred_.ptr(), apply, called_.op, called_.attrs.ptr(),
                                        inputs.ptr(), called_.edges.ptr(), called_.bound.ptr(),
                                        called_.need ? Py_True : Py_False, nullptr);
    nb::object made = nb::steal(PyObject_CallMethodObjArgs(deferred_.ptr(), execute, called_.op,
                                                           called_.attrs.ptr(), called_.bound.ptr(),
                                                           inputs.ptr(), nullptr));
    return made.is_valid() ? PySequence_GetItem(made.ptr(), 0) : nullptr;
  }

  // The arrays of what the kernel has given.
  nb::object arrays(PyObject* out) const {
    PyObject* specs = core->Bound.out_specs.of(called_.bound);
    const Py_ssize_t n = PyTuple_GET_SIZE(specs);
    const bool single = core->Bound.single.on(called_.bound.ptr());
    nb::object results = nb::steal(PyTuple_New(n));
    nb::object several;
    if (!single) several = nb::steal(PySequence_Fast(out, "a kernel gave no arrays"));
    if (!results.is_valid() || !(single || several.is_valid())) return {};
    if (!single && PySequence_Fast_GET_SIZE(several.ptr()) != n) {
      PyErr_Format(PyExc_ValueError, "a kernel gave %zd arrays, wanted %zd",
                   PySequence_Fast_GET_SIZE(several.ptr()), n);
      return {};
    }
    for (Py_ssize_t i = 0; i < n; ++i) {
      nb::object in_space = nb::steal(PyDict_New());
      PyObject* buf = single ? out : PySequence_Fast_GET_ITEM(several.ptr(), i);
      if (!in_space.is_valid() || PyDict_SetItem(in_space.ptr(), space_.ptr(), buf) < 0) return {};
      nb::object nd = new_array(PyTuple_GET_ITEM(specs, i), std::move(in_space), core->plain);
      if (!nd.is_valid()) return {};
      PyTuple_SET_ITEM(results.ptr(), i, nd.release().ptr());
    }
    return results;
  }

  Called called_;
  Py_ssize_t held_ = 0;
  PyObject* bufs_[most_inputs + 1];  // from 1 on: what is called may use the place before
  nb::object space_, stream_, deferred_ = nb::none(), watch_ = nb::none();
  PyObject* modes_ = nullptr;
  bool records_ = false;  // Variables would be recorded
};

PyObject* call_in_python(PyObject* op, PyObject* const* args, Py_ssize_t n, PyObject* names) {
  const Py_ssize_t given = n + (names ? PyTuple_GET_SIZE(names) : 0);
  PyObject* few[most_inputs + 2];
  std::vector<PyObject*> many(given > most_inputs ? static_cast<size_t>(given) + 2 : 0);
  PyObject** all = many.empty() ? few : many.data();  // from 1 on, as in Call
  all[1] = op;
  std::copy(args, args + given, all + 2);
  return PyObject_Vectorcall(core->call, all + 1,
                             static_cast<size_t>(n + 1) | PY_VECTORCALL_ARGUMENTS_OFFSET, names);
}

// Raises what Op.told() makes of the error of a kernel.
void tell(PyObject* op) {
  static PyObject* const told = text("told");
  nb::python_error error;
  nb::object now = nb::steal(PyObject_CallMethodOneArg(op, told, error.value().ptr()));
  if (!now.is_valid()) return;
  if (now.is(error.value())) {
    error.restore();
    return;
  }
  PyException_SetContext(now.ptr(), error.value().inc_ref().ptr());
  PyException_SetCause(now.ptr(), nullptr);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(now.ptr())), now.ptr());
}

PyObject* call(PyObject* op, PyObject* const* args, Py_ssize_t n, PyObject* names) {
  {
    Call c(op);
    if (c.prepare(args, n, names)) {
      PyObject* y = c.run();
      if (!y) tell(op);
      return y;
    }
  }
  PyErr_Clear();
  return call_in_python(op, args, n, names);
}

}  // namespace

void bind_call(nb::module_& m) {
  // A method of the class Op that does what Op.call does, faster.
  m.def("op_call", [](nb::handle op, nb::handle interpreter) {
    static PyMethodDef method = {"__call__",
                                 reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(&call)),
                                 METH_FASTCALL | METH_KEYWORDS, nullptr};
    core = new Core(op, interpreter);
    return nb::steal(PyDescr_NewMethod(core->Op.type, &method));
  });
}
