// SPDX-License-Identifier: Apache-2.0
// Reading and writing at positions that are data and name several axes, or one of several.
#include "convert.h"
#include "line.h"

namespace nnl {
namespace {

int64_t count(const Shape& shape, size_t begin, size_t end) {
  int64_t n = 1;
  for (size_t i = begin; i < end; ++i) n *= shape[i];
  return n;
}

[[noreturn]] void fail(const std::string& what, int64_t bad, int64_t low, int64_t high) {
  throw ValueError(what + " has the value " + std::to_string(bad) + ", wanted " +
                   std::to_string(low) + " <= value < " + std::to_string(high));
}

// Where the elements that indices name lie in an array, as rows of `width` elements.
class Places {
 public:
  virtual ~Places() = default;
  virtual int64_t rows() const = 0;
  virtual int64_t width() const = 0;
  virtual int64_t at(const void* indices, int64_t i) const = 0;  // the row; -1 for none
  virtual void check(const void* indices) const = 0;             // throws ValueError
};

// indices (m, ...): the first m axes of the array, each from its front or its end.
class Tuples : public Places {
 public:
  Tuples(std::string name, const Spec& indices, const Shape& array)
      : name_(std::move(name)), indices_(indices) {
    const auto m = static_cast<size_t>(indices.shape[0]);
    sizes_.assign(array.begin(), array.begin() + indices.shape[0]);
    rows_ = count(indices.shape, 1, indices.shape.size());
    width_ = count(array, m, array.size());
  }
  int64_t rows() const override { return rows_; }
  int64_t width() const override { return width_; }
  int64_t at(const void* p, int64_t i) const override {
    int64_t row = 0;
    for (size_t k = 0; k < sizes_.size(); ++k) {
      const int64_t v = value(p, k, i);
      row = row * sizes_[k] + (v < 0 ? v + sizes_[k] : v);
    }
    return row;
  }
  void check(const void* p) const override {
    for (size_t k = 0; k < sizes_.size(); ++k)
      for (int64_t i = 0; i < rows_; ++i)
        if (const int64_t v = value(p, k, i); v < -sizes_[k] || v >= sizes_[k])
          fail(name_ + ": indices[" + std::to_string(k) + "]", v, -sizes_[k], sizes_[k]);
  }

 private:
  int64_t value(const void* p, size_t k, int64_t i) const {
    return integer_at(p, indices_.dtype, static_cast<int64_t>(k) * rows_ + i);
  }
  std::string name_;
  Spec indices_;
  Shape sizes_;
  int64_t rows_, width_;
};

// indices: the coordinate along one axis; the others are those of the index itself.
class Coordinates : public Places {
 public:
  Coordinates(const Spec& indices, const Shape& array, int64_t axis)
      : indices_(indices), array_(array), axis_(static_cast<size_t>(axis)) {}
  int64_t rows() const override { return indices_.size(); }
  int64_t width() const override { return 1; }
  int64_t at(const void* p, int64_t i) const override {
    int64_t offset = 0, step = 1, rest = i;
    for (size_t d = array_.size(); d-- > 0; step *= array_[d]) {
      const int64_t own = rest % indices_.shape[d];
      rest /= indices_.shape[d];
      offset += step * (d == axis_ ? integer_at(p, indices_.dtype, i) : own);
    }
    return offset;
  }
  void check(const void* p) const override {
    for (int64_t i = 0; i < indices_.size(); ++i)
      if (const int64_t v = integer_at(p, indices_.dtype, i); v < 0 || v >= array_[axis_])
        fail("scatter_add: indices", v, 0, array_[axis_]);
  }

 private:
  Spec indices_;
  Shape array_;
  size_t axis_;
};

// indices: positions in the array as one axis; negative ones for none.
class Flat : public Places {
 public:
  Flat(const Spec& indices, const Shape& array)
      : indices_(indices), size_(count(array, 0, array.size())) {}
  int64_t rows() const override { return indices_.size(); }
  int64_t width() const override { return 1; }
  int64_t at(const void* p, int64_t i) const override {
    return std::max<int64_t>(integer_at(p, indices_.dtype, i), -1);
  }
  void check(const void* p) const override {
    for (int64_t i = 0; i < indices_.size(); ++i)
      if (const int64_t v = integer_at(p, indices_.dtype, i); v >= size_ && size_)
        fail("index", v, 0, size_);
  }

