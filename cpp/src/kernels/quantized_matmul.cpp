// SPDX-License-Identifier: Apache-2.0
// Products with weights of 4 or 8 bits. Weights are read once, as they are stored: one row of
// activations is bound by the speed of memory, many by integer products.
#include <algorithm>
#include <cmath>
#include <limits>

#include "lanes.h"
#include "real.h"
#include "space.h"

namespace nnl {
namespace {

constexpr int kTile = 4;        // rows of activations that share what a row of weights unpacks to
constexpr int64_t kPart = 512;  // floats that are unpacked at a time
constexpr int64_t kBlock = 1 << 17;  // bytes of weights that stay in the second cache

// The weights of a call: codes, and a scale and an offset for each group of a row.
struct Codes {
  int64_t rows, columns, groups, size, bits;
  DType scale_type, offset_type;
  bool given;

  explicit Codes(const Signature& s, size_t w)
      : rows(s.in[w].shape[0]),
        groups(s.in[w + 1].shape[1]),
        size(s.attributes.integer("group_size")),
        bits(s.attributes.integer("bits")),
        scale_type(s.in[w + 1].dtype),
        offset_type(s.given(w + 2) ? s.in[w + 2].dtype : DType::f32),
        given(s.given(w + 2)) {
    columns = groups * size;
  }
  int64_t row_bytes() const { return columns * bits / 8; }

  // The scales and offsets of the groups [first, first + n) of a row.
  void scales(const void* scale, const void* offset, int64_t row, int64_t first, float* s, float* o,
              int64_t n) const {
    load_any(scale_type, scale, row * groups + first, s, n);
    if (given) return load_any(offset_type, offset, row * groups + first, o, n);
    const auto middle = static_cast<float>(1 << (bits - 1));
    for (int64_t g = 0; g < n; ++g) o[g] = -middle * s[g];
  }

  // Weights [first, first + n) of one group, from its codes.
  void unpack(const uint8_t* row, int64_t first, int64_t n, float s, float o, float* y) const {
    if (bits == 8) {
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) y[i] = s * static_cast<float>(row[first + i]) + o;
      return;
    }
    const uint8_t* pairs = row + first / 2;
#pragma omp simd
    for (int64_t i = 0; i < n / 2; ++i) {
      y[2 * i] = s * static_cast<float>(pairs[i] & 15) + o;
      y[2 * i + 1] = s * static_cast<float>(pairs[i] >> 4) + o;
    }
  }

  // f(first column, n, weights) over a row, in parts of at most kPart floats of one group.
  template <class F>
  void parts(const Buffers& b, size_t w, int64_t row, F&& f) const {
    const uint8_t* codes = b.input<uint8_t>(w) + row * row_bytes();
    float y[kPart], s, o;
    for (int64_t g = 0; g < groups; ++g) {
      scales(b.in[w + 1], given ? b.in[w + 2] : nullptr, row, g, &s, &o, 1);
      for (int64_t at = 0; at < size; at += kPart) {
        const int64_t n = std::min(kPart, size - at);
        unpack(codes, g * size + at, n, s, o, y);
        f(g * size + at, n, y);
      }
    }
  }
};

class DequantizeGroups : public Kernel {
 public:
  explicit DequantizeGroups(const Signature& s) : w_(s, 0), type_(s.out[0].dtype) {}

  void run(const Buffers& b) override {
    parallel_for(w_.rows, 1 + (1 << 15) / std::max<int64_t>(w_.columns, 1),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t row = begin; row < end; ++row)
                     w_.parts(b, 0, row, [&](int64_t at, int64_t n, const float* y) {
                       store_any(type_, y, b.out[0], row * w_.columns + at, n);
                     });
                 });
  }

 private:
  const Codes w_;
  const DType type_;
};

// Activations as they are: rows of weights are unpacked to floats.
class FloatProduct : public Kernel {
 public:
  explicit FloatProduct(const Signature& s)
      : w_(s, 1), in_(s.in[0].dtype), out_(s.out[0].dtype), m_(s.out[0].size() / s.in[1].shape[0]) {
    x_ = space_.floats(m_ * w_.columns);
  }
  size_t workspace() const override { return space_.size(); }

