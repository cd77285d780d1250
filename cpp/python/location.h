// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <Python.h>

#include <cstdint>

namespace nnl {

// Where the Python code of this thread is, as in nnl.core.arguments.origin.Location: up to the
// frame `stop`, or all of it where that is null. Throws nb::python_error.
uint64_t location(PyFrameObject* stop);

}  // namespace nnl
