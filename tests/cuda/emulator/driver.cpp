// SPDX-License-Identifier: Apache-2.0
// Modules and launches, as CUDA's driver has them: the functions that CuPy asks it for.
#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <numeric>

#include "errors.h"
#include "machine.h"
#include "state.h"

namespace emu {
namespace {

struct Function {
  std::shared_ptr<Module> module;
  const Kernel* kernel;
  KernelInfo info;
  int device;
  std::size_t most_dynamic;  // bytes of shared memory that a launch may ask for
};

struct Loaded {
  std::shared_ptr<Module> module;
  int device;
  std::map<std::string, std::unique_ptr<Function>> functions;
};

struct Modules {
  std::map<Loaded*, std::unique_ptr<Loaded>> all;
  std::set<Function*> functions;
};

Modules& modules() {
  static Modules& all = *new Modules;
  return all;
}

enum Attribute {
  kMaxThreads = 0,
  kStaticShared = 1,
  kConst = 2,
  kLocal = 3,
  kRegistersOf = 4,
  kPtx = 5,
  kBinary = 6,
  kMostDynamic = 8
};

int load(void** made, const void* image) {
  return call([&](State& s, Lock&) -> int {
    if (const int error = s.unsafe()) return error;
    auto loaded = std::make_unique<Loaded>();
    try {
      loaded->module = Module::parse(static_cast<const char*>(image));
    } catch (const Fault& e) {
      std::fprintf(stderr, "emulated GPU: %s\n", e.what());
      return kInvalidPtx;
    }
    loaded->device = current_device;
    *made = loaded.get();
    modules().all[loaded.get()] = std::move(loaded);
    return kSuccess;
  });
}

Loaded* loaded(void* handle) {
  const auto found = modules().all.find(static_cast<Loaded*>(handle));
  return found == modules().all.end() ? nullptr : found->first;
}

Function* function(void* handle) {
  const auto found = modules().functions.find(static_cast<Function*>(handle));
  return found == modules().functions.end() ? nullptr : *found;
}

int get_function(void** made, void* module, const char* name) {
  Loaded* of = loaded(module);
  if (of == nullptr) return kInvalidResourceHandle;
  auto& found = of->functions[name];
  if (!found) {
    const Kernel* kernel = of->module->kernel(name);
    if (kernel == nullptr) {
      of->functions.erase(name);
      return kNotFound;
    }
    const KernelInfo& info = of->module->info(*kernel);
    const std::size_t rest = kShared - std::min(kShared, info.static_shared);
    found.reset(new Function{of->module, kernel, info, of->device, rest});
    modules().functions.insert(found.get());
  }
  *made = found.get();
  return kSuccess;
}

// Copies what a launch is given; the caller's memory may change as soon as it returns.
bool gather(const KernelInfo& info, void** parameters, void** extra, std::vector<std::byte>* out) {
  constexpr std::uint64_t kEnd = 0, kBuffer = 1, kSize = 2;
  out->resize(std::max<std::size_t>(info.parameter_bytes, 1));
  if (parameters != nullptr) {
    for (std::size_t i = 0; i < info.parameters.size(); ++i)
      std::memcpy(out->data() + info.parameters[i].offset, parameters[i], info.parameters[i].bytes);
    return true;
  }
  const void* buffer = nullptr;
  std::size_t size = 0;
  for (void** e = extra; e != nullptr && reinterpret_cast<std::uint64_t>(*e) != kEnd; e += 2) {
    if (reinterpret_cast<std::uint64_t>(*e) == kBuffer) buffer = e[1];
    if (reinterpret_cast<std::uint64_t>(*e) == kSize) size = *static_cast<std::size_t*>(e[1]);
  }
  if (buffer == nullptr) return info.parameters.empty();
  std::memcpy(out->data(), buffer, std::min(size, info.parameter_bytes));
  return size >= info.parameter_bytes;
}

int check(const Function& f, const Launch& l) {
  std::size_t threads = 1;
  for (int i = 0; i < 3; ++i) {
    if (l.grid[i] == 0 || l.block[i] == 0) return kInvalidValue;
    if (l.grid[i] > unsigned(kGrid[i]) || l.block[i] > unsigned(kBlock[i])) return kInvalidValue;
    threads *= l.block[i];
  }
  if (threads > kThreadsPerBlock || l.dynamic_shared > f.most_dynamic) return kInvalidValue;
  if (threads > f.info.max_threads) return kLaunchOutOfResources;
  return kSuccess;
}

int launch(void* handle, const Launch& shape, void* stream, void** parameters, void** extra) {
  return call([&](State& s, Lock& lock) -> int {
    const Function* f = function(handle);
    Stream* on = s.stream(stream);
    if (f == nullptr || on == nullptr) return kInvalidResourceHandle;
    if (f->device != current_device || on->device != current_device) return kInvalidResourceHandle;
    if (const int error = check(*f, shape)) return error;
    std::vector<std::byte> values;
    if (!gather(f->info, parameters, extra, &values)) return kInvalidValue;
    return s.enqueue(lock, *on,
                     [&s, shape, values = std::move(values), module = f->module, kernel = f->kernel,
                      device = f->device] {
                       Launch l = shape;
                       l.parameters = values.data();
                       run(*kernel, l, s.devices[device]->reach);
                     });
  });
}

int blocks_at_once(const Function& f, int threads, std::size_t dynamic) {
  if (threads <= 0 || unsigned(threads) > f.info.max_threads) return 0;
  const int rounded = (threads + kWarp - 1) / kWarp * kWarp;
  const std::size_t shared = f.info.static_shared + dynamic + kSharedReserved;
  const int registers = std::max(1, int(f.info.registers)) * rounded;
  return std::min({kThreadsPerMultiprocessor / rounded, kBlocksPerMultiprocessor,
                   int(kSharedOfAll / shared), kRegisters / registers});
}

int attribute(const Function& f, int which, int* value) {
  switch (which) {
    case kMaxThreads:
      *value = int(f.info.max_threads);
      return kSuccess;
    case kStaticShared:
      *value = int(f.info.static_shared);
      return kSuccess;
    case kLocal:
      *value = int(f.info.local_bytes);
      return kSuccess;
    case kRegistersOf:
      *value = int(f.info.registers);
      return kSuccess;
    case kPtx:
    case kBinary:
      *value = 10 * kMajor + kMinor;
      return kSuccess;
    case kMostDynamic:
      *value = int(f.most_dynamic);
      return kSuccess;
    default:
      *value = 0;
      return which == kConst || which < 16 ? kSuccess : kInvalidValue;
  }
}

void* context(int device) { return State::get().devices[device].get(); }

}  // namespace
}  // namespace emu

