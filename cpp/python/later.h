// SPDX-License-Identifier: Apache-2.0
// The classes of nnl.coexec whose objects C reads and makes, and what calls and backward passes of
// a co-executed step share.
#pragma once
#include "called.h"

namespace nnl {

struct SkeletonClass : Class {
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

struct PlaceClass : Class {
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
  Later(const nanobind::module_& skeleton, const nanobind::module_& backward)
      : Skeleton(skeleton.attr("Skeleton")),
        Paths(skeleton.attr("Paths")),
        Place(skeleton.attr("Place")),
        Edges(backward.attr("Edges")),
        Pass(backward.attr("Pass")),
        at_once(kept(skeleton.attr("AT_ONCE"))),
        with_input(kept(skeleton.attr("WITH_INPUT"))),
        space(kept(skeleton.attr("SPACE"))),
        holders(kept(nanobind::module_::import_("nnl.graph.plan.buffer_owners").attr("HOLDERS"))),
        numbers(kept(skeleton.attr("Skeleton").attr("_numbers"))),
        calls(kept(skeleton.attr("Skeleton").attr("calls"))),
        becomes(kept(skeleton.attr("Skeleton").attr("becomes"))),
        backward(kept(skeleton.attr("Skeleton").attr("backward"))),
        epoch(kept(nanobind::module_::import_("nnl.core.interpreters.context").attr("EPOCH"))) {}

  const SkeletonClass Skeleton;
  const PathsClass Paths;
  const PlaceClass Place;
  const EdgesClass Edges;
  const PassClass Pass;
  PyObject *at_once, *with_input, *space, *holders, *numbers, *calls, *becomes, *backward, *epoch;
};

inline const Later* later;

// The record of an array, one that stays; borrowed.
PyObject* lasting(PyObject* nd, PyObject* record);

// The number of an array's memory, as Skeleton.number() gives it; none for what is unusual.
nanobind::object number_of(PyObject* skeleton, PyObject* nd);

// Goes to a place, whose calls make so many arrays that nobody has, as Skeleton.go() does.
bool go_to(PyObject* skeleton, PyObject* place, Py_ssize_t makes);

// become(skeleton, leaves, sums, specs) of nnl/coexec/deferring/backward.py.
PyObject* become(PyObject*, PyObject* const* args, Py_ssize_t n);

// Skeleton.backward(output, grad, clear).
PyObject* backward(PyObject* skeleton, PyObject* const* args, Py_ssize_t n);

}  // namespace nnl
