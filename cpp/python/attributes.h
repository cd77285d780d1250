// SPDX-License-Identifier: Apache-2.0
// Attributes of ops, as Python has them.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "nnl/attributes.h"

namespace nnl {

inline Attribute to_attribute(nanobind::handle value) {
  if (value.is_none()) return std::monostate{};
  if (PyBool_Check(value.ptr())) return nanobind::cast<bool>(value);
  if (PyLong_Check(value.ptr())) return nanobind::cast<int64_t>(value);
  if (PyFloat_Check(value.ptr())) return nanobind::cast<double>(value);
  if (PyUnicode_Check(value.ptr())) return nanobind::cast<std::string>(value);
  if (PyTuple_Check(value.ptr()) || PyList_Check(value.ptr())) {
    bool all_integers = true;
    for (nanobind::handle item : nanobind::cast<nanobind::sequence>(value))
      all_integers = all_integers && PyLong_Check(item.ptr());
    if (all_integers) return nanobind::cast<std::vector<int64_t>>(value);
    std::vector<double> numbers;
    for (nanobind::handle item : nanobind::cast<nanobind::sequence>(value))
      numbers.push_back(nanobind::cast<double>(item));
    return numbers;
  }
  throw ValueError("an attribute is neither number, text nor a sequence of numbers");
}

}  // namespace nnl