  void run(const Buffers& b) override {
    float* x = Space::at(b.workspace, x_);
    load_any(in_, b.in[0], 0, x, m_ * w_.columns);
    const int64_t grain = 1 + (1 << 15) / std::max<int64_t>(w_.columns * m_, 1);
    parallel_for(w_.rows, grain, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row)
        for (int64_t first = 0; first < m_; first += kRows) {
          const int64_t rows = std::min(kRows, m_ - first);
          float sums[kRows] = {};
          w_.parts(b, 1, row, [&](int64_t at, int64_t n, const float* y) {
            for (int64_t m = 0; m < rows; ++m) {
              const float* a = x + (first + m) * w_.columns + at;
              float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
              for (int64_t i = 0; i < n; ++i) sum += a[i] * y[i];
              sums[m] += sum;
            }
          });
          for (int64_t m = 0; m < rows; ++m)
            store_any(out_, sums + m, b.out[0], (first + m) * w_.rows + row, 1);
        }
    });
  }

 private:
  static constexpr int64_t kRows = 32;
  const Codes w_;
  const DType in_, out_;
  const int64_t m_;
  Space space_;
  size_t x_;
};

// Activations rounded to 8 bits. A sum of products of codes c and activations a t of a group with
// the scale s and the offset o is s t sum(c a) + o t sum(a).
class IntegerProduct : public Kernel {
 public:
  explicit IntegerProduct(const Signature& s)
      : w_(s, 1), in_(s.in[0].dtype), out_(s.out[0].dtype), m_(s.out[0].size() / s.in[1].shape[0]) {
    // 4 bytes of weights make one lane, and a group whole lanes that divide a vector or fill some
    lanes_ = w_.size * w_.bits / 32;
    fast_ = w_.size * w_.bits % 32 == 0 &&
            (lanes_ < 16 ? 16 % std::max<int64_t>(lanes_, 1) == 0 : lanes_ % 16 == 0);
    vectors_ = (w_.row_bytes() + 63) / 64;
    stride_ = fast_ ? vectors_ * 512 / w_.bits : w_.columns;
    codes_ = space_.take(static_cast<size_t>(m_ * stride_));
    units_ = space_.floats(m_ * w_.groups);
    sums_ = space_.floats(m_ * w_.groups);
    if (fast_) spread_ = space_.floats(m_ * vectors_ * 16);
  }
  size_t workspace() const override { return space_.size(); }

