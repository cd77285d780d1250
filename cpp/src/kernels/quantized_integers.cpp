// SPDX-License-Identifier: Apache-2.0
// Products of codes with activations that are rounded to 8 bits. A sum of products of codes c and
// activations t a of a group with the scale s and the offset o is s t sum(c a) + o t sum(a).
#include <algorithm>
#include <vector>

#include "quantized_codes.h"
#include "vector16.h"

namespace nnl {

#ifdef __AVX512BW__
namespace {

constexpr int kTogether = 4;         // rows of weights that one row of activations meets at a time
constexpr int64_t kColumns = 32;     // rows of weights side by side in a panel
constexpr int kTile = 6;             // rows of activations that meet a panel at a time
constexpr int64_t kMany = 4;         // rows of activations for which panels pay
constexpr int64_t kAhead = 4096;     // bytes of weights that are asked for before they are needed
constexpr int64_t kBlock = 1 << 18;  // bytes that stay in the second cache

// Adds to each lane the products of 4 bytes from 0 to 255 with 4 from -128 to 127. Not the
// intrinsic: wheels are built for processors without it too, and ask when they run.
NNL_INLINE LaneInts add_products(LaneInts sums, LaneInts codes, LaneInts numbers) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(codes), "v"(numbers));
  return sums;
}
bool has_products() {
  static const bool has = __builtin_cpu_supports("avx512vnni");
  return has;
}

NNL_INLINE LaneInts bytes_at(const void* p) {
  LaneInts v;
  __builtin_memcpy(&v, p, sizeof(v));
  return v;
}
// Of 64 bytes the first n; the others are 0.
NNL_INLINE __mmask64 lowest(int64_t n) { return n < 64 ? (__mmask64{1} << n) - 1 : ~__mmask64{0}; }
NNL_INLINE LaneInts bytes_at(const void* p, __mmask64 kept) {
  return reinterpret_cast<LaneInts>(_mm512_maskz_loadu_epi8(kept, p));
}

#define NNL_ROW(row, to) [&](int64_t row, v16& to) __attribute__((always_inline))

// The halves of 32 bytes, each in a byte, the lower one first.
NNL_INLINE LaneInts halves_at(const void* p, __mmask64 kept) {
  const __m256i pairs = _mm256_maskz_loadu_epi8(static_cast<__mmask32>(kept), p);
  const auto wide = reinterpret_cast<LaneInts>(_mm512_maskz_cvtepu8_epi16(~__mmask32{0}, pairs));
  return (wide | wide << 4) & 0x0f0f0f0f;
}

// The lanes of v with these numbers.
NNL_INLINE Lanes at_lanes(Lanes v, LaneInts numbers) {
  return reinterpret_cast<Lanes>(_mm512_maskz_permutexvar_ps(
      0xffff, reinterpret_cast<__m512i>(numbers), reinterpret_cast<__m512>(v)));
}

class IntegerProduct : public Kernel {
 public:
  IntegerProduct(const Signature& s, int64_t stride)
      : w_(s, 1),
        out_(s.out[0].dtype),
        m_(s.out[0].size() / w_.rows),
        x_(w_, s.in[0].dtype, m_, stride, space_) {}
  size_t workspace() const override { return space_.size(); }

 protected:
  Space space_;
  const Codes w_;
  const DType out_;
  const int64_t m_;
  const Rounded x_;
};

// A few rows of activations: weights pass by as they are stored, 64 bytes at a time. Each lane sums
// the products of 4 of them, which are of one group.
class FewIntegers : public IntegerProduct {
 public:
  explicit FewIntegers(const Signature& s, const Codes& w)
      : IntegerProduct(s, vectors_of(w) * 512 / w.bits), lanes_(w.size * w.bits / 32) {
    for (int64_t i = 0; i < lanes_ * 16; ++i) group_of_.push_back(static_cast<int32_t>(i / lanes_));
    apart_ = space_.take(w_.bits == 4 ? static_cast<size_t>(m_ * stride()) : 0);
  }

  void run(const Buffers& b) override {
    x_.round(b, b.in[0]);
    const int8_t* codes = x_.codes(b, 0);
    if (w_.bits == 4) {  // of 128 columns first the even ones, which lie in the low halves
      int8_t* to = Space::at<int8_t>(b.workspace, apart_);
      for (int64_t at = 0; at < m_ * stride(); at += 128)
        for (int64_t i = 0; i < 64; ++i) {
          to[at + i] = codes[at + 2 * i];
          to[at + 64 + i] = codes[at + 2 * i + 1];
        }
      codes = to;
    }
    const int64_t work = w_.row_bytes() * m_, block = std::max<int64_t>(1, kBlock / w_.row_bytes());
    parallel_for(w_.rows, 1 + (1 << 14) / work, [&](int64_t begin, int64_t end) {
      for (int64_t first = begin; first < end; first += block)
        for (int64_t m = 0; m < m_; ++m) {
          const int64_t last = std::min(end, first + block);
          int64_t row = first;
          for (; row + kTogether <= last; row += kTogether)
            products<kTogether>(b, codes + m * stride(), m, row);
          for (; row < last; ++row) products<1>(b, codes + m * stride(), m, row);
        }
    });
  }

