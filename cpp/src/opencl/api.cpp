// SPDX-License-Identifier: Apache-2.0
#include "opencl/api.h"

#include <dlfcn.h>

#include <cstdlib>
#include <cstring>

namespace nnl::opencl {
namespace {

Functions load() {
  const char* own = std::getenv("NNL_OPENCL_LIBRARY");
#ifdef __APPLE__
  const char* usual = "/System/Library/Frameworks/OpenCL.framework/OpenCL";
#else
  const char* usual = "libOpenCL.so.1";
#endif
  void* library = dlopen(own ? own : usual, RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    const char* why = dlerror();
    throw ValueError(std::string("opencl: there is no OpenCL on this machine: ") +
                     (why ? why : usual) +
                     "; install its loader and a driver (on Debian: apt-get install "
                     "ocl-icd-libopencl1, and your vendor's driver or pocl-opencl-icd for "
                     "processors), or name the loader in NNL_OPENCL_LIBRARY");
  }
  Functions found{};
#define NNL_OPENCL(result, name, arguments)             \
  if (void* address = dlsym(library, #name))            \
    std::memcpy(&found.name, &address, sizeof address); \
  else                                                  \
    throw ValueError(std::string("opencl: ") + (own ? own : usual) + " has no " #name);
  NNL_OPENCL_FUNCTIONS
#undef NNL_OPENCL
  return found;
}

}  // namespace

const Functions& functions() {
  static const Functions found = load();  // after an exception it is tried again
  return found;
}

void check(Int error, const std::string& what) {
  if (error) throw ValueError("opencl: " + what + ": error " + std::to_string(error));
}

}  // namespace nnl::opencl
