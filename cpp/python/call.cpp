// SPDX-License-Identifier: Apache-2.0
// Calls of ops that compute at once, in C. Op.call and apply() in nnl/core say what a call means;
// this does the same where nothing is unusual: attributes and a kernel that were found before,
// inputs with a buffer where the kernel reads, nobody who listens. All else is left to Op.call.
#include <nanobind/nanobind.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "core_classes.h"

namespace nb = nanobind;
using namespace nnl;

void bind_call(nb::module_& m);

namespace {

constexpr Py_ssize_t most = 16;  // inputs

const Core* core;

// The modes of this thread, borrowed: STATE.__dict__, which lives as long as the thread does.
PyObject* modes_of_this_thread() {
  static thread_local uint64_t known = 0;  // numbers of threads are never used again
  static thread_local PyObject* modes;
  const uint64_t thread = PyThreadState_GetID(PyThreadState_Get());
  if (known != thread) {
    nb::object found = nb::steal(PyObject_GetAttrString(core->modes, "__dict__"));
    if (!found.is_valid() || !PyDict_CheckExact(found.ptr())) return nullptr;
    modes = found.ptr();
    known = thread;
  }
  return modes;
}

// Puts an item, which it takes, in a new tuple; false for none.
bool put(const nb::object& tuple, Py_ssize_t i, PyObject* item) {
  if (item) PyTuple_SET_ITEM(tuple.ptr(), i, item);
  return item;
}

// One call of an op.
class Call {
 public:
  explicit Call(PyObject* op) : op_(op) {}
  ~Call() {
    for (Py_ssize_t i = 0; i < held_; ++i) Py_XDECREF(bufs_[i + 1]);
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  // Finds all that the kernel needs; false for an unusual call, and nothing has been done then.
  bool prepare(PyObject* const* args, Py_ssize_t n, PyObject* names) {
    return computes(n ? args[0] : nullptr) && take(args, n, names) && find_kernel() && is_usual() &&
           (is_put_off() ? names_edges() && (!arrays_ || core->Bound.single.on(bound_.ptr()))
                         : read());
  }

  // What the call gives; null with an error.
  PyObject* run() {
    if (is_put_off()) return put_off();
    nb::object out = nb::steal(
        PyObject_Vectorcall(core->Bound.call.of(bound_), bufs_ + 1,
                            static_cast<size_t>(count_) | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr));
    if (!out.is_valid()) return nullptr;
    PyObject* specs = core->Bound.out_specs.of(bound_);
    if (core->Bound.single.on(bound_.ptr())) {
      nb::object nd = array(PyTuple_GET_ITEM(specs, 0), out.ptr());
      if (!nd.is_valid() || arrays_) return nd.release().ptr();
      nb::object node = nb::none();
      if (need_) {
        nb::object results = nb::steal(PyTuple_Pack(1, nd.ptr()));
        if (!results.is_valid() || !(node = made_by(results.ptr())).is_valid()) return nullptr;
      }
      return variable(node.ptr(), 0, nd.ptr()).release().ptr();
    }
    return several(specs, out.ptr());
  }

 private:
  PyObject* mode(PyObject* name) const { return PyDict_GetItemWithError(modes_, name); }
  bool on(PyObject* name) const {
    PyObject* value = mode(name);
    return value && PyObject_IsTrue(value) == 1;
  }

  // Whether calls that begin with this input compute now.
  bool computes(PyObject* first) {
    static PyObject* const auto_forward = text("auto_forward");
    modes_ = modes_of_this_thread();
    return modes_ && (on(auto_forward) || core->NdArray.has(first));
  }

  // Inputs and attributes, as Op.parse() splits the arguments; what it has not met is unusual.
  bool take(PyObject* const* args, Py_ssize_t n, PyObject* names) {
    const OpClass& Op = core->Op;
    const Py_ssize_t given = Op.given.number(op_);
    if (given < 0) return false;
    const Py_ssize_t inputs = std::min(n, given);
    count_ = Op.variadic.on(op_) ? n : given;
    if (count_ >= most) return false;
    std::copy(args, args + inputs, inputs_);
    std::fill(inputs_ + inputs, inputs_ + count_, Py_None);
    attrs_ = nb::borrow(attributes(args, n, names, inputs));
    if (!core->Attributes.has(attrs_.ptr())) return false;
    if (Op.takes_rng.on(op_)) {
      nb::object seed = nb::steal(PyObject_GetAttrString(attrs_.ptr(), "seed"));
      if (!seed.is_valid()) return false;
      stream_ = nb::steal(PyObject_CallOneArg(core->stream, seed.ptr()));
      inputs_[count_++] = stream_.ptr();
    }
    return true;
  }

  // The attributes of a call: the op's defaults, or what its table has for what is given besides
  // inputs. Borrowed; null where there is nothing.
  PyObject* attributes(PyObject* const* args, Py_ssize_t n, PyObject* names,
                       Py_ssize_t inputs) const {
    static PyObject* const n_outputs = text("n_outputs");
    static PyObject* const outputs = text("outputs");
    Py_ssize_t named = 0, by_name[most];  // positions of those given by name
    for (Py_ssize_t i = 0; names && i < PyTuple_GET_SIZE(names); ++i) {
      PyObject* name = PyTuple_GET_ITEM(names, i);
      if (name == n_outputs || (name == outputs && args[n + i] == Py_None)) continue;
      if (name == outputs || named == most) return nullptr;
      by_name[named++] = i;
    }
    PyObject* defaults = core->Op.defaults.of(op_);
    if (!named && defaults != Py_None && n == core->Op.arity.number(op_)) return defaults;
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
    PyObject* found = PyDict_GetItemWithError(core->Op.calls.of(op_), key.ptr());
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

  // The array of an input that is given; null for what is neither Variable nor NdArray.
  PyObject* data(PyObject* x) const {
    PyObject* nd = core->Variable.has(x) ? core->Variable.data.of(x) : x;
    return core->NdArray.has(nd) ? nd : nullptr;
  }

  // (target, *specs), or the specs alone without a target.
  nb::object key(PyObject* target) const {
    const Py_ssize_t first = target ? 1 : 0;
    nb::object key = nb::steal(PyTuple_New(first + count_));
    if (!key.is_valid()) return key;
    if (target) PyTuple_SET_ITEM(key.ptr(), 0, Py_NewRef(target));
    for (Py_ssize_t i = 0; i < count_; ++i) {
      PyObject* spec = Py_None;
      if (inputs_[i] != Py_None) {
        PyObject* nd = data(inputs_[i]);
        spec = nd ? core->NdArray.spec.of(nd) : nullptr;
        if (!spec) return {};
      }
      PyTuple_SET_ITEM(key.ptr(), first + i, Py_NewRef(spec));
    }
    return key;
  }

  bool find_kernel() {
    static PyObject* const target = text("target");
    target_ = nb::borrow(mode(target));
    if (!target_.is_valid()) return false;
    if (core->Op.resolves.on(op_)) {
      nb::object specs = key(nullptr);
      if (!specs.is_valid()) return false;
      attrs_ =
          nb::borrow(PyDict_GetItemWithError(core->Attributes.resolved.of(attrs_), specs.ptr()));
      if (!core->Attributes.has(attrs_.ptr())) return false;
    }
    nb::object wanted = key(target_.ptr());
    if (!wanted.is_valid()) return false;
    bound_ = nb::borrow(PyDict_GetItemWithError(core->Attributes.bound.of(attrs_), wanted.ptr()));
    return core->Bound.exactly(bound_.ptr());
  }

  // Whether this thread computes now, and nobody wants to know.
  bool is_usual() {
    static PyObject* const auto_forward = text("auto_forward");
    static PyObject* const no_grad = text("no_grad");
    static PyObject* const record = text("record");
    static PyObject* const recompute = text("recompute");
    static PyObject* const profiled = text("profiled");
    static PyObject* const trace = text("trace");
    static PyObject* const skeleton = text("skeleton");
    skeleton_ = nb::borrow(mode(skeleton));
    if (!skeleton_.is_valid()) return false;
    for (Py_ssize_t i = 0; i < count_; ++i) {
      PyObject* x = inputs_[i];
      if (x == Py_None) continue;
      if (!core->Variable.has(x)) {
        arrays_ = true;
        continue;
      }
      PyObject* edge = core->Variable.edge.of(x);
      if (!core->Value.exactly(edge)) return false;
      PyObject* need = core->Value.need_grad.of(edge);
      if (need != Py_True && need != Py_False) return false;
      need_ = need_ || need == Py_True;
    }
    if (arrays_) {
      need_ = false;
      return mode(trace) == Py_None;
    }
    if (!on(auto_forward) || core->hooks_active.on(core->hooks)) return false;
    need_ = need_ && core->Op.differentiable.on(op_) && !on(no_grad) && on(record);
    again_ = mode(recompute);
    return again_ && !(need_ && on(profiled));
  }

  // The buffers of the inputs, and their edges.
  bool read() {
    static PyObject* const touch = text("touch");
    static PyObject* const host = text("host");
    space_ = nb::borrow(core->Bound.space.of(bound_));
    PyObject* writes = core->Bound.writes.of(bound_);
    if (core->Bound.view.on(bound_.ptr()) && space_.ptr() != host && !PyTuple_GET_SIZE(writes))
      return false;
    for (; held_ < count_; ++held_) {
      nb::object buf = nb::none();
      if (inputs_[held_] != Py_None) buf = buffer(data(inputs_[held_]));
      if (!buf.is_valid()) return false;
      bufs_[held_ + 1] = buf.release().ptr();
    }
    if (need_ && !names_edges()) return false;
    for (Py_ssize_t w = 0; w < PyTuple_GET_SIZE(writes); ++w) {
      const Py_ssize_t i = PyLong_AsSsize_t(PyTuple_GET_ITEM(writes, w));
      if (inputs_[i] == Py_None) continue;
      PyObject* buf = PyObject_CallMethodOneArg(data(inputs_[i]), touch, space_.ptr());
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
    if (arrays_) return true;
    edges_ = nb::steal(PyTuple_New(count_));
    if (!edges_.is_valid()) return false;
    for (Py_ssize_t i = 0; i < count_; ++i)
      PyTuple_SET_ITEM(
          edges_.ptr(), i,
          Py_NewRef(inputs_[i] == Py_None ? Py_None : core->Variable.edge.of(inputs_[i])));
    return true;
  }

  // Whether a co-executed step does it later; see nnl.coexec.
  bool is_put_off() const { return !skeleton_.is_none(); }

  PyObject* put_off() {
    static PyObject* const apply = text("apply");
    static PyObject* const execute = text("execute");
    nb::object inputs = nb::steal(PyTuple_New(count_));
    if (!inputs.is_valid()) return nullptr;
    for (Py_ssize_t i = 0; i < count_; ++i) {
      PyObject* x = inputs_[i] == Py_None || !arrays_ ? inputs_[i] : data(inputs_[i]);
      PyTuple_SET_ITEM(inputs.ptr(), i, Py_NewRef(x));
    }
    if (!arrays_)
      return PyObject_CallMethodObjArgs(skeleton_.ptr(), apply, op_, attrs_.ptr(), inputs.ptr(),
                                        edges_.ptr(), bound_.ptr(), need_ ? Py_True : Py_False,
                                        nullptr);
    nb::object made = nb::steal(PyObject_CallMethodObjArgs(
        skeleton_.ptr(), execute, op_, attrs_.ptr(), bound_.ptr(), inputs.ptr(), nullptr));
    return made.is_valid() ? PySequence_GetItem(made.ptr(), 0) : nullptr;
  }

  // ---- what a call makes ----

  nb::object array(PyObject* spec, PyObject* buf) const {
    const ArrayClass& NdArray = core->NdArray;
    nb::object nd = NdArray.make(), bufs = nb::steal(PyDict_New());
    if (!nd.is_valid() || !bufs.is_valid()) return {};
    if (PyDict_SetItem(bufs.ptr(), space_.ptr(), buf) < 0) return {};
    NdArray.spec.begin(nd, spec);
    NdArray.bufs.begin(nd, std::move(bufs));
    NdArray.record.begin(nd, core->plain);
    return nd;
  }

  // A handle on output `index` of a node, or on a leaf where that is None.
  nb::object variable(PyObject* node, Py_ssize_t index, PyObject* nd) const {
    static PyObject* const unnamed = text("");
    const ValueClass& Value = core->Value;
    nb::object edge = Value.make(), number = nb::steal(PyLong_FromSsize_t(index));
    nb::object v = core->Variable.make();
    if (!edge.is_valid() || !number.is_valid() || !v.is_valid()) return {};
    const bool leaf = node == Py_None;
    Value.node.begin(edge, node);
    Value.index.begin(edge, std::move(number));
    Value.spec.begin(edge, core->NdArray.spec.of(nd));
    Value.need_grad.begin(edge, leaf ? Py_False : Py_True);
    Value.data.begin(edge, leaf ? nd : Py_None);
    Value.own_grad.begin(edge, Py_None);
    Value.persistent.begin(edge, Py_False);
    Value.recompute.begin(edge, again_);
    Value.name.begin(edge, unnamed);
    core->Variable.edge.begin(v, std::move(edge));
    core->Variable.data.begin(v, nd);
    core->Variable.sessions.begin(v, Py_None);
    core->Variable.info.begin(v, Py_None);
    return v;
  }

  // The node that has made these arrays.
  nb::object made_by(PyObject* results) const {
    const NodeClass& Node = core->Node;
    const Py_ssize_t n = PyTuple_GET_SIZE(results);
    nb::object live = nb::steal(PyTuple_New(n)), saved = what_it_keeps(results);
    nb::object node = Node.make(), number = nb::steal(PyIter_Next(core->numbers));
    if (!live.is_valid() || !saved.is_valid() || !node.is_valid() || !number.is_valid()) return {};
    for (Py_ssize_t i = 0; i < n; ++i) {
      PyObject* ref = PyWeakref_NewRef(PyTuple_GET_ITEM(results, i), nullptr);
      if (!ref) return {};
      PyTuple_SET_ITEM(live.ptr(), i, ref);
    }
    Node.op.begin(node, op_);
    Node.attrs.begin(node, attrs_.ptr());
    Node.inputs.begin(node, edges_.ptr());
    Node.out_specs.begin(node, core->Bound.out_specs.of(bound_));
    Node.target.begin(node, target_.ptr());
    Node.need_grad.begin(node, Py_True);
    Node.live.begin(node, std::move(live));
    Node.saved.begin(node, std::move(saved));
    Node.seq.begin(node, std::move(number));
    for (const Slot* s : {&Node.outs, &Node.grads, &Node.info, &Node.origin})
      s->begin(node, Py_None);
    return node;
  }

  // The arrays that the gradient's rule names.
  nb::object what_it_keeps(PyObject* results) const {
    const OpClass& Op = core->Op;
    PyObject *ins = Op.kept_inputs.of(op_), *outs = Op.kept_outputs.of(op_);
    const Py_ssize_t n = PyTuple_GET_SIZE(ins), m = PyTuple_GET_SIZE(outs);
    nb::object saved = nb::steal(PyTuple_New(n + m));
    if (!saved.is_valid()) return saved;
    const auto position = [](PyObject* pairs, Py_ssize_t k) {
      return PyLong_AsSsize_t(PyTuple_GET_ITEM(PyTuple_GET_ITEM(pairs, k), 1));
    };
    for (Py_ssize_t k = 0; k < n; ++k) {
      const Py_ssize_t i = position(ins, k);
      PyObject* x = nullptr;
      if (Op.variadic.on(op_) && i == PyTuple_GET_SIZE(Op.inputs.of(op_)) - 1) {
        x = PyTuple_New(count_ - i);
        for (Py_ssize_t j = i; x && j < count_; ++j)
          PyTuple_SET_ITEM(x, j - i, Py_NewRef(data_or_none(inputs_[j])));
        if (!x) return {};
      } else {
        x = Py_NewRef(data_or_none(inputs_[i]));
      }
      PyTuple_SET_ITEM(saved.ptr(), k, x);
    }
    for (Py_ssize_t k = 0; k < m; ++k) {
      PyObject* y = results;
      if (!Op.variadic_out.on(op_)) y = PyTuple_GET_ITEM(results, position(outs, k));
      PyTuple_SET_ITEM(saved.ptr(), n + k, Py_NewRef(y));
    }
    return saved;
  }

  PyObject* data_or_none(PyObject* x) const { return x == Py_None ? x : core->Variable.data.of(x); }

  // The visible ones of several results.
  PyObject* several(PyObject* specs, PyObject* out) {
    const Py_ssize_t n = PyTuple_GET_SIZE(specs);
    nb::object bufs = nb::steal(PySequence_Fast(out, "a kernel gave no arrays"));
    nb::object results = nb::steal(PyTuple_New(n));
    if (!bufs.is_valid() || !results.is_valid()) return nullptr;
    if (PySequence_Fast_GET_SIZE(bufs.ptr()) != n) {
      PyErr_Format(PyExc_ValueError, "a kernel gave %zd arrays, wanted %zd",
                   PySequence_Fast_GET_SIZE(bufs.ptr()), n);
      return nullptr;
    }
    for (Py_ssize_t i = 0; i < n; ++i) {
      nb::object nd = array(PyTuple_GET_ITEM(specs, i), PySequence_Fast_GET_ITEM(bufs.ptr(), i));
      if (!nd.is_valid()) return nullptr;
      PyTuple_SET_ITEM(results.ptr(), i, nd.release().ptr());
    }
    nb::object node = need_ ? made_by(results.ptr()) : nb::none();
    if (!node.is_valid()) return nullptr;
    const Py_ssize_t visible = core->Op.visible.number(op_);
    const bool hides = visible < PyTuple_GET_SIZE(core->Op.outputs.of(op_));
    const Py_ssize_t shown = hides ? std::min(visible, n) : n;
    nb::object ys = nb::steal(PyTuple_New(shown));
    if (!ys.is_valid()) return nullptr;
    for (Py_ssize_t i = 0; i < shown; ++i) {
      PyObject* nd = PyTuple_GET_ITEM(results.ptr(), i);
      nb::object y = arrays_ ? nb::borrow(nd) : variable(node.ptr(), i, nd);
      if (!y.is_valid()) return nullptr;
      PyTuple_SET_ITEM(ys.ptr(), i, y.release().ptr());
    }
    return hides && visible == 1 ? Py_NewRef(PyTuple_GET_ITEM(ys.ptr(), 0)) : ys.release().ptr();
  }

  PyObject* const op_;
  Py_ssize_t count_ = 0, held_ = 0;
  PyObject* inputs_[most];    // borrowed from the caller
  PyObject* bufs_[most + 1];  // from 1 on: what is called may use the place before
  nb::object attrs_, target_, bound_, space_, stream_, edges_, skeleton_ = nb::none();
  PyObject *modes_ = nullptr, *again_ = nullptr;
  bool arrays_ = false, need_ = false;
};

PyObject* call_in_python(PyObject* op, PyObject* const* args, Py_ssize_t n, PyObject* names) {
  const Py_ssize_t given = n + (names ? PyTuple_GET_SIZE(names) : 0);
  PyObject* few[most + 2];
  std::vector<PyObject*> many(given > most ? static_cast<size_t>(given) + 2 : 0);
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
  m.def("op_call", [](nb::handle op, nb::handle dispatch) {
    static PyMethodDef method = {"__call__",
                                 reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(&call)),
                                 METH_FASTCALL | METH_KEYWORDS, nullptr};
    core = new Core(op, dispatch);
    return nb::steal(PyDescr_NewMethod(core->Op.type, &method));
  });
}
