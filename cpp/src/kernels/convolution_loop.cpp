// SPDX-License-Identifier: Apache-2.0
// Convolutions by plain loops, for any number of axes: what oneDNN does not do, or all of it.
//
// Arrays are copied channels-last into the workspace in float32. A value of the result is a sum
// over taps; per axis, a table lists for every position of the result the (tap, position) pairs
// seen.
#include <algorithm>
#include <cstring>

#include "convolution.h"
#include "nnl/threads.h"
#include "vector16.h"

namespace nnl {
namespace {

constexpr int64_t kChunk = 256;  // products added up before they join the total

struct Tap {
  int64_t tap, at;
};
using AxisTaps = std::vector<std::vector<Tap>>;  // for every position of the result

// Positions of x that every position of y sees along axis i.
AxisTaps forward_taps(const Convolution& c, size_t i) {
  AxisTaps taps(static_cast<size_t>(c.out[i]));
  for (int64_t q = 0; q < c.out[i]; ++q)
    for (int64_t k = 0; k < c.kernel[i]; ++k) {
      const int64_t p = q * c.stride[i] + k * c.dilation[i] - c.pad[i];
      if (p >= 0 && p < c.size[i]) taps[static_cast<size_t>(q)].push_back({k, p});
    }
  return taps;
}

AxisTaps data_taps(const Convolution& c, size_t i) {
  AxisTaps taps(static_cast<size_t>(c.size[i]));
  const AxisTaps seen = forward_taps(c, i);
  for (int64_t k = 0; k < c.kernel[i]; ++k)
    for (int64_t q = 0; q < c.out[i]; ++q)
      for (const Tap& t : seen[static_cast<size_t>(q)])
        if (t.tap == k) taps[static_cast<size_t>(t.at)].push_back({k, q});
  return taps;
}

int64_t product(const Shape& s) {
  int64_t n = 1;
  for (int64_t d : s) n *= d;
  return n;
}

// The pairs of one position of the result in all axes, written to `out`; returns how many.
int64_t taps_at(const std::vector<AxisTaps>& axes, const Shape& kernel, const Shape& size,
                const Shape& result, int64_t position, Tap* out) {
  int64_t n = 1;
  out[0] = {0, 0};
  int64_t tap_step = 1, at_step = 1;
  for (size_t i = axes.size(); i-- > 0;) {  // the last axis fastest
    const auto& here = axes[i][static_cast<size_t>(position % result[i])];
    position /= result[i];
    const auto m = static_cast<int64_t>(here.size());
    for (int64_t a = m; a-- > 0;)  // backwards: the first copy is what is multiplied
      for (int64_t j = 0; j < n; ++j)
        out[a * n + j] = {out[j].tap + here[static_cast<size_t>(a)].tap * tap_step,
                          out[j].at + here[static_cast<size_t>(a)].at * at_step};
    n *= m;
    tap_step *= kernel[i];
    at_step *= size[i];
  }
  return n;
}

float read(const void* x, DType type, int64_t i) {
  if (type == DType::f32) return static_cast<const float*>(x)[i];
  if (type == DType::bf16) return to_float(static_cast<const bf16*>(x)[i]);
  return to_float(static_cast<const f16*>(x)[i]);
}

void write(void* y, DType type, int64_t i, float value) {
  if (type == DType::f32)
    static_cast<float*>(y)[i] = value;
  else if (type == DType::bf16)
    static_cast<bf16*>(y)[i] = to_bf16(value);
  else
    static_cast<f16*>(y)[i] = to_f16(value);
}

// Whether the pixels of an image lie in one run with a single stride, as in both usual layouts.
bool has_even_pixels(const Convolution::Array& a) {
  int64_t step = a.strides.back();
  for (size_t i = a.shape.size(); i-- > 2; step *= a.shape[i])
    if (a.shape[i] > 1 && a.strides[i] != step) return false;
  return true;
}

// f(index in memory, index in (N, pixels, channels)) for all elements of images.
template <class F>
void for_images(const Convolution::Array& a, F f) {
  const int64_t channels = a.shape[1], pixels = product(a.shape) / (a.shape[0] * channels);
  const int64_t sn = a.strides[0], sc = a.strides[1], sp = a.strides.back();
  parallel_for(a.shape[0] * pixels, 1 + 4096 / channels, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t n = i / pixels, p = i % pixels;
      for (int64_t c = 0; c < channels; ++c) f(n * sn + c * sc + p * sp, i * channels + c);
    }
  });
}

