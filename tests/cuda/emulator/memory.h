// SPDX-License-Identifier: Apache-2.0
// The memory of emulated devices: host memory of which is known who may touch it, and when.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <shared_mutex>
#include <string>
#include <vector>

#include "ptx.h"

namespace emu {

enum class Kind { device, pinned, managed };

struct Allocation {
  std::uint64_t address;
  std::size_t bytes;
  Kind kind;
  int device;
  bool guarded;  // between bytes that nobody may change
};

// All memory of the process that CUDA knows of.
//
// The memory of devices is never at the same place twice, so that what was freed stays unknown. New
// memory is full of bytes 0xFF, which are NaN in every type. Where host code may not touch the
// memory of devices, it can be touched between open() and close() only.
class Addresses {
 public:
  explicit Addresses(int devices, bool protect);

  // 0 if the device has no room for it.
  std::uint64_t allocate(int device, std::size_t bytes);
  // Host memory, made here or by others.
  std::uint64_t allocate_host(std::size_t bytes, Kind kind, int device);
  void add(std::uint64_t address, std::size_t bytes, Kind kind, int device);

  // False if nothing starts there. Throws Fault where bytes around it were changed.
  bool release(std::uint64_t address);
  bool forget(std::uint64_t address);

  // The allocation that has all these bytes.
  std::optional<Allocation> find(std::uint64_t address, std::size_t bytes) const;
  bool is_ours(std::uint64_t address) const;  // of some device, though perhaps nobody's now
  std::size_t used(int device) const;

  // Throws Fault where bytes around an allocation were changed.
  void check_surroundings() const;

  void open();   // code of the device runs
  void close();  // only code of the host does

 private:
  struct Arena {
    std::uint64_t start = 0, end = 0, next = 0;
  };
  void check(const Allocation& a) const;
  bool remove(std::uint64_t address, Allocation* removed);
  void protect(int rights);

  std::vector<Arena> arenas_;
  std::vector<std::size_t> used_;
  std::map<std::uint64_t, Allocation> all_;  // by the address
  mutable std::shared_mutex mutex_;          // of all of it
  bool protect_;
  int open_ = 0;
};

// What kernels of one device may touch.
struct Reachable : public Memory {
  Reachable(const Addresses& every, int number) : all(every), device(number) {}
  bool holds(std::uint64_t address, std::size_t bytes) const override;
  Range allocation(std::uint64_t address) const override;

  const Addresses& all;
  int device;
  const std::set<int>* others = nullptr;  // devices whose memory they may touch too
};

constexpr std::size_t kTotalBytes = std::size_t{143771} << 20;  // of an H200

}  // namespace emu
