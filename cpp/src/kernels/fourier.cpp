// SPDX-License-Identifier: Apache-2.0
// Fourier transforms of complex signals, float32.
//
//   y_k = c sum_n x_n exp(-2 pi i (k_1 n_1 / N_1 + ...)), of the inverse exp(+...)
//
//   Inputs, outputs: x, y (*batch, N_1, ..., N_d, 2). Attributes: signal_ndim d, normalized.
//
// Axis by axis. Several lines go through the passes side by side, real and imaginary parts apart,
// so that the innermost loop runs over lines at first and over ever longer rows of them: Stockham's
// order, in which nothing is sorted. A pass has a radix of 8, 4, 2, 3, 5 or another small prime;
// lengths with larger ones become a convolution of a power of two, as Bluestein has it. Factors
// come from double.
#include <cmath>
#include <complex>
#include <vector>

#include "nnl/kernel.h"
#include "nnl/threads.h"
#include "space.h"
#include "vector16.h"

namespace nnl {
namespace {

constexpr int64_t lanes = 16, most_values = 1 << 14;  // of lines side by side

struct Parts {
  float* re;
  float* im;
};

// exp(-2 pi i k / n)
std::complex<double> root(int64_t k, int64_t n) {
  const double t =
      -2 * 3.14159265358979323846 * static_cast<double>(k % n) / static_cast<double>(n);
  return {std::cos(t), std::sin(t)};
}

struct Pass {
  int64_t radix, rest;                      // rest: groups, length before / radix
  std::vector<std::complex<float>> factor;  // (rest, radix)
  std::vector<std::complex<float>> roots;   // of the radix
};

// The sum over the elements of an odd radix, those at equal distance from 0 together, times
// factors; rows of m lines.
template <int64_t r>
void by_odd(const Pass& p, int64_t m, Parts x, Parts y) {
  constexpr int64_t h = r / 2;
  const int64_t l = p.rest, n = m * l;
  float c[r], s[r];
  for (int64_t q = 0; q < r; ++q) c[q] = p.roots[q].real(), s[q] = p.roots[q].imag();
  for (int64_t j = 0; j < l; ++j) {
    const std::complex<float>* w = p.factor.data() + j * r;
    const float *xr = x.re + m * j, *xi = x.im + m * j;
    float *yr = y.re + m * r * j, *yi = y.im + m * r * j;
#pragma omp simd
    for (int64_t k = 0; k < m; ++k) {
      float ar[h], ai[h], br[h], bi[h];  // sums and differences
      const float zr = xr[k], zi = xi[k];
      float tr = zr, ti = zi;
      for (int64_t i = 0; i < h; ++i) {
        const int64_t u = k + n * (i + 1), v = k + n * (r - 1 - i);
        ar[i] = xr[u] + xr[v], ai[i] = xi[u] + xi[v];
        br[i] = xr[u] - xr[v], bi[i] = xi[u] - xi[v];
        tr += ar[i], ti += ai[i];
      }
      yr[k] = tr, yi[k] = ti;
      for (int64_t q = 1; q <= h; ++q) {
        float er = zr, ei = zi, or_ = 0, oi = 0;
        for (int64_t i = 0; i < h; ++i) {
          const int64_t at = (i + 1) * q % r;
          er += ar[i] * c[at], ei += ai[i] * c[at];
          or_ -= bi[i] * s[at], oi += br[i] * s[at];
        }
        const float ur = er + or_, ui = ei + oi, vr = er - or_, vi = ei - oi;
        yr[k + m * q] = ur * w[q].real() - ui * w[q].imag();
        yi[k + m * q] = ur * w[q].imag() + ui * w[q].real();
        yr[k + m * (r - q)] = vr * w[r - q].real() - vi * w[r - q].imag();
        yi[k + m * (r - q)] = vr * w[r - q].imag() + vi * w[r - q].real();
      }
    }
  }
}

void by_two(const Pass& p, int64_t m, Parts x, Parts y) {
  const int64_t l = p.rest;
  for (int64_t j = 0; j < l; ++j) {
    const float c = p.factor[static_cast<size_t>(2 * j + 1)].real();
    const float s = p.factor[static_cast<size_t>(2 * j + 1)].imag();
    const float *ar = x.re + m * j, *ai = x.im + m * j;
    const float *br = ar + m * l, *bi = ai + m * l;
    float *ur = y.re + m * 2 * j, *ui = y.im + m * 2 * j, *vr = ur + m, *vi = ui + m;
#pragma omp simd
    for (int64_t k = 0; k < m; ++k) {
      const float dr = ar[k] - br[k], di = ai[k] - bi[k];
      ur[k] = ar[k] + br[k];
      ui[k] = ai[k] + bi[k];
      vr[k] = dr * c - di * s;
      vi[k] = dr * s + di * c;
    }
  }
}

void by_four(const Pass& p, int64_t m, Parts x, Parts y) {
  const int64_t l = p.rest;
  for (int64_t j = 0; j < l; ++j) {
    const std::complex<float>* w = p.factor.data() + 4 * j;
    const float c1 = w[1].real(), s1 = w[1].imag(), c2 = w[2].real(), s2 = w[2].imag();
    const float c3 = w[3].real(), s3 = w[3].imag();
    const float *xr = x.re + m * j, *xi = x.im + m * j;
    float *yr = y.re + m * 4 * j, *yi = y.im + m * 4 * j;
    const int64_t n = m * l;
#pragma omp simd
    for (int64_t k = 0; k < m; ++k) {
      const float pr = xr[k] + xr[k + 2 * n], pi = xi[k] + xi[k + 2 * n];
      const float qr = xr[k] - xr[k + 2 * n], qi = xi[k] - xi[k + 2 * n];
      const float rr = xr[k + n] + xr[k + 3 * n], ri = xi[k + n] + xi[k + 3 * n];
      // -i times the difference
      const float sr = xi[k + n] - xi[k + 3 * n], si = xr[k + 3 * n] - xr[k + n];
      const float ar = qr + sr, ai = qi + si, br = pr - rr, bi = pi - ri;
      const float dr = qr - sr, di = qi - si;
      yr[k] = pr + rr;
      yi[k] = pi + ri;
      yr[k + m] = ar * c1 - ai * s1;
      yi[k + m] = ar * s1 + ai * c1;
      yr[k + 2 * m] = br * c2 - bi * s2;
      yi[k + 2 * m] = br * s2 + bi * c2;
      yr[k + 3 * m] = dr * c3 - di * s3;
      yi[k + 3 * m] = dr * s3 + di * c3;
    }
  }
}

// One element, or 16 of them.
inline void get(const float* p, float& v) { v = *p; }
inline void get(const float* p, v16& v) { load16(p, v); }
inline void put(float* p, const float& v) { *p = v; }
inline void put(float* p, const v16& v) { store16(p, v); }

// The four frequencies of a, -i a being (im, -re).
template <class T>
inline __attribute__((always_inline)) void four(const T* ar, const T* ai, T* yr, T* yi) {
  const T pr = ar[0] + ar[2], pi = ai[0] + ai[2], qr = ar[0] - ar[2], qi = ai[0] - ai[2];
  const T rr = ar[1] + ar[3], ri = ai[1] + ai[3], sr = ai[1] - ai[3], si = ar[3] - ar[1];
  yr[0] = pr + rr, yi[0] = pi + ri, yr[1] = qr + sr, yi[1] = qi + si;
  yr[2] = pr - rr, yi[2] = pi - ri, yr[3] = qr - sr, yi[3] = qi - si;
}

// Even frequencies are those of the sums of opposite elements, odd ones of turned differences.
template <class T>
inline __attribute__((always_inline)) void eight(const std::complex<float>* w, int64_t m, int64_t n,
                                                 Parts x, Parts y) {
  constexpr float half_root = 0.70710678118654752f;
  T ar[4], ai[4], br[4], bi[4], er[4], ei[4], or_[4], oi[4];
  for (int64_t i = 0; i < 4; ++i) {
    T ur, ui, vr, vi;
    get(x.re + n * i, ur), get(x.im + n * i, ui);
    get(x.re + n * (i + 4), vr), get(x.im + n * (i + 4), vi);
    ar[i] = ur + vr, ai[i] = ui + vi, br[i] = ur - vr, bi[i] = ui - vi;
  }
  const T r1 = half_root * (br[1] + bi[1]), i1 = half_root * (bi[1] - br[1]);
  const T r3 = half_root * (bi[3] - br[3]), i3 = -half_root * (br[3] + bi[3]), r2 = bi[2];
  bi[2] = -br[2], br[2] = r2, br[1] = r1, bi[1] = i1, br[3] = r3, bi[3] = i3;
  four(ar, ai, er, ei);
  four(br, bi, or_, oi);
  put(y.re, er[0]), put(y.im, ei[0]);
  for (int64_t q = 1; q < 8; ++q) {
    const T ur = q % 2 ? or_[q / 2] : er[q / 2], ui = q % 2 ? oi[q / 2] : ei[q / 2];
    put(y.re + m * q, T(ur * w[q].real() - ui * w[q].imag()));
    put(y.im + m * q, T(ur * w[q].imag() + ui * w[q].real()));
  }
}

void by_eight(const Pass& p, int64_t m, Parts x, Parts y) {
  for (int64_t j = 0; j < p.rest; ++j) {
    const std::complex<float>* w = p.factor.data() + 8 * j;
    const int64_t from = m * j, to = 8 * m * j, n = m * p.rest;
    int64_t k = 0;
    for (; k + 16 <= m; k += 16)
      eight<v16>(w, m, n, {x.re + from + k, x.im + from + k}, {y.re + to + k, y.im + to + k});
    for (; k < m; ++k)
      eight<float>(w, m, n, {x.re + from + k, x.im + from + k}, {y.re + to + k, y.im + to + k});
  }
}

using Run = void (*)(const Pass&, int64_t, Parts, Parts);

Run run_of(int64_t radix) {
  switch (radix) {
    case 2:
      return by_two;
    case 3:
      return by_odd<3>;
    case 4:
      return by_four;
    case 5:
      return by_odd<5>;
    case 7:
      return by_odd<7>;
    case 8:
      return by_eight;
    case 11:
      return by_odd<11>;
    default:
      return by_odd<13>;
  }
}

// Transforms of lines of one length.
class Lines {
 public:
  explicit Lines(int64_t n) : n_(n), padded_(n) {
    if (passes_of(n) == 1) return;
    passes_.clear();
    for (padded_ = 1; padded_ < 2 * n - 1;) padded_ *= 2;
    passes_of(padded_);
    const auto size = static_cast<size_t>(padded_);
    chirp_.resize(static_cast<size_t>(n));
    std::vector<float> space(4 * size, 0.0f);
    Parts b{space.data(), space.data() + size}, free{b.re + 2 * size, b.im + 2 * size};
    for (int64_t k = 0; k < n; ++k) {  // exp(-pi i k^2 / n)
      const std::complex<double> c = root(k * k % (2 * n), 2 * n);
      chirp_[static_cast<size_t>(k)] = std::complex<float>(c);
      for (const int64_t at : {k, (padded_ - k) % padded_}) {
        b.re[at] = static_cast<float>(c.real());
        b.im[at] = static_cast<float>(-c.imag());
      }
    }
    transform(1, b, free);
    const float scale = 1 / static_cast<float>(padded_);
    for (size_t k = 0; k < size; ++k) kernel_.emplace_back(b.re[k] * scale, b.im[k] * scale);
  }

