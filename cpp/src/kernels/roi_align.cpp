// SPDX-License-Identifier: Apache-2.0
// Parts of feature maps that lie in boxes (image, x1, y1, x2, y2), resampled to one size, and the
// gradient. Channels lie side by side while it works.
#include <algorithm>
#include <cmath>
#include <iomanip>
#include <sstream>

#include "converted.h"
#include "nnl/threads.h"
#include "space.h"
#include "strided_copy.h"
#include "vector16.h"

namespace nnl {
namespace {

constexpr double kWorthSharing = 1 << 21;  // multiplications that take longer than to wake threads

constexpr Layout kLast = Layout::channels_last;

struct Tap {
  int64_t at;
  float weight;
};

// The pixels of one axis that the bins of a box are made of, with their weights. Positions are
// computed in double, as the definition does.
class BinTaps {
 public:
  BinTaps(int64_t pixels, int64_t bins, int64_t ratio, Space& space)
      : pixels_(pixels), bins_(bins), ratio_(ratio) {
    ends_ = space.take(static_cast<size_t>(bins) * sizeof(int64_t));
    taps_ = space.take(static_cast<size_t>(most()) * sizeof(Tap));
    sums_ = space.take(static_cast<size_t>(pixels) * sizeof(double));
  }

  // What all bins take together, at most: two for each sample. Where the box says how many samples
  // there are, either a bin has one, or they are more than half a pixel apart.
  int64_t most() const {
    const int64_t samples = ratio_ > 0 ? bins_ * ratio_ : std::max(bins_, 2 * pixels_ + 8);
    return std::min(2 * samples, bins_ * pixels_);
  }

  struct List {
    const Tap *begin, *end;
  };
  // The taps of a bin; `find` has filled this workspace.
  List of(void* workspace, int64_t bin) const {
    const auto* ends = Space::at<int64_t>(workspace, ends_);
    const auto* taps = Space::at<Tap>(workspace, taps_);
    return {taps + (bin ? ends[bin - 1] : 0), taps + ends[bin]};
  }

  // For a box that begins at a position and is so long, in pixels, 0 being the centre of the first.
  void find(double start, double length, void* workspace) const {
    auto* ends = Space::at<int64_t>(workspace, ends_);
    auto* taps = Space::at<Tap>(workspace, taps_);
    auto* sums = Space::at<double>(workspace, sums_);
    std::fill_n(sums, pixels_, 0.0);
    const auto bins = static_cast<double>(bins_), size = static_cast<double>(pixels_);
    const double ratio = ratio_ > 0 ? static_cast<double>(ratio_) : std::ceil(length / bins);
    const double n = pixels_ ? std::max(bins * ratio, 0.0) : 0.0, step = length / n;
    double first = 0, count = n;
    if (step > 0) {  // a box may be much larger than the image: only samples near it are looked at
      first = std::clamp(std::floor((-1 - start) / step) - 1, 0.0, n);
      count = std::min(n - first, std::ceil((size + 1) / step) + 3);
    }
    int64_t bin = 0, made = 0, low = pixels_, high = -1;  // pixels that the bin has up to now
    const auto end_bin = [&] {
      for (int64_t at = low; at <= high; ++at) {
        if (sums[at] != 0) taps[made++] = {at, static_cast<float>(sums[at])};
        sums[at] = 0;
      }
      low = pixels_, high = -1;
      ends[bin++] = made;
    };
    for (double k = 0; k < count; ++k) {
      const double i = first + k, p = start + (i + 0.5) * step;
      if (!(p >= -1 && p <= size)) continue;
      const double which = std::floor(i / ratio);
      while (bin + 1 < bins_ && static_cast<double>(bin) < which) end_bin();
      const double inside = std::clamp(p, 0.0, size - 1);
      const auto at = static_cast<int64_t>(inside), next = std::min(at + 1, pixels_ - 1);
      const double part = inside - static_cast<double>(at);
      sums[at] += (1 - part) / ratio;
      sums[next] += part / ratio;
      low = std::min(low, at), high = std::max(high, next);
    }
    while (bin < bins_) end_bin();
  }