  void run(const Buffers& b) override {
    const auto codes = Space::at<int8_t>(b.workspace, codes_);
    parallel_for(m_, 1 + (1 << 13) / std::max<int64_t>(w_.columns, 1),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t m = begin; m < end; ++m) round_row(b, m, codes);
                 });
    const int64_t work = w_.row_bytes() * std::max<int64_t>(m_ / 8, 1);
    parallel_for(w_.rows, 1 + (1 << 14) / std::max<int64_t>(work, 1),
                 [&](int64_t begin, int64_t end) {
                   const int64_t block = std::max<int64_t>(1, kBlock / w_.row_bytes());
                   for (int64_t first = begin; first < end; first += block)
                     rows(b, codes, first, std::min(end, first + block));
                 });
  }

 private:
  // Where the activation of column i lies: of 4 bits, the even columns of a vector come first.
  int64_t place(int64_t i) const {
    if (!fast_ || w_.bits == 8) return i;
    const int64_t in = i % 128;
    return i - in + in / 2 + (in % 2) * 64;
  }

  void round_row(const Buffers& b, int64_t m, int8_t* codes) const {
    int8_t* to = codes + m * stride_;
    if (stride_ != w_.columns) std::fill_n(to + stride_ - 512 / w_.bits, 512 / w_.bits, int8_t{0});
    float* units = Space::at(b.workspace, units_) + m * w_.groups;
    float* sums = Space::at(b.workspace, sums_) + m * w_.groups;
    float x[kPart];
    for (int64_t g = 0; g < w_.groups; ++g) {
      float most = 0.0f;
      bool finite = true;
      for (int64_t at = 0; at < w_.size; at += kPart) {
        const int64_t n = std::min(kPart, w_.size - at);
        load_any(in_, b.in[0], m * w_.columns + g * w_.size + at, x, n);
        for (int64_t i = 0; i < n; ++i) {
          const float a = std::fabs(x[i]);
          finite &= a <= std::numeric_limits<float>::max();
          most = a > most ? a : most;
        }
      }
      const float scale = finite && most > 0.0f ? 127.0f / most : 0.0f;
      int32_t sum = 0;
      for (int64_t at = 0; at < w_.size; at += kPart) {
        const int64_t n = std::min(kPart, w_.size - at), first = g * w_.size + at;
        if (w_.size > kPart) load_any(in_, b.in[0], m * w_.columns + first, x, n);
        for (int64_t i = 0; i < n; ++i) {
          const auto c = static_cast<int8_t>(finite ? std::nearbyint(x[i] * scale) : 0.0f);
          to[place(first + i)] = c;
          sum += c;
        }
      }
      units[g] = finite ? most / 127.0f : std::numeric_limits<float>::quiet_NaN();
      sums[g] = units[g] * static_cast<float>(sum);
    }
    if (!fast_) return;
    float* lanes = Space::at(b.workspace, spread_) + m * vectors_ * 16;
    for (int64_t i = 0; i < vectors_ * 16; ++i)
      lanes[i] = units[std::min(i / lanes_, w_.groups - 1)];
  }

  // Rows [begin, end) of weights with all activations.
  void rows(const Buffers& b, const int8_t* codes, int64_t begin, int64_t end) const {
    for (int64_t first = 0; first < m_; first += kTile) {
      const int64_t tile = std::min<int64_t>(kTile, m_ - first);
      for (int64_t row = begin; row < end; ++row) {
        float y[kTile];
        if (tile == kTile)
          row_products<kTile>(b, codes, first, row, y);
        else
          for (int64_t m = 0; m < tile; ++m) row_products<1>(b, codes, first + m, row, y + m);
        for (int64_t m = 0; m < tile; ++m)
          store_any(out_, y + m, b.out[0], (first + m) * w_.rows + row, 1);
      }
    }
  }

  template <int tile>
  void row_products(const Buffers& b, const int8_t* codes, int64_t first, int64_t row,
                    float* y) const {
    const float* sums = Space::at(b.workspace, sums_) + first * w_.groups;
    float middle = 0.0f;
    if (!w_.given) middle = -static_cast<float>(1 << (w_.bits - 1));
    Lanes total[tile] = {};
    float rest[tile] = {};
    // offsets first: o t sum(a) over the groups
    const auto add_offsets = [&](auto o) {
      by_lanes(w_.groups, [&](int64_t g, int64_t n, auto whole) {
        const Lanes v = get<whole()>(o + g, n);
        for (int m = 0; m < tile; ++m) total[m] += v * get<whole()>(sums + m * w_.groups + g, n);
      });
    };
    const int64_t at = row * w_.groups;
    const DType type = w_.given ? w_.offset_type : w_.scale_type;
    const void* offset = b.in[w_.given ? 3 : 2];
    add_offsets(Any{const_cast<void*>(offset), type} + at);
    if (!w_.given)
      for (int m = 0; m < tile; ++m) total[m] *= middle;
    const uint8_t* w = b.input<uint8_t>(1) + row * w_.row_bytes();
#ifdef __AVX512VNNI__
    if (fast_) {
      const Any scale = Any{const_cast<void*>(b.in[2]), w_.scale_type} + at;
      switch (w_.scale_type) {
        case DType::f32:
          lanes_of<tile>(w, static_cast<const float*>(scale.p), b, codes, first, total);
          break;
        case DType::bf16:
          lanes_of<tile>(w, static_cast<const bf16*>(scale.p), b, codes, first, total);
          break;
        default:
          lanes_of<tile>(w, static_cast<const f16*>(scale.p), b, codes, first, total);
      }
    } else {
      plain<tile>(w, b, codes, first, row, rest);
    }
#else
    plain<tile>(w, b, codes, first, row, rest);
#endif
    for (int m = 0; m < tile; ++m) y[m] = sum_of(total[m]) + rest[m];
  }

  template <int tile>
  void plain(const uint8_t* w, const Buffers& b, const int8_t* codes, int64_t first, int64_t row,
             float* y) const {
    const float* units = Space::at(b.workspace, units_) + first * w_.groups;
    for (int64_t g = 0; g < w_.groups; ++g) {
      float s;
      load_any(w_.scale_type, b.in[2], row * w_.groups + g, &s, 1);
      for (int m = 0; m < tile; ++m) {
        const int8_t* a = codes + (first + m) * stride_;
        int32_t sum = 0;
        for (int64_t i = g * w_.size; i < (g + 1) * w_.size; ++i) {
          const int c = w_.bits == 8 ? w[i] : i % 2 ? w[i / 2] >> 4 : w[i / 2] & 15;
          sum += c * a[place(i)];
        }
        y[m] += s * units[m * w_.groups + g] * static_cast<float>(sum);
      }
    }
  }