  int64_t length() const { return n_; }
  int64_t values() const { return padded_; }

  // Of `count` lines, in place: element k of line i at k * count + i. `free`: as much memory.
  void run(int64_t count, Parts x, Parts free) const {
    if (kernel_.empty()) return transform(count, x, free);
    multiply(chirp_, count, x);
    for (int64_t k = n_ * count; k < padded_ * count; ++k) x.re[k] = x.im[k] = 0;
    transform(count, x, free);
    multiply(kernel_, count, x);
    std::swap(x.re, x.im);  // and so backwards
    transform(count, x, free);
    std::swap(x.re, x.im);
    multiply(chirp_, count, x);
  }

 private:
  // Adds those of a length, and gives the factor that none is for.
  int64_t passes_of(int64_t length) {
    int64_t rows = std::clamp<int64_t>(most_values / length, 1, lanes);  // m of a pass
    const auto take = [&](int64_t radix) {
      add(radix, length);
      length /= radix, rows *= radix;
    };
    for (int64_t r : {13, 11, 7, 5, 3})
      while (length % r == 0) take(r);
    // even ones last: then the middle of an even number of frequencies is nothing but sums and
    // differences, and of real signals as real as in exact arithmetic
    while (length % 2 == 0) {
      const bool by_eight = length % 8 == 0 && length != 16 && rows >= lanes;
      take(by_eight ? 8 : length % 4 == 0 ? 4 : 2);
    }
    return length;
  }

