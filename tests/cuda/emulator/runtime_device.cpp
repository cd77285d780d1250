// SPDX-License-Identifier: Apache-2.0
// Devices and errors, as CUDA's runtime has them.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <map>

#include "errors.h"
#include "machine.h"
#include "state.h"

namespace emu {
namespace {

bool is_device(int number) {
  return 0 <= number && number < static_cast<int>(State::get().devices.size());
}

const std::map<int, int>& attributes() {
  static const std::map<int, int> found = {
      {cudaDevAttrMaxThreadsPerBlock, kThreadsPerBlock},
      {cudaDevAttrMaxBlockDimX, kBlock[0]},
      {cudaDevAttrMaxBlockDimY, kBlock[1]},
      {cudaDevAttrMaxBlockDimZ, kBlock[2]},
      {cudaDevAttrMaxGridDimX, kGrid[0]},
      {cudaDevAttrMaxGridDimY, kGrid[1]},
      {cudaDevAttrMaxGridDimZ, kGrid[2]},
      {cudaDevAttrMaxSharedMemoryPerBlock, kShared},
      {cudaDevAttrTotalConstantMemory, 65536},
      {cudaDevAttrWarpSize, kWarp},
      {cudaDevAttrMaxRegistersPerBlock, kRegisters},
      {cudaDevAttrClockRate, 1980000},
      {cudaDevAttrMemoryClockRate, 3201000},
      {cudaDevAttrGlobalMemoryBusWidth, 6144},
      {cudaDevAttrL2CacheSize, 62914560},
      {cudaDevAttrMultiProcessorCount, kMultiprocessors},
      {cudaDevAttrMaxThreadsPerMultiProcessor, kThreadsPerMultiprocessor},
      {cudaDevAttrMaxBlocksPerMultiprocessor, kBlocksPerMultiprocessor},
      {cudaDevAttrMaxSharedMemoryPerMultiprocessor, kSharedOfAll},
      {cudaDevAttrMaxSharedMemoryPerBlockOptin, kSharedOptIn},
      {cudaDevAttrReservedSharedMemoryPerBlock, kSharedReserved},
      {cudaDevAttrMaxRegistersPerMultiprocessor, kRegisters},
      {cudaDevAttrComputeCapabilityMajor, kMajor},
      {cudaDevAttrComputeCapabilityMinor, kMinor},
      {cudaDevAttrConcurrentKernels, 1},
      {cudaDevAttrUnifiedAddressing, 1},
      {cudaDevAttrManagedMemory, 1},
      {cudaDevAttrCanMapHostMemory, 1},
      {cudaDevAttrAsyncEngineCount, 3},
      {cudaDevAttrGpuOverlap, 1},
      {cudaDevAttrCooperativeLaunch, 1},
      {cudaDevAttrMemoryPoolsSupported, 1},
      {cudaDevAttrStreamPrioritiesSupported, 1},
      {cudaDevAttrSingleToDoublePrecisionPerfRatio, 2},
  };
  return found;
}

void describe(cudaDeviceProp* p, int device) {
  *p = {};
  std::snprintf(p->name, sizeof p->name, "NVIDIA H200, emulated");
  p->totalGlobalMem = kTotalBytes;
  p->sharedMemPerBlock = kShared;
  p->sharedMemPerBlockOptin = kSharedOptIn;
  p->sharedMemPerMultiprocessor = kSharedOfAll;
  p->reservedSharedMemPerBlock = kSharedReserved;
  p->regsPerBlock = p->regsPerMultiprocessor = kRegisters;
  p->warpSize = kWarp;
  p->maxThreadsPerBlock = kThreadsPerBlock;
  p->maxThreadsPerMultiProcessor = kThreadsPerMultiprocessor;
  p->maxBlocksPerMultiProcessor = kBlocksPerMultiprocessor;
  for (int i = 0; i < 3; ++i) {
    p->maxThreadsDim[i] = kBlock[i];
    p->maxGridSize[i] = kGrid[i];
  }
  p->totalConstMem = 65536;
  p->major = kMajor;
  p->minor = kMinor;
  p->textureAlignment = 512;
  p->multiProcessorCount = kMultiprocessors;
  p->canMapHostMemory = p->concurrentKernels = p->ECCEnabled = p->unifiedAddressing = 1;
  p->pciBusID = device + 1;
  p->asyncEngineCount = 3;
  p->memoryBusWidth = 6144;
  p->l2CacheSize = 62914560;
  p->managedMemory = p->cooperativeLaunch = p->memoryPoolsSupported = 1;
}

}  // namespace
}  // namespace emu

