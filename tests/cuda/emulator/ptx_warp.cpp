// SPDX-License-Identifier: Apache-2.0
// What lanes of a warp tell each other; barriers.
#include <algorithm>

#include "ptx_module.h"

namespace emu {
namespace {

enum Shuffle : u8 { kUp, kDown, kButterfly, kIndex };

// shfl.sync d|p, a, b, c, members
void shuffle(Warp& w, const Instr& i, Mask m) {
  u32 from[kLanes];
  std::copy_n(w.at<u32>(i.o[2]), kLanes, from);
  u32* d = w.at<u32>(i.o[0]);
  const u32 *b = w.at<u32>(i.o[3]), *c = w.at<u32>(i.o[4]);
  Mask& p = w.mask_at(i.o[1]);
  each(m, [&](unsigned l) {
    const s32 lane = s32(l), by = s32(b[l] & 31), clamp = s32(c[l] & 31),
              part = s32(c[l] >> 8 & 31);
    const s32 last = (lane & part) | (clamp & ~part), first = lane & part;
    s32 j = 0;
    switch (Shuffle(i.mode)) {
      case kUp:
        j = lane - by;
        break;
      case kDown:
        j = lane + by;
        break;
      case kButterfly:
        j = lane ^ by;
        break;
      case kIndex:
        j = first | (by & ~part);
        break;
    }
    const bool inside = i.mode == kUp ? j >= last : j <= last;
    if (!inside) j = lane;
    if (!((m >> j) & 1))
      w.fault(i, l, "it reads from lane " + std::to_string(j) + ", which does not take part");
    d[l] = from[j];
    p = (p & ~(1u << l)) | Mask(inside) << l;
  });
}

// vote.sync: i.mode as below; ballot gives 32 bits.
enum Vote : u8 { kAll, kAny, kUniform };
void vote(Warp& w, const Instr& i, Mask m) {
  const Mask yes = w.mask_at(i.o[1]) & m;
  const bool r = i.mode == kAll ? yes == m : i.mode == kAny ? yes != 0 : yes == m || yes == 0;
  Mask& d = w.mask_at(i.o[0]);
  d = (d & ~m) | (r ? m : 0);
}
void ballot(Warp& w, const Instr& i, Mask m) {
  const Mask yes = w.mask_at(i.o[1]) & m;
  each(m, [&](unsigned l) { w.at<u32>(i.o[0])[l] = yes; });
}

template <class Slot>
void match_any(Warp& w, const Instr& i, Mask m) {
  Slot a[kLanes];
  std::copy_n(w.at<Slot>(i.o[1]), kLanes, a);
  each(m, [&](unsigned l) {
    Mask same = 0;
    each(m, [&](unsigned k) { same |= Mask(a[k] == a[l]) << k; });
    w.at<u32>(i.o[0])[l] = same;
  });
}
template <class Slot>
void match_all(Warp& w, const Instr& i, Mask m) {
  const Slot* a = w.at<Slot>(i.o[2]);
  bool same = true;
  const Slot first = a[std::countr_zero(m)];
  each(m, [&](unsigned l) { same &= a[l] == first; });
  each(m, [&](unsigned l) { w.at<u32>(i.o[0])[l] = same ? m : 0; });
  Mask& p = w.mask_at(i.o[1]);
  p = (p & ~m) | (same ? m : 0);
}

template <class T, T join(T, T)>
void reduce(Warp& w, const Instr& i, Mask m) {
  const u32* a = w.at<u32>(i.o[1]);
  T r = T(a[std::countr_zero(m)]);
  each(m & (m - 1), [&](unsigned l) { r = join(r, T(a[l])); });
  each(m, [&](unsigned l) { w.at<u32>(i.o[0])[l] = u32(r); });
}
u32 sum(u32 a, u32 b) { return a + b; }
u32 both(u32 a, u32 b) { return a & b; }
u32 either(u32 a, u32 b) { return a | b; }
u32 one_of(u32 a, u32 b) { return a ^ b; }
template <class T>
T least(T a, T b) {
  return std::min(a, b);
}
template <class T>
T most(T a, T b) {
  return std::max(a, b);
}

void elect(Warp& w, const Instr& i, Mask m) {
  const u32 leader = u32(std::countr_zero(m));
  each(m, [&](unsigned l) { w.at<u32>(i.o[0])[l] = leader; });
  Mask& p = w.mask_at(i.o[1]);
  p = (p & ~m) | 1u << leader;
}
void active(Warp& w, const Instr& i, Mask m) {
  each(m, [&](unsigned l) { w.at<u32>(i.o[0])[l] = m; });
}
void meet(Warp&, const Instr&, Mask) {}
void trap(Warp& w, const Instr& i, Mask m) { w.fault(i, unsigned(std::countr_zero(m)), "trap"); }

Found find_reduction(const Name& n) {
  const bool s = is_signed(n.type());
  if (n.has("add")) return {&reduce<u32, sum>, "nnn"};
  if (n.has("and")) return {&reduce<u32, both>, "nnn"};
  if (n.has("or")) return {&reduce<u32, either>, "nnn"};
  if (n.has("xor")) return {&reduce<u32, one_of>, "nnn"};
  if (n.has("min")) return {s ? &reduce<s32, least<s32>> : &reduce<u32, least<u32>>, "nnn"};
  if (n.has("max")) return {s ? &reduce<s32, most<s32>> : &reduce<u32, most<u32>>, "nnn"};
  return {};
}

}  // namespace

// The last operand of those with .sync is the mask of who meets.
Found find_warp(const Name& n, Instr& i) {
  const std::string& b = n.base;
  const bool sync = n.has("sync");
  if (b == "activemask") return {&active, "n"};
  if (b == "trap" || b == "brkpt") return {&trap, ""};
  if (!sync) return {};
  i.flow = Flow::kMeet;
  if (b == "shfl") {
    i.mode = n.has("up") ? kUp : n.has("down") ? kDown : n.has("bfly") ? kButterfly : kIndex;
    return {&shuffle, "n|pnnnn"};
  }
  if (b == "vote") {
    if (n.has("ballot")) return {&ballot, "npn"};
    i.mode = n.has("all") ? kAll : n.has("any") ? kAny : kUniform;
    return {&vote, "ppn"};
  }
  const bool wide = is_wide(n.type());
  if (b == "match" && n.has("any"))
    return wide ? Found{&match_any<u64>, "nwn"} : Found{&match_any<u32>, "nnn"};
  if (b == "match") return wide ? Found{&match_all<u64>, "n|pwn"} : Found{&match_all<u32>, "n|pnn"};
  if (b == "redux" && is_integer(n.type())) return find_reduction(n);
  if (b == "elect") return {&elect, "n|pn"};
  if (b == "bar" && n.has("warp")) return {&meet, "n"};
  return {};
}

// Barriers of a block: i.mode says what is reduced; operands are d, p, number, count.
Found find_barrier(const Name& n, Instr& i) {
  if ((n.base != "bar" && n.base != "barrier") || n.has("warp") || n.has("cluster")) return {};
  i.flow = Flow::kBarrier;
  if (n.has("sync")) return {&meet, "b"};
  if (n.has("arrive")) {
    i.mode = 1;
    return {&meet, "b"};
  }
  if (!n.has("red")) return {};
  i.mode = n.has("popc") ? 2 : n.has("and") ? 3 : 4;
  return {&meet, i.mode == 2 ? "nbp" : "pbp"};
}

}  // namespace emu