void copy_in(const Convolution::Array& a, const void* from, float* to) {
  for_images(a, [=, type = a.dtype](int64_t at, int64_t i) { to[i] = read(from, type, at); });
}

void copy_out(const Convolution::Array& a, const float* from, void* to) {
  for_images(a, [=, type = a.dtype](int64_t at, int64_t i) { write(to, type, at, from[i]); });
}

class Loop : public Kernel {
 public:
  explicit Loop(const Convolution& c) : c_(c) {
    taps_ = product(c.kernel);
    per_x_ = c.channels / c.groups;
    per_y_ = c.maps / c.groups;
    size_ = product(c.size);
    out_ = product(c.out);
    for (size_t i = 0; i < c.spatial(); ++i)
      axes_.push_back(c.direction == Direction::data ? data_taps(c, i) : forward_taps(c, i));
    x_at_ = place(c.x.size());
    y_at_ = place(c.y.size());
    w_at_ = place(c.w.size());
    lists_at_ = bytes_;
    list_bytes_ = static_cast<size_t>(taps_ + 1) * sizeof(Tap) / 64 * 64 + 64;
    bytes_ += list_bytes_ * static_cast<size_t>(threads());
    threads_ = threads();
  }
  size_t workspace() const override { return bytes_; }
  bool may_overwrite(size_t, size_t i) const override {  // all is read before y is written
    return i == c_.z_at && c_.z.dtype == c_.y.dtype && c_.z.strides == c_.y.strides;
  }

  void run(const Buffers& b) override {
    auto* scratch = static_cast<char*>(b.workspace);
    auto* x = reinterpret_cast<float*>(scratch + x_at_);
    auto* y = reinterpret_cast<float*>(scratch + y_at_);
    auto* w = reinterpret_cast<float*>(scratch + w_at_);
    if (c_.direction == Direction::weight) {
      copy_in(c_.x, b.in[c_.x_at], x);
      copy_in(c_.y, b.in[c_.y_at], y);
      weight_gradient(x, y, w);
      for_weights([&](int64_t at, int64_t i) { write(b.out[0], c_.w.dtype, at, w[i]); });
      if (c_.bias_at != c_.none) bias_gradient(y, b.out[c_.bias_at]);
      return;
    }
    const float* scale = c_.scale_at == c_.none ? nullptr : b.input<float>(c_.scale_at);
    const void* weights = b.in[c_.w_at];
    const int64_t map = c_.w.strides[1];
    for_weights([&](int64_t at, int64_t i) {
      w[i] = read(weights, c_.w.dtype, at) * (scale ? scale[at / map] : 1.0f);
    });
    const bool forward = c_.direction == Direction::forward;
    const Convolution::Array& from = forward ? c_.x : c_.y;
    const Convolution::Array& to = forward ? c_.y : c_.x;
    float *source = forward ? x : y, *result = forward ? y : x;
    copy_in(from, b.in[forward ? c_.x_at : c_.y_at], source);
    gather(source, w, result, scratch + lists_at_);
    if (forward) finish(b, result);
    copy_out(to, result, b.out[0]);
  }

 private:
  size_t place(int64_t floats) {
    const size_t at = bytes_;
    bytes_ += (static_cast<size_t>(floats) * 4 + 63) / 64 * 64;
    return at;
  }

