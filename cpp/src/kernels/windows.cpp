// SPDX-License-Identifier: Apache-2.0
#include "windows.h"

#include <algorithm>
#include <limits>

#include "vector16.h"

namespace nnl {

Axis Axis::transposed() const {
  Axis t;
  t.from = size();
  t.kernel = kernel;
  t.to.resize(static_cast<size_t>(from));
  for (int64_t i = 0; i < size(); ++i)
    for (const AxisTap& tap : to[static_cast<size_t>(i)])
      t.to[static_cast<size_t>(tap.at)].push_back({i, tap.weight, tap.tap});
  return t;
}

Axis window_axis(int64_t size, int64_t out, int64_t kernel, int64_t stride, int64_t pad) {
  Axis axis;
  axis.from = size;
  axis.kernel = kernel;
  axis.to.resize(static_cast<size_t>(out));
  for (int64_t j = 0; j < out; ++j) {
    const int64_t start = j * stride - pad;
    const int64_t end = std::min(start + kernel, size);
    for (int64_t p = std::max<int64_t>(start, 0); p < end; ++p)
      axis.to[static_cast<size_t>(j)].push_back({p, 1.0f, p - start});
  }
  return axis;
}

Taps::Taps(const std::vector<Axis>& axes) {
  std::vector<std::vector<One>> rows = {{{0, 1.0f, 0}}};
  for (size_t a = 0; a + 1 < axes.size(); ++a) {
    std::vector<std::vector<One>> next;
    for (const auto& before : rows)
      for (const auto& here : axes[a].to) {
        std::vector<One> list;
        for (const One& r : before)
          for (const AxisTap& t : here)
            list.push_back({r.at * axes[a].from + t.at, r.weight * t.weight,
                            static_cast<int32_t>(r.tap * axes[a].kernel + t.tap)});
        next.push_back(std::move(list));
      }
    rows = std::move(next);
  }
  const Axis& last = axes.back();
  for (auto& list : rows) {
    for (One& r : list) {  // in pixels
      r.at *= last.from;
      r.tap *= static_cast<int32_t>(last.kernel);
      row_taps_.push_back(r);
    }
    row_ends_.push_back(row_taps_.size());
  }
  for (const auto& list : last.to) {
    for (const AxisTap& t : list)
      column_taps_.push_back({t.at, t.weight, static_cast<int32_t>(t.tap)});
    column_ends_.push_back(column_taps_.size());
  }
  for (const Axis& axis : axes) source_ *= axis.from;
}

bool as_images(const Spec& s, size_t n, bool channel_last, Images& images, Shape& size) {
  const size_t rank = s.shape.size();
  if (n == 0 || rank < n + channel_last) return false;
  const size_t start = rank - channel_last - n;
  size.assign(s.shape.begin() + static_cast<int64_t>(start),
              s.shape.begin() + static_cast<int64_t>(start + n));
  int64_t lead = 1;
  for (size_t i = 0; i < start; ++i) lead *= s.shape[i];
  if (s.layout == Layout::channels_last) {
    if (channel_last || start != 2) return false;
    images = {s.shape[0], s.shape[1], false};
  } else if (channel_last) {
    images = {lead, s.shape.back(), false};
  } else {
    images = {1, lead, true};
  }
  return true;
}

namespace {

size_t aligned(int64_t bytes) { return (static_cast<size_t>(bytes) + 63) / 64 * 64; }

template <Combine combine, class Kind, class T>
inline void one_pixel(const T* x, T* y, int64_t channels, int64_t n, Taps::List rows,
                      Taps::List columns) {
  constexpr int K = Kind::vectors;
  constexpr float first = combine == Combine::sum ? 0.0f : -std::numeric_limits<float>::infinity();
  v16 total[K], v[K];
  for (int k = 0; k < K; ++k) total[k] = v16{} + first;
  for (const Taps::One* r = rows.begin; r != rows.end; ++r) {
    v16 sum[K] = {};
    for (const Taps::One* t = columns.begin; t != columns.end; ++t) {
      load_block<K, Kind::part>(x + (r->at + t->at) * channels, n, v);
      for (int k = 0; k < K; ++k) {
        if constexpr (combine == Combine::sum)
          sum[k] += v[k] * t->weight;
        else  // NaN wins
          total[k] = ((v[k] > total[k]) | (v[k] != v[k])) ? v[k] : total[k];
      }
    }
    if constexpr (combine == Combine::sum)
      for (int k = 0; k < K; ++k) total[k] += sum[k] * r->weight;
  }
  store_block<K, Kind::part>(y, n, total);
}

// to[j][i] = from[i][j] for `rows` rows of `columns` values, in registers.
template <class T>
void transpose(const T* from, T* to, int64_t rows, int64_t columns) {
  for (int64_t band = 0; band < rows; band += 64)
    for (int64_t j = 0; j < columns; j += 16) {
      const int64_t tiles = (std::min<int64_t>(64, rows - band) + 15) / 16;
      const int64_t width = std::min<int64_t>(16, columns - j);
      v16 r[4][16] = {};
      for (int64_t q = 0; q < tiles; ++q) {
        const int64_t i = band + 16 * q, height = std::min<int64_t>(16, rows - i);
        for (int64_t k = 0; k < height; ++k)
          if (width == 16)
            load16(from + (i + k) * columns + j, r[q][k]);
          else
            load_some(from + (i + k) * columns + j, width, r[q][k]);
        transpose16(r[q]);
      }
      // long runs of one row at a time: the rows lie far apart
      for (int64_t k = 0; k < width; ++k)
        for (int64_t q = 0; q < tiles; ++q) {
          const int64_t i = band + 16 * q;
          if (i + 16 <= rows)
            store16(to + (j + k) * rows + i, r[q][k]);
          else
            store_some(to + (j + k) * rows + i, rows - i, r[q][k]);
        }
    }
}

// Images as a kernel's run meets them. Planes are transposed, 16 at a time so that they stay in the
// cache: each of the parts of the work has room for that in the workspace.
class Planes {
 public:
  explicit Planes(const Images& images) : images_(images) {
    if (images.planes) chunks_ = (images.channels + 15) / 16;
    parts_ = images.planes ? std::clamp<int64_t>(chunks_, 1, threads()) : 1;
  }
  // Room for `pixels` of planes, where there are any.
  template <class T>
  size_t place(int64_t pixels) {
    const size_t at = bytes_;
    if (images_.planes) bytes_ += aligned(pixels * 16 * static_cast<int64_t>(sizeof(T)));
    return at;
  }
  // Room for `pixels` of each image, however they lie.
  template <class T>
  size_t place_always(int64_t pixels) {
    const size_t at = bytes_;
    const int64_t all = images_.planes ? 16 : images_.outer * images_.channels;
    bytes_ += aligned(pixels * all * static_cast<int64_t>(sizeof(T)));
    return at;
  }
  size_t bytes() const { return bytes_ * static_cast<size_t>(parts_); }

