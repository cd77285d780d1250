// SPDX-License-Identifier: Apache-2.0
// Memory and copies, as CUDA's runtime has them.
#include <cuda_runtime_api.h>

#include <cstring>

#include "state.h"

namespace emu {
namespace {

struct Rows {  // of a copy: `height` times `width` bytes
  std::uint64_t to, to_pitch, from, from_pitch;
  std::size_t width, height;

  std::size_t to_bytes() const { return height == 0 ? 0 : (height - 1) * to_pitch + width; }
  std::size_t from_bytes() const { return height == 0 ? 0 : (height - 1) * from_pitch + width; }
};

std::uint64_t number(const void* p) { return reinterpret_cast<std::uint64_t>(p); }

std::byte* at(std::uint64_t address) { return reinterpret_cast<std::byte*>(address); }

bool on_device(const std::optional<Allocation>& a) { return a && a->kind != Kind::pinned; }

// Throws Fault if memory that work is about to use has been freed since it was queued.
void require(const Addresses& memory, bool known, std::uint64_t address, std::size_t bytes,
             const char* what) {
  if (!known || memory.find(address, bytes)) return;
  throw Fault(std::string(what) + " uses " + std::to_string(bytes) + " bytes at " +
              std::to_string(address) + ", which have been freed");
}

void move_rows(const Rows& r, std::uint64_t from, std::uint64_t from_pitch) {
  for (std::size_t y = 0; y < r.height; ++y)
    std::memmove(at(r.to + y * r.to_pitch), at(from + y * from_pitch), r.width);
}

Work copying(const Addresses& memory, const Rows& r) {
  const bool to_known = memory.find(r.to, r.to_bytes()).has_value();
  const bool from_known = memory.find(r.from, r.from_bytes()).has_value();
  return [&memory, r, to_known, from_known] {
    require(memory, to_known, r.to, r.to_bytes(), "a copy");
    require(memory, from_known, r.from, r.from_bytes(), "a copy");
    move_rows(r, r.from, r.from_pitch);
  };
}

// A copy of rows that lie in pageable memory and may change as soon as the call returns.
Work copying_from_stage(const Addresses& memory, const Rows& r) {
  auto stage = std::make_shared<std::vector<std::byte>>(r.width * r.height);
  for (std::size_t y = 0; y < r.height; ++y)
    std::memcpy(stage->data() + y * r.width, at(r.from + y * r.from_pitch), r.width);
  return [&memory, r, stage] {
    require(memory, true, r.to, r.to_bytes(), "a copy");
    move_rows(r, number(stage->data()), r.width);
  };
}

// Whether the kind of a copy agrees with where its memory lies.
bool agrees(cudaMemcpyKind kind, bool to_device, bool from_device) {
  switch (kind) {
    case cudaMemcpyHostToHost:
      return !to_device && !from_device;
    case cudaMemcpyHostToDevice:
      return to_device && !from_device;
    case cudaMemcpyDeviceToHost:
      return !to_device && from_device;
    case cudaMemcpyDeviceToDevice:
      return to_device && from_device;
    default:
      return true;
  }
}

// What CUDA's page "API synchronization behavior" says of copies.
int copy(State& s, Lock& lock, Stream* stream, const Rows& r, cudaMemcpyKind kind, bool waits) {
  if (stream == nullptr) return kInvalidResourceHandle;
  if (waits)
    if (const int error = s.unsafe()) return error;
  if (r.width * r.height == 0) return kSuccess;
  if (r.to == 0 || r.from == 0 || r.to_pitch < r.width || r.from_pitch < r.width)
    return kInvalidValue;
  const auto to = s.memory.find(r.to, r.to_bytes()), from = s.memory.find(r.from, r.from_bytes());
  if ((!to && s.memory.is_ours(r.to)) || (!from && s.memory.is_ours(r.from))) return kInvalidValue;
  const bool to_device = on_device(to), from_device = on_device(from);
  if (!agrees(kind, to_device, from_device)) return kInvalidValue;
  if (stream->capture) return s.enqueue(lock, *stream, copying(s.memory, r));
  if (!from && to_device) {
    if (waits)
      if (const int error = s.synchronize(lock, *stream)) return error;
    return s.enqueue(lock, *stream, copying_from_stage(s.memory, r));
  }
  if (const int error = s.enqueue(lock, *stream, copying(s.memory, r))) return error;
  const bool host_waits = (!to_device && !from_device) || (!to && from_device);
  if (host_waits || (waits && !(to_device && from_device))) return s.synchronize(lock, *stream);
  return kSuccess;
}

int copy_flat(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
              const void* stream, bool waits) {
  return call([&](State& s, Lock& lock) {
    const Rows r = {number(to), bytes, number(from), bytes, bytes, 1};
    return copy(s, lock, s.stream(stream), r, kind, waits);
  });
}

int fill(void* p, int value, std::size_t bytes, const void* stream) {
  return call([&](State& s, Lock& lock) -> int {
    Stream* on = s.stream(stream);
    if (on == nullptr) return kInvalidResourceHandle;
    if (bytes == 0) return kSuccess;
    if (!s.memory.find(number(p), bytes)) return kInvalidValue;
    return s.enqueue(lock, *on, [&s, p, value, bytes] {
      require(s.memory, true, number(p), bytes, "a memset");
      std::memset(p, value, bytes);
    });
  });
}

int allocate(void** p, std::size_t bytes) {
  return call([&](State& s, Lock&) -> int {
    if (const int error = s.unsafe()) return error;
    *p = at(bytes == 0 ? 0 : s.memory.allocate(current_device, bytes));
    return *p == nullptr && bytes != 0 ? kOutOfMemory : kSuccess;
  });
}

int allocate_host(void** p, std::size_t bytes, Kind kind) {
  return call([&](State& s, Lock&) -> int {
    if (const int error = s.unsafe()) return error;
    *p = at(s.memory.allocate_host(bytes, kind, current_device));
    return *p == nullptr ? kOutOfMemory : kSuccess;
  });
}

// Frees after all work of the device is done.
int release(void* p, bool host) {
  return call([&](State& s, Lock& lock) -> int {
    if (p == nullptr) return kSuccess;
    if (const int error = s.unsafe()) return error;
    const auto found = s.memory.find(number(p), 0);
    if (!found || found->address != number(p) || (found->kind == Kind::pinned) != host)
      return kInvalidValue;
    if (Schedule::inside()) {
      s.freed.push_back(number(p));
      return kSuccess;
    }
    s.schedule.finish_all(lock, found->device);
    s.memory.release(number(p));
    return s.device().broken;
  });
}

}  // namespace
}  // namespace emu

