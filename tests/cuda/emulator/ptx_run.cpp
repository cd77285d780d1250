// SPDX-License-Identifier: Apache-2.0
// Runs blocks: lanes of a warp in lockstep, those with the smallest place in the code first, which
// brings together what has diverged; warps in turns, each until it waits or its turn is over.
#include <algorithm>
#include <cstdlib>
#include <memory>

#include "ptx_memory.h"
#include "ptx_parser.h"

namespace emu {

// Sorted by pc, and lanes at the same pc together.
void resume(Warp& w, u32 pc, Mask lanes) {
  if (!lanes) return;
  auto at = std::lower_bound(w.groups.begin(), w.groups.end(), pc,
                             [](const Group& g, u32 p) { return g.pc < p; });
  if (at != w.groups.end() && at->pc == pc)
    at->lanes |= lanes;
  else
    w.groups.insert(at, {pc, lanes});
}

namespace {

constexpr unsigned kTurn = 20000;                  // instructions
constexpr u64 kMostInstructions = 50'000'000'000;  // of a block, then it is called endless

std::string coordinates(unsigned x, unsigned y, unsigned z) {
  return "(" + std::to_string(x) + ", " + std::to_string(y) + ", " + std::to_string(z) + ")";
}

std::string describe(const Execution& x) {
  return "kernel " + x.kernel.info.name + ", block " +
         coordinates(x.block[0], x.block[1], x.block[2]);
}

std::string thread_name(const Execution& x, unsigned thread) {
  const unsigned* b = x.launch.block;
  return "thread " + coordinates(thread % b[0], thread / b[0] % b[1], thread / b[0] / b[1]);
}

std::string line_name(const Execution& x, u32 line) {
  const std::string& text = line - 1 < x.text.lines.size() ? x.text.lines[line - 1] : "";
  return "line " + std::to_string(line) + " `" + text + "`";
}

// ---- groups of lanes ----

void check_meetings(Warp& w) {
  for (std::size_t k = 0; k < w.meetings.size();) {
    const Meeting meeting = w.meetings[k];
    if ((meeting.members & w.alive) != (meeting.arrived & w.alive)) {
      ++k;
      continue;
    }
    w.meetings.erase(w.meetings.begin() + std::ptrdiff_t(k));
    const Instr& i = w.execution->text.code[meeting.pc];
    i.run(w, i, meeting.arrived);
    resume(w, meeting.pc + 1, meeting.arrived);
  }
}

// Lanes arrive at an instruction that all its members execute together.
void meet(Warp& w, const Instr& i, u32 pc, Mask m) {
  each(m, [&](unsigned l) {
    const Mask members = w.at<u32>(i.members)[l];
    if (!((members >> l) & 1)) w.fault(i, l, "its mask of lanes does not name the lane itself");
    auto at = std::find_if(w.meetings.begin(), w.meetings.end(), [&](const Meeting& o) {
      return o.pc == pc && o.members == members && !((o.arrived >> l) & 1);
    });
    if (at == w.meetings.end()) at = w.meetings.insert(at, {pc, members, 0});
    at->arrived |= 1u << l;
  });
  check_meetings(w);
}

void leave(Warp& w, Mask m) {
  w.alive &= ~m;
  check_meetings(w);
  check_barriers(*w.execution);
}

void end_calls(Warp& w, Mask m) {
  each(m, [&](unsigned l) {
    const u32 back = w.returns[l].back();
    w.returns[l].pop_back();
    resume(w, back, 1u << l);
  });
}

// Whether these lanes are all that an instruction waits for.
bool together(Warp& w, const Instr& i, Mask m) {
  const u32* members = w.at<u32>(i.members);
  const Mask first = members[std::countr_zero(m)];
  if ((first & w.alive) != m) return false;
  bool same = true;
  each(m, [&](unsigned l) { same &= members[l] == first; });
  return same;
}

// An instruction at which lanes may part: `all` stand there, `m` execute it.
void steer(Warp& w, const Instr& i, u32 pc, Mask all, Mask m) {
  resume(w, pc + 1, all & ~m);
  if (!m) return;
  switch (i.flow) {
    case Flow::kBranch:
      resume(w, i.target, m);
      break;
    case Flow::kTable:
      each(m, [&](unsigned l) {
        const auto& table = w.execution->text.tables[i.target];
        const u32 k = w.at<u32>(i.o[0])[l];
        if (k >= table.size()) w.fault(i, l, "there is no label " + std::to_string(k));
        resume(w, table[k], 1u << l);
      });
      break;
    case Flow::kCall:
      each(m, [&](unsigned l) {
        if (w.returns[l].size() > 100) w.fault(i, l, "functions that call themselves");
        w.returns[l].push_back(pc + 1);
      });
      resume(w, i.target, m);
      break;
    case Flow::kReturn:
      end_calls(w, m);
      break;
    case Flow::kExit:
      leave(w, m);
      break;
    case Flow::kBarrier:
      arrive(w, i, m, pc);
      break;
    case Flow::kMeet:
      meet(w, i, pc, m);
      break;
    case Flow::kNext:
      break;
  }
}

// Until all lanes wait or have exited, or the turn is over. `last`: the lanes that are furthest go
// first, so that those who spin for them get what they wait for.
void take_turn(Warp& w, bool last) {
  const Instr* const code = w.execution->text.code.data();
  unsigned budget = kTurn;
  while (!w.groups.empty() && budget) {
    const Group g = last ? w.groups.back() : w.groups.front();
    w.groups.erase(last ? w.groups.end() - 1 : w.groups.begin());
    const u32 limit = last || w.groups.empty() ? ~0u : w.groups.front().pc;
    u32 pc = g.pc;
    bool apart = false;
    while (pc < limit && budget) {
      const Instr& i = code[pc];
      const Mask m = g.lanes & (w.mask_at(i.guard) ^ i.flip);
      --budget;
      if (i.flow == Flow::kNext) {
        if (m) i.run(w, i, m);
        ++pc;
      } else if (!m) {
        ++pc;
      } else if (i.flow == Flow::kBranch && m == g.lanes) {
        pc = i.target;
      } else if (i.flow == Flow::kMeet && m == g.lanes && together(w, i, m)) {
        i.run(w, i, m);
        ++pc;
      } else {
        steer(w, i, pc, g.lanes, m);
        apart = true;
        break;
      }
    }
    if (!apart) resume(w, pc, g.lanes);
  }
}

// ---- blocks ----

template <class T>
void fill_lanes(Warp& w, u32 slot, bool wide, T value) {
  for (unsigned l = 0; l < kLanes; ++l) {
    if (wide)
      w.at<u64>(slot)[l] = u64(value(l));
    else
      w.at<u32>(slot)[l] = u32(value(l));
  }
}

void fill_specials(Warp& w, const Execution& x, bool of_block) {
  const unsigned* b = x.launch.block;
  for (const SpecialSlot& s : x.text.specials) {
    if ((s.what == Special::kCtaid) != of_block) continue;
    fill_lanes(w, s.slot, s.wide, [&](unsigned l) -> u64 {
      const unsigned t = w.index * kLanes + l;
      const unsigned tid[] = {t % b[0], t / b[0] % b[1], t / b[0] / b[1]};
      const u64 dynamic = (x.kernel.info.static_shared + 15) / 16 * 16;
      switch (s.what) {
        case Special::kTid:
          return tid[s.axis];
        case Special::kNtid:
          return b[s.axis];
        case Special::kCtaid:
          return x.block[s.axis];
        case Special::kNctaid:
          return x.launch.grid[s.axis];
        case Special::kLane:
          return l;
        case Special::kWarp:
          return w.index;
        case Special::kNwarp:
          return x.warps.size();
        case Special::kEq:
          return 1u << l;
        case Special::kLe:
          return (2ull << l) - 1;
        case Special::kLt:
          return (1u << l) - 1;
        case Special::kGe:
          return ~0u << l;
        case Special::kGt:
          return u32(~0ull << (l + 1));
        case Special::kOne:
          return 1;
        case Special::kZero:
          return 0;
        case Special::kDynamicShared:
          return dynamic;
        case Special::kDynamicBytes:
          return x.launch.dynamic_shared;
        case Special::kTotalBytes:
          return dynamic + x.launch.dynamic_shared;
      }
      return 0;
    });
  }
}

// Nobody can go on: says who waits, and where.
[[noreturn]] void deadlock(const Execution& x) {
  for (const Warp& w : x.warps) {
    for (const Meeting& o : w.meetings) {
      const Mask missing = o.members & w.alive & ~o.arrived;
      w.fault(x.text.code[o.pc], unsigned(std::countr_zero(o.arrived)),
              "it waits for lane " + std::to_string(std::countr_zero(missing)) +
                  " of its warp, which never comes here");
    }
  }
  for (const Barrier& b : x.barriers) {
    if (b.groups.empty()) continue;
    const auto& [warp, group] = b.groups.front();
    x.warps[warp].fault(x.text.code[group.pc], unsigned(std::countr_zero(group.lanes)),
                        "threads wait at a barrier to which the others never come");
  }
  throw Fault(describe(x) + ": no thread can go on");
}

void run_block(Execution& x) {
  const unsigned threads = x.threads;
  for (Warp& w : x.warps) {
    const unsigned lanes = std::min(threads - w.index * kLanes, kLanes);
    w.alive = lanes == kLanes ? ~0u : (1u << lanes) - 1;
    w.groups.assign(1, {x.kernel.entry, w.alive});
    w.meetings.clear();
    w.carry = 0;
    fill_specials(w, x, true);
  }
  for (Barrier& b : x.barriers) b = Barrier{};
  if (x.shared_bytes) std::memset(x.shared, 0xff, x.shared_bytes);
  u64 turns = 0;
  for (bool last = false;; last = !last) {
    bool went = false, alive = false;
    for (Warp& w : x.warps) {
      if (!w.groups.empty()) went = true, take_turn(w, last && w.groups.size() > 1);
      alive |= w.alive != 0;
    }
    if (!alive) return;
    if (!went) deadlock(x);
    if (++turns > kMostInstructions / kTurn / x.warps.size())
      throw Fault(describe(x) + ": it does not end");
  }
}

struct Free {
  void operator()(std::byte* p) const { std::free(p); }
};
using Bytes = std::unique_ptr<std::byte, Free>;
Bytes allocate(std::size_t bytes) {
  return Bytes(static_cast<std::byte*>(std::aligned_alloc(256, (bytes + 511) / 256 * 256)));
}

void check(const Kernel& kernel, const Launch& launch, std::size_t threads) {
  const auto bad = [&](const std::string& what) {
    throw Fault("kernel " + kernel.info.name + ": " + what);
  };
  if (!threads || threads > 1024) bad("blocks of " + std::to_string(threads) + " threads");
  if (threads > kernel.info.max_threads)
    bad("blocks of " + std::to_string(threads) + " threads, and it is for " +
        std::to_string(kernel.info.max_threads) + " at most");
  for (const unsigned n : launch.grid)
    if (!n) bad("a grid without blocks");
}

}  // namespace

void Warp::fault(const Instr& i, unsigned lane, const std::string& what) const {
  const Execution& x = *execution;
  throw Fault(describe(x) + ", " + thread_name(x, index * kLanes + lane) + ", " +
              line_name(x, i.line) + ": " + what);
}

void run(const Kernel& kernel, const Launch& launch, const Memory& memory) {
  const std::size_t threads = std::size_t(launch.block[0]) * launch.block[1] * launch.block[2];
  check(kernel, launch, threads);
  const Module::Text& text = *kernel.text;
  Execution x{kernel, text, launch, memory, {}, unsigned(threads), {}, nullptr, 0, nullptr, {}, {}};
  const std::size_t warps = (threads + kLanes - 1) / kLanes;
  x.shared_bytes = (kernel.info.static_shared + 15) / 16 * 16 + launch.dynamic_shared;
  const Bytes shared = allocate(x.shared_bytes), registers = allocate(warps * text.register_bytes),
              local = allocate(warps * kLanes * text.local_bytes);
  x.shared = shared.get(), x.local = local.get();
  std::memset(x.local, 0xff, warps * kLanes * text.local_bytes);
  x.warps.resize(warps);
  for (unsigned k = 0; k < warps; ++k) {
    Warp& w = x.warps[k];
    w.execution = &x, w.index = k;
    w.registers = registers.get() + k * text.register_bytes;
    w.mask_at(0) = ~0u;
    for (const Filled& f : text.filled)
      fill_lanes(w, f.slot, f.wide, [&](unsigned) { return f.value; });
    fill_specials(w, x, false);
  }
  unsigned* b = x.block;
  for (b[2] = 0; b[2] < launch.grid[2]; ++b[2])
    for (b[1] = 0; b[1] < launch.grid[1]; ++b[1])
      for (b[0] = 0; b[0] < launch.grid[0]; ++b[0]) run_block(x);
}

// ---- modules ----

Module::Module(std::unique_ptr<Text> text) : text_(std::move(text)) {}
Module::~Module() = default;

std::shared_ptr<Module> Module::parse(std::string_view ptx) {
  return std::shared_ptr<Module>(new Module(Parser(ptx).run()));
}

const Kernel* Module::kernel(std::string_view name) const {
  const auto found = text_->kernels.find(name);
  return found == text_->kernels.end() ? nullptr : &found->second;
}

const KernelInfo& Module::info(const Kernel& kernel) const { return kernel.info; }

std::pair<std::byte*, std::size_t> Module::global(std::string_view name) {
  const auto found = text_->variables.find(name);
  if (found == text_->variables.end()) return {nullptr, 0};
  return {found->second.data, found->second.bytes};
}

}  // namespace emu
