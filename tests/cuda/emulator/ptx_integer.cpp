// SPDX-License-Identifier: Apache-2.0
// Arithmetic of integers.
#include <limits>

#include "ptx_code.h"

namespace emu {
namespace {

template <class T>
struct Double;
template <>
struct Double<u16> {
  using type = u32;
};
template <>
struct Double<s16> {
  using type = s32;
};
template <>
struct Double<u32> {
  using type = u64;
};
template <>
struct Double<s32> {
  using type = s64;
};
template <>
struct Double<u64> {
  using type = unsigned __int128;
};
template <>
struct Double<s64> {
  using type = __int128;
};
template <class T>
using Wide = typename Double<T>::type;

template <auto f, class T, int arity>
constexpr Handler same() {
  if constexpr (arity == 1) return &map<f, T, T>;
  if constexpr (arity == 2) return &map<f, T, T, T>;
  if constexpr (arity == 3) return &map<f, T, T, T, T>;
}

// One function for all integer types of 16 bits and more.
template <auto f, int arity>
Found all(Type t) {
  const std::string shape = shape_of(t, arity + 1);
  switch (t) {
    case Type::kU16:
      return {same<f, u16, arity>(), shape};
    case Type::kS16:
      return {same<f, s16, arity>(), shape};
    case Type::kU32:
      return {same<f, u32, arity>(), shape};
    case Type::kS32:
      return {same<f, s32, arity>(), shape};
    case Type::kU64:
      return {same<f, u64, arity>(), shape};
    case Type::kS64:
      return {same<f, s64, arity>(), shape};
    default:
      return {};
  }
}

// Numbers without a sign that are not widened to int: what wraps is computed on them.
template <class T>
auto bare(T a) {
  return static_cast<std::common_type_t<std::make_unsigned_t<T>, unsigned>>(a);
}

constexpr auto add = [](auto a, auto b) { return decltype(a)(bare(a) + bare(b)); };
constexpr auto sub = [](auto a, auto b) { return decltype(a)(bare(a) - bare(b)); };
constexpr auto mul_lo = [](auto a, auto b) { return decltype(a)(bare(a) * bare(b)); };
constexpr auto mad_lo = [](auto a, auto b, auto c) {
  return decltype(a)(bare(a) * bare(b) + bare(c));
};
template <class T>
T high(T a, T b) {
  return T((Wide<T>(a) * Wide<T>(b)) >> (8 * sizeof(T)));
}
constexpr auto mul_hi = [](auto a, auto b) { return high(a, b); };
constexpr auto mad_hi = [](auto a, auto b, auto c) {
  return decltype(a)(bare(high(a, b)) + bare(c));
};
constexpr auto minimum = [](auto a, auto b) { return a < b ? a : b; };
constexpr auto maximum = [](auto a, auto b) { return a > b ? a : b; };
constexpr auto negate = [](auto a) { return decltype(a)(0 - bare(a)); };
constexpr auto absolute = [](auto a) { return decltype(a)(a < 0 ? 0 - bare(a) : bare(a)); };
constexpr auto sad = [](auto a, auto b, auto c) {
  return decltype(a)(bare(c) + (a < b ? bare(b) - bare(a) : bare(a) - bare(b)));
};
// A division by zero gives all ones, as the hardware does; the smallest by -1 gives itself.
constexpr auto divide = [](auto a, auto b) -> decltype(a) {
  using T = decltype(a);
  if (b == 0) return T(-1);
  if (std::is_signed_v<T> && b == T(-1)) return T(0 - bare(a));
  return T(a / b);
};
constexpr auto remainder_of = [](auto a, auto b) -> decltype(a) {
  using T = decltype(a);
  if (b == 0) return a;
  if (std::is_signed_v<T> && b == T(-1)) return T(0);
  return T(a % b);
};
template <class T>
T clamped(s64 v) {
  constexpr s64 low = std::numeric_limits<T>::min(), most = std::numeric_limits<T>::max();
  return T(v < low ? low : v > most ? most : v);
}
s32 add_sat(s32 a, s32 b) { return clamped<s32>(s64(a) + b); }
s32 sub_sat(s32 a, s32 b) { return clamped<s32>(s64(a) - b); }
s32 mad_hi_sat(s32 a, s32 b, s32 c) { return clamped<s32>(s64(high(a, b)) + c); }

template <class T>
Wide<T> mul_wide(T a, T b) {
  return Wide<T>(a) * Wide<T>(b);
}
template <class T>
Wide<T> mad_wide(T a, T b, Wide<T> c) {
  return Wide<T>(bare(Wide<T>(a) * Wide<T>(b)) + bare(c));
}
template <class T>
Found widening(bool mad) {
  const std::string to = sizeof(T) == 4 ? "w" : "n";
  if (mad) return {&map<mad_wide<T>, Wide<T>, T, T, Wide<T>>, to + "nn" + to};
  return {&map<mul_wide<T>, Wide<T>, T, T>, to + "nn"};
}
Found widening(Type t, bool mad) {
  switch (t) {
    case Type::kU16:
      return widening<u16>(mad);
    case Type::kS16:
      return widening<s16>(mad);
    case Type::kU32:
      return widening<u32>(mad);
    case Type::kS32:
      return widening<s32>(mad);
    default:
      return {};
  }
}

template <bool is_signed_>
s64 low24(u32 a) {
  return is_signed_ ? s64(s32(a << 8) >> 8) : s64(a & 0xffffff);
}
template <bool is_signed_, bool high_>
u32 mul24(u32 a, u32 b) {
  return u32((low24<is_signed_>(a) * low24<is_signed_>(b)) >> (high_ ? 16 : 0));
}
template <bool is_signed_, bool high_>
u32 mad24(u32 a, u32 b, u32 c) {
  return mul24<is_signed_, high_>(a, b) + c;
}
template <bool is_signed_, bool high_>
Found multiply24(bool mad) {
  if (mad) return {&map<mad24<is_signed_, high_>, u32, u32, u32, u32>, "nnnn"};
  return {&map<mul24<is_signed_, high_>, u32, u32, u32>, "nnn"};
}

// Sums with a carry between words: i.mode holds what is added.
enum Carry : u8 { kIn = 1, kOut = 2, kMinus = 4, kProduct = 8, kHigh = 16 };

template <class T>
void carried(Warp& w, const Instr& i, Mask m) {
  using U = std::make_unsigned_t<T>;
  using W = unsigned __int128;
  constexpr unsigned bits = 8 * sizeof(T);
  auto* d = w.at<SlotOf<T>>(i.o[0]);
  const auto *a = w.at<SlotOf<T>>(i.o[1]), *b = w.at<SlotOf<T>>(i.o[2]),
             *c = w.at<SlotOf<T>>(i.o[3]);
  each(m, [&](unsigned l) {
    U x = U(a[l]), y = U(b[l]);
    if (i.mode & kProduct) {
      x = i.mode & kHigh ? U(high(T(a[l]), T(b[l]))) : U(x * y);
      y = U(c[l]);
    }
    const bool in = (i.mode & kIn) && ((w.carry >> l) & 1);
    const W sum = i.mode & kMinus ? W(x) - W(y) - W(in) : W(x) + W(y) + W(in);
    d[l] = U(sum);
    if (i.mode & kOut) w.carry = (w.carry & ~(1u << l)) | Mask((sum >> bits) & 1) << l;
  });
}

Found with_carry(const Name& n, Instr& i) {
  const bool product = n.base == "mad" || n.base == "madc", minus = n.base[0] == 's';
  i.mode = (n.base.back() == 'c' ? kIn : 0) | (n.has("cc") ? kOut : 0) | (minus ? kMinus : 0) |
           (product ? kProduct : 0) | (n.has("hi") ? kHigh : 0);
  const std::string shape = shape_of(n.type(), product ? 4 : 3);
  switch (n.type()) {
    case Type::kU32:
      return {&carried<u32>, shape};
    case Type::kS32:
      return {&carried<s32>, shape};
    case Type::kU64:
      return {&carried<u64>, shape};
    case Type::kS64:
      return {&carried<s64>, shape};
    default:
      return {};
  }
}

// dp4a and dp2a: i.from is the type of a, i.type that of b; i.mode: dp2a's upper half of b.
void dot(Warp& w, const Instr& i, Mask m) {
  auto* d = w.at<u32>(i.o[0]);
  const u32 *a = w.at<u32>(i.o[1]), *b = w.at<u32>(i.o[2]), *c = w.at<u32>(i.o[3]);
  const auto part = [](u32 v, unsigned k, unsigned bits, bool is_signed_) {
    const u32 shifted = v << (32 - bits * (k + 1));
    return is_signed_ ? s32(shifted) >> (32 - bits) : s32(shifted >> (32 - bits));
  };
  const unsigned n = i.count, wide = 32 / n;
  each(m, [&](unsigned l) {
    u32 sum = c[l];
    for (unsigned k = 0; k < n; ++k)
      sum += u32(part(a[l], k, wide, is_signed(i.from)) *
                 part(b[l], n == 2 ? k + 2 * i.mode : k, 8, is_signed(i.type)));
    d[l] = sum;
  });
}

}  // namespace

Found find_integer(const Name& n, Instr& i) {
  const Type t = n.type();
  const bool hi = n.has("hi"), wide = n.has("wide"), sat = n.has("sat");
  if (!is_integer(t)) return {};
  if (n.has("cc") || n.base == "addc" || n.base == "subc" || n.base == "madc")
    return with_carry(n, i);
  if (sat && t != Type::kS32) return {};
  if (n.base == "add") return sat ? Found{&map<add_sat, s32, s32, s32>, "nnn"} : all<add, 2>(t);
  if (n.base == "sub") return sat ? Found{&map<sub_sat, s32, s32, s32>, "nnn"} : all<sub, 2>(t);
  if (n.base == "mul")
    return wide ? widening(t, false) : hi ? all<mul_hi, 2>(t) : all<mul_lo, 2>(t);
  if (n.base == "mad" && sat)
    return hi ? Found{&map<mad_hi_sat, s32, s32, s32, s32>, "nnnn"} : Found{};
  if (n.base == "mad") return wide ? widening(t, true) : hi ? all<mad_hi, 3>(t) : all<mad_lo, 3>(t);
  if (n.base == "min" && !n.has("relu")) return all<minimum, 2>(t);
  if (n.base == "max" && !n.has("relu")) return all<maximum, 2>(t);
  if (n.base == "neg") return all<negate, 1>(t);
  if (n.base == "abs") return all<absolute, 1>(t);
  if (n.base == "sad") return all<sad, 3>(t);
  if (n.base == "div") return all<divide, 2>(t);
  if (n.base == "rem") return all<remainder_of, 2>(t);
  if (n.base == "mul24" || n.base == "mad24") {
    const bool mad = n.base[1] == 'a';
    if (is_signed(t)) return hi ? multiply24<true, true>(mad) : multiply24<true, false>(mad);
    return hi ? multiply24<false, true>(mad) : multiply24<false, false>(mad);
  }
  if (n.base == "dp4a" || n.base == "dp2a") {
    i.from = t, i.type = n.type(1), i.mode = hi, i.count = n.base == "dp4a" ? 4 : 2;
    return {&dot, "nnnn"};
  }
  return {};
}

}  // namespace emu