  // What is worked on at a time: all images, or some planes as one image.
  struct Portion {
    Images images;
    int64_t first;  // plane
    char* scratch;
    bool in_planes;

    template <class T>
    const T* in(const void* x, int64_t pixels, size_t at) const {
      if (!images.planes) return static_cast<const T*>(x);
      T* to = reinterpret_cast<T*>(scratch + at);
      transpose(static_cast<const T*>(x) + first * pixels, to, images.channels, pixels);
      return to;
    }
    template <class T>
    T* out(void* y, size_t at) const {
      return images.planes ? reinterpret_cast<T*>(scratch + at) : static_cast<T*>(y);
    }
    template <class T>
    void put(const T* from, void* y, int64_t pixels) const {
      if (images.planes)
        transpose(from, static_cast<T*>(y) + first * pixels, pixels, images.channels);
    }
  };

  template <class F>
  void each(void* workspace, F f) const {
    auto* scratch = static_cast<char*>(workspace);
    if (!images_.planes) return f(Portion{images_, 0, scratch, false});
    // a second thread takes longer to come than little work takes
    const bool little = static_cast<size_t>(chunks_) * bytes_ < size_t{1} << 16;
    const int64_t parts = little ? 1 : parts_;
    parallel_for(parts, 1, [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p)
        for (int64_t i = chunks_ * p / parts; i < chunks_ * (p + 1) / parts; ++i) {
          const int64_t n = std::min<int64_t>(16, images_.channels - 16 * i);
          f(Portion{{1, n, true}, 16 * i, scratch + static_cast<size_t>(p) * bytes_, true});
        }
    });
  }

