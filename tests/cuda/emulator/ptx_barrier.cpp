// SPDX-License-Identifier: Apache-2.0
// Barriers of a block, and what functions are passed.
#include <algorithm>

#include "ptx_memory.h"

namespace emu {
namespace {

enum Mode : u8 { kSync, kArrive, kCount, kAll, kAny };

// Threads that have arrived; a warp all of whose threads have counts as a whole one.
unsigned arrivals(const Execution& x, const Barrier& b) {
  unsigned n = 0;
  for (std::size_t k = 0; k < b.arrived.size(); ++k) {
    const Mask m = b.arrived[k];
    const bool whole = m && (x.warps[k].alive & ~m) == 0;
    n += whole ? kLanes : unsigned(std::popcount(m));
  }
  return n;
}

bool complete(const Execution& x, const Barrier& b) {
  if (b.expected) return arrivals(x, b) >= b.expected;
  for (std::size_t k = 0; k < x.warps.size(); ++k)
    if (x.warps[k].alive & ~b.arrived[k]) return false;
  return true;
}

void release(Execution& x, Barrier& b) {
  const Barrier done = b;
  b = Barrier{};
  for (const auto& [warp, group] : done.groups) {
    Warp& w = x.warps[warp];
    const Instr& i = x.text.code[group.pc];
    if (i.mode == kCount) each(group.lanes, [&](unsigned l) { w.at<u32>(i.o[0])[l] = done.count; });
    if (i.mode == kAll || i.mode == kAny) {
      Mask& d = w.mask_at(i.o[0]);
      d = (d & ~group.lanes) | ((i.mode == kAll ? done.all : done.any) ? group.lanes : 0);
    }
    resume(w, group.pc + 1, group.lanes);
  }
}

void arrive_at(Warp& w, const Instr& i, Mask m, u32 pc, u32 number) {
  Execution& x = *w.execution;
  const unsigned first = unsigned(std::countr_zero(m));
  if (number >= x.barriers.size())
    w.fault(i, first, "there is no barrier " + std::to_string(number));
  const u32 count = i.count == 2 ? w.at<u32>(i.o[3])[first] : 0;
  if (count % kLanes) w.fault(i, first, "a barrier for " + std::to_string(count) + " threads");
  Barrier& b = x.barriers[number];
  if (b.arrived.empty()) b.arrived.resize(x.warps.size()), b.expected = count;
  if (b.expected != count)
    w.fault(i, first,
            "a barrier for " + std::to_string(count) + " threads at which others wait for " +
                std::to_string(b.expected));
  b.arrived[w.index] |= m;
  if (i.mode >= kCount) {
    const Mask yes = w.mask_at(i.o[1]) & m;
    b.count += unsigned(std::popcount(yes));
    b.any |= yes != 0, b.all &= yes == m;
  }
  if (i.mode == kArrive)
    resume(w, pc + 1, m);
  else
    b.groups.push_back({w.index, {pc, m}});
  if (complete(x, b)) release(x, b);
}

std::string text_at(Warp& w, unsigned lane, u64 address) {
  std::string r;
  for (; r.size() < 500; ++address) {
    const std::byte* p = place_of(w, lane, address, 1);
    if (!p || *p == std::byte{0}) break;
    r += char(*p);
  }
  return r;
}

}  // namespace

void arrive(Warp& w, const Instr& i, Mask m, u32 pc) {
  const u32* numbers = w.at<u32>(i.o[2]);
  while (m) {
    const u32 number = numbers[std::countr_zero(m)];
    Mask same = 0;
    each(m, [&](unsigned l) { same |= Mask(numbers[l] == number) << l; });
    arrive_at(w, i, same, pc, number);
    m &= ~same;
  }
}

void check_barriers(Execution& x) {
  for (Barrier& b : x.barriers)
    if (!b.groups.empty() && complete(x, b)) release(x, b);
}

// Between the memory of who calls and that of the function; i.sat: back.
void copy_passed(Warp& w, const Instr& i, Mask m) {
  each(m, [&](unsigned l) {
    std::byte* local = w.execution->local_of(w, l);
    std::byte *outer = local + i.offset, *inner = local + i.target;
    std::memcpy(i.sat ? outer : inner, i.sat ? inner : outer, i.members);
  });
}

// __assertfail(message, file, line, function, size of a character)
void fail_assertion(Warp& w, const Instr& i, Mask m) {
  const unsigned lane = unsigned(std::countr_zero(m));
  const std::byte* local = w.execution->local_of(w, lane);
  u64 message, file;
  u32 line;
  std::memcpy(&message, local + i.o[0], 8);
  std::memcpy(&file, local + i.o[1], 8);
  std::memcpy(&line, local + i.o[2], 4);
  w.fault(i, lane,
          "assertion failed: " + text_at(w, lane, message) + " (" + text_at(w, lane, file) + ":" +
              std::to_string(line) + ")");
}

}  // namespace emu