 private:
  int64_t pixels_, bins_, ratio_;
  size_t ends_ = 0, taps_ = 0, sums_ = 0;
};

// Whether the channels of an array lie side by side.
bool is_last(const Spec& s, bool channel_last) {
  return channel_last || s.layout == Layout::channels_last;
}

StridedCopy copy(Spec s, Layout from, Layout to) {
  s.layout = from;
  const Shape source = s.strides();
  s.layout = to;
  return {s.shape, source, 0, s.strides(), 0, DType::f32, DType::f32};
}

std::string text_of(const float* values, int64_t n) {
  std::ostringstream text;
  for (int64_t i = 0; i < n; ++i) text << (i ? ", " : "[") << values[i];
  return text.str() + "]";
}

template <bool backward>
class RoiAlign : public Kernel {
 public:
  explicit RoiAlign(const Signature& s)
      : name_(backward ? "roi_align_backward" : "roi_align"),
        big_(backward ? s.out[0] : s.in[0]),
        small_(backward ? s.in[0] : s.out[0]),
        boxes_(s.in[1].shape[0]),
        scales_(s.attributes.numbers("spatial_scale")),
        big_is_last_(is_last(big_, s.attributes.flag("channel_last"))),
        small_is_last_(is_last(small_, s.attributes.flag("channel_last"))),
        big_copy_(backward ? copy(big_, kLast, big_.layout) : copy(big_, big_.layout, kLast)),
        small_copy_(backward ? copy(small_, small_.layout, kLast)
                             : copy(small_, kLast, small_.layout)) {
    const bool last = s.attributes.flag("channel_last");
    const Shape &x = big_.shape, &bins = s.attributes.integers("output_size");
    images_ = x[0], channels_ = last ? x[3] : x[1];
    height_ = last ? x[1] : x[2], width_ = last ? x[2] : x[3];
    rows_ = bins[0], columns_ = bins[1];
    if (!boxes_) return;
    Space space;
    const int64_t ratio = s.attributes.integer("sampling_ratio");
    row_taps_ = std::make_unique<BinTaps>(height_, rows_, ratio, space);
    column_taps_ = std::make_unique<BinTaps>(width_, columns_, ratio, space);
    parts_ = threads(), part_bytes_ = space.size();
    Space all;
    all.take(part_bytes_ * static_cast<size_t>(parts_));
    big_at_ = all.floats(big_is_last_ ? 0 : big_.size());
    small_at_ = all.floats(small_is_last_ ? 0 : small_.size());
    bytes_ = all.size();
    const auto per_bin = [](const BinTaps& taps, int64_t bins) {
      return std::max(static_cast<double>(taps.most()) / static_cast<double>(bins), 1.0);
    };
    work_ = static_cast<double>(small_.size()) * per_bin(*row_taps_, rows_) *
            per_bin(*column_taps_, columns_);
  }
  size_t workspace() const override { return bytes_; }

  void run(const Buffers& b) override {
    const float* boxes = b.input<float>(1);
    check(boxes);
    if (!boxes_) {
      if (backward) std::fill_n(b.output<float>(), big_.size(), 0.0f);
      return;
    }
    float *big = static_cast<float*>(backward ? b.out[0] : b.in[0]), *x = big;
    float *small = static_cast<float*>(backward ? b.in[0] : b.out[0]), *y = small;
    if (!big_is_last_) x = Space::at(b.workspace, big_at_);
    if (!small_is_last_) y = Space::at(b.workspace, small_at_);
    if constexpr (backward) {
      if (y != small) small_copy_.run(small, y);
      parallel_for(big_.size(), 1 << 16,
                   [&](int64_t begin, int64_t end) { std::fill(x + begin, x + end, 0.0f); });
      // boxes may overlap, so threads share the channels
      const int64_t blocks = (channels_ + 15) / 16;
      each_part(blocks, b.workspace, [&](int64_t begin, int64_t end, void* scratch) {
        end = std::min(16 * end, channels_);
        for (int64_t k = 0; k < boxes_; ++k) box(boxes + 5 * k, k, x, y, 16 * begin, end, scratch);
      });
      if (x != big) big_copy_.run(x, big);
    } else {
      if (x != big) big_copy_.run(big, x);
      each_part(boxes_, b.workspace, [&](int64_t begin, int64_t end, void* scratch) {
        for (int64_t k = begin; k < end; ++k) box(boxes + 5 * k, k, x, y, 0, channels_, scratch);
      });
      if (y != small) small_copy_.run(y, small);
    }
  }

 private:
  void check(const float* boxes) const {
    for (int64_t k = 0; k < boxes_; ++k) {
      const float* box = boxes + 5 * k;
      const auto what = [&] { return name_ + ": boxes[" + std::to_string(k) + "] is "; };
      if (!std::all_of(box, box + 5, [](float v) { return std::isfinite(v); }))
        throw ValueError(what() + text_of(box, 5) + ", wanted finite numbers");
      const float image = std::trunc(box[0]);
      if (!(image >= 0 && image < static_cast<float>(images_))) {
        std::ostringstream number;
        number << std::fixed << std::setprecision(0) << image;
        throw ValueError(name_ + ": boxes[:, 0] has the value " + number.str() +
                         ", wanted 0 <= value < " + std::to_string(images_));
      }
      const Part y = part(box, 0), x = part(box, 1);
      if (!std::isfinite(y.length) || !std::isfinite(x.length))
        throw ValueError(name_ + ": the box " + text_of(box, 5) +
                         " times spatial_scale is not finite");
    }
  }

