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
      : IntegerProduct(s, padded(w)), padded_(padded(w)) {
    panels_ = (w_.rows + kColumns - 1) / kColumns;
    parts_ = std::min<int64_t>(panels_, parts_of(w_.rows * w_.columns));
    block_ = std::max<int64_t>(1, std::min(kBlock / (padded_ * kColumns), panels_ / parts_));
    padded_groups_ = (w_.groups + 15) / 16 * 16;
    panel_bytes_ = kColumns * (padded_ + padded_groups_ * 8);
    work_ = space_.take(static_cast<size_t>(parts_ * block_ * panel_bytes_));
  }

  void run(const Buffers& b) override {
    x_.round(b, b.in[0]);
    if (w_.bits == 4) evens_first(x_.codes(b, 0));
    for_parts(parts_, panels_, [&](int64_t part, int64_t begin, int64_t end) {
      uint8_t* work = Space::at<uint8_t>(b.workspace, work_) + part * block_ * panel_bytes_;
      for (int64_t first = begin; first < end; first += block_) {
        const int64_t count = std::min(block_, end - first);
        for (int64_t i = 0; i < count; ++i) make_panel(b, first + i, work + i * panel_bytes_);
        for (int64_t m = 0; m < m_; m += kTile)
          for (int64_t i = 0; i < count; ++i)
            w_.given ? tiles<true>(std::make_integer_sequence<int, kTile>{}, b, m, first + i,
                                   work + i * panel_bytes_)
                     : tiles<false>(std::make_integer_sequence<int, kTile>{}, b, m, first + i,
                                    work + i * panel_bytes_);
      }
    });
  }

 private:
  // Columns, filled up to whole steps of make_half.
  static int64_t padded(const Codes& w) {
    const int64_t step = 512 / w.bits;
    return (w.columns + step - 1) / step * step;
  }

  // Of 8 columns: the order in which low halves and high ones of 4 bytes of weights lie.
  void evens_first(int8_t* codes) const {
    const __m128i order = _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15);
    const auto orders = _mm512_maskz_broadcast_i32x4(0xffff, order);
    for (int64_t at = 0; at < m_ * padded_; at += 64) {
      const auto v = reinterpret_cast<__m512i>(bytes_at(codes + at));
      const auto y = _mm512_maskz_shuffle_epi8(~__mmask64{0}, v, orders);
      __builtin_memcpy(codes + at, &y, sizeof(y));
    }
  }

  float* scales(uint8_t* panel) const {
    return reinterpret_cast<float*>(panel + kColumns * padded_);
  }
  float* offsets(uint8_t* panel) const { return scales(panel) + kColumns * padded_groups_; }

  void make_panel(const Buffers& b, int64_t number, uint8_t* panel) const {
    for (int64_t half = 0; half < kColumns; half += 16) {
      const int64_t first = number * kColumns + half, rows = w_.rows - first;
      if (rows >= 16)
        w_.bits == 8 ? make_half<true, 8>(b, first, 16, panel, half)
                     : make_half<true, 4>(b, first, 16, panel, half);
      else
        w_.bits == 8 ? make_half<false, 8>(b, first, rows, panel, half)
                     : make_half<false, 4>(b, first, rows, panel, half);
    }
  }

  // Lanes are rows of weights; those that are not there are 0.
  template <bool whole, int bits>
  void make_half(const Buffers& b, int64_t first, int64_t rows, uint8_t* panel,
                 int64_t half) const {
    const auto turn = [rows](auto&& line, auto&& keep) __attribute__((always_inline)) {
      v16 block[16] = {};
      unroll<16>(NNL_EACH(r) {
        if (whole || r < rows) line(r, block[r]);
      });
      transpose16(block);
      unroll<16>(NNL_EACH(i) { keep(i, block[i]); });
    };
    const int64_t bytes = w_.row_bytes();
    const uint8_t* w = w_.row(b, first);
    for (int64_t at = 0; at < bytes; at += 64) {
      const __mmask64 kept = lowest(bytes - at);
      turn(
          [=](int64_t row, v16& to) __attribute__((always_inline)) {
            const uint8_t* from = w + row * bytes + at;
            __builtin_prefetch(from + 16 * bytes);  // many runs at once: too many for the processor
            to = reinterpret_cast<v16>(bytes_at(from, kept));
          },
          [to = panel + (at * 8 / bits * kColumns + half * 4)](int64_t i, const v16& codes)
              __attribute__((always_inline)) {
                if constexpr (bits == 8) {
                  store16(reinterpret_cast<float*>(to + i * 4 * kColumns), codes);
                } else {  // of 8 columns first the even ones
                  const auto pairs = reinterpret_cast<LaneInts>(codes);
                  const LaneInts low = pairs & 0x0f0f0f0f, high = pairs >> 4 & 0x0f0f0f0f;
                  std::memcpy(to + i * 8 * kColumns, &low, 64);
                  std::memcpy(to + (i * 8 + 4) * kColumns, &high, 64);
                }
              });
    }
    const auto numbers = [&](Any from, float* to) {
      for (int64_t g = 0; g < w_.groups; g += 16) {
        const int64_t n = std::min<int64_t>(16, w_.groups - g), groups = w_.groups;
        turn([=](int64_t row, v16& y)
                 __attribute__((always_inline)) { y = load_part(from + (row * groups + g), n); },
             [y = to + g * kColumns + half](int64_t i, const v16& v)
                 __attribute__((always_inline)) { store16(y + i * kColumns, v); });
      }
    };
    numbers(w_.scales(b, first), scales(panel));
    if (w_.given) numbers(w_.offsets(b, first), offsets(panel));
  }

  template <bool given, int... i>
  void tiles(std::integer_sequence<int, i...>, const Buffers& b, int64_t m, int64_t panel,
             uint8_t* codes) const {
    const int64_t rows = std::min<int64_t>(kTile, m_ - m);
    ((rows == i + 1 ? tile<i + 1, given>(b, m, panel, codes) : void()), ...);
  }

  template <int M, bool given>
  void tile(const Buffers& b, int64_t m, int64_t number, uint8_t* panel) const {
    const int64_t words = w_.size / 4, columns = padded_, groups = w_.groups;
    const int8_t* a = x_.codes(b, m);
    const float *units = x_.units(b, m), *sums = x_.sums(b, m);
    const float *scale = scales(panel), *offset = offsets(panel), middle = w_.middle();
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
          Lanes y = unit * __builtin_convertvector(products[r][v], Lanes);
          if constexpr (given)
            total[r][v] += load(offset + 16 * v) * sum;
          else
            y -= middle * sum;
          total[r][v] += load(scale + 16 * v) * y;
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
