// SPDX-License-Identifier: Apache-2.0
// A parsed text, and the state of a launch.
#pragma once

#include <array>

#include "ptx_code.h"

namespace emu {

enum class Special : u8 {
  kTid,
  kNtid,
  kCtaid,
  kNctaid,
  kLane,
  kWarp,
  kNwarp,
  kEq,
  kLe,
  kLt,
  kGe,
  kGt,
  kZero,
  kOne,
  kDynamicShared,
  kDynamicBytes,
  kTotalBytes
};

struct Filled {  // a register with a value that no instruction writes
  u32 slot;
  bool wide;
  u64 value;
};
struct SpecialSlot {
  Special what;
  u8 axis;
  bool wide;
  u32 slot;
};

struct Kernel {
  KernelInfo info;
  u32 entry = 0;
  const Module::Text* text = nullptr;
};

struct Variable {
  std::byte* data;
  std::size_t bytes;
};

struct Module::Text {
  std::vector<std::string> lines;
  std::vector<Instr> code;
  std::vector<std::vector<u32>> tables;  // of brx.idx
  std::vector<Filled> filled;
  std::vector<SpecialSlot> specials;
  std::size_t register_bytes = 64;  // of a warp; the first mask is all ones
  std::size_t local_bytes = 0;      // of a thread, parameters of functions included
  std::map<std::string, Kernel, std::less<>> kernels;
  std::map<std::string, Variable, std::less<>> variables;
  std::vector<std::unique_ptr<std::byte[]>> storage;
};

struct Barrier {
  unsigned expected = 0;                           // threads; 0: all that have not exited
  std::vector<Mask> waiting, arrived;              // by warp; those that have arrived need not wait
  std::vector<std::pair<unsigned, Group>> groups;  // warp and lanes, with the pc
  bool any = false, all = true;
  unsigned count = 0;
};

struct Execution {
  const Kernel& kernel;
  const Module::Text& text;
  const Launch& launch;
  const Memory& memory;
  unsigned block[3] = {};
  unsigned threads = 0;
  std::vector<Warp> warps;
  std::byte* shared = nullptr;
  std::size_t shared_bytes = 0;
  std::byte* local = nullptr;
  std::array<Barrier, 16> barriers;
  std::array<Range, 256> seen;  // what accesses have found, by line

  std::byte* local_of(const Warp& w, unsigned lane) const {
    return local + std::size_t(w.index * kLanes + lane) * text.local_bytes;
  }
  // The allocation that holds an access, or nothing.
  Range allocation(u64 address, std::size_t bytes) const;
};

// Lanes go on from there.
void resume(Warp& w, u32 pc, Mask lanes);
// Parts of run() that other files define.
void arrive(Warp& w, const Instr& i, Mask m, u32 pc);  // at a barrier
void check_barriers(Execution& x);                     // after threads have exited

}  // namespace emu
