// SPDX-License-Identifier: Apache-2.0
// ld, st, cvta, isspacep; what addresses mean.
#include "ptx_memory.h"

#include <cstdio>

namespace emu {

namespace {

std::string hex(u64 v) {
  char text[32];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(v));
  return text;
}

const char* name_of(Space s) {
  static const char* const names[] = {"generic", "global", "shared", "local", "parameter"};
  return names[int(s)];
}

}  // namespace

Range Execution::allocation(u64 address, std::size_t bytes) const {
  for (const auto& [name, v] : text.variables) {
    const u64 first = u64(std::uintptr_t(v.data));
    if (address >= first && address - first <= v.bytes && v.bytes - (address - first) >= bytes)
      return {first, v.bytes};
  }
  if (const Range r = memory.allocation(address); r.bytes) {
    const bool inside = address >= r.first && address - r.first <= r.bytes &&
                        r.bytes - (address - r.first) >= bytes;
    return inside ? r : Range{};
  }
  return memory.holds(address, bytes) ? Range{address, bytes} : Range{};
}

namespace {

// Memory that is not global: a pointer and how many bytes it has; the address becomes an offset.
struct Window {
  std::byte* data;
  std::size_t bytes;
};
Window window_of(const Execution& x, const Warp& w, unsigned lane, Space s) {
  switch (s) {
    case Space::kShared:
      return {x.shared, x.shared_bytes};
    case Space::kLocal:
      return {x.local_of(w, lane), x.text.local_bytes};
    default:
      return {const_cast<std::byte*>(x.launch.parameters), x.kernel.info.parameter_bytes};
  }
}

Space space_of_generic(u64 address) {
  switch (address & kWindowMask) {
    case kSharedWindow:
      return Space::kShared;
    case kLocalWindow:
      return Space::kLocal;
    case kParamWindow:
      return Space::kParam;
    default:
      return Space::kGlobal;
  }
}

std::byte* locate_one(Warp& w, const Instr& i, unsigned lane, Space space, u64 address,
                      std::size_t bytes) {
  Execution& x = *w.execution;
  if (space == Space::kGeneric) {
    space = space_of_generic(address);
    if (space != Space::kGlobal) address &= ~kWindowMask;
  }
  if (address % bytes)
    w.fault(i, lane,
            "misaligned " + std::string(name_of(space)) + " address " + hex(address) +
                ": no multiple of " + std::to_string(bytes));
  if (space == Space::kGlobal) {
    const Range r = x.allocation(address, bytes);
    if (!r.bytes)
      w.fault(i, lane,
              "illegal global address " + hex(address) + ": " + std::to_string(bytes) +
                  " bytes there are in no allocation");
    x.seen[i.line % x.seen.size()] = r;
    return reinterpret_cast<std::byte*>(std::uintptr_t(address));
  }
  const Window window = window_of(x, w, lane, space);
  if (address > window.bytes || window.bytes - address < bytes)
    w.fault(i, lane,
            std::string("illegal ") + name_of(space) + " address " + hex(address) + ": there are " +
                std::to_string(window.bytes) + " bytes");
  return window.data + address;
}

}  // namespace

std::byte* place_of(Warp& w, unsigned lane, u64 address, std::size_t bytes) {
  const Space space = space_of_generic(address);
  if (space == Space::kGlobal)
    return w.execution->allocation(address, bytes).bytes
               ? reinterpret_cast<std::byte*>(std::uintptr_t(address))
               : nullptr;
  const Window window = window_of(*w.execution, w, lane, space);
  address &= ~kWindowMask;
  const bool inside = address <= window.bytes && window.bytes - address >= bytes;
  return inside ? window.data + address : nullptr;
}

bool locate(Warp& w, const Instr& i, Mask m, std::size_t bytes, std::byte* places[kLanes]) {
  Execution& x = *w.execution;
  alignas(64) u64 address[kLanes];
  const u64 offset = u64(i.offset);
  if (i.wide & 0x100) {
    const u64* base = w.at<u64>(i.o[8]);
    for (unsigned l = 0; l < kLanes; ++l) address[l] = base[l] + offset;
  } else {
    const u32* base = w.at<u32>(i.o[8]);
    for (unsigned l = 0; l < kLanes; ++l) address[l] = u32(base[l] + offset);
  }
  // Everything in one window that is known: a few additions and comparisons for all lanes.
  u64 first = 0, most = 0;
  std::byte* data = nullptr;
  if (i.space == Space::kGlobal || i.space == Space::kGeneric) {
    const Range& r = x.seen[i.line % x.seen.size()];
    first = r.first, most = r.bytes;
    data = reinterpret_cast<std::byte*>(std::uintptr_t(first));
  } else if (i.space != Space::kLocal) {
    const Window window = window_of(x, w, 0, i.space);
    most = window.bytes, data = window.data;
  }
  if (most >= bytes) {
    const u64 span = most - bytes, start = address[0];
    u64 bad = 0, apart = 0;
    for (unsigned l = 0; l < kLanes; ++l) {
      const u64 lane = (m >> l) & 1 ? ~0ull : 0;
      bad |= (u64(address[l] - first > span) | (address[l] & (bytes - 1))) & lane;
      apart |= address[l] ^ (start + l * bytes);
    }
    if (!bad) {
      for (unsigned l = 0; l < kLanes; ++l) places[l] = data + (address[l] - first);
      return !apart && m == ~0u;
    }
  }
  each(m, [&](unsigned l) { places[l] = locate_one(w, i, l, i.space, address[l], bytes); });
  return false;
}

