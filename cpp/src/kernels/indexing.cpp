// SPDX-License-Identifier: Apache-2.0
// Reading and writing at positions that are data: embed, gather, one_hot, pick, place.
#include <cstring>

#include "line.h"

namespace nnl {
namespace {

std::string range_error(const std::string& name, const std::string& what, int64_t bad, int64_t low,
                        int64_t high) {
  return name + ": " + what + " has the value " + std::to_string(bad) + ", wanted " +
         std::to_string(low) + " <= value < " + std::to_string(high);
}

// Which text an op has for an index that is out of range.
enum class Op { embed, gather };

struct Indices {
  Spec spec;
  Op op;
  int64_t n;  // of the axis that they choose from

  int64_t at(const void* p, int64_t i) const { return integer_at(p, spec.dtype, i); }

  void check(const void* p) const {
    if (spec.dtype == DType::i64) {  // most are good, and are looked at together
      const auto* k = static_cast<const int64_t*>(p);
      int64_t bad = 0;
      for (int64_t i = 0, size = spec.size(); i < size; ++i) bad |= (k[i] < 0) | (k[i] >= n);
      if (!bad) return;
    }
    for (int64_t i = 0, size = spec.size(); i < size; ++i) {
      const int64_t k = at(p, i);
      if (k >= 0 && k < n) continue;
      if (op == Op::gather) throw ValueError(range_error("gather", "Indices", k, 0, n));
      throw ValueError("embed: x0 holds the index " + std::to_string(k) + ", w has rows 0 to " +
                       std::to_string(n - 1));
    }
  }
};

// x is [batch][outer][n][inner], indices [batch][m], y [batch][outer][m][inner].
struct Sizes {
  int64_t batch = 1, outer = 1, n = 1, inner = 1, m = 1;
};

// Copies `size` elements from one element type to another; bytes where they are one type.
struct Copy {
  DType from, to;
  void operator()(const void* x, int64_t at_x, void* y, int64_t at_y, int64_t size) const {
    const int64_t bytes = static_cast<int64_t>(bytes_of(from));
    if (from == to && bytes == 4 && size <= 256) {  // a call would take as long as the copy
      const auto* a = static_cast<const uint32_t*>(x) + at_x;
      auto* b = static_cast<uint32_t*>(y) + at_y;
#pragma omp simd
      for (int64_t i = 0; i < size; ++i) b[i] = a[i];
      return;
    }
    if (from == to) {
      std::memcpy(static_cast<char*>(y) + at_y * bytes, static_cast<const char*>(x) + at_x * bytes,
                  static_cast<size_t>(size * bytes));
      return;
    }
    const Any a = Any{const_cast<void*>(x), from} + at_x, b = Any{y, to} + at_y;
    by_lanes(size, [&](int64_t i, int64_t lanes, auto whole) {
      put<whole()>(b + i, get<whole()>(a + i, lanes), lanes);
    });
  }
};

class Gather : public Kernel {
 public:
  Gather(Indices indices, Sizes sizes, Copy copy, size_t x, size_t index)
      : indices_(std::move(indices)), z_(sizes), copy_(copy), x_(x), index_(index) {
    parts_ = parts_of(z_.batch * z_.outer * z_.m * z_.inner);
  }
  void run(const Buffers& b) override {
    const void* index = b.in[index_];
    indices_.check(index);
    for_parts(parts_, z_.batch * z_.outer * z_.m, [&](int64_t, int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const int64_t block = r / z_.m, batch = block / z_.outer;
        const int64_t k = indices_.at(index, batch * z_.m + r % z_.m);
        copy_(b.in[x_], (block * z_.n + k) * z_.inner, b.out[0], r * z_.inner, z_.inner);
      }
    });
  }

