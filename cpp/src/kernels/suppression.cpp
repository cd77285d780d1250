// SPDX-License-Identifier: Apache-2.0
// Suppression of boxes that overlap others of higher score: x (B, N, 5 + C).
#include <cmath>
#include <numeric>

#include "line.h"

namespace nnl {
namespace {

class Suppression : public Kernel {
 public:
  explicit Suppression(const Signature& s)
      : images_(s.in[0].shape[0]),
        boxes_(s.in[0].shape[1]),
        width_(s.in[0].shape[2]),
        thresh_(static_cast<float>(s.attributes.number("thresh"))),
        nms_(static_cast<float>(s.attributes.number("nms"))),
        per_class_(s.attributes.flag("nms_per_class")) {}
  size_t workspace() const override { return static_cast<size_t>(boxes_) * 2 * sizeof(int64_t); }

  void run(const Buffers& b) override {
    auto* order = static_cast<int64_t*>(b.workspace);
    auto* lost = reinterpret_cast<uint8_t*>(order + boxes_);
    std::copy_n(b.input<float>(0), images_ * boxes_ * width_, b.output<float>());
    for (int64_t n = 0; n < images_; ++n) {
      float* y = b.output<float>() + n * boxes_ * width_;
      for (float* box = y; box < y + boxes_ * width_; box += width_) {
        if (box[4] < thresh_) box[4] = 0;
        for (int64_t c = 5; c < width_; ++c) {
          box[c] *= box[4];
          if (box[c] < thresh_) box[c] = 0;
        }
      }
      if (per_class_)
        for (int64_t c = 5; c < width_; ++c) suppress(y, c, c + 1, order, lost);
      else
        suppress(y, 4, width_, order, lost);
    }
  }

 private:
  // The values [at, end) of boxes that others of a higher score, at place `at`, suppress become 0.
  void suppress(float* y, int64_t at, int64_t end, int64_t* order, uint8_t* lost) const {
    int64_t count = 0;
    for (int64_t i = 0; i < boxes_; ++i)
      if (y[i * width_ + at] != 0) order[count++] = i;
    std::sort(order, order + count, [&](int64_t i, int64_t j) {
      const float a = y[i * width_ + at], b = y[j * width_ + at];
      if (std::isnan(a) != std::isnan(b)) return std::isnan(b);
      return a > b || (!(a < b) && i < j);
    });
    std::fill_n(lost, count, 0);
    for (int64_t i = 0; i < count; ++i) {
      if (per_class_ && lost[i]) continue;  // a suppressed box suppresses no other
      for (int64_t j = i + 1; j < count; ++j)
        lost[j] |= !(overlap(y + order[i] * width_, y + order[j] * width_) <= nms_);
    }
    for (int64_t i = 0; i < count; ++i)
      if (lost[i]) std::fill(y + order[i] * width_ + at, y + order[i] * width_ + end, 0.0f);
    if (!per_class_)
      for (int64_t i = 0; i < boxes_; ++i)
        if (y[i * width_ + 4] == 0) std::fill(y + i * width_ + 5, y + (i + 1) * width_, 0.0f);
  }

  // Intersection over union.
  static float overlap(const float* a, const float* b) {
    float common = 1, of_a = 1, of_b = 1;
    for (int k = 0; k < 2; ++k) {
      const float ha = a[2 + k] / 2, hb = b[2 + k] / 2;
      const float high = std::min(a[k] + ha, b[k] + hb), low = std::max(a[k] - ha, b[k] - hb);
      common *= std::max(high - low, 0.0f);
      of_a *= std::max((a[k] + ha) - (a[k] - ha), 0.0f);
      of_b *= std::max((b[k] + hb) - (b[k] - hb), 0.0f);
    }
    const float all = of_a + of_b - common;
    return common / (all > 0 ? all : 1);
  }

  int64_t images_, boxes_, width_;
  float thresh_, nms_;
  bool per_class_;
};

std::unique_ptr<Kernel> nms_detection2d(const Signature& s) {
  for (const Spec* x : {&s.in[0], &s.out[0]})
    if (x->dtype != DType::f32 || x->layout != Layout::plain) return nullptr;
  return std::make_unique<Suppression>(s);
}

const Registration registration("nms_detection2d", nms_detection2d);

}  // namespace
}  // namespace nnl