using namespace emu;

extern "C" {

cudaError_t cudaMalloc(void** p, size_t bytes) { return cudaError_t(allocate(p, bytes)); }

cudaError_t cudaMallocManaged(void** p, size_t bytes, unsigned) {
  return cudaError_t(allocate_host(p, bytes, Kind::managed));
}

cudaError_t cudaHostAlloc(void** p, size_t bytes, unsigned) {
  return cudaError_t(allocate_host(p, bytes, Kind::pinned));
}

cudaError_t cudaFree(void* p) { return cudaError_t(release(p, false)); }

cudaError_t cudaFreeHost(void* p) { return cudaError_t(release(p, true)); }

cudaError_t cudaHostRegister(void* p, size_t bytes, unsigned) {
  return cudaError_t(call([&](State& s, Lock&) {
    s.memory.add(number(p), bytes, Kind::pinned, current_device);
    return kSuccess;
  }));
}

cudaError_t cudaHostUnregister(void* p) {
  return cudaError_t(call([&](State& s, Lock& lock) {
    s.schedule.finish_all(lock, current_device);
    return s.memory.forget(number(p)) ? kSuccess : kInvalidValue;
  }));
}

cudaError_t cudaMallocAsync(void** p, size_t bytes, cudaStream_t stream) {
  return cudaError_t(call([&](State& s, Lock&) -> int {
    const Stream* on = s.stream(stream);
    if (on == nullptr) return kInvalidResourceHandle;
    if (on->capture) return s.invalidate(*on->capture, kNotSupported);
    *p = at(s.memory.allocate(on->device, bytes));
    return *p == nullptr ? kOutOfMemory : kSuccess;
  }));
}

cudaError_t cudaMallocFromPoolAsync(void** p, size_t bytes, cudaMemPool_t, cudaStream_t stream) {
  return cudaMallocAsync(p, bytes, stream);
}

cudaError_t cudaFreeAsync(void* p, cudaStream_t stream) {
  return cudaError_t(call([&](State& s, Lock& lock) -> int {
    Stream* on = s.stream(stream);
    if (on == nullptr) return kInvalidResourceHandle;
    if (on->capture) return s.invalidate(*on->capture, kNotSupported);
    return s.enqueue(lock, *on, [&s, p] {
      if (!s.memory.release(number(p))) throw Fault("cudaFreeAsync: memory is freed twice");
    });
  }));
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  return cudaError_t(call([&](State& s, Lock&) {
    *total = kTotalBytes;
    *free = kTotalBytes - s.memory.used(current_device);
    return kSuccess;
  }));
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* found, const void* p) {
  return cudaError_t(call([&](State& s, Lock&) {
    const auto a = s.memory.find(number(p), 1);
    *found = {};
    found->type = !a                        ? cudaMemoryTypeUnregistered
                  : a->kind == Kind::device ? cudaMemoryTypeDevice
                  : a->kind == Kind::pinned ? cudaMemoryTypeHost
                                            : cudaMemoryTypeManaged;
    found->device = a ? a->device : cudaInvalidDeviceId;
    found->devicePointer = a ? const_cast<void*>(p) : nullptr;
    found->hostPointer = a && a->kind == Kind::device ? nullptr : const_cast<void*>(p);
    return kSuccess;
  }));
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  return cudaError_t(copy_flat(to, from, bytes, kind, nullptr, true));
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return cudaError_t(copy_flat(to, from, bytes, kind, stream, false));
}

cudaError_t cudaMemcpyPeer(void* to, int, const void* from, int, size_t bytes) {
  return cudaError_t(copy_flat(to, from, bytes, cudaMemcpyDefault, nullptr, true));
}

cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes,
                                cudaStream_t stream) {
  return cudaError_t(copy_flat(to, from, bytes, cudaMemcpyDefault, stream, false));
}

cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                              size_t width, size_t height, cudaMemcpyKind kind,
                              cudaStream_t stream) {
  return cudaError_t(call([&](State& s, Lock& lock) {
    const Rows r = {number(to), to_pitch, number(from), from_pitch, width, height};
    return copy(s, lock, s.stream(stream), r, kind, false);
  }));
}

cudaError_t cudaMemcpy2D(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                         size_t width, size_t height, cudaMemcpyKind kind) {
  return cudaError_t(call([&](State& s, Lock& lock) {
    const Rows r = {number(to), to_pitch, number(from), from_pitch, width, height};
    return copy(s, lock, s.stream(nullptr), r, kind, true);
  }));
}

cudaError_t cudaMemset(void* p, int value, size_t bytes) {
  return cudaError_t(fill(p, value, bytes, nullptr));
}

cudaError_t cudaMemsetAsync(void* p, int value, size_t bytes, cudaStream_t stream) {
  return cudaError_t(fill(p, value, bytes, stream));
}

}  // extern "C"