 private:
  const Indices indices_;
  const Sizes z_;
  const Copy copy_;
  const size_t x_, index_;
  int64_t parts_;
};

// The transpose of Gather. Indices that name one row are chained, so that each row of the result is
// summed in float32, in the order of the indices, and written once by one thread: added to a third
// input, where there is one, which may be the result.
template <class P>
class Scatter : public Kernel {
 public:
  Scatter(Indices indices, Sizes sizes, const Signature& s, size_t x, size_t index)
      : indices_(std::move(indices)),
        z_(sizes),
        in_(s.in[x]),
        out_(s.out[0]),
        x_(x),
        index_(index),
        adds_(s.given(kAddend)) {
    parts_ = parts_of(out_.size() + in_.size());
    Pieces pieces;
    cut(pieces);
    workspace_ = pieces.size();
  }
  size_t workspace() const override { return workspace_; }
  bool may_overwrite(size_t, size_t i) const override { return adds_ && i == kAddend; }

  void run(const Buffers& b) override {
    const void* index = b.in[index_];
    indices_.check(index);
    Pieces pieces(b.workspace);
    const Scratch w = cut(pieces);
    const P x = pointer<P>(b.in[x_], in_.dtype), y = pointer<P>(b.out[0], out_.dtype);
    const auto* z = adds_ ? b.input<char>(kAddend) : nullptr;
    const bool copies = adds_ && z != b.out[0];
    for (int64_t batch = 0; batch < z_.batch; ++batch) {
      std::fill(w.first, w.first + z_.n, -1);
      for (int64_t i = z_.m; i-- > 0;) {
        const int64_t k = indices_.at(index, batch * z_.m + i);
        w.next[i] = w.first[k];
        w.first[k] = static_cast<int32_t>(i);
      }
      for_parts(parts_, z_.outer * z_.n, [&](int64_t part, int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end;) {
          const int64_t block = batch * z_.outer + r / z_.n, row = r % z_.n;
          const int64_t at = (block * z_.n + row) * z_.inner;
          const P to = y + at;
          // most rows of a large table are named by no index
          int64_t empty = 0;
          while (row + empty < z_.n && r + empty < end && w.first[row + empty] < 0) ++empty;
          const int64_t rows = std::max<int64_t>(empty, 1);
          if (copies) copy_(z, at, b.out[0], at, rows * z_.inner);
          if (empty && !adds_) clear(to, empty * z_.inner);
          if (!empty) {
            add(x + block * z_.m * z_.inner, to, w.first[row], w.next, w.sums + part * z_.inner,
                w.totals + part * z_.inner);
          }
          r += rows;
        }
      });
    }
  }

 private:
  struct Scratch {
    int32_t *first, *next;
    float* sums;  // of a few rows, for each part
    double* totals;
  };
  Scratch cut(Pieces& pieces) const {
    Scratch w{};
    w.first = pieces.take<int32_t>(z_.n);
    w.next = pieces.take<int32_t>(z_.m);
    w.sums = pieces.take<float>(parts_ * z_.inner);
    w.totals = pieces.take<double>(parts_ * z_.inner);
    return w;
  }

  void clear(P y, int64_t n) const {
    void* p;
    if constexpr (std::is_same_v<P, Any>)
      p = y.p;
    else
      p = y;
    std::memset(p, 0, static_cast<size_t>(n) * bytes_of(out_.dtype));
  }

  // The sum of the rows of x from i on along `next` is put into y, or added.
  void add(P x, P y, int32_t i, const int32_t* next, float* sums, double* total) const {
    const int64_t n = z_.inner;
    if (next[i] < 0) {
      store(x + i * n, y);
      return;
    }
    std::fill(sums, sums + n, 0.0f);
    std::fill(total, total + n, 0.0);
    constexpr int few = 16;  // rows whose sum is added to the total at once
    for (int count = 1; i >= 0; i = next[i], ++count) {
      by_lanes(n, [&](int64_t k, int64_t lanes, auto whole) {
        const Lanes v = get<whole()>(sums + k, lanes) + get<whole()>(x + (i * n + k), lanes);
        put<whole()>(sums + k, v, lanes);
      });
      if (count % few) continue;
      for (int64_t k = 0; k < n; ++k) total[k] += sums[k], sums[k] = 0.0f;
    }
    for (int64_t k = 0; k < n; ++k) sums[k] = static_cast<float>(total[k] + sums[k]);
    store(sums, y);
  }