  void add(int64_t radix, int64_t length) {
    Pass p{radix, length / radix, {}, {}};
    for (int64_t j = 0; j < p.rest; ++j)
      for (int64_t q = 0; q < radix; ++q) p.factor.emplace_back(root(j * q, length));
    for (int64_t q = 0; q < radix; ++q) p.roots.emplace_back(root(q, radix));
    passes_.push_back(std::move(p));
  }

  void transform(int64_t count, Parts x, Parts free) const {
    const Parts given = x;
    int64_t m = count;
    for (const Pass& p : passes_) {
      run_of(p.radix)(p, m, x, free);
      std::swap(x, free);
      m *= p.radix;
    }
    if (x.re == given.re) return;
    std::copy(x.re, x.re + m, given.re);
    std::copy(x.im, x.im + m, given.im);
  }

  static void multiply(const std::vector<std::complex<float>>& by, int64_t count, Parts x) {
    for (size_t k = 0; k < by.size(); ++k) {
      const float c = by[k].real(), s = by[k].imag();
      float* re = x.re + static_cast<int64_t>(k) * count;
      float* im = x.im + static_cast<int64_t>(k) * count;
      for (int64_t i = 0; i < count; ++i) {
        const float r = re[i];
        re[i] = r * c - im[i] * s;
        im[i] = r * s + im[i] * c;
      }
    }
  }