 private:
  static int64_t vectors_of(const Codes& w) { return (w.row_bytes() + 63) / 64; }
  int64_t stride() const { return vectors_of(w_) * 512 / w_.bits; }

  template <int R>
  void products(const Buffers& b, const int8_t* codes, int64_t m, int64_t row) const {
    if (w_.bits == 8)
      products_of<R, 8>(b, codes, m, row);
    else
      products_of<R, 4>(b, codes, m, row);
  }

  template <int R, int bits>
  void products_of(const Buffers& b, const int8_t* codes, int64_t m, int64_t row) const {
    const float *units = x_.units(b, m), *sums = x_.sums(b, m);
    const Any scales = w_.scales(b, row), offsets = w_.offsets(b, row);
    const uint8_t* w = w_.row(b, row);
    const int64_t bytes = w_.row_bytes();
    Lanes total[R] = {}, rest[R] = {};
    int64_t at = 0;  // the byte of a row
    for (int64_t g = 0; g < w_.groups; g += 16) {
      const int64_t n = std::min<int64_t>(16, w_.groups - g),
                    end = std::min(bytes, at + lanes_ * 64);
      const Lanes unit = load_part(units + g, n), sum = load_part(sums + g, n);
      Lanes factors[R];
      unroll<R>(NNL_EACH(r) {
        factors[r] = unit * load_part(scales + (r * w_.groups + g), n);
        rest[r] += sum * load_part(offsets + (r * w_.groups + g), n);
      });
      const int32_t* groups = group_of_.data();
      const auto step = NNL_EACH(whole) {
        const LaneInts of = bytes_at(groups), a0 = bytes_at(codes + at * 8 / bits);
        const LaneInts a1 = bits == 8 ? a0 : bytes_at(codes + at * 2 + 64);
        unroll<R>(NNL_EACH(r) {
          const uint8_t* from = w + r * bytes + at;
          __builtin_prefetch(from + kAhead);
          const LaneInts c = whole() ? bytes_at(from) : bytes_at(from, lowest(end - at));
          LaneInts s = {};
          if constexpr (bits == 8)
            s = add_products(s, c, a0);
          else
            s = add_products(add_products(s, c & 0x0f0f0f0f, a0), c >> 4 & 0x0f0f0f0f, a1);
          total[r] += at_lanes(factors[r], of) * __builtin_convertvector(s, Lanes);
        });
        at += 64, groups += 16;
      };
      while (at + 64 <= end) step(std::true_type{});
      if (at < end) step(std::false_type{});
      at = end;
    }
    float y[R];
    unroll<R>(
        NNL_EACH(r) { y[r] = sum_of(total[r] + (w_.given ? rest[r] : rest[r] * -w_.middle())); });
    store_any(out_, y, b.out[0], m * w_.rows + row, R);
  }

  const int64_t lanes_;            // of a group
  std::vector<int32_t> group_of_;  // of each lane, counted from a multiple of 16 groups
  size_t apart_;
};

// Many rows of activations: the weights of 32 rows become a panel, in which a lane holds 4 columns
// of one row, so that whole groups are summed in integers.
class ManyIntegers : public IntegerProduct {
 public:
  explicit ManyIntegers(const Signature& s, const Codes& w)
      : IntegerProduct(s, w.columns), padded_((w.columns + 63) / 64 * 64) {
    panels_ = (w_.rows + kColumns - 1) / kColumns;
    parts_ = std::min<int64_t>(panels_, parts_of(w_.rows * w_.columns));
    block_ = std::max<int64_t>(1, std::min(kBlock / (padded_ * kColumns), panels_ / parts_));
    padded_groups_ = (w_.groups + 15) / 16 * 16;
    panel_bytes_ = kColumns * (padded_ + padded_groups_ * 8);
    work_ = space_.take(static_cast<size_t>(parts_ * block_ * panel_bytes_));
  }

  void run(const Buffers& b) override {
    x_.round(b, b.in[0]);
    for_parts(parts_, panels_, [&](int64_t part, int64_t begin, int64_t end) {
      uint8_t* work = Space::at<uint8_t>(b.workspace, work_) + part * block_ * panel_bytes_;
      for (int64_t first = begin; first < end; first += block_) {
        const int64_t count = std::min(block_, end - first);
        for (int64_t i = 0; i < count; ++i) make_panel(b, first + i, work + i * panel_bytes_);
        for (int64_t m = 0; m < m_; m += kTile)
          for (int64_t i = 0; i < count; ++i)
            tiles(std::make_integer_sequence<int, kTile>{}, b, m, first + i,
                  work + i * panel_bytes_);
      }
    });
  }

 private:
  float* scales(uint8_t* panel) const {
    return reinterpret_cast<float*>(panel + kColumns * padded_);
  }
  float* offsets(uint8_t* panel) const { return scales(panel) + kColumns * padded_groups_; }