namespace {

template <class Slot, class T>
void gather(Slot* d, std::byte* const* places, std::size_t offset, Mask m) {
  const auto value = [&](unsigned l) {
    T v;
    std::memcpy(&v, places[l] + offset, sizeof v);
    return Slot(v);
  };
  if (m == ~0u) {
    for (unsigned l = 0; l < kLanes; ++l) d[l] = value(l);
  } else {
    each(m, [&](unsigned l) { d[l] = value(l); });
  }
}

template <class T>
void load(Warp& w, const Instr& i, Mask m) {
  std::byte* places[kLanes];
  const bool neighbours = locate(w, i, m, sizeof(T) * i.count, places);
  if (neighbours && i.count == 1 && sizeof(T) >= 4 && bool(i.wide & 1) == (sizeof(T) == 8)) {
    std::memcpy(w.at<T>(i.o[0]), places[0], kLanes * sizeof(T));
    return;
  }
  for (unsigned k = 0; k < i.count; ++k) {
    if ((i.wide >> k) & 1)
      gather<u64, T>(w.at<u64>(i.o[k]), places, k * sizeof(T), m);
    else
      gather<u32, T>(w.at<u32>(i.o[k]), places, k * sizeof(T), m);
  }
}

template <class T>
void store(Warp& w, const Instr& i, Mask m) {
  std::byte* places[kLanes];
  const bool neighbours = locate(w, i, m, sizeof(T) * i.count, places);
  if (neighbours && i.count == 1 && sizeof(T) >= 4 && bool(i.wide & 1) == (sizeof(T) == 8)) {
    std::memcpy(places[0], w.at<T>(i.o[0]), kLanes * sizeof(T));
    return;
  }
  for (unsigned k = 0; k < i.count; ++k) {
    const auto scatter = [&](const auto* s) {
      each(m, [&](unsigned l) {
        const T v = T(s[l]);
        std::memcpy(places[l] + k * sizeof(T), &v, sizeof v);
      });
    };
    if ((i.wide >> k) & 1)
      scatter(w.at<u64>(i.o[k]));
    else
      scatter(w.at<u32>(i.o[k]));
  }
}

template <bool to_generic>
void convert_address(Warp& w, const Instr& i, Mask m) {
  const u64 window = i.space == Space::kShared  ? kSharedWindow
                     : i.space == Space::kLocal ? kLocalWindow
                     : i.space == Space::kParam ? kParamWindow
                                                : 0;
  each(m, [&](unsigned l) {
    const u64 a = i.wide & 2 ? w.at<u64>(i.o[1])[l] : w.at<u32>(i.o[1])[l];
    const u64 d = to_generic ? a + window : a - window;
    if (i.wide & 1)
      w.at<u64>(i.o[0])[l] = d;
    else
      w.at<u32>(i.o[0])[l] = u32(d);
  });
}

void is_in_space(Warp& w, const Instr& i, Mask m) {
  Mask r = 0;
  each(m, [&](unsigned l) { r |= Mask(space_of_generic(w.at<u64>(i.o[1])[l]) == i.space) << l; });
  Mask& d = w.mask_at(i.o[0]);
  d = (d & ~m) | (r & m);
}

void nothing(Warp&, const Instr&, Mask) {}

Space space_named(const Name& n) {
  if (n.has("global") || n.has("const")) return Space::kGlobal;
  if (n.has("shared") || n.has("shared::cta")) return Space::kShared;
  if (n.has("local")) return Space::kLocal;
  if (n.has("param") || n.has("param::entry") || n.has("param::func")) return Space::kParam;
  return Space::kGeneric;
}

}  // namespace

Found find_memory(const Name& n, Instr& i) {
  const std::string& b = n.base;
  i.space = space_named(n);
  i.type = n.type();
  if (n.has("shared::cluster")) return {};
  if (b == "prefetch" || b == "prefetchu") return {&nothing, "a"};
  if (b == "membar" || b == "fence") return {&nothing, ""};
  if (b == "cvta") return {n.has("to") ? &convert_address<false> : &convert_address<true>, "xx"};
  if (b == "isspacep") return {&is_in_space, "pw"};
  const bool load_ = b == "ld" || b == "ldu";
  if ((!load_ && b != "st") || n.has("async")) return {};
  const std::string shape = load_ ? "va" : "av";
  switch (i.type) {
    case Type::kS8:
      return {load_ ? &load<s8> : &store<u8>, shape};
    case Type::kU8:
      return {load_ ? &load<u8> : &store<u8>, shape};
    case Type::kS16:
      return {load_ ? &load<s16> : &store<u16>, shape};
    case Type::kU16:
    case Type::kF16:
    case Type::kBF16:
      return {load_ ? &load<u16> : &store<u16>, shape};
    case Type::kS32:
      return {load_ ? &load<s32> : &store<u32>, shape};
    case Type::kU32:
    case Type::kF32:
    case Type::kF16x2:
    case Type::kBF16x2:
      return {load_ ? &load<u32> : &store<u32>, shape};
    case Type::kU64:
    case Type::kS64:
    case Type::kF64:
      return {load_ ? &load<u64> : &store<u64>, shape};
    default:
      return {};
  }
}

}  // namespace emu
