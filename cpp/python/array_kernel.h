// SPDX-License-Identifier: Apache-2.0
// Kernels over numpy arrays.
#pragma once
#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#define NPY_TARGET_VERSION NPY_2_0_API_VERSION
#define PY_ARRAY_UNIQUE_SYMBOL nnl_numpy
#include <nanobind/nanobind.h>
#include <numpy/arrayobject.h>

#include <exception>
#include <memory>
#include <mutex>
#include <vector>

#include "nnl/kernel.h"

namespace nnl {

// np.empty, with large arrays at the start of a cache line, which vector loads want.
nanobind::object empty_array(const std::vector<npy_intp>& shape, PyArray_Descr* type);

// The number of threads that runs have which begin now.
int threads_in_a_run();

// Sets Python's error to what C++ has thrown; throws it again where it is none of ours.
void set_error(const std::exception_ptr& thrown);

// A kernel over numpy arrays: what a backend's bind() returns.
class ArrayKernel {
 public:
  static constexpr size_t most = 64;  // inputs, and outputs

  ArrayKernel(std::unique_ptr<Kernel> kernel, const Signature& s, nanobind::list out_types,
              std::vector<size_t> writes);

  // The result, or a tuple of several, written to `given` where that is not null.
  nanobind::object call(PyObject* const* args, size_t n, PyObject* given);

 private:
  void* address(nanobind::handle x, size_t i, nanobind::object& copy) const;

  std::unique_ptr<Kernel> kernel_;
  std::mutex running_;
  std::vector<Spec> in_;
  size_t workspace_;
  int threads_;                 // that its workspace has room for
  std::vector<size_t> writes_;  // positions of the inputs that a run changes
  std::vector<std::vector<npy_intp>> out_shapes_;
  std::vector<nanobind::object> out_types_;
};

}  // namespace nnl
