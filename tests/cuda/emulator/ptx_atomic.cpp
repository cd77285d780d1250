// SPDX-License-Identifier: Apache-2.0
// atom and red. Lanes take their turns, so that everything is atomic.
#include "ptx_memory.h"
#include "ptx_rounding.h"

namespace emu {
namespace {

template <auto f, class T>
void atomic(Warp& w, const Instr& i, Mask m) {
  std::byte* places[kLanes];
  locate(w, i, m, sizeof(T), places);
  using S = SlotOf<T>;
  S* d = w.at<S>(i.o[0]);
  const S *b = w.at<S>(i.o[1]), *c = w.at<S>(i.o[2]);
  each(m, [&](unsigned l) {
    T old;
    std::memcpy(&old, places[l], sizeof old);
    const T made = f(old, get<T>(b[l]), get<T>(c[l]));
    std::memcpy(places[l], &made, sizeof made);
    d[l] = put<T>(old);
  });
}

constexpr auto add = [](auto a, auto b, auto) { return decltype(a)(a + b); };
constexpr auto least = [](auto a, auto b, auto) { return b < a ? b : a; };
constexpr auto most = [](auto a, auto b, auto) { return b > a ? b : a; };
constexpr auto bit_and = [](auto a, auto b, auto) { return decltype(a)(a & b); };
constexpr auto bit_or = [](auto a, auto b, auto) { return decltype(a)(a | b); };
constexpr auto bit_xor = [](auto a, auto b, auto) { return decltype(a)(a ^ b); };
constexpr auto exchange = [](auto, auto b, auto) { return b; };
constexpr auto swap_if = [](auto a, auto b, auto c) { return a == b ? c : a; };
constexpr auto increase = [](u32 a, u32 b, u32) { return a >= b ? 0u : a + 1; };
constexpr auto decrease = [](u32 a, u32 b, u32) { return a == 0 || a > b ? b : a - 1; };
float add_global(float a, float b, float) {  // in global memory subnormal numbers are zeros
  return canonical(flushed(flushed(a) + flushed(b)));
}
float add_float(float a, float b, float) { return canonical(a + b); }
double add_double(double a, double b, double) { return a + b; }
Half add_half(Half a, Half b, Half) { return half_of(double(to_float(a)) + to_float(b)); }
Brain add_brain(Brain a, Brain b, Brain) {
  // Of numbers far apart, what float64 cannot hold is below the other's last bit.
  return brain_of(double(to_float(a)) + to_float(b));
}
template <class H, H add_one(H, H, H)>
u32 add_pair(u32 a, u32 b, u32) {
  const H low = add_one({u16(a)}, {u16(b)}, {}), high = add_one({u16(a >> 16)}, {u16(b >> 16)}, {});
  return u32(high.bits) << 16 | low.bits;
}

template <auto f>
Handler of_bits(Type t) {
  switch (t) {
    case Type::kU16:
      return &atomic<f, u16>;
    case Type::kU32:
    case Type::kS32:
      return &atomic<f, u32>;
    case Type::kU64:
    case Type::kS64:
      return &atomic<f, u64>;
    default:
      return nullptr;
  }
}
template <auto f>
Handler of_integers(Type t) {
  switch (t) {
    case Type::kU32:
      return &atomic<f, u32>;
    case Type::kS32:
      return &atomic<f, s32>;
    case Type::kU64:
      return &atomic<f, u64>;
    case Type::kS64:
      return &atomic<f, s64>;
    default:
      return nullptr;
  }
}

Handler adding(Type t, Space s) {
  switch (t) {
    case Type::kF32:
      return s == Space::kShared ? &atomic<add_float, float> : &atomic<add_global, float>;
    case Type::kF64:
      return &atomic<add_double, double>;
    case Type::kF16:
      return &atomic<add_half, Half>;
    case Type::kBF16:
      return &atomic<add_brain, Brain>;
    case Type::kF16x2:
      return &atomic<add_pair<Half, add_half>, u32>;
    case Type::kBF16x2:
      return &atomic<add_pair<Brain, add_brain>, u32>;
    default:
      return of_integers<add>(t);
  }
}

Handler handler_of(const Name& n, Space s) {
  const Type t = n.type();
  if (n.has("add")) return adding(t, s);
  if (n.has("min")) return of_integers<least>(t);
  if (n.has("max")) return of_integers<most>(t);
  if (n.has("and")) return of_bits<bit_and>(t);
  if (n.has("or")) return of_bits<bit_or>(t);
  if (n.has("xor")) return of_bits<bit_xor>(t);
  if (n.has("exch")) return of_bits<exchange>(t);
  if (n.has("cas")) return of_bits<swap_if>(t);
  if (n.has("inc") && t == Type::kU32) return &atomic<increase, u32>;
  if (n.has("dec") && t == Type::kU32) return &atomic<decrease, u32>;
  return nullptr;
}

}  // namespace

Found find_atomic(const Name& n, Instr& i) {
  const bool red = n.base == "red";
  if ((n.base != "atom" && !red) || n.has("v2") || n.has("v4") || n.has("async") ||
      n.has("shared::cluster"))
    return {};
  i.space = n.has("global")                           ? Space::kGlobal
            : n.has("shared") || n.has("shared::cta") ? Space::kShared
                                                      : Space::kGeneric;
  i.type = n.type();
  const std::string one = is_wide(i.type) ? "w" : "n";
  // red has no result: a place that nobody reads takes it, as if it stood before the address
  return {handler_of(n, i.space), (red ? "_a" : one + "a") + one + (n.has("cas") ? one : "")};
}

}  // namespace emu
