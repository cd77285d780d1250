// SPDX-License-Identifier: Apache-2.0
// The classes of nnl.coexec whose objects C reads and makes, and what calls and backward passes of
// a co-executed step share.
#pragma once
#include "called.h"

namespace nnl {

struct DeferredStepClass : Class {
  using Class::Class;
  Slot at = slot("at"), path = slot("path"), made = slot("made"), given = slot("given"),
       before = slot("before"), edges = slot("edges"), paths = slot("paths"),
       visited = slot("visited"), outermost = slot("outermost"), behind = slot("behind"),
       adopted = slot("adopted"), taken = slot("taken"), trigger = slot("trigger");
};

struct PathsClass : Class {
  using Class::Class;
  Slot attrs = slot("attrs");
};

struct PathNodeClass : Class {
  using Class::Class;
  Slot after = slot("after"), visits = slot("visits"), passes = slot("passes");
};

struct EdgesClass : Class {
  using Class::Class;
  Slot plain = slot("plain"), epoch = slot("epoch"), leaves = slot("leaves"),
       positions = slot("positions"), makers = slot("makers");
};

struct PassClass : Class {
  using Class::Class;
  Slot place = slot("place"), given = slot("given"), specs = slot("specs"), ends = slot("ends"),
       shares = slot("shares"), nodes = slot("nodes");
};

// What of nnl.coexec calls work with. Made once; it stays until the process ends.
struct Later {
  Later(const nanobind::module_& deferred, const nanobind::module_& backward)
      : DeferredStep(deferred.attr("DeferredStep")),
        Paths(deferred.attr("Paths")),
        PathNode(deferred.attr("PathNode")),
        Edges(backward.attr("Edges")),
        Pass(backward.attr("Pass")),
        at_once(kept(deferred.attr("AT_ONCE"))),
        with_input(kept(deferred.attr("WITH_INPUT"))),
        space(kept(deferred.attr("SPACE"))),
        holders(
            kept(nanobind::module_::import_("nnl.graph.lowering.buffer_owners").attr("HOLDERS"))),
        numbers(kept(deferred.attr("DeferredStep").attr("_numbers"))),
        calls(kept(deferred.attr("DeferredStep").attr("calls"))),
        becomes(kept(deferred.attr("DeferredStep").attr("becomes"))),
        backward(kept(deferred.attr("DeferredStep").attr("backward"))),
        epoch(kept(nanobind::module_::import_("nnl.core.settings.context").attr("EPOCH"))) {}

  const DeferredStepClass DeferredStep;
  const PathsClass Paths;
  const PathNodeClass PathNode;
  const EdgesClass Edges;
  const PassClass Pass;
  PyObject *at_once, *with_input, *space, *holders, *numbers, *calls, *becomes, *backward, *epoch;
};

inline const Later* later;

// The record of an array, one that stays; borrowed.
PyObject* lasting(PyObject* nd, PyObject* record);

// The number of an array's memory, as DeferredStep.number() gives it; none for what is unusual.
nanobind::object number_of(PyObject* deferred, PyObject* nd);

// Goes to a place, whose calls make so many arrays that nobody has, as DeferredStep.go() does.
bool go_to(PyObject* deferred, PyObject* place, Py_ssize_t makes);

// become(deferred, leaves, sums, specs) of nnl/coexec/deferring/backward.py.
PyObject* become(PyObject*, PyObject* const* args, Py_ssize_t n);

// DeferredStep.backward(output, grad, clear).
PyObject* backward(PyObject* deferred, PyObject* const* args, Py_ssize_t n);

}  // namespace nnl