 private:
  Images images_;
  int64_t chunks_ = 1, parts_ = 1;
  size_t bytes_ = 0;  // of a part
};

template <class T, Combine combine>
class Windows : public Kernel {
 public:
  Windows(const Images& images, const std::vector<Axis>& axes) : planes_(images), taps_(axes) {
    work_ = 1;
    for (const Axis& a : axes) work_ *= std::max<int64_t>(1, (a.kernel + 1) / 2);
    pixels_ = taps_.rows() * taps_.columns();
    x_at_ = planes_.template place<T>(taps_.source());
    y_at_ = planes_.template place<T>(pixels_);
  }
  size_t workspace() const override { return planes_.bytes(); }
  void run(const Buffers& b) override {
    planes_.each(b.workspace, [&](const Planes::Portion& p) {
      const T* x = p.in<T>(b.in[0], taps_.source(), x_at_);
      T* y = p.out<T>(b.out[0], y_at_);
      const int64_t channels = p.images.channels;
      for_pixels(p.images, taps_, work_,
                 [=](int64_t image, int64_t row, int64_t column, int64_t first, int64_t last) {
                   const T* from = x + image * taps_.source() * channels;
                   T* to = y + (image * pixels_ + row * taps_.columns() + column) * channels;
                   const Taps::List rows = taps_.row(row), columns = taps_.column(column);
                   for_blocks(first, last, [=](auto kind, int64_t c, int64_t n) {
                     one_pixel<combine, decltype(kind)>(from + c, to + c, channels, n, rows,
                                                        columns);
                   });
                 });
      p.put(y, b.out[0], pixels_);
    });
  }

 private:
  Planes planes_;
  Taps taps_;
  int64_t work_, pixels_;
  size_t x_at_, y_at_;
};

// The value and the place of the maximum of a window.
template <class Kind, class T>
inline void one_maximum(const T* x, T* y, int16_t* arg, int64_t channels, int64_t n,
                        Taps::List rows, Taps::List columns) {
  constexpr int K = Kind::vectors;
  v16 best[K], v[K];
  i16x place[K];
  bool first = true;
  for (int k = 0; k < K; ++k) {
    best[k] = v16{} - std::numeric_limits<float>::infinity();
    place[k] = i16x{} - 1;
  }
  for (const Taps::One* r = rows.begin; r != rows.end; ++r)
    for (const Taps::One* t = columns.begin; t != columns.end; ++t) {
      load_block<K, Kind::part>(x + (r->at + t->at) * channels, n, v);
      const i16x here = i16x{} + (r->tap + t->tap);
      for (int k = 0; k < K; ++k) {
        const auto better = (v[k] > best[k]) | (v[k] != v[k]);
        best[k] = better ? v[k] : best[k];
        place[k] = better ? here : place[k];
        if (first) place[k] = here;  // where all are -inf
      }
      first = false;
    }
  if (y) store_block<K, Kind::part>(y, n, best);
  store_block<K, Kind::part>(arg, n, place);
}

// Every pixel collects the dy of those windows that have their maximum here.
template <class Kind, class T>
inline void one_collected(const T* dy, const int16_t* arg, T* dx, int64_t channels, int64_t n,
                          Taps::List rows, Taps::List columns) {
  constexpr int K = Kind::vectors;
  v16 total[K] = {}, v[K];
  i16x place[K];
  for (const Taps::One* r = rows.begin; r != rows.end; ++r)
    for (const Taps::One* t = columns.begin; t != columns.end; ++t) {
      const int64_t at = (r->at + t->at) * channels;
      load_block<K, Kind::part>(dy + at, n, v);
      load_block<K, Kind::part>(arg + at, n, place);
      const i16x here = i16x{} + (r->tap + t->tap);
      for (int k = 0; k < K; ++k) total[k] = place[k] == here ? total[k] + v[k] : total[k];
    }
  store_block<K, Kind::part>(dx, n, total);
}

// Which part of max pooling and its gradient a kernel does.
enum class Pass { both, forward, backward };

template <class T>
class Maximum : public Kernel {
 public:
  Maximum(const Images& images, const std::vector<Axis>& axes, Pass pass)
      : planes_(images), forward_(axes), pass_(pass) {
    std::vector<Axis> back;
    for (const Axis& a : axes) back.push_back(a.transposed());
    backward_ = Taps(back);
    size_ = forward_.source();
    out_ = forward_.rows() * forward_.columns();
    x_at_ = planes_.template place<T>(size_);  // of dx too: x is not needed then
    y_at_ = planes_.template place<T>(out_);
    arg_at_ = pass == Pass::both ? planes_.template place_always<int16_t>(out_)
                                 : planes_.template place<int16_t>(out_);
  }
  size_t workspace() const override { return planes_.bytes(); }