  void make_panel(const Buffers& b, int64_t number, uint8_t* panel) const {
    for (int64_t half = 0; half < kColumns; half += 16) {
      const int64_t first = number * kColumns + half, rows = w_.rows - first;
      if (rows >= 16)
        make_half<true>(b, first, 16, panel, half);
      else
        make_half<false>(b, first, rows, panel, half);
    }
    if (w_.given) return;
    for (int64_t i = 0; i < kColumns * w_.groups; ++i)
      offsets(panel)[i] = -w_.middle() * scales(panel)[i];
  }

  // Lanes are rows of weights; those that are not there are 0.
  template <bool whole>
  void make_half(const Buffers& b, int64_t first, int64_t rows, uint8_t* panel,
                 int64_t half) const {
    const auto turn = [&](void* to, auto&& line) {
      v16 block[16] = {};
      unroll<16>(NNL_EACH(r) {
        if (whole || r < rows) line(first + r, block[r]);
      });
      transpose16(block);
      float* y = static_cast<float*>(to) + half;
      unroll<16>(NNL_EACH(i) { store16(y + i * kColumns, block[i]); });
    };
    const int64_t bytes = w_.row_bytes();
    const uint8_t* w = w_.row(b, 0);
    for (int64_t at = 0; at < bytes; at += 8 * w_.bits) {
      const __mmask64 kept = lowest(bytes - at);
      turn(
          panel + at * 8 / w_.bits * kColumns, NNL_ROW(row, to) {
            const uint8_t* from = w + row * bytes + at;
            __builtin_prefetch(from + 16 * bytes);  // many runs at once: too many for the processor
            to = reinterpret_cast<v16>(w_.bits == 8 ? bytes_at(from, kept) : halves_at(from, kept));
          });
    }
    for (int64_t g = 0; g < w_.groups; g += 16) {
      const int64_t n = std::min<int64_t>(16, w_.groups - g);
      turn(
          scales(panel) + g * kColumns,
          NNL_ROW(row, to) { to = load_part(w_.scales(b, row) + g, n); });
      if (w_.given)
        turn(
            offsets(panel) + g * kColumns,
            NNL_ROW(row, to) { to = load_part(w_.offsets(b, row) + g, n); });
    }
  }

  template <int... i>
  void tiles(std::integer_sequence<int, i...>, const Buffers& b, int64_t m, int64_t panel,
             uint8_t* codes) const {
    const int64_t rows = std::min<int64_t>(kTile, m_ - m);
    ((rows == i + 1 ? tile<i + 1>(b, m, panel, codes) : void()), ...);
  }

  template <int M>
  void tile(const Buffers& b, int64_t m, int64_t number, uint8_t* panel) const {
    const int64_t words = w_.size / 4, columns = w_.columns, groups = w_.groups;
    const int8_t* a = x_.codes(b, m);
    const float *units = x_.units(b, m), *sums = x_.sums(b, m);
    const float *scale = scales(panel), *offset = offsets(panel);
    const uint8_t* codes = panel;
    Lanes total[M][2] = {};
    for (int64_t g = 0; g < groups; ++g, scale += kColumns, offset += kColumns) {
      LaneInts products[M][2] = {};
      for (int64_t i = 0; i < words; ++i, a += 4, codes += 4 * kColumns) {
        const LaneInts c0 = bytes_at(codes), c1 = bytes_at(codes + 64);
        unroll<M>(NNL_EACH(r) {
          int32_t four;
          std::memcpy(&four, a + r * columns, 4);
          const LaneInts x = LaneInts{} + four;
          products[r][0] = add_products(products[r][0], c0, x);
          products[r][1] = add_products(products[r][1], c1, x);
        });
      }
      unroll<M>(NNL_EACH(r) {
        const float unit = units[r * groups + g], sum = sums[r * groups + g];
        unroll<2>(NNL_EACH(v) {
          total[r][v] +=
              load(scale + 16 * v) * unit * __builtin_convertvector(products[r][v], Lanes);
          total[r][v] += load(offset + 16 * v) * sum;
        });
      });
    }
    const int64_t first = number * kColumns, n = std::min(kColumns, w_.rows - first);
    const Any y{b.out[0], out_};
    unroll<M>(NNL_EACH(r) {
      const int64_t at = (m + r) * w_.rows + first;
      by_lanes(n, [&](int64_t j, int64_t lanes, auto whole) {
        put<whole()>(y + (at + j), total[r][j / 16], lanes);
      });
    });
  }

  const int64_t padded_;  // columns
  int64_t panels_, parts_, block_, padded_groups_, panel_bytes_;
  size_t work_;
};

}  // namespace

std::unique_ptr<Kernel> make_integer_product(const Signature& s) {
  const Codes w(s, 1);
  // 4 bytes of weights make one lane, and a group whole lanes
  if (s.attributes.integer("activation_bits") != 8 || w.size * w.bits % 32 || !has_products())
    return nullptr;
  if (s.out[0].size() / w.rows < kMany) return std::make_unique<FewIntegers>(s, w);
  return std::make_unique<ManyIntegers>(s, w);
}
#else
std::unique_ptr<Kernel> make_integer_product(const Signature&) { return nullptr; }
#endif

}  // namespace nnl
