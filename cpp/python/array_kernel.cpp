// SPDX-License-Identifier: Apache-2.0
#define NO_IMPORT_ARRAY
#include "array_kernel.h"

#include <structmember.h>

#include <cstddef>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>
#include <typeinfo>
#include <utility>

#include "nnl/errors.h"
#include "nnl/plan.h"
#include "nnl/threads.h"

namespace nb = nanobind;

void bind_array_kernel(nb::module_& m);

namespace nnl {
namespace {

// ---- numpy arrays whose memory starts at a cache line ----
// numpy aligns to 16 bytes; an update over four such arrays takes 1.6 times as long.

constexpr size_t kLine = 64;
constexpr npy_intp kLarge = 1 << 14;  // bytes from which it matters

void* allocate(void*, size_t bytes) {
  return ::operator new(bytes ? bytes : 1, std::align_val_t{kLine}, std::nothrow);
}
void* allocate_zeros(void*, size_t n, size_t bytes) {
  void* p = n && bytes > SIZE_MAX / n ? nullptr : allocate(nullptr, n * bytes);
  if (p) std::memset(p, 0, n * bytes);
  return p;
}
void release(void*, void* p, size_t) { ::operator delete(p, std::align_val_t{kLine}); }
// The old size is not told; resize() of an array, the only caller, gets an error instead of a
// guess.
void* reallocate(void*, void*, size_t) { return nullptr; }

PyDataMem_Handler aligned_memory = {
    "nnl_aligned", 1, {nullptr, allocate, allocate_zeros, reallocate, release}};

// Scratch memory for one call after the other: fresh pages would cost more than many a kernel.
void* workspace_of_this_thread(size_t bytes) {
  static thread_local std::unique_ptr<Memory> memory;
  if (!memory || memory->bytes() < bytes) {
    memory.reset();
    memory = std::make_unique<Memory>(bytes);
  }
  return memory->data();
}

}  // namespace

nb::object empty_array(const std::vector<npy_intp>& shape, PyArray_Descr* type) {
  static PyObject* handler = PyCapsule_New(&aligned_memory, "mem_handler", nullptr);
  npy_intp bytes = PyDataType_ELSIZE(type);
  for (const npy_intp n : shape) bytes *= n;
  nb::object before;
  if (bytes >= kLarge) before = nb::steal(PyDataMem_SetHandler(handler));
  Py_INCREF(type);  // PyArray_Empty takes a reference
  nb::object array = nb::steal(
      PyArray_Empty(static_cast<int>(shape.size()), const_cast<npy_intp*>(shape.data()), type, 0));
  if (before.is_valid()) nb::steal(PyDataMem_SetHandler(before.ptr()));
  if (!array.is_valid()) throw nb::python_error();
  return array;
}

int threads_in_a_run() {
  const ThreadScope scope;
  return threads();
}

void set_error(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (nb::python_error& e) {
    e.restore();
  } catch (const ValueError& e) {
    const std::string what = e.what();  // a name from a file may be no UTF-8
    PyErr_SetObject(
        PyExc_ValueError,
        nb::steal(PyUnicode_DecodeUTF8(what.data(), static_cast<Py_ssize_t>(what.size()),
                                       "backslashreplace"))
            .ptr());
  } catch (const std::bad_alloc&) {
    PyErr_SetString(PyExc_MemoryError, "the machine has no more");
  } catch (const std::length_error&) {
    PyErr_SetString(PyExc_MemoryError, "no machine has as much");
  } catch (const std::bad_cast&) {
    PyErr_SetString(PyExc_ValueError, "an argument does not fit the type that the kernel takes");
  }
}

ArrayKernel::ArrayKernel(std::unique_ptr<Kernel> kernel, const Signature& s, nb::list out_types,
                         std::vector<size_t> writes)
    : kernel_(std::move(kernel)),
      in_(s.in),
      workspace_(kernel_->workspace()),
      threads_(threads_in_a_run()),
      writes_(std::move(writes)) {
  for (size_t i = 0; i < s.out.size(); ++i) {
    out_shapes_.emplace_back(s.out[i].shape.begin(), s.out[i].shape.end());
    out_types_.push_back(nb::borrow<nb::object>(out_types[i]));
  }
}

nb::object ArrayKernel::call(PyObject* const* args, size_t n, PyObject* given) {
  void *in[most], *out[most];
  const size_t m = out_shapes_.size();
  if (n != in_.size() || n > most || m > most) throw ValueError("wrong number of arrays");
  nb::object copies[most];
  for (size_t i = 0; i < n; ++i) in[i] = address(args[i], i, copies[i]);
  nb::object results[most];
  for (size_t o = 0; o < m; ++o) {
    if (!given) {
      results[o] =
          empty_array(out_shapes_[o], reinterpret_cast<PyArray_Descr*>(out_types_[o].ptr()));
    } else {
      results[o] = m == 1 ? nb::borrow(given) : nb::object(nb::handle(given)[o]);
    }
    out[o] = PyArray_DATA(reinterpret_cast<PyArrayObject*>(results[o].ptr()));
  }
  {
    nb::gil_scoped_release unlock;
    void* scratch = workspace_ ? workspace_of_this_thread(workspace_) : nullptr;
    // A kernel has handles of its own (oneDNN's memory objects): one run at a time.
    const std::lock_guard<std::mutex> one_at_a_time(running_);
    const ThreadScope scope(threads_);
    kernel_->run({in, out, scratch});
  }
  for (size_t i : writes_)  // a copy stood in for an array that is not contiguous
    if (copies[i].is_valid() &&
        PyArray_CopyInto(reinterpret_cast<PyArrayObject*>(args[i]),
                         reinterpret_cast<PyArrayObject*>(copies[i].ptr())) < 0)
      throw nb::python_error();
  if (m == 1) return results[0];
  nb::object tuple = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(m)));
  for (size_t o = 0; o < m; ++o)
    PyTuple_SET_ITEM(tuple.ptr(), static_cast<Py_ssize_t>(o), results[o].release().ptr());
  return tuple;
}