using namespace emu;

extern "C" {

// NVRTC looks for these two, and goes on without a driver's help where there is none.
int cuInit(unsigned) { return kSuccess; }

int cuGetExportTable(const void** table, const void*) {
  *table = nullptr;
  return kNotFound;
}

int cuDriverGetVersion(int* version) {
  *version = kVersion;
  return kSuccess;
}

int cuGetErrorName(int error, const char** text) {
  *text = error_name(error).driver;
  return kSuccess;
}

int cuGetErrorString(int error, const char** text) {
  *text = error_name(error).text;
  return kSuccess;
}

int cuCtxGetCurrent(void** made) {
  *made = context(current_device);
  return kSuccess;
}

int cuCtxSetCurrent(void* wanted) {
  for (const auto& d : State::get().devices)
    if (d.get() == wanted) {
      current_device = d->number;
      return kSuccess;
    }
  return kInvalidValue;
}

int cuCtxGetDevice(int* device) {
  *device = current_device;
  return kSuccess;
}

int cuStreamGetCtx(void* stream, void** made) {
  return call([&](State& s, Lock&) -> int {
    const Stream* on = s.stream(stream);
    if (on == nullptr) return kInvalidResourceHandle;
    *made = context(on->device);
    return kSuccess;
  });
}

int cuModuleLoadData(void** made, const void* image) { return load(made, image); }

int cuModuleLoad(void** made, const char* name) {
  std::ifstream file(name, std::ios::binary);
  if (!file) return kNotFound;
  return load(made, std::string(std::istreambuf_iterator<char>(file), {}).c_str());
}

int cuModuleUnload(void* module) {
  return call([&](State&, Lock&) -> int {
    Loaded* of = loaded(module);
    if (of == nullptr) return kInvalidResourceHandle;
    for (const auto& [name, f] : of->functions) modules().functions.erase(f.get());
    modules().all.erase(of);
    return kSuccess;
  });
}

int cuModuleGetFunction(void** made, void* module, const char* name) {
  return call([&](State&, Lock&) { return get_function(made, module, name); });
}

int cuModuleGetGlobal_v2(std::uint64_t* address, std::size_t* bytes, void* module,
                         const char* name) {
  return call([&](State& s, Lock&) -> int {
    Loaded* of = loaded(module);
    if (of == nullptr) return kInvalidResourceHandle;
    const auto [start, size] = of->module->global(name);
    if (start == nullptr) return kNotFound;
    *address = reinterpret_cast<std::uint64_t>(start);
    if (bytes != nullptr) *bytes = size;
    s.memory.add(*address, size, Kind::managed, of->device);  // copies are to find it
    return kSuccess;
  });
}

int cuLaunchKernel(void* f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                   unsigned bz, unsigned shared, void* stream, void** parameters, void** extra) {
  return launch(f, {{gx, gy, gz}, {bx, by, bz}, shared, nullptr}, stream, parameters, extra);
}

int cuFuncGetAttribute(int* value, int which, void* handle) {
  return call([&](State&, Lock&) -> int {
    const Function* f = function(handle);
    return f == nullptr ? kInvalidResourceHandle : attribute(*f, which, value);
  });
}

int cuFuncSetAttribute(void* handle, int which, int value) {
  return call([&](State&, Lock&) -> int {
    Function* f = function(handle);
    if (f == nullptr) return kInvalidResourceHandle;
    if (which != kMostDynamic) return kSuccess;
    if (value < 0 || f->info.static_shared + std::size_t(value) > kSharedOptIn)
      return kInvalidValue;
    f->most_dynamic = std::size_t(value);
    return kSuccess;
  });
}

int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void* handle, int threads,
                                                std::size_t dynamic) {
  return call([&](State&, Lock&) -> int {
    const Function* f = function(handle);
    if (f == nullptr) return kInvalidResourceHandle;
    *blocks = blocks_at_once(*f, threads, dynamic);
    return kSuccess;
  });
}

int cuOccupancyMaxPotentialBlockSize(int* grid, int* threads, void* handle, void*,
                                     std::size_t dynamic, int limit) {
  return call([&](State&, Lock&) -> int {
    const Function* f = function(handle);
    if (f == nullptr) return kInvalidResourceHandle;
    const int most = limit > 0 ? std::min(limit, kThreadsPerBlock) : kThreadsPerBlock;
    *threads = kWarp;
    for (int n = kWarp; n <= most; n += kWarp)
      if (n * blocks_at_once(*f, n, dynamic) >= *threads * blocks_at_once(*f, *threads, dynamic))
        *threads = n;
    *grid = kMultiprocessors * blocks_at_once(*f, *threads, dynamic);
    return kSuccess;
  });
}

}  // extern "C"
