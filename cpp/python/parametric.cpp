// SPDX-License-Identifier: Apache-2.0
// What every call of a parametric function does besides its work: nnl/core/parameters/parameter.py
// and nnl/core/arguments/annotations.py say what that is. What is unusual is left to them.
#include <utility>

#include "called.h"

namespace nb = nanobind;
using namespace nnl;

void bind_parametric(nb::module_& m);

namespace {

// What of nnl.core these functions work with. Made once; it stays until the process ends.
struct Registry {
  explicit Registry(const nb::module_& parameter)
      : scope_state(kept(parameter.attr("SCOPE"))),
        parts(kept(parameter.attr("_parts"))),
        in_scope(kept(parameter.attr("in_scope"))),
        take_back(kept(parameter.attr("take_back"))),
        ordered(parameter.attr("OrderedDict")) {}

  PyObject *scope_state, *parts, *in_scope, *take_back;
  const Class ordered;
};

const Registry& registry() {
  static const Registry* const found =
      new Registry(nb::module_::import_("nnl.core.parameters.parameter"));
  return *found;
}

// Where in the registry this thread is, borrowed; null where it was never elsewhere.
PyObject* scope_of_this_thread() {
  static thread_local OfThread scope_state;
  return scope_state.of(registry().scope_state);
}

// An item of a dictionary, borrowed; null for none.
PyObject* item(PyObject* dict, PyObject* name) { return PyDict_GetItemWithError(dict, name); }

bool is_scope(PyObject* x) { return x && (registry().ordered.exactly(x) || PyDict_CheckExact(x)); }

// ---- arguments ----

bool all_fit(PyObject* ints) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(ints); ++i) {
    PyObject* n = PyTuple_GET_ITEM(ints, i);
    int overflow = 1;
    if (PyLong_CheckExact(n)) PyLong_AsLongLongAndOverflow(n, &overflow);
    if (overflow) return false;
  }
  return true;
}

// Whether the conversion of an argument would give the value itself, or one that equals it.
bool is_usual(PyObject* kind, PyObject* value, PyObject* usual_types) {
  if (kind == Py_None || value == PyTuple_GET_ITEM(kind, 2)) return true;
  PyObject* of_type = item(usual_types, reinterpret_cast<PyObject*>(Py_TYPE(value)));
  if (!of_type || PySet_Contains(of_type, PyTuple_GET_ITEM(kind, 0)) != 1) return false;
  if (PyTuple_CheckExact(value)) return all_fit(value);
  if (!PyLong_CheckExact(value)) return true;
  int overflow;
  PyLong_AsLongLongAndOverflow(value, &overflow);
  return !overflow;
}

// usual(args, kw, positional, kinds, types) of nnl/core/arguments/annotations.py.
PyObject* usual(PyObject*, PyObject* const* args, Py_ssize_t n) {
  if (n != 5) return PyErr_Format(PyExc_TypeError, "usual: got %zd arguments, wanted 5", n);
  PyObject *values = args[0], *positional = args[2], *types = args[4], *name, *value;
  const Py_ssize_t count = PyTuple_GET_SIZE(values);
  if (count > PyList_GET_SIZE(positional)) Py_RETURN_FALSE;
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* kind = PyTuple_GET_ITEM(PyList_GET_ITEM(positional, i), 1);
    if (!is_usual(kind, PyTuple_GET_ITEM(values, i), types)) Py_RETURN_FALSE;
  }
  for (Py_ssize_t at = 0; PyDict_Next(args[1], &at, &name, &value);) {
    PyObject* kind = item(args[3], name);
    if (!kind || !is_usual(kind, value, types)) Py_RETURN_FALSE;
  }
  Py_RETURN_TRUE;
}

// ---- scopes ----

// A call of a parametric function in its scope.
class InScope {
 public:
  // Finds the scope; false where it is not there yet, or something is unusual.
  bool find(PyObject* scope, Py_ssize_t own, PyObject* name) {
    scope_state_ = scope_of_this_thread();
    modes_ = modes_of_this_thread();
    if (!scope_state_ || !modes_ || !PyUnicode_Check(scope)) return false;
    for (size_t i = 0; i < outer_.size(); ++i) outer_[i] = nb::borrow(item(holder(i), name_of(i)));
    const auto& [scope_now, path, made, layer] = outer_;
    if (!scope_now.is_valid() || !layer.is_valid()) return false;
    if (!path.is_valid() || !PyTuple_CheckExact(path.ptr())) return false;
    if (!made.is_valid()) outer_[2] = nb::none();
    nb::object whole = nb::borrow(scope);
    if (name != Py_None && PyUnicode_GET_LENGTH(name))
      whole = nb::steal(PyUnicode_FromFormat("%U/%U", name, scope));
    nb::object parts = nb::steal(PyObject_CallOneArg(registry().parts, whole.ptr()));
    if (!parts.is_valid() || !PyTuple_CheckExact(parts.ptr())) return false;
    PyObject* at = scope_now.ptr();
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(parts.ptr()); ++i) {
      if (!is_scope(at)) return false;
      at = item(at, PyTuple_GET_ITEM(parts.ptr(), i));
    }
    if (!is_scope(at)) return false;
    nb::object whole_path = nb::steal(PySequence_Concat(path.ptr(), parts.ptr()));
    nb::object list = nb::steal(PyList_New(0));
    if (!whole_path.is_valid() || !list.is_valid()) return false;
    const Py_ssize_t n = PyTuple_GET_SIZE(whole_path.ptr());
    nb::object shown = nb::steal(PyTuple_GetSlice(whole_path.ptr(), 0, n - own));
    inner_ = {nb::borrow(at), std::move(whole_path), std::move(list), std::move(shown)};
    return inner_[3].is_valid();
  }

  PyObject* call(PyObject* function, PyObject* args, PyObject* kw) {
    nb::object made = inner_[2];
    PyObject* result = set(inner_) ? PyObject_Call(function, args, kw) : nullptr;
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    if (PyList_GET_SIZE(made.ptr())) {
      if (!result)
        Py_XDECREF(PyObject_CallOneArg(registry().take_back, made.ptr()));
      else if (!outer_[2].is_none())
        Py_XDECREF(PySequence_InPlaceConcat(outer_[2].ptr(), made.ptr()));
    }
    set(outer_);
    PyErr_Restore(type, value, traceback);
    return result;
  }

 private:
  using State = std::array<nb::object, 4>;  // scope, path, made, layer

  static PyObject* name_of(size_t i) {
    static PyObject* const names[] = {text("scope"), text("path"), text("made"), text("layer")};
    return names[i];
  }
  PyObject* holder(size_t i) const { return i < 3 ? scope_state_ : modes_; }

  bool set(const State& to) const {
    bool done = true;
    for (size_t i = 0; i < to.size(); ++i)
      done = PyDict_SetItem(holder(i), name_of(i), to[i].ptr()) == 0 && done;
    return done;
  }

  PyObject *scope_state_ = nullptr,
           *modes_ = nullptr;  // of this thread, which the call does not leave
  State outer_, inner_;
};