#ifdef __AVX512VNNI__
  // 64 bytes of weights at a time: each lane sums the products of 4 bytes, which are of one group.
  template <int tile, class T>
  void lanes_of(const uint8_t* w, const T* scale, const Buffers& b, const int8_t* codes,
                int64_t first, Lanes* total) const {
    const int64_t words = vectors_ * 16, last = (w_.row_bytes() - 1) / 64;
    const auto rest = static_cast<int>(w_.row_bytes() - 64 * last);  // bytes of the last vector
    const __mmask64 kept = rest == 64 ? ~__mmask64{0} : (__mmask64{1} << rest) - 1;
    const float* units = Space::at(b.workspace, spread_) + first * words;
    const int8_t* a = codes + first * stride_;
    const int64_t groups = lanes_ < 16 ? 16 / lanes_ : 1;  // of one vector
    const int64_t repeat = lanes_ < 16 ? 1 : lanes_ / 16;  // vectors of one group
    __m512i index = _mm512_setzero_si512();
    if (groups > 1) {
      alignas(64) int32_t numbers[16];
      for (int i = 0; i < 16; ++i) numbers[i] = static_cast<int32_t>(i / lanes_);
      index = _mm512_load_si512(numbers);
    }
    const __m512i low = _mm512_set1_epi8(15);
    const bool nibbles = w_.bits == 4;
    const int64_t step = nibbles ? 128 : 64;
    for (int64_t v = 0; v < vectors_; ++v) {
      __builtin_prefetch(w + 64 * v + 1024);
      const __m512i bytes =
          v < last ? _mm512_loadu_si512(w + 64 * v) : _mm512_maskz_loadu_epi8(kept, w + 64 * v);
      Lanes s;
      if (groups == 1) {
        s = all(to_float(scale[v / repeat]));
      } else {
        s = scales_at(scale, v * groups, v < last ? groups : rest / 4 / lanes_);
        s = reinterpret_cast<Lanes>(_mm512_maskz_permutexvar_ps(0xffff, index, (__m512)s));
      }
      const __m512i c0 = nibbles ? _mm512_and_si512(bytes, low) : bytes;
      const __m512i c1 = nibbles ? _mm512_and_si512(_mm512_srli_epi16(bytes, 4), low) : bytes;
      for (int m = 0; m < tile; ++m) {
        const int8_t* p = a + m * stride_ + v * step;
        __m512i sum = _mm512_dpbusd_epi32(_mm512_setzero_si512(), c0, _mm512_loadu_si512(p));
        if (nibbles) sum = _mm512_dpbusd_epi32(sum, c1, _mm512_loadu_si512(p + 64));
        const Lanes unit = load(units + m * words + 16 * v);
        total[m] += s * unit * __builtin_convertvector((LaneInts)sum, Lanes);
      }
    }
  }

  // n scales, in the first lanes.
  template <class T>
  static Lanes scales_at(const T* scale, int64_t at, int64_t n) {
    const auto mask = static_cast<__mmask16>((1u << n) - 1u);
    if constexpr (sizeof(T) == 4) {
      return (Lanes)_mm512_maskz_loadu_ps(mask, scale + at);
    } else {
      const __m256i half = _mm256_maskz_loadu_epi16(mask, scale + at);
      if constexpr (std::is_same_v<T, f16>) return (Lanes)_mm512_maskz_cvtph_ps(mask, half);
      return (Lanes)_mm512_maskz_slli_epi32(mask, _mm512_maskz_cvtepu16_epi32(mask, half), 16);
    }
  }
#endif

  const Codes w_;
  const DType in_, out_;
  const int64_t m_;
  int64_t lanes_ = 0, vectors_ = 0, stride_ = 0;
  bool fast_ = false;
  Space space_;
  size_t codes_, units_, sums_, spread_ = 0;
};

bool fits(const Signature& s, size_t w) {
  for (size_t i = 0; i < s.in.size(); ++i) {
    if (!s.given(i)) continue;
    if (s.in[i].layout != Layout::plain) return false;
    if (i == w ? s.in[i].dtype != DType::u8 : !is_real(s.in[i].dtype)) return false;
  }
  return s.out[0].layout == Layout::plain && is_real(s.out[0].dtype) && s.in[w].size() > 0;
}

const Registration dequantize{"dequantize_groups",
                              [](const Signature& s) -> std::unique_ptr<Kernel> {
                                return fits(s, 0) ? std::make_unique<DequantizeGroups>(s) : nullptr;
                              }};
const Registration product{"quantized_matmul", [](const Signature& s) -> std::unique_ptr<Kernel> {
                             if (!fits(s, 1) || s.out[0].size() == 0) return nullptr;
                             if (s.attributes.integer("activation_bits") == 8)
                               return std::make_unique<IntegerProduct>(s);
                             return std::make_unique<FloatProduct>(s);
                           }};

}  // namespace
}  // namespace nnl
