// SPDX-License-Identifier: Apache-2.0
// Says whether this processor can run the library. A module of its own, asked before the library is
// loaded: loading that already runs code made for the processor of the build. So this file is
// compiled for any processor.
#include <Python.h>

#include <cstring>

extern const char* const nnl_instructions;  // instructions.cpp

namespace {

// Appends the name where the library uses these instructions and this processor lacks them.
[[maybe_unused]] bool add_missing(PyObject* missing, const char* name, bool supported) {
  const char* found = std::strstr(nnl_instructions, name);
  if (supported || !found || found[-1] != ' ' || found[std::strlen(name)] != ' ') return true;
  PyObject* text = PyUnicode_FromString(name);
  const bool added = text && PyList_Append(missing, text) == 0;
  Py_XDECREF(text);
  return added;
}

PyObject* missing_instructions(PyObject*, PyObject*) {
  PyObject* missing = PyList_New(0);
  if (!missing) return nullptr;
  bool good = true;
#ifdef __x86_64__
#define NNL_ASK(name) good = good && add_missing(missing, name, __builtin_cpu_supports(name))
  NNL_ASK("avx2");
  NNL_ASK("fma");
  NNL_ASK("avx512f");
  NNL_ASK("avx512bw");
  NNL_ASK("avx512dq");
  NNL_ASK("avx512vl");
  NNL_ASK("avx512vnni");
  NNL_ASK("avx512bf16");
#undef NNL_ASK
#endif
  if (good) return missing;
  Py_DECREF(missing);
  return nullptr;
}

PyMethodDef methods[] = {
    {"missing_instructions", missing_instructions, METH_NOARGS,
     "Names of the instruction sets that the library uses and this processor lacks."},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_processor", nullptr, 0, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__processor() { return PyModule_Create(&module); }
