// SPDX-License-Identifier: Apache-2.0
// OpenCL's functions, found when a program first asks for a device: nothing is linked.
//
// Source of the declarations: The OpenCL Specification 1.2, Khronos Group.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "nnl/errors.h"

namespace nnl::opencl {

using Int = int32_t;
using Uint = uint32_t;
using Bits = uint64_t;
using Handle = void*;  // of a platform, device, context, queue, buffer, program or kernel

constexpr Bits all_types = 0xFFFFFFFF, type_cpu = 2, read_write = 1;
constexpr Uint device_type = 0x1000, work_group_size = 0x1004, device_name = 0x102B,
               driver_version = 0x102D, device_version = 0x102F, extensions = 0x1030,
               binary_sizes = 0x1165, binaries = 0x1166, build_log = 0x1183;

// NNL_OPENCL(result, name, arguments)
#define NNL_OPENCL_FUNCTIONS                                                                       \
  NNL_OPENCL(Int, clGetPlatformIDs, (Uint, Handle*, Uint*))                                        \
  NNL_OPENCL(Int, clGetDeviceIDs, (Handle, Bits, Uint, Handle*, Uint*))                            \
  NNL_OPENCL(Int, clGetDeviceInfo, (Handle, Uint, size_t, void*, size_t*))                         \
  NNL_OPENCL(Handle, clCreateContext, (const intptr_t*, Uint, const Handle*, void*, void*, Int*))  \
  NNL_OPENCL(Handle, clCreateCommandQueue, (Handle, Handle, Bits, Int*))                           \
  NNL_OPENCL(Int, clReleaseCommandQueue, (Handle))                                                 \
  NNL_OPENCL(Handle, clCreateBuffer, (Handle, Bits, size_t, void*, Int*))                          \
  NNL_OPENCL(Int, clReleaseMemObject, (Handle))                                                    \
  NNL_OPENCL(Int, clEnqueueWriteBuffer,                                                            \
             (Handle, Handle, Uint, size_t, size_t, const void*, Uint, const Handle*, Handle*))    \
  NNL_OPENCL(Int, clEnqueueReadBuffer,                                                             \
             (Handle, Handle, Uint, size_t, size_t, void*, Uint, const Handle*, Handle*))          \
  NNL_OPENCL(Handle, clCreateProgramWithSource, (Handle, Uint, const char**, const size_t*, Int*)) \
  NNL_OPENCL(Handle, clCreateProgramWithBinary,                                                    \
             (Handle, Uint, const Handle*, const size_t*, const unsigned char**, Int*, Int*))      \
  NNL_OPENCL(Int, clBuildProgram, (Handle, Uint, const Handle*, const char*, void*, void*))        \
  NNL_OPENCL(Int, clGetProgramBuildInfo, (Handle, Handle, Uint, size_t, void*, size_t*))           \
  NNL_OPENCL(Int, clGetProgramInfo, (Handle, Uint, size_t, void*, size_t*))                        \
  NNL_OPENCL(Int, clReleaseProgram, (Handle))                                                      \
  NNL_OPENCL(Handle, clCreateKernel, (Handle, const char*, Int*))                                  \
  NNL_OPENCL(Int, clReleaseKernel, (Handle))                                                       \
  NNL_OPENCL(Int, clSetKernelArg, (Handle, Uint, size_t, const void*))                             \
  NNL_OPENCL(Int, clEnqueueNDRangeKernel,                                                          \
             (Handle, Handle, Uint, const size_t*, const size_t*, const size_t*, Uint,             \
              const Handle*, Handle*))                                                             \
  NNL_OPENCL(Int, clFinish, (Handle))

struct Functions {
#define NNL_OPENCL(result, name, arguments) result(*name) arguments;
  NNL_OPENCL_FUNCTIONS
#undef NNL_OPENCL
};

// ValueError: this machine has no OpenCL; the text says what to install. NNL_OPENCL_LIBRARY may
// name the library of the loader where the system does not find it.
const Functions& functions();

// ValueError: a call has failed; the text has the number of OpenCL's error.
void check(Int error, const std::string& what);

}  // namespace nnl::opencl