  // f(memory index, index in (group, tap, source channel, result channel))
  template <class F>
  void for_weights(F f) const {
    const bool forward = c_.direction != Direction::data;
    const Shape& s = c_.w.strides;
    for (int64_t t = 0; t < taps_; ++t) {
      int64_t offset = 0, rest = t;
      for (size_t i = c_.spatial(); i-- > 0; rest /= c_.kernel[i])
        offset += rest % c_.kernel[i] * s[3 + i];
      for (int64_t g = 0; g < c_.groups; ++g)
        for (int64_t o = 0; o < per_y_; ++o)
          for (int64_t c = 0; c < per_x_; ++c) {
            const int64_t row = (depthwise() ? t : g * taps_ + t), col = depthwise() ? g : 0;
            const int64_t i = depthwise() ? row * c_.groups + col
                              : forward   ? (row * per_x_ + c) * per_y_ + o
                                          : (row * per_y_ + o) * per_x_ + c;
            f(offset + g * s[0] + o * s[1] + c * s[2], i);
          }
    }
  }

  bool depthwise() const { return per_x_ == 1 && per_y_ == 1; }

  // result[p] = sum over taps of source[tap] w[tap], for the forward pass and the data gradient
  void gather(const float* source, const float* w, float* result, char* lists) const {
    const bool forward = c_.direction == Direction::forward;
    const Shape &to = forward ? c_.out : c_.size, &from = forward ? c_.size : c_.out;
    const int64_t pixels = forward ? out_ : size_, seen = forward ? size_ : out_;
    const int64_t ci = forward ? per_x_ : per_y_, co = forward ? per_y_ : per_x_;
    const int64_t flops = ci * co * c_.groups * taps_;
    const int64_t total = c_.batch * pixels, parts = std::max<int64_t>(1, threads_);
    parallel_for(parts, total * flops < (1 << 18) ? parts : 1, [&](int64_t first, int64_t last) {
      auto* list = reinterpret_cast<Tap*>(lists + static_cast<size_t>(first) * list_bytes_);
      for (int64_t i = total * first / parts; i < total * last / parts; ++i) {
        const int64_t n = taps_at(axes_, c_.kernel, from, to, i % pixels, list);
        const float* x = source + i / pixels * seen * ci * c_.groups;
        float* y = result + i * co * c_.groups;
        if (depthwise())
          depthwise_pixel(x, w, y, list, n);
        else
          for (int64_t g = 0; g < c_.groups; ++g)
            for_blocks(0, co, [&](auto kind, int64_t o, int64_t some) {
              pixel<decltype(kind)>(x + g * ci, w + g * taps_ * ci * co + o, y + g * co + o, list,
                                    n, ci, co, some);
            });
      }
    });
  }

  template <class Kind>
  void pixel(const float* x, const float* w, float* y, const Tap* list, int64_t n, int64_t ci,
             int64_t co, int64_t some) const {
    constexpr int K = Kind::vectors;
    v16 total[K] = {}, v[K];
    for (int64_t t = 0; t < n; ++t) {
      const float* from = x + list[t].at * ci * c_.groups;
      const float* row = w + list[t].tap * ci * co;
      v16 sum[K] = {};
      for (int64_t c = 0; c < ci; ++c) {
        load_block<K, Kind::part>(row + c * co, some, v);
        for (int k = 0; k < K; ++k) sum[k] += from[c] * v[k];
      }
      for (int k = 0; k < K; ++k) total[k] += sum[k];
    }
    store_block<K, Kind::part>(y, some, total);
  }

  void depthwise_pixel(const float* x, const float* w, float* y, const Tap* list, int64_t n) const {
    const int64_t channels = c_.groups;
    std::fill(y, y + channels, 0.0f);
    for (int64_t t = 0; t < n; ++t) {
      const float *from = x + list[t].at * channels, *row = w + list[t].tap * channels;
#pragma omp simd
      for (int64_t c = 0; c < channels; ++c) y[c] += from[c] * row[c];
    }
  }

  void finish(const Buffers& b, float* y) const {
    const void* bias = c_.bias_at == c_.none ? nullptr : b.in[c_.bias_at];
    const void* z = c_.z_at == c_.none ? nullptr : b.in[c_.z_at];
    if (!bias && !z && c_.activation.kind == Activation::identity) return;
    const Convolution::Array& a = z ? c_.z : c_.y;
    const int64_t maps = c_.maps;
    for_images(a, [&, maps](int64_t at, int64_t i) {
      float v = y[i];
      if (bias) v += read(bias, c_.bias_type, i % maps);
      if (z) v += read(z, c_.z.dtype, at);
      y[i] = apply(c_.activation, v);
    });
  }