  template <class From>
  void store(From x, P y) const {
    by_lanes(z_.inner, [&](int64_t k, int64_t lanes, auto whole) {
      const Lanes v = get<whole()>(x + k, lanes);
      put<whole()>(y + k, adds_ ? v + get<whole()>(y + k, lanes) : v, lanes);
    });
  }

  static constexpr size_t kAddend = 2;
  const Indices indices_;
  const Sizes z_;
  const Spec in_, out_;
  const size_t x_, index_;
  const bool adds_;
  const Copy copy_{out_.dtype, out_.dtype};
  int64_t parts_;
  size_t workspace_ = 0;
};

bool plain(const Signature& s) {
  for (size_t i = 0; i < s.in.size(); ++i)
    if (s.given(i) && s.in[i].layout != Layout::plain) return false;
  return s.out[0].layout == Layout::plain;
}

int64_t product(const Shape& shape, size_t begin, size_t end) {
  int64_t n = 1;
  for (size_t i = begin; i < end; ++i) n *= shape[i];
  return n;
}

std::unique_ptr<Kernel> gather_of(const Signature& s, Op op, Sizes z, size_t x, size_t index) {
  const Copy copy{s.in[x].dtype, s.out[0].dtype};
  if (!plain(s) || !is_integer(s.in[index].dtype)) return nullptr;
  if (copy.from != copy.to && !(is_real(copy.from) && is_real(copy.to))) return nullptr;
  return std::make_unique<Gather>(Indices{s.in[index], op, z.n}, z, copy, x, index);
}

std::unique_ptr<Kernel> scatter_of(const Signature& s, Op op, Sizes z, size_t x, size_t index) {
  const Spec &in = s.in[x], &out = s.out[0];
  if (!plain(s) || !is_integer(s.in[index].dtype) || !is_real(in.dtype) || !is_real(out.dtype))
    return nullptr;
  if (s.given(2) && s.in[2].dtype != out.dtype) return nullptr;
  return with_pointer(common_type({&in, &out}), [&](auto type) -> std::unique_ptr<Kernel> {
    return std::make_unique<Scatter<decltype(type)>>(Indices{s.in[index], op, z.n}, z, s, x, index);
  });
}

Sizes rows_of(const Shape& w, int64_t m) {
  return {1, 1, w.empty() ? 0 : w[0], product(w, 1, w.size()), m};
}

std::unique_ptr<Kernel> embed(const Signature& s) {
  return gather_of(s, Op::embed, rows_of(s.in[1].shape, s.in[0].size()), 1, 0);
}
std::unique_ptr<Kernel> embed_backward(const Signature& s) {
  return scatter_of(s, Op::embed, rows_of(s.out[0].shape, s.in[0].size()), 1, 0);
}

Sizes along(const Signature& s, const Shape& x) {
  const size_t a = static_cast<size_t>(s.attributes.integer("axis"));
  const size_t b = static_cast<size_t>(s.attributes.integer("batch_dims"));
  const Shape& index = s.in[1].shape;
  return {product(x, 0, b), product(x, b, a), x[a], product(x, a + 1, x.size()),
          product(index, b, index.size())};
}
std::unique_ptr<Kernel> gather(const Signature& s) {
  return gather_of(s, Op::gather, along(s, s.in[0].shape), 0, 1);
}
std::unique_ptr<Kernel> gather_backward(const Signature& s) {
  return scatter_of(s, Op::gather, along(s, s.out[0].shape), 0, 1);
}

// ---- one_hot ----

