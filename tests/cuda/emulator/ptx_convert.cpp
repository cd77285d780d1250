// SPDX-License-Identifier: Apache-2.0
// cvt: a value is read into 64 bits, changed there, and written.
#include <limits>

#include "ptx_rounding.h"

namespace emu {
namespace {

using Values = u64[kLanes];

template <class T, class Slot>
void read(const Slot* s, u64* v) {
  for (unsigned l = 0; l < kLanes; ++l) v[l] = u64(s64(T(s[l])));
}
template <class T>
void read(Warp& w, u32 place, bool wide, u64* v) {
  if (wide)
    read<T>(w.at<u64>(place), v);
  else
    read<T>(w.at<u32>(place), v);
}
void read(Warp& w, u32 place, bool wide, Type t, u64* v) {
  switch (t) {
    case Type::kS8:
      return read<s8>(w, place, wide, v);
    case Type::kU8:
      return read<u8>(w, place, wide, v);
    case Type::kS16:
      return read<s16>(w, place, wide, v);
    case Type::kU16:
    case Type::kF16:
    case Type::kBF16:
      return read<u16>(w, place, wide, v);
    case Type::kS32:
      return read<s32>(w, place, wide, v);
    case Type::kU64:
    case Type::kS64:
    case Type::kF64:
      return read<u64>(w, place, wide, v);
    default:
      return read<u32>(w, place, wide, v);
  }
}
void write(Warp& w, u32 place, bool wide, const u64* v, Mask m) {
  if (wide) {
    u64* d = w.at<u64>(place);
    for (unsigned l = 0; l < kLanes; ++l) d[l] = (m >> l) & 1 ? v[l] : d[l];
  } else {
    u32* d = w.at<u32>(place);
    for (unsigned l = 0; l < kLanes; ++l) d[l] = (m >> l) & 1 ? u32(v[l]) : d[l];
  }
}

u64 extended(u64 v, Type t) {  // what a register holds that is wider than the result
  switch (t) {
    case Type::kS8:
      return u64(s64(s8(v)));
    case Type::kU8:
      return u8(v);
    case Type::kS16:
      return u64(s64(s16(v)));
    case Type::kU16:
      return u16(v);
    case Type::kS32:
      return u64(s64(s32(v)));
    case Type::kU32:
      return u32(v);
    default:
      return v;
  }
}

struct Limits {
  s64 low;
  u64 most;
};
Limits limits(Type t) {
  const unsigned bits = unsigned(8 * bytes_of(t)) - is_signed(t);
  const u64 most = bits == 64 ? ~0ull : (1ull << bits) - 1;
  return {is_signed(t) ? -s64(most) - 1 : 0, most};
}

void integer_to_integer(const Instr& i, u64* v) {
  if (i.sat) {
    const Limits to = limits(i.type);
    for (unsigned l = 0; l < kLanes; ++l) {
      const bool negative = is_signed(i.from) && s64(v[l]) < 0;
      if (negative)
        v[l] = s64(v[l]) < to.low ? u64(to.low) : v[l];
      else
        v[l] = v[l] > to.most ? to.most : v[l];
    }
  }
  for (unsigned l = 0; l < kLanes; ++l) v[l] = extended(v[l], i.type);
}

double real(u64 v, Type t) {
  switch (t) {
    case Type::kF16:
      return to_float(Half{u16(v)});
    case Type::kBF16:
      return to_float(Brain{u16(v)});
    case Type::kF32:
      return std::bit_cast<float>(u32(v));
    default:
      return std::bit_cast<double>(v);
  }
}

double to_integral(double x, Round r) {
  switch (r) {
    case Round::kNearest:
      return std::nearbyint(x);
    case Round::kZero:
      return std::trunc(x);
    case Round::kDown:
      return std::floor(x);
    default:
      return std::ceil(x);
  }
}

u64 real_to_integer(double x, const Instr& i) {
  const Limits to = limits(i.type);
  if (x != x) {
    const bool zero = i.from != Type::kF64 && bytes_of(i.type) != 8;
    return zero ? 0 : extended(1ull << (8 * bytes_of(i.type) - 1), i.type);
  }
  x = to_integral(x, i.round);
  if (x <= double(to.low)) return extended(u64(to.low), i.type);
  if (x >= double(to.most)) return extended(to.most, i.type);
  return extended(is_signed(i.type) ? u64(s64(x)) : u64(x), i.type);
}

// To a type of floating point, rounded once.
u64 real_to_real(double x, const Instr& i) {
  if (i.ftz && i.from == Type::kF32) x = flushed(float(x));
  if (i.integral && x == x) x = std::copysign(to_integral(x, i.round), x);
  if (i.sat) x = x > 0 ? (x < 1 ? x : 1.0) : 0.0;
  if (i.mode && !(x > 0) && x == x) x = 0;  // relu
  const Round r = i.integral ? Round::kNearest : i.round;
  switch (i.type) {
    case Type::kF16:
      return half_of(x, r).bits;
    case Type::kBF16:
      return brain_of(x, r).bits;
    case Type::kF32: {
      if (x != x) return kNaN;
      float y;
      {
        const Rounding rounding(r);
        y = opaque(float(opaque(x)));
      }
      return std::bit_cast<u32>(i.ftz ? flushed(y) : y);
    }
    default:
      return std::bit_cast<u64>(x);
  }
}

template <class T>
T integer_as(u64 v, bool negative, Round r) {
  const Rounding rounding(r);
  const long double exact = negative ? (long double)(s64(v)) : (long double)(v);  // 64 bits fit
  return opaque(T(opaque(exact)));
}
u64 integer_to_real(u64 v, const Instr& i) {
  const bool negative = is_signed(i.from) && s64(v) < 0;
  switch (i.type) {
    case Type::kF32:
      return std::bit_cast<u32>(integer_as<float>(v, negative, i.round));
    case Type::kF64:
      return std::bit_cast<u64>(integer_as<double>(v, negative, i.round));
    case Type::kF16:
    case Type::kBF16: {
      // Integers of more than 53 bits are above what a tie of 11 bits could come from.
      double x = negative ? -double(-v) : double(v);
      if (const u64 n = negative ? -v : v; n >> 53)
        x = std::copysign(double((n >> 10) | ((n & 1023) != 0)) * 1024, x);
      return i.type == Type::kF16 ? half_of(x, i.round).bits : brain_of(x, i.round).bits;
    }
    default:
      return 0;
  }
}

bool is_real(Type t) {
  return t == Type::kF16 || t == Type::kBF16 || t == Type::kF32 || t == Type::kF64;
}

void convert(Warp& w, const Instr& i, Mask m) {
  alignas(64) Values v;
  read(w, i.o[1], i.wide & 2, i.from, v);
  if (!is_real(i.from) && !is_real(i.type))
    integer_to_integer(i, v);
  else if (!is_real(i.from))
    each(m, [&](unsigned l) { v[l] = integer_to_real(v[l], i); });
  else if (!is_real(i.type))
    each(m, [&](unsigned l) {
      double x = real(v[l], i.from);
      if (i.ftz && i.from == Type::kF32) x = flushed(float(x));
      v[l] = real_to_integer(x, i);
    });
  else
    each(m, [&](unsigned l) { v[l] = real_to_real(real(v[l], i.from), i); });
  write(w, i.o[0], i.wide & 1, v, m);
}

// cvt.rn.f16x2.f32 d, a, b: a becomes the upper half.
void convert_pair(Warp& w, const Instr& i, Mask m) {
  u32* d = w.at<u32>(i.o[0]);
  const u32 *a = w.at<u32>(i.o[1]), *b = w.at<u32>(i.o[2]);
  each(m, [&](unsigned l) {
    const u64 high = real_to_real(std::bit_cast<float>(a[l]), i);
    d[l] = u32(high << 16 | real_to_real(std::bit_cast<float>(b[l]), i));
  });
}

// The common ones, many lanes at a time.
template <class To, class From>
Found quick() {
  constexpr auto f = [](From x) { return To(x); };
  return {&map<f, To, From>,
          std::string(sizeof(To) == 8 ? "w" : "n") + (sizeof(From) == 8 ? "w" : "n")};
}
float widen(Half x) { return canonical(to_float(x)); }
float widen_brain(Brain x) { return canonical(to_float(x)); }
Half narrow(float x) { return {x == x ? std::bit_cast<u16>(_Float16(x)) : u16(0x7fff)}; }
Brain narrow_brain(float x) {
  const u32 u = std::bit_cast<u32>(x);
  return {u16(x == x ? (u + 0x7fff + ((u >> 16) & 1)) >> 16 : 0x7fff)};
}
float narrow_double(double x) { return canonical(float(x)); }
float narrow_double_flushed(double x) { return canonical(flushed(float(x))); }

Found quickly(const Instr& i) {
  if (i.sat || i.mode || i.integral || i.round != Round::kNearest) return {};
  const auto is = [&](Type to, Type from) { return i.type == to && i.from == from; };
  if (is(Type::kF32, Type::kF16)) return {&map<widen, float, Half>, "nn"};
  if (is(Type::kF32, Type::kBF16)) return {&map<widen_brain, float, Brain>, "nn"};
  if (is(Type::kF32, Type::kF64))
    return {i.ftz ? &map<narrow_double_flushed, float, double> : &map<narrow_double, float, double>,
            "nw"};
  if (is(Type::kF32, Type::kS32)) return quick<float, s32>();
  if (is(Type::kF32, Type::kU32)) return quick<float, u32>();
  if (is(Type::kF32, Type::kS64)) return quick<float, s64>();
  if (is(Type::kF64, Type::kS32)) return quick<double, s32>();
  if (is(Type::kF64, Type::kU32)) return quick<double, u32>();
  if (is(Type::kF64, Type::kS64)) return quick<double, s64>();
  if (i.ftz) return {};
  if (is(Type::kF16, Type::kF32)) return {&map<narrow, Half, float>, "nn"};
  if (is(Type::kBF16, Type::kF32)) return {&map<narrow_brain, Brain, float>, "nn"};
  if (is(Type::kF64, Type::kF32)) return quick<double, float>();
  return {};
}

}  // namespace

Found find_convert(const Name& n, Instr& i) {
  if (n.base != "cvt") return {};
  i.type = n.type(0), i.from = n.type(1);
  i.ftz = n.has("ftz"), i.sat = n.has("sat"), i.mode = n.has("relu");
  for (const auto& [word, r] : {std::pair("rni", Round::kNearest), std::pair("rzi", Round::kZero),
                                std::pair("rmi", Round::kDown), std::pair("rpi", Round::kUp)})
    if (n.has(word)) i.round = r, i.integral = true;
  for (const auto& [word, r] :
       {std::pair("rz", Round::kZero), std::pair("rm", Round::kDown), std::pair("rp", Round::kUp)})
    if (n.has(word)) i.round = r;
  if (n.has("satfinite") || n.has("rs") || n.has("rna")) return {};
  if (i.type == Type::kF16x2 || i.type == Type::kBF16x2) {
    if (i.from != Type::kF32) return {};
    i.type = i.type == Type::kF16x2 ? Type::kF16 : Type::kBF16;
    return {&convert_pair, "nnn"};
  }
  if ((!is_real(i.type) && !is_integer(i.type)) || (!is_real(i.from) && !is_integer(i.from)))
    return {};
  if (const Found found = quickly(i); found.run) return found;
  return {&convert, "xx"};
}

}  // namespace emu