 private:
  Spec indices_;
  int64_t size_;
};

// y[i] = x[at(i)], 0 for none. Inputs x, indices.
class Take : public Kernel {
 public:
  Take(std::unique_ptr<Places> places, const Signature& s)
      : places_(std::move(places)), x_(s.in[0]), y_(s.out[0]) {}
  void run(const Buffers& b) override {
    places_->check(b.in[1]);
    const int64_t width = places_->width();
    const auto bytes = static_cast<int64_t>(bytes_of(x_.dtype));
    parallel_for(places_->rows(), 1 + (1 << 12) / (width + 1), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t row = x_.size() ? places_->at(b.in[1], i) : -1;
        char* y = b.output<char>() + i * width * bytes;
        if (row < 0)
          std::memset(y, 0, static_cast<size_t>(width * bytes));
        else
          std::memcpy(y, b.input<char>(0) + row * width * bytes,
                      static_cast<size_t>(width * bytes));
      }
    });
  }

 private:
  std::unique_ptr<Places> places_;
  Spec x_, y_;
};

// y starts from the base, or zeros; then x is added or written at its places, the last one wins.
// Inputs x, indices, base.
class Put : public Kernel {
 public:
  Put(std::unique_ptr<Places> places, const Signature& s, bool adds)
      : places_(std::move(places)), y_(s.out[0]), based_(s.given(2)), adds_(adds) {}
  void run(const Buffers& b) override {
    places_->check(b.in[1]);
    if (based_)
      std::memcpy(b.out[0], b.in[2], y_.bytes());
    else
      std::memset(b.out[0], 0, y_.bytes());
    if (!y_.size()) return;
    const int64_t width = places_->width();
    const auto bytes = static_cast<int64_t>(bytes_of(y_.dtype));
    for (int64_t i = 0; i < places_->rows(); ++i) {
      const int64_t row = places_->at(b.in[1], i);
      if (row < 0) continue;
      if (!adds_) {
        std::memcpy(b.output<char>() + row * width * bytes, b.input<char>(0) + i * width * bytes,
                    static_cast<size_t>(width * bytes));
        continue;
      }
      for (int64_t k = 0; k < width; ++k)
        set_float(b.out[0], y_.dtype, row * width + k,
                  float_at(b.out[0], y_.dtype, row * width + k) +
                      float_at(b.in[0], y_.dtype, i * width + k));
    }
  }

 private:
  std::unique_ptr<Places> places_;
  Spec y_;
  bool based_, adds_;
};

bool plain(const Signature& s, bool adds) {
  if (s.in[0].dtype != s.out[0].dtype || !is_integer(s.in[1].dtype)) return false;
  if (adds && s.out[0].dtype != DType::f32) return false;  // sums in 16 bits would lose too much
  if (s.given(2) && s.in[2].dtype != s.out[0].dtype) return false;
  for (size_t i = 0; i < s.in.size(); ++i)
    if (s.given(i) && s.in[i].layout != Layout::plain) return false;
  return s.out[0].layout == Layout::plain;
}

std::unique_ptr<Kernel> gather_nd(const Signature& s) {
  if (!plain(s, false)) return nullptr;
  auto places = std::make_unique<Tuples>("gather_nd", s.in[1], s.in[0].shape);
  return std::make_unique<Take>(std::move(places), s);
}
std::unique_ptr<Kernel> scatter_nd(const Signature& s) {
  const bool adds = s.attributes.flag("add");
  if (!plain(s, adds)) return nullptr;
  auto places = std::make_unique<Tuples>("scatter_nd", s.in[1], s.out[0].shape);
  return std::make_unique<Put>(std::move(places), s, adds);
}
std::unique_ptr<Kernel> take_along(const Signature& s) {
  if (!plain(s, false)) return nullptr;
  auto places = std::make_unique<Coordinates>(s.in[1], s.in[0].shape, s.attributes.integer("axis"));
  return std::make_unique<Take>(std::move(places), s);
}
std::unique_ptr<Kernel> scatter_along(const Signature& s) {
  if (!plain(s, true)) return nullptr;
  auto places =
      std::make_unique<Coordinates>(s.in[1], s.out[0].shape, s.attributes.integer("axis"));
  return std::make_unique<Put>(std::move(places), s, true);
}
std::unique_ptr<Kernel> index_gather(const Signature& s) {
  if (!plain(s, false)) return nullptr;
  return std::make_unique<Take>(std::make_unique<Flat>(s.in[1], s.in[0].shape), s);
}
std::unique_ptr<Kernel> index_scatter(const Signature& s) {
  if (!plain(s, true)) return nullptr;
  return std::make_unique<Put>(std::make_unique<Flat>(s.in[1], s.out[0].shape), s, true);
}

const Registration registrations[] = {
    {"gather_nd", gather_nd},       {"scatter_nd", scatter_nd},
    {"take_along", take_along},     {"scatter_along", scatter_along},
    {"index_gather", index_gather}, {"index_scatter", index_scatter},
};

}  // namespace
}  // namespace nnl
