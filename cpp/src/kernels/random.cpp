// SPDX-License-Identifier: Apache-2.0
// Random arrays and dropout. The numbers are those of the numpy definitions, bit for bit but for
// the rounding of sines and logarithms in randn.
#include "../random.h"

#include <algorithm>
#include <cmath>

#include "lanes.h"

namespace nnl {
namespace {

// Draws half words for elements [begin, end) of an array: f(i, halves, n) with n up to 512.
// begin is a multiple of 8.
template <class F>
void by_halves(const Philox& random, int64_t begin, int64_t end, F&& f) {
  constexpr int64_t most = 512;
  uint32_t h[most];
  for (int64_t i = begin; i < end; i += most) {
    const int64_t n = std::min(most, end - i);
    for (int64_t k = 0; k < n; k += 8) random.halves((i + k) / 8, h + k);
    f(i, h, n);
  }
}

// f(begin, end) over [0, n) in parts that begin at multiples of `unit`.
template <class F>
void by_units(int64_t n, int64_t unit, F&& f) {
  const int64_t units = (n + unit - 1) / unit;
  parallel_for(units, std::max<int64_t>(1, 4096 / unit),
               [&](int64_t begin, int64_t end) { f(begin * unit, std::min(n, end * unit)); });
}

uint64_t* state_of(const Buffers& b, size_t i) { return b.written_input<uint64_t>(i); }

// ---- dropout ----

NNL_INLINE Lanes mask_of(const uint8_t* m, int64_t n) {
  uint8_t part[kLanes] = {};
  std::memcpy(part, m, static_cast<size_t>(n));
  uint8_t __attribute__((vector_size(16))) v;
  std::memcpy(&v, part, sizeof(v));
  return __builtin_convertvector(v, Lanes);
}

template <class P>
void scale_masked(P x, const uint8_t* mask, P y, float scale, int64_t n) {
  by_lanes(n, [&](int64_t i, int64_t lanes, auto whole) {
    const Lanes m = mask_of(mask + i, whole() ? int64_t{kLanes} : lanes);
    put<whole()>(y + i, get<whole()>(x + i, lanes) * m * scale, lanes);
  });
}

template <class P>
class Dropout : public Kernel {
 public:
  Dropout(const Signature& s, double p)
      : in_(s.in[0]),
        out_(s.out[0]),
        scale_(static_cast<float>(1.0 / (1.0 - p))),
        least_(static_cast<uint32_t>(std::min(p * 0x1p32, 0x1p32 - 1))) {}
  bool may_overwrite(size_t o, size_t i) const override {
    return o == 0 && i == 0 && in_.dtype == out_.dtype;
  }
  void run(const Buffers& b) override {
    const int64_t n = in_.size();
    const Philox random = Philox::take(state_of(b, 1), (n + 1) / 2);
    const P x = pointer<P>(b.in[0], in_.dtype), y = pointer<P>(b.out[0], out_.dtype);
    uint8_t* mask = b.output<uint8_t>(1);
    by_units(n, 8, [&](int64_t begin, int64_t end) {
      by_halves(random, begin, end, [&](int64_t i, const uint32_t* h, int64_t size) {
#pragma omp simd
        for (int64_t k = 0; k < size; ++k) mask[i + k] = h[k] >= least_;
        scale_masked(x + i, mask + i, y + i, scale_, size);
      });
    });
  }

