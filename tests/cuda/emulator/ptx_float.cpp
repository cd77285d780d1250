// SPDX-License-Identifier: Apache-2.0
// Arithmetic of float32 and float64.
#include "ptx_rounding.h"

namespace emu {
namespace {

template <class T, bool z>
inline T in(T x) {
  if constexpr (z) return flushed(x);
  return x;
}
template <class T, bool z>
inline T out(T x) {
  if constexpr (sizeof(T) == 4) return canonical(in<T, z>(x));
  return x;
}

// Of type T; z: subnormal numbers are zeros, coming and going.
template <class T, bool z>
struct Ops {
  static T add(T a, T b) { return out<T, z>(in<T, z>(a) + in<T, z>(b)); }
  static T sub(T a, T b) { return out<T, z>(in<T, z>(a) - in<T, z>(b)); }
  static T mul(T a, T b) { return out<T, z>(in<T, z>(a) * in<T, z>(b)); }
  static T fma(T a, T b, T c) { return out<T, z>(std::fma(in<T, z>(a), in<T, z>(b), in<T, z>(c))); }
  static T div(T a, T b) { return out<T, z>(in<T, z>(a) / in<T, z>(b)); }
  static T rcp(T a) { return out<T, z>(T(1) / in<T, z>(a)); }
  static T sqrt(T a) { return out<T, z>(std::sqrt(in<T, z>(a))); }
  static T neg(T a) { return std::is_same_v<T, float> && z ? -in<T, z>(a) : -a; }
  static T abs(T a) { return std::abs(in<T, z>(a)); }
  template <bool least, bool keep_nan>
  static T extreme(T a, T b) {
    a = in<T, z>(a), b = in<T, z>(b);
    const T nan = out<T, z>(std::numeric_limits<T>::quiet_NaN());
    if (a != a) return keep_nan || b != b ? nan : b;
    if (b != b) return keep_nan ? nan : a;
    if (a == b) return std::signbit(a) == least ? a : b;  // -0 is less than +0
    return (a < b) == least ? a : b;
  }
  // Quotients by multiplication: those by the largest numbers are zero.
  static T div_approx(T a, T b) {
    a = in<T, z>(a), b = in<T, z>(b);
    if (std::abs(b) > T(0x1p126) && std::isfinite(b))
      return std::isinf(a) ? std::bit_cast<float>(kNaN) : std::copysign(T(0), T(a * b));
    return out<T, z>(a / b);
  }
  static T rsqrt(T a) { return out<T, z>(T(1.0 / std::sqrt(double(in<T, z>(a))))); }
  static T ex2(T a) { return out<T, z>(std::exp2(in<T, z>(a))); }
  static T lg2(T a) { return out<T, z>(std::log2(in<T, z>(a))); }
  static T sin(T a) { return out<T, z>(std::sin(in<T, z>(a))); }
  static T cos(T a) { return out<T, z>(std::cos(in<T, z>(a))); }
  static T tanh(T a) { return out<T, z>(std::tanh(in<T, z>(a))); }
};

template <auto f, class T, int arity>
Found of() {
  const std::string shape(arity + 1, sizeof(T) == 8 ? 'w' : 'n');
  if constexpr (arity == 1) return {&map<f, T, T>, shape};
  if constexpr (arity == 2) return {&map<f, T, T, T>, shape};
  if constexpr (arity == 3) return {&map<f, T, T, T, T>, shape};
}

// One rounding that is not to nearest, or a result between 0 and 1.
enum Kind : u8 { kAdd, kSub, kMul, kFma, kDiv, kRcp, kSqrt };
template <class T, Kind kind>
void careful(Warp& w, const Instr& i, Mask m) {
  using S = SlotOf<T>;
  const Rounding rounding(i.round);
  const auto operand = [&](unsigned k, unsigned l) {
    const T x = get<T>(w.at<S>(i.o[k])[l]);
    if constexpr (sizeof(T) == 4) return opaque(i.ftz ? flushed(x) : x);
    return opaque(x);
  };
  each(m, [&](unsigned l) {
    const T a = operand(1, l), b = kind < kRcp ? operand(2, l) : T(1);
    T r;
    if constexpr (kind == kAdd) r = a + b;
    if constexpr (kind == kSub) r = a - b;
    if constexpr (kind == kMul) r = a * b;
    if constexpr (kind == kFma) r = std::fma(a, b, operand(3, l));
    if constexpr (kind == kDiv) r = a / b;
    if constexpr (kind == kRcp) r = b / a;
    if constexpr (kind == kSqrt) r = std::sqrt(a);
    r = opaque(r);
    if constexpr (sizeof(T) == 4) {
      if (i.ftz) r = flushed(r);
      r = canonical(r);
    }
    if (i.sat) r = r > T(0) ? (r < T(1) ? r : T(1)) : T(0);
    w.at<S>(i.o[0])[l] = put<T>(r);
  });
}

template <class T, bool z>
Found rounded(const Name& n, Instr& i) {
  using O = Ops<T, z>;
  i.round = n.has("rz")   ? Round::kZero
            : n.has("rm") ? Round::kDown
            : n.has("rp") ? Round::kUp
                          : Round::kNearest;
  i.ftz = z, i.sat = n.has("sat");
  const bool plain = i.round == Round::kNearest && !i.sat;
  const auto shape = [](std::size_t k) { return std::string(k, sizeof(T) == 8 ? 'w' : 'n'); };
  const std::string& b = n.base;
  if (b == "add") return plain ? of<O::add, T, 2>() : Found{&careful<T, kAdd>, shape(3)};
  if (b == "sub") return plain ? of<O::sub, T, 2>() : Found{&careful<T, kSub>, shape(3)};
  if (b == "mul") return plain ? of<O::mul, T, 2>() : Found{&careful<T, kMul>, shape(3)};
  if ((b == "fma" || b == "mad") && !n.has("relu"))
    return plain ? of<O::fma, T, 3>() : Found{&careful<T, kFma>, shape(4)};
  if (b == "div") return plain ? of<O::div, T, 2>() : Found{&careful<T, kDiv>, shape(3)};
  if (b == "rcp") return plain ? of<O::rcp, T, 1>() : Found{&careful<T, kRcp>, shape(2)};
  if (b == "sqrt") return plain ? of<O::sqrt, T, 1>() : Found{&careful<T, kSqrt>, shape(2)};
  if (b == "neg") return of<O::neg, T, 1>();
  if (b == "abs") return of<O::abs, T, 1>();
  const bool nan = n.has("NaN");
  if ((b == "min" || b == "max") && n.words.size() == std::size_t(nan) + z) {
    if (b == "min")
      return nan ? of<O::template extreme<true, true>, T, 2>()
                 : of<O::template extreme<true, false>, T, 2>();
    return nan ? of<O::template extreme<false, true>, T, 2>()
               : of<O::template extreme<false, false>, T, 2>();
  }
  return {};
}

template <bool z>
Found approximate(const Name& n) {
  using O = Ops<float, z>;
  const std::string& b = n.base;
  if (b == "div") return n.has("full") ? of<O::div, float, 2>() : of<O::div_approx, float, 2>();
  if (b == "rcp") return of<O::rcp, float, 1>();
  if (b == "sqrt") return of<O::sqrt, float, 1>();
  if (b == "rsqrt") return of<O::rsqrt, float, 1>();
  if (b == "ex2") return of<O::ex2, float, 1>();
  if (b == "lg2") return of<O::lg2, float, 1>();
  if (b == "sin") return of<O::sin, float, 1>();
  if (b == "cos") return of<O::cos, float, 1>();
  if (b == "tanh") return of<O::tanh, float, 1>();
  return {};
}

// Gross approximations of float64 read and give the upper 32 bits only.
double upper(double x) { return std::bit_cast<double>(std::bit_cast<u64>(x) & ~0xffffffffull); }
double upper_flushed(double x) {
  x = upper(x);
  return std::abs(x) < 0x1p-1022 ? std::copysign(0.0, x) : x;
}
double gross_rcp(double a) { return upper_flushed(1.0 / upper_flushed(a)); }
double gross_rsqrt(double a) { return upper_flushed(1.0 / std::sqrt(upper_flushed(a))); }

template <class T>
T copy_sign(T a, T b) {  // the sign of a, the number of b
  return std::copysign(b, a);
}

// testp: i.mode says which.
template <class T>
void property(Warp& w, const Instr& i, Mask m) {
  Mask r = 0;
  each(m, [&](unsigned l) {
    const T x = get<T>(w.at<SlotOf<T>>(i.o[1])[l]);
    const int c = std::fpclassify(x);
    const bool is[] = {bool(std::isfinite(x)), c == FP_INFINITE, c != FP_NAN, c == FP_NAN,
                       c == FP_NORMAL,         c == FP_SUBNORMAL};
    r |= Mask(is[i.mode]) << l;
  });
  Mask& d = w.mask_at(i.o[0]);
  d = (d & ~m) | r;
}

}  // namespace

Found find_float(const Name& n, Instr& i) {
  const Type t = n.type();
  const std::string& b = n.base;
  const bool wide = t == Type::kF64, ftz = n.has("ftz");
  if (t != Type::kF32 && !wide) return {};
  if (b == "copysign")
    return wide ? of<copy_sign<double>, double, 2>() : of<copy_sign<float>, float, 2>();
  if (b == "testp") {
    static const char* const words[] = {"finite",     "infinite", "number",
                                        "notanumber", "normal",   "subnormal"};
    for (u8 k = 0; k < 6; ++k)
      if (n.has(words[k])) i.mode = k;
    return {wide ? &property<double> : &property<float>, wide ? "pw" : "pn"};
  }
  if (wide && n.has("approx")) {
    if (b == "rcp") return of<gross_rcp, double, 1>();
    if (b == "rsqrt") return of<gross_rsqrt, double, 1>();
    return {};
  }
  if (n.has("approx") || n.has("full")) return ftz ? approximate<true>(n) : approximate<false>(n);
  if (wide) return rounded<double, false>(n, i);
  return ftz ? rounded<float, true>(n, i) : rounded<float, false>(n, i);
}

}  // namespace emu
