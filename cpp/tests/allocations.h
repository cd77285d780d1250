// SPDX-License-Identifier: Apache-2.0
// Counts allocations, in the one test program that includes it.
#pragma once
#include <dlfcn.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>

namespace nnl::test {

inline std::atomic<int> allocations{0};

// Counts what nnl and the standard library allocate: oneDNN makes a list of arguments in each of
// its calls, and nobody else can help it.
inline void* counted(void* memory, void* caller) {
  if (!memory) throw std::bad_alloc();
  Dl_info info;
  const bool known = dladdr(caller, &info) && info.dli_fname;
  if (!known || !std::strstr(info.dli_fname, "libdnnl")) ++allocations;
  return memory;
}

}  // namespace nnl::test

[[gnu::noinline]] void* operator new(size_t n) {
  return nnl::test::counted(std::malloc(n ? n : 1), __builtin_return_address(0));
}
[[gnu::noinline]] void* operator new(size_t n, const std::nothrow_t&) noexcept {
  return std::malloc(n ? n : 1);
}
[[gnu::noinline]] void* operator new(size_t n, std::align_val_t align) {
  const auto a = static_cast<size_t>(align);
  return nnl::test::counted(std::aligned_alloc(a, (n + a) / a * a), __builtin_return_address(0));
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, size_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, size_t, std::align_val_t) noexcept { std::free(p); }
