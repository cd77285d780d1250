// SPDX-License-Identifier: Apache-2.0
// Comparisons and selections.
#include "ptx_rounding.h"

namespace emu {
namespace {

enum Order : u8 { kEq, kNe, kLt, kLe, kGt, kGe, kEqu, kNeu, kLtu, kLeu, kGtu, kGeu, kNum, kNan };

template <Order order, class T>
bool holds(T a, T b) {
  const bool unordered = a != a || b != b;
  switch (order) {
    case kEq:
      return a == b;
    case kNe:
      return a != b && !unordered;
    case kLt:
      return a < b;
    case kLe:
      return a <= b;
    case kGt:
      return a > b;
    case kGe:
      return a >= b;
    case kEqu:
      return a == b || unordered;
    case kNeu:
      return a != b;
    case kLtu:
      return !(a >= b);
    case kLeu:
      return !(a > b);
    case kGtu:
      return !(a <= b);
    case kGeu:
      return !(a < b);
    case kNum:
      return !unordered;
    case kNan:
      return unordered;
  }
}

template <class T, bool z>
auto value(T x) {
  if constexpr (std::is_integral_v<T> || std::is_same_v<T, double>) {
    return x;
  } else if constexpr (std::is_same_v<T, float>) {
    return z ? flushed(x) : x;
  } else {
    return to_float(x);
  }
}

template <Order order, class T, bool z>
Mask compare(Warp& w, u32 a_place, u32 b_place) {
  const auto *a = w.at<SlotOf<T>>(a_place), *b = w.at<SlotOf<T>>(b_place);
  Mask r = 0;
  for (unsigned l = 0; l < kLanes; ++l)
    r |= Mask(holds<order>(value<T, z>(get<T>(a[l])), value<T, z>(get<T>(b[l])))) << l;
  return r;
}

Mask joined(Join j, Mask r, Mask c) {
  switch (j) {
    case Join::kAnd:
      return r & c;
    case Join::kOr:
      return r | c;
    case Join::kXor:
      return r ^ c;
    default:
      return r;
  }
}

// setp.order{.join} p|q, a, b{, c}: q is what p would be with the opposite order.
template <Order order, class T, bool z>
void set_predicate(Warp& w, const Instr& i, Mask m) {
  const Mask r = compare<order, T, z>(w, i.o[2], i.o[3]);
  const Mask c = i.join == Join::kNone ? 0 : w.mask_at(i.o[4]);
  Mask& p = w.mask_at(i.o[0]);
  p = (p & ~m) | (joined(i.join, r, c) & m);
  Mask& q = w.mask_at(i.o[1]);
  q = (q & ~m) | (joined(i.join, ~r, c) & m);
}

// set.order{.join}.to.from d, a, b{, c}: all ones, or 1.0.
template <Order order, class T, bool z>
void set(Warp& w, const Instr& i, Mask m) {
  const Mask r = compare<order, T, z>(w, i.o[1], i.o[2]);
  const Mask c = i.join == Join::kNone ? 0 : w.mask_at(i.o[3]);
  const Mask s = joined(i.join, r, c);
  const u32 yes = i.type == Type::kF32    ? 0x3f800000
                  : i.type == Type::kF16  ? 0x3c00
                  : i.type == Type::kBF16 ? 0x3f80
                                          : ~0u;
  u32* d = w.at<u32>(i.o[0]);
  each(m, [&](unsigned l) { d[l] = (s >> l) & 1 ? yes : 0; });
}

template <class T, bool z, bool predicate>
Handler of_order(Order order) {
#define EMU_ORDER(o) \
  case o:            \
    return predicate ? &set_predicate<o, T, z> : &set<o, T, z>;
  switch (order) {
    EMU_ORDER(kEq)
    EMU_ORDER(kNe)
    EMU_ORDER(kLt)
    EMU_ORDER(kLe)
    EMU_ORDER(kGt)
    EMU_ORDER(kGe)
    default:
      break;
  }
  if constexpr (!std::is_integral_v<T>) {
    switch (order) {
      EMU_ORDER(kEqu)
      EMU_ORDER(kNeu)
      EMU_ORDER(kLtu)
      EMU_ORDER(kLeu)
      EMU_ORDER(kGtu)
      EMU_ORDER(kGeu)
      EMU_ORDER(kNum)
      EMU_ORDER(kNan)
      default:
        break;
    }
  }
#undef EMU_ORDER
  return nullptr;
}

template <bool predicate>
Handler of_type(Type t, Order order, bool ftz) {
  switch (t) {
    case Type::kU16:
      return of_order<u16, false, predicate>(order);
    case Type::kS16:
      return of_order<s16, false, predicate>(order);
    case Type::kU32:
      return of_order<u32, false, predicate>(order);
    case Type::kS32:
      return of_order<s32, false, predicate>(order);
    case Type::kU64:
      return of_order<u64, false, predicate>(order);
    case Type::kS64:
      return of_order<s64, false, predicate>(order);
    case Type::kF16:
      return of_order<Half, false, predicate>(order);
    case Type::kBF16:
      return of_order<Brain, false, predicate>(order);
    case Type::kF64:
      return of_order<double, false, predicate>(order);
    case Type::kF32:
      return ftz ? of_order<float, true, predicate>(order)
                 : of_order<float, false, predicate>(order);
    default:
      return nullptr;
  }
}

// Pairs of float16 or bfloat16: p is for the lower half, q for the upper.
template <class H>
void set_pair(Warp& w, const Instr& i, Mask m) {
  const u32 *a = w.at<u32>(i.o[2]), *b = w.at<u32>(i.o[3]);
  const Mask c = i.join == Join::kNone ? 0 : w.mask_at(i.o[4]);
  const auto test = [&](u32 x, u32 y) {
    const float f = to_float(H{u16(x)}), g = to_float(H{u16(y)});
    const bool is[] = {holds<kEq>(f, g),  holds<kNe>(f, g),  holds<kLt>(f, g),  holds<kLe>(f, g),
                       holds<kGt>(f, g),  holds<kGe>(f, g),  holds<kEqu>(f, g), holds<kNeu>(f, g),
                       holds<kLtu>(f, g), holds<kLeu>(f, g), holds<kGtu>(f, g), holds<kGeu>(f, g),
                       holds<kNum>(f, g), holds<kNan>(f, g)};
    return Mask(is[i.mode]);
  };
  Mask low = 0, high = 0;
  each(m, [&](unsigned l) {
    low |= test(a[l], b[l]) << l;
    high |= test(a[l] >> 16, b[l] >> 16) << l;
  });
  Mask& p = w.mask_at(i.o[0]);
  p = (p & ~m) | (joined(i.join, low, c) & m);
  Mask& q = w.mask_at(i.o[1]);
  q = (q & ~m) | (joined(i.join, high, c) & m);
}

template <class Slot>
void select(Warp& w, const Instr& i, Mask m) {
  Slot* d = w.at<Slot>(i.o[0]);
  const Slot *a = w.at<Slot>(i.o[1]), *b = w.at<Slot>(i.o[2]);
  const Mask p = w.mask_at(i.o[3]);
#pragma GCC ivdep
  for (unsigned l = 0; l < kLanes; ++l) {
    const Slot v = (p >> l) & 1 ? a[l] : b[l];
    d[l] = (m >> l) & 1 ? v : d[l];
  }
}

// slct d, a, b, c: a where c >= 0.
template <class Slot, bool real>
void select_by_sign(Warp& w, const Instr& i, Mask m) {
  Slot* d = w.at<Slot>(i.o[0]);
  const Slot *a = w.at<Slot>(i.o[1]), *b = w.at<Slot>(i.o[2]);
  const u32* c = w.at<u32>(i.o[3]);
  each(m, [&](unsigned l) {
    const bool first = real ? std::bit_cast<float>(c[l]) >= 0.0f : s32(c[l]) >= 0;
    d[l] = first ? a[l] : b[l];
  });
}

}  // namespace

Found find_compare(const Name& n, Instr& i) {
  const std::string& b = n.base;
  const bool wide = is_wide(n.type());
  if (b == "selp") return wide ? Found{&select<u64>, "wwwp"} : Found{&select<u32>, "nnnp"};
  if (b == "slct") {
    const bool real = n.type(1) == Type::kF32;
    if (wide) return {real ? &select_by_sign<u64, true> : &select_by_sign<u64, false>, "wwwn"};
    return {real ? &select_by_sign<u32, true> : &select_by_sign<u32, false>, "nnnn"};
  }
  if (b != "setp" && b != "set") return {};
  static const std::pair<const char*, Order> orders[] = {
      {"eq", kEq},   {"ne", kNe},   {"lt", kLt},   {"le", kLe},   {"gt", kGt},   {"ge", kGe},
      {"lo", kLt},   {"ls", kLe},   {"hi", kGt},   {"hs", kGe},   {"equ", kEqu}, {"neu", kNeu},
      {"ltu", kLtu}, {"leu", kLeu}, {"gtu", kGtu}, {"geu", kGeu}, {"num", kNum}, {"nan", kNan}};
  const Order* order = nullptr;
  for (const auto& [word, o] : orders)
    if (n.has(word)) order = &o;
  if (!order) return {};
  i.join = n.has("and")   ? Join::kAnd
           : n.has("or")  ? Join::kOr
           : n.has("xor") ? Join::kXor
                          : Join::kNone;
  i.mode = *order;
  const std::string last = i.join == Join::kNone ? "" : "p";
  if (b == "setp") {
    if (n.type() == Type::kF16x2) return {&set_pair<Half>, "p|pnn" + last};
    if (n.type() == Type::kBF16x2) return {&set_pair<Brain>, "p|pnn" + last};
    const std::string operands = wide ? "ww" : "nn";
    return {of_type<true>(n.type(), *order, n.has("ftz")), "p|p" + operands + last};
  }
  i.type = n.type();
  if (wide || bytes_of(i.type) < 2 || i.type == Type::kF16x2 || i.type == Type::kBF16x2) return {};
  const std::string operands = is_wide(n.type(1)) ? "nww" : "nnn";
  return {of_type<false>(n.type(1), *order, n.has("ftz")), operands + last};
}

}  // namespace emu