 private:
  const Spec in_, out_;
  const float scale_;
  const uint32_t least_;
};

std::unique_ptr<Kernel> dropout(const Signature& s) {
  if (!is_real(s.in[0].dtype) || !is_real(s.out[0].dtype)) return nullptr;
  for (const Spec* q : {&s.out[0], &s.out[1]})  // numbers are dealt out in the plain order
    if (q->layout != Layout::plain || s.in[0].layout != Layout::plain) return nullptr;
  return with_pointer(
      common_type({&s.in[0], &s.out[0]}), [&](auto type) -> std::unique_ptr<Kernel> {
        return std::make_unique<Dropout<decltype(type)>>(s, s.attributes.number("p"));
      });
}

// ---- arrays ----

template <class T>
T below(float high, float low) {  // the largest T under `high`, as numpy.nextafter
  const T top = from_float<T>(high);
  if (!(to_float(top) > to_float(from_float<T>(low)))) return top;
  using U = std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t>;
  U u;
  std::memcpy(&u, &top, sizeof(u));
  const U sign = static_cast<U>(U{1} << (8 * sizeof(U) - 1));
  if ((u & static_cast<U>(~sign)) == 0)
    u = static_cast<U>(sign | 1u);
  else
    u = static_cast<U>(u & sign ? u + 1 : u - 1);
  T y;
  std::memcpy(&y, &u, sizeof(y));
  return y;
}

template <class T>
class Rand : public Kernel {
 public:
  Rand(int64_t n, double low, double high)
      : n_(n),
        low_(static_cast<float>(low)),
        range_(static_cast<float>(high - low)),
        most_(below<T>(static_cast<float>(high), static_cast<float>(low))) {}
  void run(const Buffers& b) override {
    const Philox random = Philox::take(state_of(b, 0), (n_ + 1) / 2);
    T* y = b.output<T>();
    by_units(n_, 8, [&](int64_t begin, int64_t end) {
      by_halves(random, begin, end, [&](int64_t i, const uint32_t* h, int64_t size) {
        float scaled[512];  // rounded here: no fused multiplication and addition, as in numpy
        for (int64_t k = 0; k < size; ++k) scaled[k] = uniform(h[k]) * range_;
        for (int64_t k = 0; k < size; ++k) {
          const T v = from_float<T>(scaled[k] + low_);
          y[i + k] = to_float(v) > to_float(most_) ? most_ : v;
        }
      });
    });
  }

 private:
  const int64_t n_;
  const float low_, range_;
  const T most_;
};

class Randint : public Kernel {
 public:
  Randint(int64_t n, int64_t low, int64_t high) : n_(n), low_(low), range_(high - low) {}
  void run(const Buffers& b) override {
    const Philox random = Philox::take(state_of(b, 0), n_);
    int32_t* y = b.output<int32_t>();
    by_units(n_, 4, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; i += 4) {
        uint64_t w[4];
        random.block(static_cast<uint64_t>(i) / 4, w);
        for (int64_t k = 0; k < std::min<int64_t>(4, end - i); ++k)
          y[i + k] = static_cast<int32_t>(
              static_cast<int64_t>(std::floor(uniform(w[k]) * static_cast<double>(range_))) + low_);
      }
    });
  }

 private:
  const int64_t n_, low_, range_;
};

// Box and Muller: pair i is made of words i and half + i.
template <class T>
class Randn : public Kernel {
 public:
  Randn(int64_t n, double mu, double sigma)
      : n_(n), mu_(static_cast<float>(mu)), sigma_(static_cast<float>(sigma)) {}
  void run(const Buffers& b) override {
    const int64_t half = (n_ + 1) / 2;
    const Philox random = Philox::take(state_of(b, 0), 2 * half);
    T* y = b.output<T>();
    parallel_for(half, 128, [&](int64_t begin, int64_t end) {
      uint64_t u[kPairs] = {}, v[kPairs] = {};
      for (int64_t i = begin; i < end; i += kPairs) {
        const int64_t n = std::min(kPairs, end - i);
        random.words(i, n, u);
        random.words(half + i, n, v);
        float first[kPairs], second[kPairs];
        by_pairs(u, v, first, second);
        for (int64_t k = 0; k < n; ++k) {
          const int64_t o = 2 * (i + k);
          y[o] = from_float<T>(first[k] * sigma_ + mu_);
          if (o + 1 < n_) y[o + 1] = from_float<T>(second[k] * sigma_ + mu_);
        }
      }
    });
  }

 private:
  static constexpr int64_t kPairs = 64;

