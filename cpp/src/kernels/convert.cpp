// SPDX-License-Identifier: Apache-2.0
// cast: x -> y of the same shape and layout, any element type to any other.
//   whole  what x is called if its elements must be whole numbers; default: they need not
#include "convert.h"

#include <array>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <type_traits>
#include <utility>

#include "nnl/kernel.h"
#include "nnl/threads.h"
#include "simd.h"

namespace nnl {
namespace {

struct Bool {
  uint8_t value;
};

// In the order of DType.
using Types = std::tuple<float, double, f16, bf16, int8_t, uint8_t, int16_t, uint16_t, int32_t,
                         uint32_t, int64_t, uint64_t, Bool>;
constexpr size_t kinds = std::tuple_size_v<Types>;

template <class T>
constexpr bool half = std::is_same_v<T, f16> || std::is_same_v<T, bf16>;

template <class T, class S>
inline T cast(S x) {
  if constexpr (std::is_same_v<S, T>) {
    return x;
  } else if constexpr (half<S>) {
    return cast<T>(to_float(x));
  } else if constexpr (std::is_same_v<S, Bool>) {
    return cast<T>(static_cast<int32_t>(x.value != 0));
  } else if constexpr (half<T>) {
    return from_float<T>(static_cast<float>(x));
  } else if constexpr (std::is_same_v<T, Bool>) {
    return Bool{static_cast<uint8_t>(x != S{})};
  } else if constexpr (std::is_floating_point_v<S> && std::is_integral_v<T> && sizeof(T) < 4) {
    return static_cast<T>(static_cast<int32_t>(x));  // negative numbers wrap
  } else if constexpr (std::is_floating_point_v<S> && std::is_same_v<T, uint32_t>) {
    return static_cast<T>(static_cast<int64_t>(x));
  } else {
    return static_cast<T>(x);
  }
}

template <class S, class T>
void convert(const void* from, void* to, int64_t n) {
  auto* x = static_cast<const S*>(from);
  auto* y = static_cast<T*>(to);
  if constexpr (std::is_same_v<S, T>) {
    if (x != static_cast<const void*>(y))
      std::memmove(to, from, static_cast<size_t>(n) * sizeof(S));
  } else if constexpr (half<S> && std::is_same_v<T, float>) {
    load(x, y, n);
  } else if constexpr (std::is_same_v<S, float> && half<T>) {
    store(x, y, n);
  } else if constexpr (half<S> && half<T>) {
    float block[512];
    for (int64_t i = 0; i < n; i += 512) {
      const int64_t m = std::min<int64_t>(512, n - i);
      load(x + i, block, m);
      store(block, y + i, m);
    }
  } else {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) y[i] = cast<T>(x[i]);
  }
}

template <size_t... I>
constexpr std::array<Convert, kinds * kinds> make_table(std::index_sequence<I...>) {
  return {
      convert<std::tuple_element_t<I / kinds, Types>, std::tuple_element_t<I % kinds, Types>>...};
}
constexpr auto table = make_table(std::make_index_sequence<kinds * kinds>());

// Whether n elements are whole numbers that int64 can hold. If not, `bad` is one that is none.
bool whole_numbers(const void* x, DType type, int64_t n, double& bad) {
  constexpr int64_t kBlock = 256;
  double block[kBlock];
  const Convert widen = conversion(type, DType::f64);
  for (int64_t i = 0; i < n; i += kBlock) {
    const int64_t m = std::min(kBlock, n - i);
    widen(at(x, type, i), block, m);
    for (int64_t k = 0; k < m; ++k) {
      const double v = block[k];
      if (v == std::trunc(v) && v >= -0x1p63 && v < 0x1p63) continue;
      bad = v;
      return false;
    }
  }
  return true;
}

class Cast : public Kernel {
 public:
  Cast(const Signature& s, std::string whole)
      : n_(s.in[0].size()), from_(s.in[0].dtype), to_(s.out[0].dtype), whole_(std::move(whole)) {}
  void run(const Buffers& b) override {
    const Convert f = conversion(from_, to_);
    std::atomic<bool> failed{false};
    std::atomic<double> bad{0};
    parallel_for(n_, 1 << 16, [&](int64_t begin, int64_t end) {
      const void* x = at(b.in[0], from_, begin);
      double found = 0;
      if (!whole_.empty() && !whole_numbers(x, from_, end - begin, found)) {
        bad = found;
        failed = true;
        return;
      }
      f(x, at(b.out[0], to_, begin), end - begin);
    });
    if (!failed) return;
    char text[32];
    std::snprintf(text, sizeof text, "%g", std::isnan(bad) ? std::fabs(bad) : bad.load());
    throw ValueError(whole_ + " holds " + text + ", wanted whole numbers from -2^63 to 2^63 - 1");
  }
  bool may_overwrite(size_t, size_t) const override { return bytes_of(from_) == bytes_of(to_); }

 private:
  int64_t n_;
  DType from_, to_;
  std::string whole_;
};

std::unique_ptr<Kernel> copy_kernel(const Signature& s, std::string whole) {
  if (s.in[0].shape != s.out[0].shape || s.in[0].layout != s.out[0].layout) return nullptr;
  return std::make_unique<Cast>(s, std::move(whole));
}
std::unique_ptr<Kernel> cast_kernel(const Signature& s) {
  return copy_kernel(s, s.attributes.has("whole") ? s.attributes.text("whole") : "");
}
std::unique_ptr<Kernel> at_most_kernel(const Signature& s) { return copy_kernel(s, ""); }
const Registration registration("cast", cast_kernel);
const Registration at_most("at_most", at_most_kernel);  // x as it is

}  // namespace

Convert conversion(DType from, DType to) {
  return table[static_cast<size_t>(from) * kinds + static_cast<size_t>(to)];
}

}  // namespace nnl
