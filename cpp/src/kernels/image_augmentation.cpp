// SPDX-License-Identifier: Apache-2.0
// image_augmentation: x (..., C, H, W) moved, turned, bent and coloured by chance, to `shape`.
// The numbers are those of the numpy definition; positions are taken in double precision.
#include <algorithm>
#include <cmath>
#include <vector>

#include "../random.h"
#include "nnl/kernel.h"
#include "nnl/threads.h"

namespace nnl {
namespace {

struct Size {
  int64_t height, width;
};

struct Settings {
  explicit Settings(const Attributes& a)
      : pad(a.integers("pad")),
        low(std::log(a.number("min_scale"))),
        high(std::log(a.number("max_scale"))),
        angle(a.number("angle")),
        stretch(std::sqrt(a.number("aspect_ratio"))),
        distortion(a.number("distortion")),
        brightness(a.number("brightness")),
        contrast(a.number("contrast")),
        center(a.number("contrast_center")),
        noise(a.number("noise")),
        flip_lr(a.flag("flip_lr")),
        flip_ud(a.flag("flip_ud")),
        brightness_each(a.flag("brightness_each")),
        contrast_each(a.flag("contrast_each")) {}

  std::vector<int64_t> pad;
  double low, high, angle, stretch, distortion, brightness, contrast, center, noise;
  bool flip_lr, flip_ud, brightness_each, contrast_each;
};

double at(const Philox& random, int64_t i) {
  uint64_t word;
  random.words(i, 1, &word);
  return uniform(word);
}

double symmetric(const Philox& random, int64_t i) { return 2 * at(random, i) - 1; }

// Where the pixels of one result lie in its image.
class Positions {
 public:
  // Args: u: nine numbers for each of `images`, the first ones of all images first.
  Positions(const Settings& s, const Philox& u, int64_t i, int64_t images, Size x, Size y)
      : settings_(s), x_(x), y_(y) {
    const auto number = [&](int64_t k) { return at(u, k * images + i); };
    const double scale = std::exp(s.low + (s.high - s.low) * number(0));
    const double stretch = std::pow(s.stretch, 2 * number(1) - 1);
    const double angle = s.angle * (2 * number(2) - 1);
    lens_ = s.distortion * (2 * number(3) - 1);
    magnified_[0] = scale / stretch, magnified_[1] = scale * stretch;
    const int64_t from[] = {x.height, x.width}, to[] = {y.height, y.width};
    for (size_t k = 0; k < 2; ++k) {
      const double padded = static_cast<double>(from[k] + 2 * s.pad[k]);
      const double margin = padded * magnified_[k] - static_cast<double>(to[k]);
      moved_[k] = (number(4 + static_cast<int64_t>(k)) - 0.5) * std::fabs(margin);
    }
    up_ = s.flip_ud && !(number(6) < 0.5), left_ = s.flip_lr && !(number(7) < 0.5);
    sine_ = std::sin(angle), cosine_ = std::cos(angle);
  }

  // Row and column of pixel (r, c), within the image.
  std::pair<double, double> operator()(int64_t r, int64_t c) const {
    const double down = (centred(r, y_.height) + moved_[0]) / magnified_[0];
    const double right = (centred(c, y_.width) + moved_[1]) / magnified_[1];
    double v = cosine_ * down - sine_ * right, h = sine_ * down + cosine_ * right;
    if (settings_.distortion != 0) {
      const double reach = static_cast<double>(x_.height * x_.height + x_.width * x_.width) / 4;
      const double bend = 1 + lens_ * (v * v + h * h) / std::max(reach, 1.0);
      v *= bend, h *= bend;
    }
    return {within(up_ ? -v : v, x_.height), within(left_ ? -h : h, x_.width)};
  }

 private:
  static double centred(int64_t i, int64_t n) {
    return static_cast<double>(i) - static_cast<double>(n - 1) / 2;
  }
  static double within(double v, int64_t n) {
    const double last = static_cast<double>(n - 1);
    v += last / 2;
    return v > 0 ? std::min(v, last) : 0.0;  // 0 for what is not a number
  }