  // sqrt(-2 log(1 - u)) times cosine and sine of 2 pi v, by series that float rounds. Exponents and
  // differences are taken in double, where they are exact.
  static void by_pairs(const uint64_t* u, const uint64_t* v, float* first, float* second) {
    float m[kPairs], e[kPairs], r[kPairs], quarter[kPairs];
    for (int64_t k = 0; k < kPairs; ++k) {
      const double x = 1.0 - uniform(u[k]);  // from 2^-53 to 1, exact
      uint64_t shift;
      std::memcpy(&shift, &x, 8);
      shift -= 0x3fe6a09e667f3bcdu;  // from the square root of 1/2 on
      const uint64_t rest = (shift & 0xfffffffffffffu) + 0x3fe6a09e667f3bcdu;
      // the exponent in the lowest bits of 1.5 * 2^52, which takes it back to a number
      const uint64_t whole = 0x4338000000000000u + (shift >> 52) - (shift >> 63 << 12);
      double mantissa, exponent;
      std::memcpy(&mantissa, &rest, 8);
      std::memcpy(&exponent, &whole, 8);
      m[k] = static_cast<float>(mantissa - 1.0);
      e[k] = static_cast<float>(exponent - 6755399441055744.0);
      const double turns = 4.0 * uniform(v[k]), nearest = std::floor(turns + 0.5);
      r[k] = static_cast<float>((turns - nearest) * 1.57079632679489661923);
      quarter[k] = static_cast<float>(nearest);
    }
    for (int64_t k = 0; k < kPairs; ++k) {
      const float s = m[k] / (m[k] + 2.0f), z = s * s;
      float p = 2.0f / 11;
      for (const float c : {2.0f / 9, 2.0f / 7, 2.0f / 5, 2.0f / 3}) p = p * z + c;
      const float log = e[k] * 0.693147180559945309417f + (2.0f * s + s * z * p);
      const float radius = std::sqrt(-2.0f * log), q = r[k] * r[k];
      const float sine =
          r[k] +
          r[k] * q * (-1.0f / 6 + q * (1.0f / 120 + q * (-1.0f / 5040 + q * (1.0f / 362880))));
      const float cosine = 1.0f + q * (-0.5f + q * (1.0f / 24 + q * (-1.0f / 720 + q / 40320)));
      const bool odd = quarter[k] == 1.0f || quarter[k] == 3.0f;
      const float c = odd ? sine : cosine, d = odd ? cosine : sine;
      first[k] = radius * (quarter[k] == 1.0f || quarter[k] == 2.0f ? -c : c);
      second[k] = radius * (quarter[k] == 2.0f || quarter[k] == 3.0f ? -d : d);
    }
  }

  const int64_t n_;
  const float mu_, sigma_;
};

template <template <class> class K>
std::unique_ptr<Kernel> drawn(const Spec& y, double a, double b) {
  const int64_t n = y.size();
  if (y.layout != Layout::plain) return nullptr;
  if (y.dtype == DType::f32) return std::make_unique<K<float>>(n, a, b);
  if (y.dtype == DType::bf16) return std::make_unique<K<bf16>>(n, a, b);
  if (y.dtype == DType::f16) return std::make_unique<K<f16>>(n, a, b);
  return nullptr;
}

std::unique_ptr<Kernel> rand(const Signature& s) {
  return drawn<Rand>(s.out[0], s.attributes.number("low"), s.attributes.number("high"));
}
std::unique_ptr<Kernel> randn(const Signature& s) {
  return drawn<Randn>(s.out[0], s.attributes.number("mu"), s.attributes.number("sigma"));
}
std::unique_ptr<Kernel> randint(const Signature& s) {
  if (s.out[0].layout != Layout::plain || s.out[0].dtype != DType::i32) return nullptr;
  return std::make_unique<Randint>(s.out[0].size(), s.attributes.integer("low"),
                                   s.attributes.integer("high"));
}

const Registration registrations[] = {
    {"dropout", dropout},
    {"rand", rand},
    {"randint", randint},
    {"randn", randn},
};

}  // namespace
}  // namespace nnl
