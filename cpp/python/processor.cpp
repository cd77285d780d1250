// SPDX-License-Identifier: Apache-2.0
// Says whether this processor can run the library. A module of its own, asked before the library is
// loaded: loading that already runs code made for the processor of the build.
#include <Python.h>

// The compiler's macros still say what the rest of the library may use; the attribute keeps such
// instructions out of the functions that find out.
#if defined(__x86_64__) && defined(__GNUC__)
#define NNL_ANY_PROCESSOR __attribute__((target("arch=x86-64")))
#else
#define NNL_ANY_PROCESSOR
#endif

namespace {

// Names of the instruction sets that the build uses and this processor lacks.
NNL_ANY_PROCESSOR PyObject* missing_instructions(PyObject*, PyObject*) {
  PyObject* missing = PyList_New(0);
  if (!missing) return nullptr;
#define NNL_NEEDS(name)                              \
  if (!__builtin_cpu_supports(name)) {               \
    PyObject* text = PyUnicode_FromString(name);     \
    if (!text || PyList_Append(missing, text) < 0) { \
      Py_XDECREF(text);                              \
      Py_DECREF(missing);                            \
      return nullptr;                                \
    }                                                \
    Py_DECREF(text);                                 \
  }
#ifdef __AVX2__
  NNL_NEEDS("avx2")
#endif
#ifdef __FMA__
  NNL_NEEDS("fma")
#endif
#ifdef __AVX512F__
  NNL_NEEDS("avx512f")
#endif
#ifdef __AVX512BW__
  NNL_NEEDS("avx512bw")
#endif
#ifdef __AVX512DQ__
  NNL_NEEDS("avx512dq")
#endif
#ifdef __AVX512VL__
  NNL_NEEDS("avx512vl")
#endif
#ifdef __AVX512VNNI__
  NNL_NEEDS("avx512vnni")
#endif
#ifdef __AVX512BF16__
  NNL_NEEDS("avx512bf16")
#endif
#undef NNL_NEEDS
  return missing;
}

PyMethodDef methods[] = {
    {"missing_instructions", missing_instructions, METH_NOARGS,
     "Names of the instruction sets that the library uses and this processor lacks."},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_processor", nullptr, 0, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__processor() { return PyModule_Create(&module); }