using namespace emu;

extern "C" {

const char* cudaGetErrorName(cudaError_t error) { return error_name(error).runtime; }
const char* cudaGetErrorString(cudaError_t error) { return error_name(error).text; }

cudaError_t cudaGetLastError() {
  const int found =
      State::get().device().broken != kSuccess ? State::get().device().broken : last_error;
  last_error = kSuccess;
  return cudaError_t(found);
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = kVersion;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) { return cudaDriverGetVersion(version); }

cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  if (!is_device(device)) return cudaError_t(remember(kInvalidDevice));
  current_device = device;
  return cudaError_t(State::get().device().broken);
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = static_cast<int>(State::get().devices.size());
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (!is_device(device)) return cudaError_t(remember(kInvalidDevice));
  if (attribute <= 0) return cudaError_t(remember(kInvalidValue));
  const auto found = attributes().find(attribute);
  *value = attribute == cudaDevAttrPciBusId ? device + 1
           : found == attributes().end()    ? 0
                                            : found->second;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (!is_device(device)) return cudaError_t(remember(kInvalidDevice));
  describe(properties, device);
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int device) {
  if (!is_device(device)) return cudaError_t(remember(kInvalidDevice));
  std::snprintf(text, static_cast<std::size_t>(length), "0000:%02x:00.0", device + 1);
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  return cudaError_t(
      call([](State& s, Lock& lock) { return s.synchronize_device(lock, current_device); }));
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  if (!is_device(device) || !is_device(peer)) return cudaError_t(remember(kInvalidDevice));
  *can = device != peer;
  return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned) {
  if (!is_device(peer) || peer == current_device) return cudaError_t(remember(kInvalidDevice));
  return cudaError_t(call([peer](State& s, Lock&) {
    return s.device().peers.insert(peer).second ? kSuccess : kPeerAccessAlreadyEnabled;
  }));
}

cudaError_t cudaDeviceDisablePeerAccess(int peer) {
  return cudaError_t(call([peer](State& s, Lock&) {
    return s.device().peers.erase(peer) != 0 ? kSuccess : kPeerAccessNotEnabled;
  }));
}

cudaError_t cudaProfilerStart() { return cudaSuccess; }
cudaError_t cudaProfilerStop() { return cudaSuccess; }

// What no CUDA has: for tests that put work of the host in the place of a library's kernels.

// Run a function on a stream, where it may touch the memory of the device; it can be recorded. The
// argument stays the caller's. A text that it returns is an error of the device.
int emulator_enqueue(void* stream, const char* (*function)(void*), void* argument) {
  return call([&](State& s, Lock& lock) -> int {
    Stream* on = s.stream(stream);
    if (on == nullptr) return kInvalidResourceHandle;
    return s.enqueue(lock, *on, [function, argument, device = on->device] {
      const int before = current_device;
      current_device = device;
      const char* wrong = function(argument);
      current_device = before;
      if (wrong != nullptr) throw Fault(wrong);
    });
  });
}

// Whether bytes of the current device's memory are somebody's.
int emulator_holds(std::uint64_t address, std::size_t bytes) {
  return State::get().device().reach.holds(address, bytes);
}

// The text of the last error of a device; empty without one.
const char* emulator_fault() { return State::get().fault.c_str(); }

}  // extern "C"
