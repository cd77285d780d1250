// SPDX-License-Identifier: Apache-2.0
// Products with weights of 4 or 8 bits in floating point, and the weights as numbers.
#include <algorithm>

#include "gemm.h"
#include "quantized_codes.h"

namespace nnl {
namespace {

constexpr int64_t kDeep = 512;  // columns that are unpacked at a time

class DequantizeGroups : public Kernel {
 public:
  explicit DequantizeGroups(const Signature& s) : w_(s, 0), type_(s.out[0].dtype) {}

  void run(const Buffers& b) override {
    parallel_for(w_.rows, 1 + (1 << 15) / std::max<int64_t>(w_.columns, 1),
                 [&](int64_t begin, int64_t end) {
                   float y[kDeep];
                   for (int64_t row = begin; row < end; ++row)
                     for (int64_t at = 0; at < w_.columns; at += kDeep) {
                       const int64_t n = std::min(kDeep, w_.columns - at);
                       w_.unpack(b, row, at, n, y);
                       store_any(type_, y, b.out[0], row * w_.columns + at, n);
                     }
                 });
  }

 private:
  const Codes w_;
  const DType type_;
};

// Blocks of weights are unpacked to floats, which meet a few rows of activations as they are, and
// many in an order that pays then.
class FloatProduct : public Kernel {
 public:
  explicit FloatProduct(const Signature& s)
      : w_(s, 1), in_(s.in[0].dtype), out_(s.out[0].dtype), m_(s.out[0].size() / w_.rows) {
    blocks_ = (w_.rows + gemm::kPanel - 1) / gemm::kPanel;
    parts_ = std::min<int64_t>(blocks_, parts_of(w_.rows * w_.columns * m_));
    x_ = space_.floats(m_ * w_.columns);
    if (s.attributes.integer("activation_bits") == 8)
      rounded_ = std::make_unique<Rounded>(w_, in_, m_, w_.columns, space_);
    // a part's unpacked weights, the same in another order, and sums
    part_floats_ = gemm::kPanel * (2 * kDeep + m_);
    work_ = space_.floats(parts_ * part_floats_);
  }
  size_t workspace() const override { return space_.size(); }

  void run(const Buffers& b) override {
    float* x = Space::at(b.workspace, x_);
    if (rounded_) {
      rounded_->round(b, b.in[0]);
      for (int64_t m = 0; m < m_; ++m)
        for (int64_t g = 0; g < w_.groups; ++g)
          for (int64_t i = g * w_.size; i < (g + 1) * w_.size; ++i)
            x[m * w_.columns + i] = rounded_->codes(b, m)[i] * rounded_->units(b, m)[g];
    } else {
      convert(in_, b.in[0], DType::f32, x, m_ * w_.columns);
    }
    for_parts(parts_, blocks_, [&](int64_t part, int64_t begin, int64_t end) {
      float* unpacked = Space::at(b.workspace, work_) + part * part_floats_;
      for (int64_t block = begin; block < end; ++block) rows(b, x, block * gemm::kPanel, unpacked);
    });
  }

 private:
  // The results of a block of weights.
  void rows(const Buffers& b, const float* x, int64_t first, float* unpacked) const {
    constexpr int64_t few = 4;  // rows that are less than the work of another order
    const int64_t n = std::min(gemm::kPanel, w_.rows - first), k = w_.columns;
    float *packed = unpacked + gemm::kPanel * kDeep, *sums = packed + gemm::kPanel * kDeep;
    std::fill_n(sums, m_ * n, 0.0f);
    for (int64_t at = 0; at < k; at += kDeep) {
      const int64_t deep = std::min(kDeep, k - at);
      for (int64_t j = 0; j < n; ++j) w_.unpack(b, first + j, at, deep, unpacked + j * deep);
      if (m_ < few) {
        for (int64_t m = 0; m < m_; ++m)
          for (int64_t j = 0; j < n; ++j)
            sums[m * n + j] += sum_of(lane_sums(deep, [&](int64_t i, int64_t l, auto whole) {
              return get<whole()>(x + m * k + at + i, l) * get<whole()>(unpacked + j * deep + i, l);
            }));
      } else {
        gemm::pack(unpacked, 1, deep, deep, n, packed);
        gemm::multiply(x + at, k, 1, packed, sums, n, m_, n, deep, true);
      }
    }
    for (int64_t m = 0; m < m_; ++m)
      store_any(out_, sums + m * n, b.out[0], m * w_.rows + first, n);
  }

  const Codes w_;
  const DType in_, out_;
  const int64_t m_;
  int64_t blocks_, parts_, part_floats_;
  std::unique_ptr<Rounded> rounded_;
  Space space_;
  size_t x_, work_;
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
                             auto integers = make_integer_product(s);
                             return integers ? std::move(integers)
                                             : std::make_unique<FloatProduct>(s);
                           }};

}  // namespace
}  // namespace nnl