  // w[g][tap][c][o] = sum over pixels of x y; chunks of pixels are added up on their own.
  void weight_gradient(const float* x, const float* y, float* w) const {
    const int64_t rows = depthwise() ? taps_ : c_.groups * taps_;
    const int64_t wide = depthwise() ? c_.groups : per_x_;
    const int64_t parts = std::clamp<int64_t>(2 * threads_ / rows, 1, (wide + 15) / 16);
    parallel_for(rows * parts, 1, [&](int64_t begin, int64_t end) {
      int64_t xs[kChunk], ys[kChunk];
      for (int64_t i = begin; i < end; ++i) {
        const int64_t t = i / parts % taps_, g = i / parts / taps_;
        const int64_t c0 = wide * (i % parts) / parts, c1 = wide * (i % parts + 1) / parts;
        float* to = w + i / parts * wide * per_y_;
        std::fill(to + c0 * per_y_, to + c1 * per_y_, 0.0f);
        int64_t n = 0;
        const auto flush = [&] {
          if (depthwise()) {
            for_blocks(c0, c1, [&](auto kind, int64_t c, int64_t some) {
              depthwise_products<decltype(kind)>(x + c, y + c, xs, ys, n, to + c, some);
            });
          } else {
            for (int64_t c = c0; c < c1; c += c + 4 <= c1 ? 4 : 1)
              for_blocks(0, per_y_, [&](auto kind, int64_t o, int64_t some) {
                float* at = to + c * per_y_ + o;
                if (c + 4 <= c1)
                  products<decltype(kind), 4>(x + c, y + o, xs, ys, n, at, per_y_, some);
                else
                  products<decltype(kind), 1>(x + c, y + o, xs, ys, n, at, per_y_, some);
              });
          }
          n = 0;
        };
        for_pixels(t, [&](int64_t at_x, int64_t at_y) {
          xs[n] = at_x * c_.channels + g * per_x_;
          ys[n++] = at_y * c_.maps + g * per_y_;
          if (n == kChunk) flush();
        });
        flush();
      }
    });
  }

  // f(pixel of x, pixel of y) for all pairs that tap t connects
  template <class F>
  void for_pixels(int64_t t, F f) const {
    for (int64_t i = 0; i < c_.batch * out_; ++i) {
      int64_t rest = i % out_, tap = t, at = 0, step = 1;
      bool inside = true;
      for (size_t a = c_.spatial(); a-- > 0;) {
        const int64_t p =
            rest % c_.out[a] * c_.stride[a] + tap % c_.kernel[a] * c_.dilation[a] - c_.pad[a];
        inside = inside && p >= 0 && p < c_.size[a];
        at += p * step;
        step *= c_.size[a];
        rest /= c_.out[a];
        tap /= c_.kernel[a];
      }
      if (inside) f(i / out_ * size_ + at, i);
    }
  }

  template <class Kind, int height>
  static void products(const float* x, const float* y, const int64_t* xs, const int64_t* ys,
                       int64_t n, float* to, int64_t step, int64_t some) {
    constexpr int K = Kind::vectors;
    v16 sum[height][K] = {}, v[K];
    for (int64_t j = 0; j < n; ++j) {
      load_block<K, Kind::part>(y + ys[j], some, v);
      for (int c = 0; c < height; ++c)
        for (int k = 0; k < K; ++k) sum[c][k] += x[xs[j] + c] * v[k];
    }
    for (int c = 0; c < height; ++c) {
      load_block<K, Kind::part>(to + c * step, some, v);
      for (int k = 0; k < K; ++k) v[k] += sum[c][k];
      store_block<K, Kind::part>(to + c * step, some, v);
    }
  }

