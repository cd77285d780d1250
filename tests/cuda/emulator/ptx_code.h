// SPDX-License-Identifier: Apache-2.0
// What PTX becomes before it runs: instructions whose operands are places in a warp's registers.
//
// A register is an array of 32 lanes of 32 bits (which hold 8, 16 and 32 bits) or of 64; a
// predicate is one mask. Immediate values, addresses of variables and special registers are
// registers too, filled before a warp starts: instructions read everything in one way.
#pragma once

#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <type_traits>
#include <unordered_map>

#include "ptx.h"

namespace emu {

using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
using s8 = std::int8_t;
using s16 = std::int16_t;
using s32 = std::int32_t;
using s64 = std::int64_t;
using Mask = u32;  // one bit for each lane

inline constexpr unsigned kLanes = 32;

enum class Type : u8 {
  kNone,
  kPred,
  kU8,
  kS8,
  kU16,
  kS16,
  kU32,
  kS32,
  kU64,
  kS64,
  kF16,
  kBF16,
  kF32,
  kF64,
  kF16x2,
  kBF16x2
};  // untyped bits are kU8, ..., kU64
enum class Space : u8 { kGeneric, kGlobal, kShared, kLocal, kParam };
enum class Round : u8 { kNearest, kZero, kDown, kUp };
enum class Join : u8 { kNone, kAnd, kOr, kXor };
enum class Flow : u8 { kNext, kBranch, kTable, kCall, kReturn, kExit, kBarrier, kMeet };

// Generic addresses of shared, local and parameter memory begin here, where no pointer points.
inline constexpr u64 kSharedWindow = 1ull << 56, kLocalWindow = 2ull << 56,
                     kParamWindow = 3ull << 56, kWindowMask = 0xffull << 56;

struct Warp;
struct Instr;
using Handler = void (*)(Warp&, const Instr&, Mask);

struct Instr {
  Handler run = nullptr;
  u32 o[9] = {};    // where operands are, in bytes; the base of an address is the last one
  u32 guard = 0;    // predicate; 0 is always true
  Mask flip = 0;    // all ones for @!p
  u32 target = 0;   // a place in the code, or the number of a table
  u32 members = 0;  // the mask of those who meet
  u32 line = 0;     // in the text, from 1
  s64 offset = 0;   // of an address
  u16 wide = 0;     // bit k: operand k has 64 bits a lane
  u16 callee = 0;   // number of a function
  Flow flow = Flow::kNext;
  Type type = Type::kNone, from = Type::kNone;
  Space space = Space::kGeneric;
  Round round = Round::kNearest;
  Join join = Join::kNone;
  u8 count = 1;  // of a vector, or of operands
  u8 mode = 0;   // what a family's instructions differ in
  bool ftz = false, sat = false, integral = false;
};

struct Execution;

// Lanes that stand at the same instruction.
struct Group {
  u32 pc;
  Mask lanes;
};

// Lanes that wait for others of their warp.
struct Meeting {
  u32 pc;
  Mask members, arrived;
};

struct Warp {
  Execution* execution = nullptr;
  std::byte* registers = nullptr;
  unsigned index = 0;         // in the block
  Mask alive = 0;             // lanes that have not exited
  Mask carry = 0;             // the condition code of add.cc and its like
  std::vector<Group> groups;  // lanes that can go on, by pc
  std::vector<Meeting> meetings;
  std::vector<u32> returns[kLanes];

  template <class Slot>
  Slot* at(u32 offset) {
    return reinterpret_cast<Slot*>(registers + offset);
  }
  Mask& mask_at(u32 offset) { return *at<Mask>(offset); }
  [[noreturn]] void fault(const Instr& i, unsigned lane, const std::string& what) const;
};

// ---- values in registers ----

struct Half {
  u16 bits;
};
struct Brain {  // bfloat16
  u16 bits;
};

template <class T>
using SlotOf = std::conditional_t<sizeof(T) == 8, u64, u32>;

template <class T>
inline T get(SlotOf<T> s) {
  if constexpr (std::is_integral_v<T>) {
    return T(s);
  } else if constexpr (sizeof(T) == 2) {
    return T{u16(s)};
  } else {
    return std::bit_cast<T>(s);
  }
}

// Signed integers fill a register with their sign.
template <class T>
inline SlotOf<T> put(T v) {
  if constexpr (std::is_integral_v<T>) {
    return SlotOf<T>(v);
  } else if constexpr (sizeof(T) == 2) {
    return v.bits;
  } else {
    return std::bit_cast<SlotOf<T>>(v);
  }
}

// d = f(a...) in each lane of the mask.
template <auto f, class D, class... A>
void map(Warp& w, const Instr& i, Mask m) {
  [&]<std::size_t... k>(std::index_sequence<k...>) {
    auto* d = w.at<SlotOf<D>>(i.o[0]);
    const auto s = std::make_tuple(w.at<SlotOf<A>>(i.o[k + 1])...);
    if (m == ~0u) {
#pragma GCC ivdep
      for (unsigned l = 0; l < kLanes; ++l) d[l] = put<D>(f(get<A>(std::get<k>(s)[l])...));
    } else {
#pragma GCC ivdep
      for (unsigned l = 0; l < kLanes; ++l)
        d[l] = (m >> l) & 1 ? put<D>(f(get<A>(std::get<k>(s)[l])...)) : d[l];
    }
  }(std::index_sequence_for<A...>{});
}

// For each lane of a mask.
template <class F>
inline void each(Mask m, F f) {
  for (; m; m &= m - 1) f(unsigned(std::countr_zero(m)));
}

// ---- finding what runs an instruction ----

// An opcode taken apart: "setp.lt.and.ftz.f32".
struct Name {
  std::string base;
  std::vector<std::string> words;  // without types
  std::vector<Type> types;

  bool has(std::string_view word) const;
  Type type(std::size_t k = 0) const { return k < types.size() ? types[k] : Type::kNone; }
};

// What runs an instruction, and its operands: p predicate, n 32 bits, w 64 bits, x either, a
// address, v vector; after | an operand that may be missing.
struct Found {
  Handler run = nullptr;
  std::string shape;
};

// Each knows a family. They may also set the fields of the instruction that their handlers read.
Found find_integer(const Name& name, Instr& i);
Found find_bits(const Name& name, Instr& i);
Found find_float(const Name& name, Instr& i);
Found find_half(const Name& name, Instr& i);
Found find_compare(const Name& name, Instr& i);
Found find_convert(const Name& name, Instr& i);
Found find_memory(const Name& name, Instr& i);
Found find_atomic(const Name& name, Instr& i);
Found find_warp(const Name& name, Instr& i);
Found find_barrier(const Name& name, Instr& i);
Handler mover(bool pack);  // between a register and the parts of a vector

std::size_t bytes_of(Type t);
inline bool is_wide(Type t) { return bytes_of(t) == 8; }
inline bool is_signed(Type t) {
  return t == Type::kS8 || t == Type::kS16 || t == Type::kS32 || t == Type::kS64;
}
inline bool is_integer(Type t) { return t >= Type::kU8 && t <= Type::kS64; }
// "nnn" or "www": operands of one type.
inline std::string shape_of(Type t, std::size_t operands) {
  return std::string(operands, is_wide(t) ? 'w' : 'n');
}

}  // namespace emu