void* ArrayKernel::address(nb::handle x, size_t i, nb::object& copy) const {
  if (x.is_none()) return nullptr;
  if (!PyArray_Check(x.ptr())) throw ValueError("an input is not a numpy array");
  auto* array = reinterpret_cast<PyArrayObject*>(x.ptr());
  if (static_cast<int64_t>(PyArray_SIZE(array)) != in_[i].size() ||
      static_cast<size_t>(PyArray_ITEMSIZE(array)) != bytes_of(in_[i].dtype))
    throw ValueError("input " + std::to_string(i) + " is not " + in_[i].text());
  if (!PyArray_IS_C_CONTIGUOUS(array)) {
    copy = nb::steal(PyArray_NewCopy(array, NPY_CORDER));
    array = reinterpret_cast<PyArrayObject*>(copy.ptr());
  }
  return PyArray_DATA(array);
}

}  // namespace nnl

namespace {

using nnl::ArrayKernel;

// A call that is made when it is needed, and then called straight: an ArrayKernel without Python.
struct Later {
  PyObject_HEAD;
  vectorcallfunc vectorcall;
  PyObject *make, *made;  // one of them is null
  ArrayKernel* kernel;    // in `made`, if that is one
};

// The array that out= gives, null without one; false for other names.
bool out_of(PyObject* const* args, Py_ssize_t n, PyObject* names, PyObject** out) {
  *out = nullptr;
  if (!names || !PyTuple_GET_SIZE(names)) return true;
  if (PyTuple_GET_SIZE(names) > 1 ||
      PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(names, 0), "out") != 0)
    return false;
  if (args[n] != Py_None) *out = args[n];
  return true;
}

PyObject* call_later(PyObject* self, PyObject* const* args, size_t flags, PyObject* names) {
  auto* later = reinterpret_cast<Later*>(self);
  if (!later->made) {
    nb::object made = nb::steal(PyObject_CallNoArgs(later->make));
    if (!made.is_valid()) return nullptr;
    if (!later->made) {  // no other thread was faster
      if (nb::isinstance<ArrayKernel>(made)) later->kernel = nb::inst_ptr<ArrayKernel>(made);
      later->made = made.release().ptr();
      Py_CLEAR(later->make);
    }
  }
  PyObject* out;
  const Py_ssize_t n = PyVectorcall_NARGS(flags);
  if (!later->kernel || !out_of(args, n, names, &out))
    return PyObject_Vectorcall(later->made, args, flags, names);
  try {
    try {
      return later->kernel->call(args, static_cast<size_t>(n), out).release().ptr();
    } catch (...) {
      nnl::set_error(std::current_exception());
    }
  } catch (const std::exception& e) {  // of a library
    PyErr_SetString(PyExc_RuntimeError, e.what());
  }
  return nullptr;
}

int visit(PyObject* self, visitproc visit, void* arg) {
  auto* later = reinterpret_cast<Later*>(self);
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(later->make);
  Py_VISIT(later->made);
  return 0;
}

int clear(PyObject* self) {
  auto* later = reinterpret_cast<Later*>(self);
  later->kernel = nullptr;
  Py_CLEAR(later->make);
  Py_CLEAR(later->made);
  return 0;
}

void free_later(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  clear(self);
  type->tp_free(self);
  Py_DECREF(type);
}

PyMemberDef members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Later, vectorcall), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr}};

PyType_Slot slots[] = {{Py_tp_call, reinterpret_cast<void*>(&PyVectorcall_Call)},
                       {Py_tp_traverse, reinterpret_cast<void*>(&visit)},
                       {Py_tp_clear, reinterpret_cast<void*>(&clear)},
                       {Py_tp_dealloc, reinterpret_cast<void*>(&free_later)},
                       {Py_tp_members, members},
                       {0, nullptr}};

PyType_Spec later_spec = {"nnl.ext.native._native.Later", sizeof(Later), 0,
                          Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
                          slots};

}  // namespace

void bind_array_kernel(nb::module_& m) {
  m.def("threads_in_a_run", &nnl::threads_in_a_run);
  nb::class_<ArrayKernel>(m, "ArrayKernel")
      .def("__call__", [](ArrayKernel& self, nb::args args, nb::kwargs kw) {
        PyObject* const out = kw.size() ? nb::object(kw["out"]).ptr() : nullptr;  // in kw meanwhile
        return self.call(PySequence_Fast_ITEMS(args.ptr()), args.size(), out);
      });
  // The same as nnl.ext.library.at_first_call.
  static auto* later_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&later_spec));
  if (!later_type) throw nb::python_error();
  m.def("at_first_call", [](nb::object make) {
    nb::object self = nb::steal(later_type->tp_alloc(later_type, 0));
    if (!self.is_valid()) throw nb::python_error();
    auto* later = reinterpret_cast<Later*>(self.ptr());
    later->vectorcall = &call_later;
    later->make = make.release().ptr();
    return self;
  });
}