  template <class Kind>
  static void depthwise_products(const float* x, const float* y, const int64_t* xs,
                                 const int64_t* ys, int64_t n, float* to, int64_t some) {
    constexpr int K = Kind::vectors;
    v16 sum[K] = {}, u[K], v[K];
    for (int64_t j = 0; j < n; ++j) {
      load_block<K, Kind::part>(x + xs[j], some, u);
      load_block<K, Kind::part>(y + ys[j], some, v);
      for (int k = 0; k < K; ++k) sum[k] += u[k] * v[k];
    }
    load_block<K, Kind::part>(to, some, v);
    for (int k = 0; k < K; ++k) v[k] += sum[k];
    store_block<K, Kind::part>(to, some, v);
  }

  void bias_gradient(const float* y, void* out) const {
    for (int64_t o = 0; o < c_.maps; ++o) {
      float total = 0.0f;
      for (int64_t i = 0; i < c_.batch * out_; i += kChunk) {
        float sum = 0.0f;
        for (int64_t j = i; j < std::min(i + kChunk, c_.batch * out_); ++j)
          sum += y[j * c_.maps + o];
        total += sum;
      }
      write(out, c_.bias_type, o, total);
    }
  }

  Convolution c_;
  std::vector<AxisTaps> axes_;
  int64_t taps_, per_x_, per_y_, size_, out_, threads_;
  size_t x_at_, y_at_, w_at_, lists_at_, list_bytes_, bytes_ = 0;
};

// Adds one value per channel to what another kernel has written: the bias of a deconvolution.
class WithBias : public Kernel {
 public:
  WithBias(std::unique_ptr<Kernel> inner, const Convolution& c) : inner_(std::move(inner)), c_(c) {}
  size_t workspace() const override { return inner_->workspace(); }
  void run(const Buffers& b) override {
    inner_->run(b);
    const void* bias = b.in[c_.bias_at];
    const Convolution::Array& a = c_.x;
    if (a.dtype == DType::f32)
      add(b.output<float>(), bias);
    else if (a.dtype == DType::bf16)
      add(b.output<bf16>(), bias);
    else
      add(b.output<f16>(), bias);
  }

 private:
  template <class T>
  void add(T* y, const void* bias) const {
    const Shape& s = c_.x.strides;
    const int64_t channels = c_.channels, pixels = product(c_.size);
    const bool last = s[1] == 1;
    const int64_t rows = c_.batch * (last ? pixels : channels), width = last ? channels : pixels;
    parallel_for(rows, 1 + (1 << 14) / width, [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        T* row = y + i * width;
        if (last) {
          for (int64_t j = 0; j < width; ++j)
            row[j] = from_float<T>(to_float(row[j]) + read(bias, c_.bias_type, j));
        } else {
          const float v = read(bias, c_.bias_type, i % channels);
#pragma omp simd
          for (int64_t j = 0; j < width; ++j) row[j] = from_float<T>(to_float(row[j]) + v);
        }
      }
    });
  }

  std::unique_ptr<Kernel> inner_;
  Convolution c_;
};

// For an empty batch: nothing, or gradients of zero.
class Zeros : public Kernel {
 public:
  explicit Zeros(const Signature& s) {
    for (const Spec& spec : s.out) bytes_.push_back(spec.bytes());
  }
  void run(const Buffers& b) override {
    for (size_t o = 0; o < bytes_.size(); ++o) std::memset(b.out[o], 0, bytes_[o]);
  }

 private:
  std::vector<size_t> bytes_;
};

}  // namespace

std::unique_ptr<Kernel> convolution_loop(const Convolution& c, const Signature& s) {
  if (c.batch == 0) return std::make_unique<Zeros>(s);
  if (!has_even_pixels(c.x) || !has_even_pixels(c.y)) return nullptr;
  return std::make_unique<Loop>(c);
}

std::unique_ptr<Kernel> with_bias(std::unique_ptr<Kernel> inner, const Convolution& c) {
  if (!inner || c.direction != Direction::data || c.bias_at == c.none || c.batch == 0) return inner;
  if (!has_even_pixels(c.x)) return nullptr;
  return std::make_unique<WithBias>(std::move(inner), c);
}

}  // namespace nnl
