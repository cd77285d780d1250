// SPDX-License-Identifier: Apache-2.0
// Arithmetic of float16 and bfloat16, alone and in pairs. Everything is computed in float64 and
// rounded once.
#include "ptx_rounding.h"

namespace emu {
namespace {

template <class H>
H made(double x) {
  if constexpr (std::is_same_v<H, Half>)
    return half_of(x);
  else
    return brain_of(x);
}
template <class H>
H flush16(H x) {  // subnormal numbers of float16
  if constexpr (std::is_same_v<H, Half>)
    if (!(x.bits & 0x7c00)) return {u16(x.bits & 0x8000)};
  return x;
}
template <class H>
bool is_nan(H x) {
  return to_float(x) != to_float(x);
}

// a * b + c with one rounding: what the sum in float64 loses makes its last bit odd, which keeps
// the second rounding on the right side.
double fused(double a, double b, double c) {
  const double p = a * b, s = p + c;  // p is exact
  if (!std::isfinite(s)) return s;
  const double other = s - p, lost = (p - (s - other)) + (c - other);
  const u64 bits = std::bit_cast<u64>(s);
  if (lost == 0 || (bits & 1)) return s;
  return std::bit_cast<double>((lost > 0) == (s > 0) ? bits + 1 : bits - 1);
}

template <class H, bool z, bool sat, bool relu>
H finish(double x) {
  H r = made<H>(x);
  if constexpr (z) r = flush16(r);
  if constexpr (sat) {
    const float v = to_float(r);
    r = v > 0 ? (v < 1 ? r : made<H>(1.0)) : H{0};
  }
  if constexpr (relu) {
    if (!is_nan(r) && (r.bits & 0x8000)) r = H{0};
  }
  return r;
}

template <class H, bool z, bool sat, bool relu>
struct Ops {
  static double in(H x) {
    if constexpr (z) x = flush16(x);
    return to_float(x);
  }
  static H add(H a, H b) { return finish<H, z, sat, relu>(fused(in(a), 1.0, in(b))); }
  static H sub(H a, H b) { return finish<H, z, sat, relu>(fused(in(a), 1.0, -in(b))); }
  static H mul(H a, H b) { return finish<H, z, sat, relu>(in(a) * in(b)); }
  static H fma(H a, H b, H c) { return finish<H, z, sat, relu>(fused(in(a), in(b), in(c))); }
};

template <class H>
struct Simple {
  static H neg(H a) { return {u16(a.bits ^ 0x8000)}; }
  static H abs(H a) { return {u16(a.bits & 0x7fff)}; }
  static H ex2(H a) { return made<H>(std::exp2(double(to_float(a)))); }
  static H tanh(H a) { return made<H>(std::tanh(double(to_float(a)))); }
  template <bool least, bool keep_nan>
  static H extreme(H a, H b) {
    if (is_nan(a)) return keep_nan || is_nan(b) ? H{0x7fff} : b;
    if (is_nan(b)) return keep_nan ? H{0x7fff} : a;
    const float x = to_float(a), y = to_float(b);
    if (x == y) return bool(a.bits & 0x8000) == least ? a : b;
    return (x < y) == least ? a : b;
  }
};

// The same for each half of 32 bits.
template <class H, auto f>
struct Pair {
  static u32 one(u32 a) { return join(f(low(a)), f(high(a))); }
  static u32 two(u32 a, u32 b) { return join(f(low(a), low(b)), f(high(a), high(b))); }
  static u32 three(u32 a, u32 b, u32 c) {
    return join(f(low(a), low(b), low(c)), f(high(a), high(b), high(c)));
  }
  static H low(u32 a) { return {u16(a)}; }
  static H high(u32 a) { return {u16(a >> 16)}; }
  static u32 join(H l, H h) { return u32(h.bits) << 16 | l.bits; }
};

template <class H, auto f, int arity>
Found of(bool pair) {
  const std::string shape(arity + 1, 'n');
  if constexpr (arity == 1) return {pair ? &map<Pair<H, f>::one, u32, u32> : &map<f, H, H>, shape};
  if constexpr (arity == 2)
    return {pair ? &map<Pair<H, f>::two, u32, u32, u32> : &map<f, H, H, H>, shape};
  if constexpr (arity == 3)
    return {pair ? &map<Pair<H, f>::three, u32, u32, u32, u32> : &map<f, H, H, H, H>, shape};
}

template <class H, bool z, bool sat, bool relu>
Found arithmetic(const std::string& b, bool pair) {
  using O = Ops<H, z, sat, relu>;
  if (b == "add") return of<H, O::add, 2>(pair);
  if (b == "sub") return of<H, O::sub, 2>(pair);
  if (b == "mul") return of<H, O::mul, 2>(pair);
  if (b == "fma") return of<H, O::fma, 3>(pair);
  return {};
}

template <class H>
Found find(const Name& n, bool pair) {
  using S = Simple<H>;
  const std::string& b = n.base;
  const bool ftz = n.has("ftz") && std::is_same_v<H, Half>, nan = n.has("NaN");
  if (b == "neg") return of<H, S::neg, 1>(pair);
  if (b == "abs") return of<H, S::abs, 1>(pair);
  if (b == "ex2") return of<H, S::ex2, 1>(pair);
  if (b == "tanh") return of<H, S::tanh, 1>(pair);
  if ((b == "min" || b == "max") && !n.has("xorsign")) {
    if (b == "min")
      return nan ? of<H, S::template extreme<true, true>, 2>(pair)
                 : of<H, S::template extreme<true, false>, 2>(pair);
    return nan ? of<H, S::template extreme<false, true>, 2>(pair)
               : of<H, S::template extreme<false, false>, 2>(pair);
  }
  if (n.has("sat"))
    return ftz ? arithmetic<H, true, true, false>(b, pair)
               : arithmetic<H, false, true, false>(b, pair);
  if (n.has("relu"))
    return ftz ? arithmetic<H, true, false, true>(b, pair)
               : arithmetic<H, false, false, true>(b, pair);
  return ftz ? arithmetic<H, true, false, false>(b, pair)
             : arithmetic<H, false, false, false>(b, pair);
}

}  // namespace

Found find_half(const Name& n, Instr&) {
  switch (n.type()) {
    case Type::kF16:
      return find<Half>(n, false);
    case Type::kF16x2:
      return find<Half>(n, true);
    case Type::kBF16:
      return find<Brain>(n, false);
    case Type::kBF16x2:
      return find<Brain>(n, true);
    default:
      return {};
  }
}

}  // namespace emu