// in_scope(function, scope, own, name, args, kw) of nnl/core/parameters/parameter.py.
PyObject* in_scope(PyObject*, PyObject* const* args, Py_ssize_t n) {
  if (n == 6 && PyTuple_CheckExact(args[4]) && PyDict_CheckExact(args[5])) {
    InScope scope;
    if (scope.find(args[1], PyLong_AsSsize_t(args[2]), args[3]))
      return scope.call(args[0], args[4], args[5]);
    PyErr_Clear();
  }
  return PyObject_Vectorcall(registry().in_scope, args, static_cast<size_t>(n), nullptr);
}

// ---- parameters ----

// A leaf that shares data and gradient with a parameter, as Variable.unlinked() makes it.
nb::object unlinked(PyObject* param, PyObject* need_grad, PyObject* recompute) {
  const ValueClass& Value = core->Value;
  static PyObject* const zero = PyLong_FromLong(0);
  PyObject *mine = core->Variable.edge.of(param), *data = core->Variable.data.of(param);
  nb::object edge = Value.make(), v = core->Variable.make();
  if (!edge.is_valid() || !v.is_valid()) return {};
  Value.node.begin(edge, Py_None);
  Value.index.begin(edge, zero);
  Value.spec.begin(edge, core->NdArray.spec.of(data));
  Value.need_grad.begin(edge, need_grad);
  Value.data.begin(edge, data);
  Value.own_grad.begin(edge, Value.own_grad.of(mine));
  Value.persistent.begin(edge, Py_False);
  Value.recompute.begin(edge, recompute);
  Value.name.begin(edge, Value.name.of(mine));
  core->Variable.edge.begin(v, std::move(edge));
  core->Variable.data.begin(v, data);
  core->Variable.sessions.begin(v, Py_None);
  core->Variable.info.begin(v, Py_None);
  return v;
}

// handle(name, shape, need_grad, as_need_grad) of nnl/core/parameters/parameter.py; None for more
// than it.
PyObject* handle(PyObject*, PyObject* const* args, Py_ssize_t n) {
  static PyObject* const scope = text("scope");
  static PyObject* const no_grad = text("no_grad");
  static PyObject* const recompute = text("recompute");
  PyObject *scope_state = scope_of_this_thread(), *modes = modes_of_this_thread();
  if (n != 4 || !scope_state || !modes || !PyUnicode_CheckExact(args[0])) Py_RETURN_NONE;
  PyObject* here = item(scope_state, scope);
  PyObject* param = is_scope(here) ? item(here, args[0]) : nullptr;
  if (!core->Variable.exactly(param)) Py_RETURN_NONE;
  PyObject *edge = core->Variable.edge.of(param), *data = core->Variable.data.of(param);
  if (!core->Value.exactly(edge) || !core->NdArray.has(data)) Py_RETURN_NONE;
  if (core->Value.node.of(edge) != Py_None || core->Value.own_grad.of(edge) == Py_None)
    Py_RETURN_NONE;
  if (args[1] != Py_None) {
    PyObject* sizes = core->Spec.shape.of(core->NdArray.spec.of(data));
    if (!PyTuple_CheckExact(args[1])) Py_RETURN_NONE;
    const int same = PyObject_RichCompareBool(sizes, args[1], Py_EQ);
    if (same < 0) return nullptr;
    if (!same) Py_RETURN_NONE;
  }
  PyObject* flag = args[3] == Py_None ? args[2] : args[3];
  if (core->Value.need_grad.of(edge) != args[2] || !PyBool_Check(flag)) Py_RETURN_NONE;
  PyObject *never = item(modes, no_grad), *again = item(modes, recompute);
  if (!PyBool_Check(args[2]) || !never || !PyBool_Check(never) || !again) Py_RETURN_NONE;
  return unlinked(param, never == Py_True ? Py_False : flag, again).release().ptr();
}

template <auto f>
PyCFunction fast() {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(f));
}

PyMethodDef methods[] = {{"usual", fast<&usual>(), METH_FASTCALL, nullptr},
                         {"in_scope", fast<&in_scope>(), METH_FASTCALL, nullptr},
                         {"handle", fast<&handle>(), METH_FASTCALL, nullptr}};

}  // namespace

void bind_parametric(nb::module_& m) {
  for (PyMethodDef& f : methods) m.attr(f.ml_name) = nb::steal(PyCFunction_New(&f, nullptr));
}