  struct Part {
    double start, length;
  };
  // Where a box begins and how long it is, along y (axis 0) or x, in pixels. Volatile, as a product
  // that is fused with the subtraction gives a box without length some.
  Part part(const float* box, int axis) const {
    const auto scale = static_cast<float>(scales_[static_cast<size_t>(axis)]);
    const volatile float from = box[2 - axis] * scale, to = box[4 - axis] * scale;
    return {static_cast<double>(from) - 0.5, static_cast<double>(to - from)};
  }

  // f(begin, end, workspace of its own) over [0, n), by one thread where it is little work.
  template <class F>
  void each_part(int64_t n, void* workspace, F f) const {
    const int64_t parts = work_ < kWorthSharing ? 1 : std::min(parts_, n);
    parallel_for(parts, 1, [&](int64_t first, int64_t last) {
      for (int64_t p = first; p < last; ++p)
        f(n * p / parts, n * (p + 1) / parts,
          static_cast<char*>(workspace) + static_cast<size_t>(p) * part_bytes_);
    });
  }

  // Box k: these channels of y from the images x, or added to them.
  void box(const float* box, int64_t k, float* x, float* y, int64_t begin, int64_t end,
           void* scratch) const {
    const Part of_rows = part(box, 0), of_columns = part(box, 1);
    row_taps_->find(of_rows.start, of_rows.length, scratch);
    column_taps_->find(of_columns.start, of_columns.length, scratch);
    x += static_cast<int64_t>(box[0]) * height_ * width_ * channels_;
    y += k * rows_ * columns_ * channels_;
    for (int64_t i = 0; i < rows_; ++i)
      for (int64_t j = 0; j < columns_; ++j, y += channels_) {
        const auto rows = row_taps_->of(scratch, i), columns = column_taps_->of(scratch, j);
        for_blocks(begin, end, [&](auto kind, int64_t c, int64_t n) {
          bin<decltype(kind)>(x + c, y + c, n, rows, columns);
        });
      }
  }

  // n channels of a bin.
  template <class Kind>
  void bin(float* x, float* y, int64_t n, BinTaps::List rows, BinTaps::List columns) const {
    constexpr int K = Kind::vectors;
    v16 v[K], sum[K] = {};
    if (backward) load_block<K, Kind::part>(y, n, sum);
    for (const Tap* r = rows.begin; r != rows.end; ++r)
      for (const Tap* t = columns.begin; t != columns.end; ++t) {
        float* at = x + (r->at * width_ + t->at) * channels_;
        const float weight = r->weight * t->weight;
        load_block<K, Kind::part>(at, n, v);
        for (int k = 0; k < K; ++k)
          if (backward)
            v[k] += sum[k] * weight;
          else
            sum[k] += v[k] * weight;
        if (backward) store_block<K, Kind::part>(at, n, v);
      }
    if (!backward) store_block<K, Kind::part>(y, n, sum);
  }

  std::string name_;
  Spec big_, small_;
  int64_t boxes_;
  std::vector<double> scales_;
  bool big_is_last_, small_is_last_;
  StridedCopy big_copy_, small_copy_;
  int64_t images_, channels_, height_, width_, rows_, columns_, parts_ = 1;
  double work_ = 0;  // multiplications, at most
  std::unique_ptr<BinTaps> row_taps_, column_taps_;
  size_t part_bytes_ = 0, big_at_ = 0, small_at_ = 0, bytes_ = 0;
};

template <bool backward>
std::unique_ptr<Kernel> setup(const Signature& s) {
  const bool last = s.attributes.flag("channel_last");
  for (const Spec* a : {&s.in[0], &s.out[0]}) {
    if (last ? a->layout != Layout::plain : a->layout == Layout::tiled) return nullptr;
    if (a->dtype != DType::f32) return converted(s, Convert::halves, setup<backward>);
  }
  if (s.in[1].dtype != DType::f32) return converted(s, Convert::halves, setup<backward>);
  return std::make_unique<RoiAlign<backward>>(s);
}

const Registration registrations[] = {
    {"roi_align", setup<false>},
    {"roi_align_backward", setup<true>},
};

}  // namespace
}  // namespace nnl