  int64_t n_, padded_;
  std::vector<Pass> passes_;
  std::vector<std::complex<float>> chirp_, kernel_;
};

struct Axis {
  Lines lines;
  int64_t outer, inner, side_by_side;
};

class Fourier : public Kernel {
 public:
  Fourier(const Signature& s, bool inverse) : inverse_(inverse) {
    const Shape& shape = s.in[0].shape;
    const auto rank = static_cast<int64_t>(shape.size()) - 1;
    const int64_t d = s.attributes.integer("signal_ndim");
    int64_t points = 1, inner = 1, most = 1;
    const int64_t size = s.in[0].size() / 2;
    for (int64_t a = rank - 1; a >= rank - d; --a) {
      const int64_t n = shape[static_cast<size_t>(a)];
      points *= n;
      if (n > 1 && size) {
        Axis axis{Lines(n), size / n / inner, inner, 1};
        axis.side_by_side = std::clamp<int64_t>(most_values / axis.lines.values(), 1, lanes);
        most = std::max(most, axis.lines.values() * axis.side_by_side);
        axes_.push_back(std::move(axis));
      }
      inner *= n;
    }
    size_ = size;
    scale_ = inverse ? 1 / static_cast<float>(points) : 1.0f;
    if (s.attributes.flag("normalized"))
      scale_ = static_cast<float>(1 / std::sqrt(static_cast<double>(points)));
    threads_ = threads();
    for (int i = 0; i < threads_; ++i) starts_.push_back(space_.floats(4 * most));
    stride_ = most;
  }

  size_t workspace() const override { return space_.size(); }
  bool may_overwrite(size_t, size_t) const override { return false; }

