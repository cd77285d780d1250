// SPDX-License-Identifier: Apache-2.0
#include "memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace emu {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kGuard = 512;  // bytes before an allocation, and at least so many after it
constexpr std::size_t kMostFilled = std::size_t{4} << 20;  // bytes; workspaces are larger
constexpr unsigned char kGuardByte = 0xFD, kFresh = 0xFF;

std::size_t pages(std::size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

// What an allocation takes with the bytes around it.
std::size_t room_of(std::size_t bytes) { return pages(kGuard + bytes + kGuard); }

std::byte* at(std::uint64_t address) { return reinterpret_cast<std::byte*>(address); }

bool untouched(const std::byte* p, std::size_t n) {
  return std::all_of(p, p + n, [](std::byte b) { return b == std::byte{kGuardByte}; });
}

}  // namespace

Addresses::Addresses(int devices, bool protect)
    : arenas_(devices), used_(devices), protect_(protect) {
  for (Arena& a : arenas_) {
    const std::size_t room = 32 * kTotalBytes;  // of addresses, since none is used again
    void* p = mmap(nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) throw Fault("the emulator finds no addresses for a device's memory");
    a.start = a.next = reinterpret_cast<std::uint64_t>(p);
    a.end = a.start + room;
  }
}

std::uint64_t Addresses::allocate(int device, std::size_t bytes) {
  const std::unique_lock lock(mutex_);
  Arena& arena = arenas_[device];
  const std::size_t room = room_of(bytes);
  if (used_[device] + bytes > kTotalBytes || arena.next + room > arena.end) return 0;
  const std::uint64_t start = arena.next, address = start + kGuard;
  arena.next += room;
  if (mprotect(at(start), room, PROT_READ | PROT_WRITE) != 0) return 0;
  std::memset(at(start), kGuardByte, kGuard);
  std::memset(at(address), kFresh, std::min(bytes, kMostFilled));
  std::memset(at(address + bytes), kGuardByte, room - kGuard - bytes);
  if (protect_ && open_ == 0) mprotect(at(start), room, PROT_NONE);
  all_[address] = {address, bytes, Kind::device, device, true};
  used_[device] += bytes;
  return address;
}

std::uint64_t Addresses::allocate_host(std::size_t bytes, Kind kind, int device) {
  void* p = std::aligned_alloc(kPage, std::max(pages(bytes), kPage));
  if (p == nullptr) return 0;
  std::memset(p, kFresh, std::min(bytes, kMostFilled));
  const auto address = reinterpret_cast<std::uint64_t>(p);
  add(address, bytes, kind, device);
  return address;
}

void Addresses::add(std::uint64_t address, std::size_t bytes, Kind kind, int device) {
  const std::unique_lock lock(mutex_);
  all_[address] = {address, bytes, kind, device, false};
}

bool Addresses::remove(std::uint64_t address, Allocation* removed) {
  const std::unique_lock lock(mutex_);
  const auto found = all_.find(address);
  if (found == all_.end()) return false;
  *removed = found->second;
  all_.erase(found);
  if (removed->kind == Kind::device) used_[removed->device] -= removed->bytes;
  return true;
}

bool Addresses::release(std::uint64_t address) {
  Allocation a;
  if (!remove(address, &a)) return false;
  if (a.kind != Kind::device) {
    std::free(at(address));
    return true;
  }
  std::byte* start = at(address - kGuard);
  const std::size_t room = room_of(a.bytes);
  std::optional<Fault> wrong;
  mprotect(start, room, PROT_READ | PROT_WRITE);
  try {
    check(a);
  } catch (const Fault& e) {
    wrong = e;
  }
  // Nothing is ever here again, and nobody can touch it.
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
  if (mmap(start, room, PROT_NONE, kFlags, -1, 0) == MAP_FAILED)
    throw Fault("the emulator cannot give memory back");
  if (wrong) throw *wrong;
  return true;
}

bool Addresses::forget(std::uint64_t address) {
  Allocation a;
  return remove(address, &a);
}

std::optional<Allocation> Addresses::find(std::uint64_t address, std::size_t bytes) const {
  const std::shared_lock lock(mutex_);
  auto after = all_.upper_bound(address);
  if (after == all_.begin()) return {};
  const Allocation& a = (--after)->second;
  const std::uint64_t offset = address - a.address;
  if (offset > a.bytes || bytes > a.bytes - offset) return {};
  return a;
}

bool Addresses::is_ours(std::uint64_t address) const {
  return std::ranges::any_of(arenas_,
                             [&](const Arena& a) { return a.start <= address && address < a.end; });
}

std::size_t Addresses::used(int device) const {
  const std::shared_lock lock(mutex_);
  return used_[device];
}

void Addresses::check(const Allocation& a) const {
  if (!a.guarded) return;
  const std::size_t behind = room_of(a.bytes) - kGuard - a.bytes;
  if (untouched(at(a.address - kGuard), kGuard) && untouched(at(a.address + a.bytes), behind))
    return;
  throw Fault("somebody has written next to the " + std::to_string(a.bytes) +
              " bytes of device memory at " + std::to_string(a.address));
}

void Addresses::check_surroundings() const {
  const std::shared_lock lock(mutex_);
  for (const auto& [address, a] : all_) check(a);
}

void Addresses::open() {
  const std::unique_lock lock(mutex_);
  if (open_++ == 0) protect(PROT_READ | PROT_WRITE);
}

void Addresses::close() {
  const std::unique_lock lock(mutex_);
  if (--open_ == 0) protect(PROT_NONE);
}

// All allocations; neighbours in one call.
void Addresses::protect(int rights) {
  if (!protect_) return;
  std::uint64_t start = 0, end = 0;
  for (const auto& [address, a] : all_) {
    if (a.kind != Kind::device) continue;
    if (address - kGuard != end) {
      if (end > start) mprotect(at(start), end - start, rights);
      start = address - kGuard;
    }
    end = address - kGuard + room_of(a.bytes);
  }
  if (end > start) mprotect(at(start), end - start, rights);
}

Range Reachable::allocation(std::uint64_t address) const {
  const std::optional<Allocation> found = all.find(address, 1);
  if (!found) return {};
  if (found->kind == Kind::device && found->device != device && !others->contains(found->device))
    return {};
  return {found->address, found->bytes};
}

bool Reachable::holds(std::uint64_t address, std::size_t bytes) const {
  const Range range = allocation(address);
  const std::uint64_t offset = address - range.first;
  return bytes == 0 || (offset < range.bytes && bytes <= range.bytes - offset);
}

}  // namespace emu