  void run(const Buffers& b) override {
    planes_.each(b.workspace, [&](const Planes::Portion& p) {
      if (pass_ == Pass::forward) {
        T* y = p.out<T>(b.out[0], y_at_);
        auto* arg = p.out<int16_t>(b.out[1], arg_at_);
        find(p.images, p.in<T>(b.in[0], size_, x_at_), y, arg);
        if (p.in_planes) turn(arg, b.output<int16_t>(1) + p.first * out_, out_, p.images.channels);
        return p.put(y, b.out[0], out_);
      }
      const int16_t* arg = b.input<int16_t>(1);
      if (pass_ == Pass::backward && p.in_planes) {
        auto* turned = reinterpret_cast<int16_t*>(p.scratch + arg_at_);
        turn(arg + p.first * out_, turned, p.images.channels, out_);
        arg = turned;
      } else if (pass_ == Pass::both) {
        auto* found = reinterpret_cast<int16_t*>(p.scratch + arg_at_);
        find(p.images, p.in<T>(b.in[1], size_, x_at_), static_cast<T*>(nullptr), found);
        arg = found;
      }
      const T* dy = p.in<T>(b.in[0], out_, y_at_);
      T* dx = p.out<T>(b.out[0], x_at_);
      collect(p.images, dy, arg, dx);
      p.put(dx, b.out[0], size_);
    });
  }

 private:
  // to[j][i] = from[i][j]
  static void turn(const int16_t* from, int16_t* to, int64_t rows, int64_t columns) {
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < columns; ++j) to[j * rows + i] = from[i * columns + j];
  }
  void find(const Images& images, const T* x, T* y, int16_t* arg) const {
    const int64_t channels = images.channels;
    for_pixels(images, forward_, 4,
               [=](int64_t image, int64_t row, int64_t column, int64_t first, int64_t last) {
                 const T* from = x + image * size_ * channels;
                 const int64_t at = (image * out_ + row * forward_.columns() + column) * channels;
                 const Taps::List rows = forward_.row(row), columns = forward_.column(column);
                 for_blocks(first, last, [=](auto kind, int64_t c, int64_t n) {
                   one_maximum<decltype(kind)>(from + c, y ? y + at + c : nullptr, arg + at + c,
                                               channels, n, rows, columns);
                 });
               });
  }
  void collect(const Images& images, const T* dy, const int16_t* arg, T* dx) const {
    const int64_t channels = images.channels;
    for_pixels(images, backward_, 2,
               [=](int64_t image, int64_t row, int64_t column, int64_t first, int64_t last) {
                 const int64_t from = image * out_ * channels;
                 T* to = dx + (image * size_ + row * backward_.columns() + column) * channels;
                 const Taps::List rows = backward_.row(row), columns = backward_.column(column);
                 for_blocks(first, last, [=](auto kind, int64_t c, int64_t n) {
                   one_collected<decltype(kind)>(dy + from + c, arg + from + c, to + c, channels, n,
                                                 rows, columns);
                 });
               });
  }

  Planes planes_;
  Taps forward_, backward_;
  Pass pass_;
  int64_t size_, out_;
  size_t x_at_, y_at_, arg_at_ = 0;
};

std::unique_ptr<Kernel> maximum(const Images& images, DType type, const std::vector<Axis>& axes,
                                Pass pass) {
  int64_t taps = 1;
  for (const Axis& a : axes) taps *= a.kernel;
  if (taps > std::numeric_limits<int16_t>::max()) return nullptr;
  if (type == DType::f32) return std::make_unique<Maximum<float>>(images, axes, pass);
  if (type == DType::bf16) return std::make_unique<Maximum<bf16>>(images, axes, pass);
  return nullptr;
}

template <Combine combine>
std::unique_ptr<Kernel> windows(DType type, const Images& images, const std::vector<Axis>& axes) {
  if (type == DType::f32) return std::make_unique<Windows<float, combine>>(images, axes);
  if (type == DType::bf16) return std::make_unique<Windows<bf16, combine>>(images, axes);
  return nullptr;
}

}  // namespace

std::unique_ptr<Kernel> windows_kernel(const Signature& s, const Images& images, Combine combine,
                                       const std::vector<Axis>& axes) {
  if (s.in[0].dtype != s.out[0].dtype) return nullptr;
  if (combine == Combine::sum) return windows<Combine::sum>(s.in[0].dtype, images, axes);
  return windows<Combine::maximum>(s.in[0].dtype, images, axes);
}

std::unique_ptr<Kernel> maximum_backward_kernel(const Images& images, DType type,
                                                const std::vector<Axis>& axes) {
  return maximum(images, type, axes, Pass::both);
}

std::unique_ptr<Kernel> maximum_arg_kernel(const Images& images, DType type,
                                           const std::vector<Axis>& axes) {
  return maximum(images, type, axes, Pass::forward);
}

std::unique_ptr<Kernel> maximum_scatter_kernel(const Images& images, DType type,
                                               const std::vector<Axis>& axes) {
  return maximum(images, type, axes, Pass::backward);
}

}  // namespace nnl
