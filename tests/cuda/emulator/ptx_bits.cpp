// SPDX-License-Identifier: Apache-2.0
// Logic, shifts and fields of bits; copies.
#include <algorithm>

#include "ptx_code.h"

namespace emu {
namespace {

template <auto f, int arity>
Found both(Type t) {  // of 16 bits in 32: what is above does not matter, or is the same
  if constexpr (arity == 1) {
    return is_wide(t) ? Found{&map<f, u64, u64>, "ww"} : Found{&map<f, u32, u32>, "nn"};
  } else {
    return is_wide(t) ? Found{&map<f, u64, u64, u64>, "www"} : Found{&map<f, u32, u32, u32>, "nnn"};
  }
}

constexpr auto bit_and = [](auto a, auto b) { return a & b; };
constexpr auto bit_or = [](auto a, auto b) { return a | b; };
constexpr auto bit_xor = [](auto a, auto b) { return a ^ b; };
constexpr auto bit_not = [](auto a) { return ~a; };
constexpr auto is_zero = [](auto a) { return decltype(a)(a == 0); };
constexpr auto copy = [](auto a) { return a; };

void nothing(Warp&, const Instr&, Mask) {}

enum Logic : u8 { kAnd, kOr, kXor, kNot, kCopy };
template <Logic logic>
void masks(Warp& w, const Instr& i, Mask m) {
  Mask& d = w.mask_at(i.o[0]);
  const Mask a = w.mask_at(i.o[1]), b = w.mask_at(i.o[2]);
  const Mask r = logic == kAnd   ? a & b
                 : logic == kOr  ? a | b
                 : logic == kXor ? a ^ b
                 : logic == kNot ? ~a
                                 : a;
  d = (d & ~m) | (r & m);
}

// Shifts by more than there is give zeros or signs.
template <class T>
T left(T a, u32 b) {
  return b < 8 * sizeof(T) ? T(a << b) : T(0);
}
template <class T>
T right(T a, u32 b) {
  constexpr u32 most = 8 * sizeof(T) - 1;
  if constexpr (std::is_signed_v<T>) return T(a >> (b < most ? b : most));
  return b <= most ? T(a >> b) : T(0);
}
template <class T>
Found shifted(bool to_left) {
  const std::string s = sizeof(T) == 8 ? "wwn" : "nnn";
  return {to_left ? &map<left<T>, T, T, u32> : &map<right<T>, T, T, u32>, s};
}
Found shift(const Name& n) {
  const bool l = n.base == "shl";
  switch (n.type()) {
    case Type::kU16:
      return shifted<u16>(l);
    case Type::kS16:
      return shifted<s16>(l);
    case Type::kU32:
      return shifted<u32>(l);
    case Type::kS32:
      return shifted<s32>(l);
    case Type::kU64:
      return shifted<u64>(l);
    case Type::kS64:
      return shifted<s64>(l);
    default:
      return {};
  }
}

template <bool to_left, bool wrap>
u32 funnel(u32 a, u32 b, u32 c) {
  const u32 n = wrap ? c & 31 : c < 32 ? c : 32;
  const u64 both_ = u64(b) << 32 | a;
  return to_left ? u32((both_ << n) >> 32) : u32(both_ >> n);
}

template <class T>
u32 ones(T a) {
  return u32(std::popcount(a));
}
template <class T>
u32 zeros(T a) {
  return u32(std::countl_zero(a));
}
// The highest bit that differs from the sign; all ones if there is none.
template <class T, bool amount>
u32 find(T a) {
  using U = std::make_unsigned_t<T>;
  const U v = std::is_signed_v<T> && a < 0 ? U(~a) : U(a);
  const int place = int(8 * sizeof(T)) - 1 - std::countl_zero(v);
  return place < 0 ? ~0u : amount ? u32(8 * sizeof(T)) - 1 - u32(place) : u32(place);
}
template <class T>
Found finder(bool amount) {
  const std::string s = sizeof(T) == 8 ? "nw" : "nn";
  return {amount ? &map<find<T, true>, u32, T> : &map<find<T, false>, u32, T>, s};
}
template <class T>
T reverse(T a) {
  T r = 0;
  for (unsigned k = 0; k < 8 * sizeof(T); ++k) r |= ((a >> k) & 1) << (8 * sizeof(T) - 1 - k);
  return r;
}
template <class T>
T extract(T a, u32 b, u32 c) {
  using U = std::make_unsigned_t<T>;
  constexpr u32 bits = 8 * sizeof(T);
  const u32 start = b & 0xff, length = c & 0xff;
  const bool sign = std::is_signed_v<T> && length > 0 &&
                    ((U(a) >> (start + length - 1 < bits - 1 ? start + length - 1 : bits - 1)) & 1);
  const u32 there = start < bits ? std::min(length, bits - start) : 0;
  const U field = there >= bits ? ~U(0) : (U(1) << there) - 1;
  const U r = start < bits ? (U(a) >> start) & field : 0;
  return T(sign ? r | ~field : r);
}
template <class T>
T insert(T a, T b, u32 c, u32 d) {
  constexpr u32 bits = 8 * sizeof(T);
  const u32 start = c & 0xff, length = d & 0xff;
  if (start >= bits || length == 0) return b;
  const T field = (length >= bits ? ~T(0) : (T(1) << length) - 1) << start;
  return (b & ~field) | ((a << start) & field);
}
// n-th bit that is set, from `base` on, upwards or downwards.
u32 find_nth(u32 mask, u32 base, u32 offset) {
  const s32 n = s32(offset);
  if (n == 0) return (mask >> (base & 31)) & 1 ? base : ~0u;
  const s32 step = n > 0 ? 1 : -1;
  s32 seen = 0;
  for (s32 k = s32(base); k >= 0 && k < 32; k += step)
    if (((mask >> k) & 1) && ++seen == n * step) return u32(k);
  return ~0u;
}
u32 lut3(u32 a, u32 b, u32 c, u32 table) {
  u32 r = 0;
  for (unsigned k = 0; k < 8; ++k)
    if ((table >> k) & 1) r |= (k & 4 ? a : ~a) & (k & 2 ? b : ~b) & (k & 1 ? c : ~c);
  return r;
}
u32 permute(u32 a, u32 b, u32 c) {
  const u64 both_ = u64(b) << 32 | a;
  u32 r = 0;
  for (unsigned k = 0; k < 4; ++k) {
    const u32 which = (c >> (4 * k)) & 15;
    u32 byte = u32(both_ >> (8 * (which & 7))) & 0xff;
    if (which & 8) byte = byte & 0x80 ? 0xff : 0;
    r |= byte << (8 * k);
  }
  return r;
}
// The modes of prmt that take the lowest two bits of c only.
template <int mode>
u32 permute_by(u32 a, u32 b, u32 c) {
  const u32 n = c & 3;
  static constexpr u32 selectors[6][4] = {
      {0x3210, 0x4321, 0x5432, 0x6543},  // f4e
      {0x5670, 0x6701, 0x7012, 0x0123},  // b4e
      {0x0000, 0x1111, 0x2222, 0x3333},  // rc8
      {0x3210, 0x3211, 0x3222, 0x3333},  // ecl
      {0x0000, 0x1110, 0x2210, 0x3210},  // ecr
      {0x1010, 0x3232, 0x1010, 0x3232},  // rc16
  };
  return permute(a, b, selectors[mode][n]);
}
Found permuting(const Name& n) {
  static const std::pair<const char*, Handler> modes[] = {
      {"f4e", &map<permute_by<0>, u32, u32, u32, u32>},
      {"b4e", &map<permute_by<1>, u32, u32, u32, u32>},
      {"rc8", &map<permute_by<2>, u32, u32, u32, u32>},
      {"ecl", &map<permute_by<3>, u32, u32, u32, u32>},
      {"ecr", &map<permute_by<4>, u32, u32, u32, u32>},
      {"rc16", &map<permute_by<5>, u32, u32, u32, u32>},
  };
  for (const auto& [word, handler] : modes)
    if (n.has(word)) return {handler, "nnnn"};
  return {&map<permute, u32, u32, u32, u32>, "nnnn"};
}
template <bool wrap>
u32 mask_of(u32 a, u32 b) {
  const u32 start = wrap ? a & 31 : a, length = wrap ? b & 31 : b;
  if (start >= 32 || length == 0) return 0;
  return (length >= 32 ? ~0u : (1u << length) - 1) << start;
}
template <class T, bool wrap>
T extend(T a, u32 b) {
  const u32 n = wrap ? b & 31 : b < 32 ? b : 32;
  if (n >= 32) return a;
  if (n == 0) return 0;
  return T(T(u32(a) << (32 - n)) >> (32 - n));
}

// Registers and the parts of a vector: i.count parts, o[1...] or o[0...].
template <bool pack>
void parts(Warp& w, const Instr& i, Mask m) {
  const bool wide = is_wide(i.type), wide_parts = bytes_of(i.type) / i.count == 8;
  const unsigned bits = unsigned(8 * bytes_of(i.type) / i.count);
  const u64 field = bits == 64 ? ~0ull : (1ull << bits) - 1;
  const auto read = [&](u32 o, bool w64, unsigned l) {
    return w64 ? w.at<u64>(o)[l] : w.at<u32>(o)[l];
  };
  const auto write = [&](u32 o, bool w64, unsigned l, u64 v) {
    if (w64)
      w.at<u64>(o)[l] = v;
    else
      w.at<u32>(o)[l] = u32(v);
  };
  each(m, [&](unsigned l) {
    u64 v = pack ? 0 : read(i.o[i.count], wide, l);
    for (unsigned k = 0; k < i.count; ++k) {
      if (pack)
        v |= (read(i.o[k + 1], wide_parts, l) & field) << (k * bits);
      else
        write(i.o[k], wide_parts, l, (v >> (k * bits)) & field);
    }
    if (pack) write(i.o[0], wide, l, v);
  });
}

}  // namespace

Handler mover(bool pack) { return pack ? &parts<true> : &parts<false>; }

Found find_bits(const Name& n, Instr&) {
  const Type t = n.type();
  const std::string& b = n.base;
  if (t == Type::kPred) {
    if (b == "and") return {&masks<kAnd>, "ppp"};
    if (b == "or") return {&masks<kOr>, "ppp"};
    if (b == "xor") return {&masks<kXor>, "ppp"};
    if (b == "not") return {&masks<kNot>, "pp"};
    if (b == "mov") return {&masks<kCopy>, "pp"};
    return {};
  }
  const bool wide = is_wide(t);
  if (b == "mov") return both<copy, 1>(t);
  if (b == "and") return both<bit_and, 2>(t);
  if (b == "or") return both<bit_or, 2>(t);
  if (b == "xor") return both<bit_xor, 2>(t);
  if (b == "not") return both<bit_not, 1>(t);
  if (b == "cnot" && t == Type::kU16) return {};
  if (b == "cnot") return both<is_zero, 1>(t);
  if (b == "shl" || b == "shr") return shift(n);
  if (b == "shf" && n.has("l"))
    return {n.has("wrap") ? &map<funnel<true, true>, u32, u32, u32, u32>
                          : &map<funnel<true, false>, u32, u32, u32, u32>,
            "nnnn"};
  if (b == "shf")
    return {n.has("wrap") ? &map<funnel<false, true>, u32, u32, u32, u32>
                          : &map<funnel<false, false>, u32, u32, u32, u32>,
            "nnnn"};
  if (b == "popc")
    return wide ? Found{&map<ones<u64>, u32, u64>, "nw"} : Found{&map<ones<u32>, u32, u32>, "nn"};
  if (b == "clz")
    return wide ? Found{&map<zeros<u64>, u32, u64>, "nw"} : Found{&map<zeros<u32>, u32, u32>, "nn"};
  if (b == "brev")
    return wide ? Found{&map<reverse<u64>, u64, u64>, "ww"}
                : Found{&map<reverse<u32>, u32, u32>, "nn"};
  if (b == "bfind") {
    const bool amount = n.has("shiftamt");
    if (wide) return is_signed(t) ? finder<s64>(amount) : finder<u64>(amount);
    return is_signed(t) ? finder<s32>(amount) : finder<u32>(amount);
  }
  if (b == "bfe") {
    if (wide)
      return {is_signed(t) ? &map<extract<s64>, s64, s64, u32, u32>
                           : &map<extract<u64>, u64, u64, u32, u32>,
              "wwnn"};
    return {is_signed(t) ? &map<extract<s32>, s32, s32, u32, u32>
                         : &map<extract<u32>, u32, u32, u32, u32>,
            "nnnn"};
  }
  if (b == "bfi")
    return wide ? Found{&map<insert<u64>, u64, u64, u64, u32, u32>, "wwwnn"}
                : Found{&map<insert<u32>, u32, u32, u32, u32, u32>, "nnnnn"};
  if (b == "fns") return {&map<find_nth, u32, u32, u32, u32>, "nnnn"};
  if (b == "lop3" && n.words.empty()) return {&map<lut3, u32, u32, u32, u32, u32>, "nnnnn"};
  if (b == "prmt") return permuting(n);
  if (b == "bmsk")
    return {
        n.has("wrap") ? &map<mask_of<true>, u32, u32, u32> : &map<mask_of<false>, u32, u32, u32>,
        "nnn"};
  if (b == "szext") {
    if (is_signed(t))
      return {n.has("wrap") ? &map<extend<s32, true>, s32, s32, u32>
                            : &map<extend<s32, false>, s32, s32, u32>,
              "nnn"};
    return {n.has("wrap") ? &map<extend<u32, true>, u32, u32, u32>
                          : &map<extend<u32, false>, u32, u32, u32>,
            "nnn"};
  }
  if (b == "nanosleep") return {&nothing, "n"};
  return {};
}

}  // namespace emu
