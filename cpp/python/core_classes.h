// SPDX-License-Identifier: Apache-2.0
// The classes of nnl.core whose objects C reads and makes, with the places of what they hold.
#pragma once
#include <nanobind/nanobind.h>
#include <structmember.h>

#include <array>
#include <string>
#include <utility>

namespace nnl {

// A member of __slots__: where objects of a class, and of classes derived from it, keep a value.
class Slot {
 public:
  Slot(nanobind::handle type, const char* name) {
    nanobind::object found = type.attr(name);
    auto* descriptor = reinterpret_cast<PyMemberDescrObject*>(found.ptr());
    if (!Py_IS_TYPE(found.ptr(), &PyMemberDescr_Type) || descriptor->d_member->type != T_OBJECT_EX)
      throw nanobind::type_error((std::string(name) + " is not in __slots__").c_str());
    offset_ = descriptor->d_member->offset;
  }
  PyObject*& of(nanobind::handle x) const {  // null where nothing was set
    return *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(x.ptr()) + offset_);
  }
  bool on(PyObject* x) const { return of(x) == Py_True; }
  Py_ssize_t number(PyObject* x) const { return PyLong_AsSsize_t(of(x)); }
  void begin(const nanobind::object& x, PyObject* value) const { of(x) = Py_NewRef(value); }
  void begin(const nanobind::object& x, nanobind::object&& value) const {
    of(x) = value.release().ptr();
  }

 private:
  Py_ssize_t offset_;
};

// A class, and what calls read and write of its objects.
struct Class {
  explicit Class(nanobind::handle t)
      : type(reinterpret_cast<PyTypeObject*>(nanobind::borrow(t).release().ptr())) {}
  Slot slot(const char* name) const { return {reinterpret_cast<PyObject*>(type), name}; }
  bool exactly(PyObject* x) const { return x && Py_IS_TYPE(x, type); }
  bool has(PyObject* x) const { return x && PyObject_TypeCheck(x, type); }
  nanobind::object make() const {
    static PyObject* nothing = PyTuple_New(0);
    return nanobind::steal(PyBaseObject_Type.tp_new(type, nothing, nullptr));
  }
  PyTypeObject* type;
};

struct OpClass : Class {
  using Class::Class;
  Slot name = slot("name"), arity = slot("arity"), given = slot("given"),
       defaults = slot("default_attrs"), calls = slot("_calls"), takes_rng = slot("takes_rng"),
       resolves = slot("has_resolve"), differentiable = slot("differentiable"),
       inputs = slot("inputs"), outputs = slot("outputs"), visible = slot("visible"),
       variadic = slot("variadic"), variadic_out = slot("variadic_out"),
       kept_inputs = slot("kept_inputs"), kept_outputs = slot("kept_outputs");
};

struct AttributesClass : Class {
  using Class::Class;
  Slot bound = slot("bound"), resolved = slot("resolved"), has_zero = slot("has_zero");
};

struct BoundClass : Class {
  using Class::Class;
  Slot call = slot("call"), space = slot("space"), out_specs = slot("out_specs"),
       writes = slot("writes"), view = slot("view"), single = slot("single"),
       seconds = slot("seconds");
};

struct ArrayClass : Class {
  using Class::Class;
  Slot spec = slot("spec"), bufs = slot("bufs"), record = slot("record");
};

struct RecordClass : Class {
  using Class::Class;
  Slot fill = slot("fill"), cleared = slot("cleared"), early = slot("early"), own = slot("own"),
       views = slot("views"), version = slot("version"), work = slot("work"),
       number = slot("number"), family = slot("family");
  std::array<const Slot*, 9> all() const {
    return {&fill, &cleared, &early, &own, &views, &version, &work, &number, &family};
  }
};

struct SpecClass : Class {
  using Class::Class;
  Slot shape = slot("shape"), is_half = slot("is_half");
};

struct VariableClass : Class {
  using Class::Class;
  Slot edge = slot("edge"), data = slot("_data"), sessions = slot("sessions"), info = slot("info");
};

struct ValueClass : Class {
  using Class::Class;
  Slot node = slot("node"), index = slot("index"), spec = slot("spec"),
       need_grad = slot("need_grad"), data = slot("data"), own_grad = slot("own_grad"),
       persistent = slot("persistent"), recompute = slot("recompute"), name = slot("name");
};

struct NodeClass : Class {
  using Class::Class;
  Slot op = slot("op"), attrs = slot("attrs"), inputs = slot("inputs"),
       out_specs = slot("out_specs"), target = slot("target"), need_grad = slot("need_grad"),
       outs = slot("outs"), live = slot("live"), saved = slot("saved"), grads = slot("grads"),
       seq = slot("seq"), info = slot("info"), origin = slot("origin");
};

struct StaticClass : Class {
  using Class::Class;
  Slot now = slot("now");
};

struct DeferringClass : Class {
  using Class::Class;
  Slot deferred = slot("deferred"), watch = slot("watch");
};

inline PyObject* kept(nanobind::object x) { return x.release().ptr(); }
inline PyObject* text(const char* s) { return PyUnicode_InternFromString(s); }

// What of nnl.core calls work with. Made once; it stays until the process ends.
struct Core {
  Core(nanobind::handle op, nanobind::handle interpreter)
      : Op(op.attr("Op")),
        Attributes(op.attr("Attributes")),
        Bound(interpreter.attr("Bound")),
        Spec(nanobind::module_::import_("nnl.core.arrays.spec").attr("Spec")),
        NdArray(interpreter.attr("NdArray")),
        Record(nanobind::module_::import_("nnl.core.arrays.memory_record").attr("MemoryRecord")),
        Variable(interpreter.attr("Variable")),
        Value(interpreter.attr("Value")),
        Node(nanobind::module_::import_("nnl.core.graph.node").attr("Node")),
        Eager(interpreter.attr("Eager")),
        Static(interpreter.attr("Static")),
        Deferring(nanobind::module_::import_("nnl.core.interpreters.deferring").attr("Deferring")),
        hooks_active(interpreter.attr("HOOKS").type(), "active"),
        call(kept(op.attr("Op").attr("call"))),
        hooks(kept(interpreter.attr("HOOKS"))),
        modes(kept(interpreter.attr("STATE"))),
        plain(kept(nanobind::module_::import_("nnl.core.arrays.memory_record").attr("PLAIN"))),
        stream(kept(op.attr("stream"))),
        numbers(kept(nanobind::handle(reinterpret_cast<PyObject*>(Node.type))
                         .attr("number")
                         .attr("__self__"))),
        versions(
            kept(nanobind::module_::import_("nnl.core.arrays.memory_record").attr("_versions"))) {}

  const OpClass Op;
  const AttributesClass Attributes;
  const BoundClass Bound;
  const SpecClass Spec;
  const ArrayClass NdArray;
  const RecordClass Record;
  const VariableClass Variable;
  const ValueClass Value;
  const NodeClass Node;
  const Class Eager;
  const StaticClass Static;
  const DeferringClass Deferring;
  const Slot hooks_active;
  PyObject *call, *hooks, *modes, *plain, *stream, *numbers, *versions;
};

}  // namespace nnl