  const Settings& settings_;
  Size x_, y_;
  double lens_, magnified_[2], moved_[2], sine_, cosine_;
  bool up_, left_;
};

class ImageAugmentation : public Kernel {
 public:
  ImageAugmentation(const Settings& s, int64_t images, int64_t channels, Size x, Size y)
      : settings_(s), images_(images), channels_(channels), x_(x), y_(y) {}

  void run(const Buffers& b) override {
    auto* state = b.written_input<uint64_t>(1);
    const Settings& s = settings_;
    const int64_t all = images_ * channels_, pixels = y_.height * y_.width;
    const int64_t contrasts = s.contrast_each ? all : images_;
    const int64_t lights = s.brightness_each ? all : images_;
    const int64_t pairs = (all * pixels + 1) / 2;
    const auto take = [&](bool any, int64_t n) { return Philox::take(state, any ? n : 0); };
    const Philox places = take(true, 9 * images_), contrast = take(s.contrast != 1, contrasts);
    const Philox light = take(s.brightness != 0, lights), noise = take(s.noise != 0, 2 * pairs);
    parallel_for(images_, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const Positions place(s, places, i, images_, x_, y_);
        move(b.input<float>(0), b.output<float>(), i, place);
        for (int64_t c = i * channels_; c < (i + 1) * channels_; ++c) {
          float* y = b.output<float>() + c * pixels;
          double factor = 1, offset = 0;
          if (s.contrast != 1)
            factor = std::pow(s.contrast, symmetric(contrast, s.contrast_each ? c : i));
          if (s.brightness != 0)
            offset = s.brightness * symmetric(light, s.brightness_each ? c : i);
          for (int64_t k = 0; k < pixels; ++k) {
            double v = (y[k] - s.center) * factor + s.center + offset;
            if (s.noise != 0) v += s.noise * normal(noise, c * pixels + k, pairs);
            y[k] = static_cast<float>(v);
          }
        }
      }
    });
  }

 private:
  // Number i of Box and Muller's: pair i / 2 is made of words i / 2 and pairs + i / 2.
  static double normal(const Philox& random, int64_t i, int64_t pairs) {
    const double radius = std::sqrt(-2 * std::log1p(-at(random, i / 2)));
    const double angle = 2 * M_PI * at(random, pairs + i / 2);
    return radius * (i % 2 ? std::sin(angle) : std::cos(angle));
  }

  // Image i, between the pixels of x.
  void move(const float* x, float* y, int64_t i, const Positions& place) const {
    const int64_t size = x_.height * x_.width, pixels = y_.height * y_.width;
    for (int64_t r = 0; r < y_.height; ++r) {
      for (int64_t c = 0; c < y_.width; ++c) {
        const auto [row, column] = place(r, c);
        const auto top = static_cast<int64_t>(row), left = static_cast<int64_t>(column);
        const int64_t bottom = std::min(top + 1, x_.height - 1);
        const int64_t right = std::min(left + 1, x_.width - 1);
        const float down = static_cast<float>(row - static_cast<double>(top));
        const float across = static_cast<float>(column - static_cast<double>(left));
        for (int64_t k = i * channels_; k < (i + 1) * channels_; ++k) {
          const float* image = x + k * size;
          const auto mixed = [&](int64_t line) {
            const float* v = image + line * x_.width;
            return v[left] * (1 - across) + v[right] * across;
          };
          y[k * pixels + r * y_.width + c] = mixed(top) * (1 - down) + mixed(bottom) * down;
        }
      }
    }
  }

  const Settings settings_;
  const int64_t images_, channels_;
  const Size x_, y_;
};

std::unique_ptr<Kernel> setup(const Signature& s) {
  const Spec &x = s.in[0], &y = s.out[0];
  if (x.dtype != DType::f32 || y.dtype != DType::f32 || x.layout != Layout::plain ||
      y.layout != Layout::plain)
    return nullptr;
  const size_t n = x.shape.size();
  const int64_t channels = n > 2 ? x.shape[n - 3] : 1;
  int64_t images = 1;
  for (size_t i = 0; i + 3 < n; ++i) images *= x.shape[i];
  return std::make_unique<ImageAugmentation>(Settings(s.attributes), images, channels,
                                             Size{x.shape[n - 2], x.shape[n - 1]},
                                             Size{y.shape[n - 2], y.shape[n - 1]});
}
const Registration registration("image_augmentation", setup);

}  // namespace
}  // namespace nnl
