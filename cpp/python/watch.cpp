// SPDX-License-Identifier: Apache-2.0
// What a co-executed step tells its watch: Watch.call() and Counts of nnl/coexec/policy/watch.py
// say what that means.
#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <unordered_map>
#include <vector>

#include "called.h"

namespace nb = nanobind;

void bind_watch(nb::module_& m);

namespace nnl {

namespace {

constexpr double backward = 2.0;          // BACKWARD
constexpr size_t most_known = 1u << 17u;  // MOST

class Counts {
 public:
  Counts() { begin(0, 0); }

  void begin(long long number, int often) {
    if (seen_.size() > most_known) seen_.clear();
    hash_ = 0;
    often_from_ = often;
    made_.assign(1, number);
    calls = 0;
    work = this->often = rest = 0;
    ++seen_[0];
  }

  void call(uint64_t bound, const std::vector<long long>& made_by, long long number, double takes,
            bool need, bool known) {
    hash_ = mix(hash_, bound);
    for (const long long seq : made_by) {
      const auto after = std::upper_bound(made_.begin(), made_.end(), seq);
      hash_ = mix(hash_, static_cast<uint64_t>(after - made_.begin()));
    }
    made_.push_back(number);
    if (!known) known = ++seen_[hash_] > often_from_;
    calls += need ? 3 : 1;
    work += takes;
    if (need) rest += backward * takes;
    if (known) often += takes;
  }

  void end(long more, double takes) {
    calls += more;
    rest += takes;
  }

  bool came_often() const {
    const auto found = seen_.find(hash_);
    return (found == seen_.end() ? 0 : found->second) > often_from_;
  }

  size_t known() const { return seen_.size(); }

  long calls = 0;
  double work = 0, often = 0, rest = 0;

 private:
  static uint64_t mix(uint64_t hash, uint64_t more) { return (hash * 1000003) ^ more; }

  std::unordered_map<uint64_t, int> seen_;
  std::vector<long long> made_;
  uint64_t hash_ = 0;
  int often_from_ = 0;
};

struct WatchClass : Class {
  using Class::Class;
  Slot counts = slot("counts");
};

// What of nnl.coexec.policy.watch calls work with. Made once; it stays until the process ends.
struct Names {
  explicit Names(const nb::module_& watch)
      : Watch(watch.attr("Watch")),
        passed(kept(watch.attr("PASSED"))),
        seconds(kept(watch.attr("seconds"))) {}
  const WatchClass Watch;
  PyObject *passed, *seconds;
};

Names* names;

// Seconds that a call takes, about; negative with an error.
double seconds_of(const Called& called) {
  PyObject* known = core->Bound.seconds.of(called.bound);
  if (PyFloat_CheckExact(known)) return PyFloat_AS_DOUBLE(known);
  nb::object found = nb::steal(PyObject_CallFunctionObjArgs(names->seconds, called.attrs.ptr(),
                                                            called.bound.ptr(), nullptr));
  return found.is_valid() ? PyFloat_AsDouble(found.ptr()) : -1;
}

}  // namespace

bool tell_watch(const Called& called, PyObject* watch) {
  if (!names) names = new Names(nb::module_::import_("nnl.coexec.policy.watch"));
  if (!names->Watch.exactly(watch) || !nb::isinstance<Counts>(names->Watch.counts.of(watch))) {
    static PyObject* const call = text("call");
    return nb::steal(PyObject_CallMethodObjArgs(watch, call, called.op, called.attrs.ptr(),
                                                called.bound.ptr(), called.edges.ptr(), nullptr))
        .is_valid();
  }
  const int passed = PySet_Contains(names->passed, core->Op.name.of(called.op));
  if (passed) return passed > 0;
  const double takes = seconds_of(called);
  if (takes < 0 && PyErr_Occurred()) return false;
  std::vector<long long> made_by;
  bool need = false;
  for (Py_ssize_t i = 0; i < called.count; ++i) {
    PyObject* edge = PyTuple_GET_ITEM(called.edges.ptr(), i);
    if (edge == Py_None || !core->Value.need_grad.on(edge)) continue;
    need = true;
    PyObject* node = core->Value.node.of(edge);
    if (node != Py_None) made_by.push_back(PyLong_AsLongLong(core->Node.seq.of(node)));
  }
  nb::object now = nb::steal(PyIter_Next(core->numbers));
  if (!now.is_valid()) return false;
  nb::inst_ptr<Counts>(names->Watch.counts.of(watch))
      ->call(reinterpret_cast<uintptr_t>(called.bound.ptr()), made_by, PyLong_AsLongLong(now.ptr()),
             takes, need, false);
  return true;
}

}  // namespace nnl

void bind_watch(nb::module_& m) {
  using nnl::Counts;
  nb::class_<Counts>(m, "Counts")
      .def(nb::init<>())
      .def("begin", &Counts::begin)
      .def("call", &Counts::call)
      .def("end", &Counts::end)
      .def("came_often", &Counts::came_often)
      .def_prop_ro("known", &Counts::known)
      .def_ro("calls", &Counts::calls)
      .def_ro("work", &Counts::work)
      .def_ro("often", &Counts::often)
      .def_ro("rest", &Counts::rest);
}