class OneHot : public Kernel {
 public:
  OneHot(const Signature& s, Shape shape)
      : x_(s.in[0]),
        y_(s.out[0]),
        shape_(std::move(shape)),
        each_(product(shape_, 0, shape_.size())) {}
  void run(const Buffers& b) override {
    const int64_t axes = static_cast<int64_t>(shape_.size()), rows = axes ? x_.size() / axes : 0;
    const auto index = [&](int64_t i) { return integer_at(b.in[0], x_.dtype, i); };
    for (int64_t a = 0; a < axes; ++a)
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t k = index(r * axes + a), n = shape_[static_cast<size_t>(a)];
        if (k < -n || k >= n)
          throw ValueError(range_error("one_hot", "x[..., " + std::to_string(a) + "]", k, -n, n));
      }
    std::memset(b.out[0], 0, y_.bytes());
    for (int64_t r = 0; r < rows; ++r) {
      int64_t o = 0;
      for (int64_t a = 0; a < axes; ++a) {
        const int64_t k = index(r * axes + a), n = shape_[static_cast<size_t>(a)];
        o = o * n + (k < 0 ? k + n : k);
      }
      set_float(b.out[0], y_.dtype, r * each_ + o, 1.0f);
    }
  }

 private:
  const Spec x_, y_;
  const Shape shape_;
  const int64_t each_;
};

std::unique_ptr<Kernel> one_hot(const Signature& s) {
  Shape shape = s.attributes.integers("shape");
  if (!plain(s) || !is_integer(s.in[0].dtype) || !is_real(s.out[0].dtype) || shape.empty())
    return nullptr;
  return std::make_unique<OneHot>(s, std::move(shape));
}

// ---- pick and place ----

// One position among the reduced axes of x for every place along the kept ones.
struct Choice {
  Shape kept, kept_step, reduced, reduced_step;

  Choice(const Spec& x, const std::vector<int64_t>& axes) {
    const Shape at = x.strides();
    for (size_t i = 0; i < x.shape.size(); ++i) {
      const bool in = std::find(axes.begin(), axes.end(), static_cast<int64_t>(i)) != axes.end();
      (in ? reduced : kept).push_back(x.shape[i]);
      (in ? reduced_step : kept_step).push_back(at[i]);
    }
  }
  int64_t offset(int64_t i, int64_t choice) const {
    return walk(kept, kept_step, i) + walk(reduced, reduced_step, choice);
  }
  int64_t choices() const { return product(reduced, 0, reduced.size()); }

 private:
  static int64_t walk(const Shape& shape, const Shape& step, int64_t i) {
    int64_t o = 0;
    for (size_t k = shape.size(); k-- > 0; i /= shape[k]) o += i % shape[k] * step[k];
    return o;
  }
};

template <bool placing>
class Pick : public Kernel {
 public:
  Pick(const Signature& s, Choice choice) : in_(s.in), out_(s.out[0]), choice_(std::move(choice)) {}
  void run(const Buffers& b) override {
    const int64_t n = in_[1].size(), most = choice_.choices();
    const auto index = [&](int64_t i) { return integer_at(b.in[1], in_[1].dtype, i); };
    for (int64_t i = 0; i < n; ++i)
      if (index(i) >= most)
        throw ValueError(std::string(placing ? "place" : "pick") + ": index has the value " +
                         std::to_string(index(i)) + ", wanted less than " + std::to_string(most));
    if (placing) std::memset(b.out[0], 0, out_.bytes());
    for (int64_t i = 0; i < n; ++i) {
      const int64_t k = index(i), o = k < 0 ? 0 : choice_.offset(i, k);
      if (!placing)
        set_float(b.out[0], out_.dtype, i, k < 0 ? 0.0f : float_at(b.in[0], in_[0].dtype, o));
      else if (k >= 0)
        set_float(b.out[0], out_.dtype, o, float_at(b.in[0], in_[0].dtype, i));
    }
  }

 private:
  const std::vector<Spec> in_;
  const Spec out_;
  const Choice choice_;
};

template <bool placing>
std::unique_ptr<Kernel> pick(const Signature& s) {
  if (!is_real(s.in[0].dtype) || !is_real(s.out[0].dtype) || !is_integer(s.in[1].dtype) ||
      !plain(s))
    return nullptr;
  return std::make_unique<Pick<placing>>(
      s, Choice(placing ? s.out[0] : s.in[0], s.attributes.integers("axes")));
}

const Registration registrations[] = {
    {"embed", embed},      {"embed_backward", embed_backward},
    {"gather", gather},    {"gather_backward", gather_backward},
    {"one_hot", one_hot},  {"pick", pick<false>},
    {"place", pick<true>},
};

}  // namespace
}  // namespace nnl