  void run(const Buffers& b) override {
    const auto* x = static_cast<const float*>(b.in[0]);
    auto* y = static_cast<float*>(b.out[0]);
    if (axes_.empty())
      for (int64_t i = 0; i < 2 * size_; ++i) y[i] = x[i];
    for (size_t a = 0; a < axes_.size(); ++a) {
      const Axis& axis = axes_[a];
      const int64_t total = axis.outer * axis.inner;
      const int64_t parts = (total + axis.side_by_side - 1) / axis.side_by_side;
      const float scale = a + 1 == axes_.size() ? scale_ : 1.0f;
      const int64_t workers = std::min<int64_t>(threads_, parts);
      const bool worth = total * axis.lines.values() > 1 << 13;
      parallel_for(worth ? workers : 1, 1, [&](int64_t begin, int64_t end) {
        for (int64_t w = begin; w < end; ++w) {
          const int64_t count = worth ? workers : 1;
          auto* memory = Space::at<float>(b.workspace, starts_[static_cast<size_t>(w)]);
          for (int64_t p = parts * w / count; p < parts * (w + 1) / count; ++p)
            part(axis, p, a ? y : x, y, scale, memory);
        }
      });
    }
  }

 private:
  // Some lines of an axis, side by side.
  void part(const Axis& axis, int64_t p, const float* x, float* y, float scale,
            float* memory) const {
    const int64_t n = axis.lines.length(), inner = axis.inner, total = axis.outer * inner;
    const int64_t first = p * axis.side_by_side;
    const int64_t count = std::min(axis.side_by_side, total - first);
    Parts now{memory, memory + stride_}, free{memory + 2 * stride_, memory + 3 * stride_};
    int64_t at[lanes];
    for (int64_t i = 0; i < count; ++i) {
      const int64_t line = first + i;
      at[i] = 2 * (line / inner * n * inner + line % inner);
    }
    constexpr int64_t together = 8;  // elements of a line, whose cache lines are then in use
    const bool whole = inner == 1 && count == lanes;
    const int64_t blocked = whole ? n / together * together : 0;  // of these as 16 vectors of 16
    v16 v[lanes];
    if (inverse_) std::swap(now.re, now.im);
    for (int64_t k = 0; k < blocked; k += together) {
      for (int64_t i = 0; i < lanes; ++i) load16(x + at[i] + 2 * k, v[i]);
      transpose16(v);
      for (int64_t e = 0; e < together; ++e) {
        store16(now.re + (k + e) * lanes, v[2 * e]);
        store16(now.im + (k + e) * lanes, v[2 * e + 1]);
      }
    }
    for (int64_t k = blocked; k < n; k += together)
      for (int64_t i = 0; i < count; ++i)
        for (int64_t e = k; e < std::min(k + together, n); ++e) {
          now.re[e * count + i] = x[at[i] + 2 * inner * e];
          now.im[e * count + i] = x[at[i] + 2 * inner * e + 1];
        }
    if (inverse_) std::swap(now.re, now.im);
    axis.lines.run(count, now, free);
    if (inverse_) std::swap(now.re, now.im);
    for (int64_t k = 0; k < blocked; k += together) {
      for (int64_t e = 0; e < together; ++e) {
        load16(now.re + (k + e) * lanes, v[2 * e]);
        load16(now.im + (k + e) * lanes, v[2 * e + 1]);
      }
      transpose16(v);
      for (int64_t i = 0; i < lanes; ++i) store16(y + at[i] + 2 * k, v[i] * scale);
    }
    for (int64_t k = blocked; k < n; k += together)
      for (int64_t i = 0; i < count; ++i)
        for (int64_t e = k; e < std::min(k + together, n); ++e) {
          y[at[i] + 2 * inner * e] = now.re[e * count + i] * scale;
          y[at[i] + 2 * inner * e + 1] = now.im[e * count + i] * scale;
        }
  }

  std::vector<Axis> axes_;
  std::vector<size_t> starts_;
  Space space_;
  int64_t size_ = 0, stride_ = 0;
  float scale_ = 1;
  int threads_ = 1;
  bool inverse_;
};

template <bool inverse>
std::unique_ptr<Kernel> fourier(const Signature& s) {
  const Spec &x = s.in[0], &y = s.out[0];
  if (x.layout != Layout::plain || y.layout != Layout::plain) return nullptr;
  if (x.dtype != DType::f32 || y.dtype != DType::f32) return nullptr;
  return std::make_unique<Fourier>(s, inverse);
}

const Registration of_fft("fft", fourier<false>);
const Registration of_ifft("ifft", fourier<true>);

}  // namespace
}  // namespace nnl
