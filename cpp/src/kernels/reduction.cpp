// SPDX-License-Identifier: Apache-2.0
// Sums, means, extremes, products and norms over axes.
//
// Each result is reduced in parts that the shape alone fixes, so that it does not depend on the
// number of threads. Within a part there are 64 running values (or one per column), which are added
// up in double precision every few hundred elements: errors do not grow with the size.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "convert.h"
#include "nnl/kernel.h"
#include "nnl/threads.h"
#include "reduction_values.h"

namespace nnl {
namespace {

constexpr int64_t chunk = 512;         // elements, or columns, that are held in the first cache
constexpr int64_t rows_in_float = 32;  // rows added before going on in double precision
constexpr int64_t part_elements = 1 << 15;

struct Axis {
  int64_t size, stride;
};

// Place of the i-th element of some axes.
int64_t place_of(const std::vector<Axis>& axes, int64_t i) {
  int64_t place = 0;
  for (size_t a = axes.size(); a-- > 0; i /= axes[a].size)
    place += i % axes[a].size * axes[a].stride;
  return place;
}
int64_t size_of(const std::vector<Axis>& axes) {
  int64_t n = 1;
  for (const Axis& a : axes) n *= a.size;
  return n;
}

// What becomes of the reduced value: scaled, then raised to a power.
struct Finish {
  double scale = 1.0, power = 1.0;
  float operator()(double x) const {
    x *= scale;
    if (power == 0.5) return static_cast<float>(std::sqrt(x));
    return static_cast<float>(power == 1.0 ? x : std::pow(x, power));
  }
};

void put(void* y, DType type, int64_t i, float value) {
  conversion(DType::f32, type)(&value, at(y, type, i), 1);
}

// The input seen as kept and reduced axes, in the order of memory, neighbours merged.
struct Layouts {
  std::vector<Axis> kept, reduced;
  std::vector<Axis> kept_out;  // the kept axes in the output
  bool last_reduced = true;    // whether the contiguous axis is a reduced one

  Layouts(const Spec& x, const Spec& y, const std::vector<int64_t>& axes, bool keep_dims) {
    const size_t rank = x.shape.size();
    std::vector<bool> is_reduced(rank, false);
    for (int64_t a : axes) is_reduced[static_cast<size_t>(a)] = true;
    const Shape source = x.strides(), target = y.strides();
    std::vector<size_t> order(rank), out_axis(rank, 0);
    size_t o = 0;
    for (size_t a = 0; a < rank; ++a) {
      out_axis[a] = o;
      if (keep_dims || !is_reduced[a]) ++o;
    }
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return source[a] > source[b]; });
    bool first = true;
    for (size_t a : order) {
      const int64_t n = x.shape[a];
      if (n == 1) continue;
      const bool again = !first && last_reduced == is_reduced[a];
      first = false;
      last_reduced = is_reduced[a];
      if (is_reduced[a]) {
        merge(reduced, again, {n, source[a]});
        continue;
      }
      const Axis out{n, target[out_axis[a]]};
      const bool side_by_side = again && kept_out.back().stride == out.stride * n;
      merge(kept, side_by_side, {n, source[a]});
      merge(kept_out, side_by_side, out);
    }
  }

  static void merge(std::vector<Axis>& axes, bool again, Axis a) {
    if (again)
      axes.back() = {axes.back().size * a.size, a.stride};
    else
      axes.push_back(a);
  }
};

// The contiguous axis is reduced: each result is made from runs.
template <class R>
class Rows : public Kernel {
 public:
  Rows(const Signature& s, const Layouts& l, Finish finish, float p)
      : type_(s.in[0].dtype),
        out_type_(s.out[0].dtype),
        kept_(l.kept),
        kept_out_(l.kept_out),
        outer_(l.reduced),
        finish_(finish),
        p_(p) {
    if (!outer_.empty()) {
      run_ = outer_.back().size;
      outer_.pop_back();
    }
    results_ = size_of(kept_);
    each_ = size_of(outer_) * run_;
    // Many results: every thread has some. Few large ones: they are made in parts.
    if (results_ < 64) parts_ = std::clamp<int64_t>(each_ / part_elements, 1, 256);
    simple_ = kept_.size() <= 1 && outer_.empty();
    direct_ = simple_ && !kept_.empty() && parts_ == 1 && type_ == DType::f32;
  }

  size_t workspace() const override {
    return parts_ > 1 ? static_cast<size_t>(results_ * parts_) * sizeof(double) : 0;
  }

  void run(const Buffers& b) override {
    auto* partial = static_cast<double*>(b.workspace);
    const int64_t work = std::max<int64_t>(each_ / parts_, 1);
    if (direct_)
      return parallel_for(results_, part_elements / work + 1, [&](int64_t i, int64_t end) {
        for (; i < end; ++i) finish(b, i, reduce_row(b.input<float>(0) + i * kept_[0].stride));
      });
    parallel_for(results_ * parts_, std::max<int64_t>(1, part_elements / work),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t t = begin; t < end; ++t) {
                     const int64_t i = t / parts_, part = t % parts_;
                     const double v =
                         reduce(b.in[0], i, each_ * part / parts_, each_ * (part + 1) / parts_);
                     if (parts_ > 1)
                       partial[t] = v;
                     else
                       finish(b, i, v);
                   }
                 });
    if (parts_ == 1) return;
    for (int64_t i = 0; i < results_; ++i) {
      double v = R::start;
      for (int64_t part = 0; part < parts_; ++part) v = R::join(v, partial[i * parts_ + part]);
      finish(b, i, v);
    }
  }

 private:
  void finish(const Buffers& b, int64_t i, double v) const {
    const int64_t place =
        simple_ && !kept_.empty() ? i * kept_out_[0].stride : place_of(kept_out_, i);
    if (out_type_ == DType::f32)
      b.output<float>()[place] = finish_(v);
    else
      put(b.out[0], out_type_, place, finish_(v));
  }

  double reduce_row(const float* x) const {
    constexpr int64_t step = std::is_same_v<R, Multiply> ? 2 * chunk : chunk;
    double total = R::start;
    for (int64_t k = 0; k < run_; k += step)
      total = R::join(total, reduce_run<R>(x + k, std::min(step, run_ - k), p_));
    return total;
  }

  // Elements [begin, end) of the reduced ones of result i.
  double reduce(const void* x, int64_t i, int64_t begin, int64_t end) const {
    const int64_t base = simple_ && !kept_.empty() ? i * kept_[0].stride : place_of(kept_, i);
    double total = R::start;
    alignas(64) float block[chunk];
    const Convert to_float32 = conversion(type_, DType::f32);
    while (begin < end) {
      const int64_t row = begin / run_, at_run = begin % run_;
      const int64_t n = std::min(run_ - at_run, end - begin);
      const int64_t place = base + (outer_.empty() ? 0 : place_of(outer_, row)) + at_run;
      for (int64_t k = 0; k < n; k += chunk) {
        const int64_t m = std::min(chunk, n - k);
        const float* values = block;
        if (type_ == DType::f32)
          values = static_cast<const float*>(x) + place + k;
        else
          to_float32(at(x, type_, place + k), block, m);
        total = R::join(total, reduce_run<R>(values, m, p_));
      }
      begin += n;
    }
    return total;
  }

  DType type_, out_type_;
  std::vector<Axis> kept_, kept_out_, outer_;
  Finish finish_;
  float p_;
  int64_t run_ = 1, results_ = 1, each_ = 1, parts_ = 1;
  bool simple_ = false, direct_ = false;
};

// The contiguous axis is kept: running values for a block of columns, over all rows.
template <class R>
class Columns : public Kernel {
 public:
  Columns(const Signature& s, const Layouts& l, Finish finish, float p)
      : type_(s.in[0].dtype),
        out_type_(s.out[0].dtype),
        kept_(l.kept),
        kept_out_(l.kept_out),
        rows_(l.reduced),
        finish_(finish),
        p_(p) {
    columns_ = kept_.back().size;
    out_step_ = kept_out_.back().stride;
    kept_.pop_back();
    kept_out_.pop_back();
    groups_ = size_of(kept_);
    each_ = size_of(rows_);
    blocks_ = (columns_ + chunk - 1) / chunk;
    const int64_t width = std::min(chunk, columns_);
    if (columns_ && rows_.size() == 1 && rows_[0].stride == columns_ && columns_ <= chunk / 4)
      fold_ = chunk / 2 / columns_;
    if (groups_ * blocks_ < 16) parts_ = std::clamp<int64_t>(each_ * width / part_elements, 1, 64);
  }

  size_t workspace() const override {
    return parts_ > 1 ? static_cast<size_t>(groups_ * columns_ * parts_) * sizeof(double) : 0;
  }

  void run(const Buffers& b) override {
    auto* partial = static_cast<double*>(b.workspace);
    const int64_t tasks = groups_ * blocks_ * parts_;
    const int64_t work = std::max<int64_t>(each_ * std::min(chunk, columns_) / parts_, 1);
    parallel_for(
        tasks, std::max<int64_t>(1, part_elements / work), [&](int64_t begin, int64_t end) {
          double total[chunk];
          for (int64_t t = begin; t < end; ++t) {
            const int64_t part = t % parts_, block = t / parts_ % blocks_;
            const int64_t group = t / parts_ / blocks_, first = block * chunk;
            const int64_t n = std::min(chunk, columns_ - first);
            reduce(b.in[0], place_of(kept_, group) + first, n, each_ * part / parts_,
                   each_ * (part + 1) / parts_, total);
            if (parts_ > 1)
              std::copy(total, total + n, partial + (group * parts_ + part) * columns_ + first);
            else
              finish(b, group, first, n, total);
          }
        });
    if (parts_ == 1) return;
    for (int64_t group = 0; group < groups_; ++group) {
      double* sums = partial + group * parts_ * columns_;
      for (int64_t part = 1; part < parts_; ++part)
        for (int64_t c = 0; c < columns_; ++c)
          sums[c] = R::join(sums[c], sums[part * columns_ + c]);
      finish(b, group, 0, columns_, sums);
    }
  }

 private:
  void finish(const Buffers& b, int64_t group, int64_t first, int64_t n, const double* v) const {
    const int64_t place = place_of(kept_out_, group) + first * out_step_;
    if (out_type_ == DType::f32) {
      float* y = b.output<float>() + place;
      for (int64_t c = 0; c < n; ++c) y[c * out_step_] = finish_(v[c]);
      return;
    }
    for (int64_t c = 0; c < n; ++c) put(b.out[0], out_type_, place + c * out_step_, finish_(v[c]));
  }

  void reduce(const void* x, int64_t base, int64_t n, int64_t begin, int64_t end,
              double* total) const {
    std::fill(total, total + n, static_cast<double>(R::start));
    if (fold_ > 1 && end - begin >= 4 * fold_) {  // several short rows count as one long row
      const int64_t wide = (end - begin) / fold_, columns = n * fold_;
      double folded[chunk];
      std::fill(folded, folded + columns, static_cast<double>(R::start));
      add_rows(
          x, columns, 0, wide, [&](int64_t r) { return base + begin * n + r * columns; }, folded);
      for (int64_t k = 0; k < fold_; ++k)
        for (int64_t c = 0; c < n; ++c) total[c] = R::join(total[c], folded[k * n + c]);
      begin += wide * fold_;
    }
    auto place = [&](int64_t r) {
      return base + (rows_.size() == 1 ? r * rows_[0].stride : place_of(rows_, r));
    };
    add_rows(x, n, begin, end, place, total);
  }

  // Joins rows [begin, end) of n elements to the totals.
  template <class Place>
  void add_rows(const void* x, int64_t n, int64_t begin, int64_t end, Place&& place,
                double* total) const {
    alignas(64) float sums[chunk], row[chunk];
    const Convert to_float32 = conversion(type_, DType::f32);
    const int64_t most = std::is_same_v<R, Multiply> ? 1 : rows_in_float;
    while (begin < end) {
      std::fill(sums, sums + n, R::start);
      for (const int64_t stop = std::min(begin + most, end); begin < stop; ++begin) {
        const float* values = row;
        if (type_ == DType::f32)
          values = static_cast<const float*>(x) + place(begin);
        else
          to_float32(at(x, type_, place(begin)), row, n);
#pragma omp simd
        for (int64_t c = 0; c < n; ++c) sums[c] = R::join(sums[c], R::map(values[c], p_));
      }
#pragma omp simd
      for (int64_t c = 0; c < n; ++c) total[c] = R::join(total[c], static_cast<double>(sums[c]));
    }
  }

  DType type_, out_type_;
  std::vector<Axis> kept_, kept_out_, rows_;
  Finish finish_;
  float p_;
  int64_t columns_ = 1, out_step_ = 1, groups_ = 1, each_ = 1, blocks_ = 1, parts_ = 1;
  int64_t fold_ = 1;  // rows that lie side by side and are read as one
};

// Where the first extreme element is: a NaN, if there is one.
template <class R>
class Position : public Kernel {
 public:
  Position(const Signature& s, const Layouts& l)
      : type_(s.in[0].dtype), kept_(l.kept), kept_out_(l.kept_out), reduced_(l.reduced) {}
  void run(const Buffers& b) override {
    const Convert to_float32 = conversion(type_, DType::f32);
    const int64_t each = size_of(reduced_);
    if (type_ == DType::f32 && reduced_.size() == 1 && kept_.size() <= 1) {
      const int64_t results = size_of(kept_), step = kept_.empty() ? 0 : kept_[0].stride;
      const int64_t to = kept_out_.empty() ? 0 : kept_out_[0].stride;
      if (reduced_[0].stride == 1) {
        parallel_for(results, 1 + (1 << 15) / std::max<int64_t>(each, 1),
                     [&](int64_t begin, int64_t end) {
                       for (int64_t i = begin; i < end; ++i)
                         b.output<uint64_t>()[i * to] = first(b.input<float>(0) + i * step, each);
                     });
        return;
      }
    }
    if (type_ == DType::f32 && reduced_.size() == 1 && !kept_.empty() && kept_.back().stride == 1 &&
        kept_out_.back().stride == 1)
      return columns(b, each);
    parallel_for(size_of(kept_), 1 + (1 << 12) / std::max<int64_t>(each, 1),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t i = begin; i < end; ++i) {
                     const int64_t base = place_of(kept_, i);
                     float best = 0.0f, v = 0.0f;
                     uint64_t found = 0;
                     for (int64_t k = 0; k < each; ++k) {
                       to_float32(at(b.in[0], type_, base + place_of(reduced_, k)), &v, 1);
                       const bool better = R::join(best, v) != best && best == best;
                       if (k == 0 || better) {
                         best = v;
                         found = static_cast<uint64_t>(k);
                       }
                     }
                     b.output<uint64_t>()[place_of(kept_out_, i)] = found;
                   }
                 });
  }

 private:
  static uint64_t first(const float* x, int64_t n) {
    const auto best = static_cast<float>(reduce_run<R>(x, n, 1.0f));
    const bool none = best != best;
    int64_t i = 0;
    for (; i + 64 <= n; i += 64) {
      int32_t found = 0;
#pragma omp simd reduction(| : found)
      for (int64_t k = i; k < i + 64; ++k) found |= none ? x[k] != x[k] : x[k] == best;
      if (found) break;
    }
    for (; i < n; ++i)
      if (none ? x[i] != x[i] : x[i] == best) break;
    return static_cast<uint64_t>(i < n ? i : 0);
  }

  // The kept axis is the contiguous one: row after row, for a block of columns.
  void columns(const Buffers& b, int64_t each) const {
    const int64_t n = kept_.back().size, blocks = (n + chunk - 1) / chunk;
    std::vector<Axis> kept(kept_.begin(), kept_.end() - 1);
    std::vector<Axis> out(kept_out_.begin(), kept_out_.end() - 1);
    const int64_t step = reduced_[0].stride;
    parallel_for(size_of(kept) * blocks, 1 + part_elements / (each * std::min(n, chunk) + 1),
                 [&](int64_t begin, int64_t end) {
                   float best[chunk];
                   int32_t found[chunk];
                   for (int64_t t = begin; t < end; ++t) {
                     const int64_t from = t % blocks * chunk, m = std::min(chunk, n - from);
                     const float* x = b.input<float>(0) + place_of(kept, t / blocks) + from;
                     uint64_t* y = b.output<uint64_t>() + place_of(out, t / blocks) + from;
                     std::copy(x, x + m, best);
                     std::fill(found, found + m, 0);
                     for (int64_t k = 1; k < each; ++k) {
                       const float* row = x + k * step;
                       const auto number = static_cast<int32_t>(k);
#pragma omp simd
                       for (int64_t c = 0; c < m; ++c) {
                         const float v = R::join(best[c], row[c]);
                         const bool better = v != best[c] && best[c] == best[c];
                         found[c] = better ? number : found[c];
                         best[c] = better ? row[c] : best[c];
                       }
                     }
                     for (int64_t c = 0; c < m; ++c) y[c] = static_cast<uint64_t>(found[c]);
                   }
                 });
  }

  DType type_;
  std::vector<Axis> kept_, kept_out_, reduced_;
};

template <class R>
std::unique_ptr<Kernel> make(const Signature& s, const std::vector<int64_t>& axes, bool keep_dims,
                             Finish finish, float p = 1.0f) {
  if (!is_float(s.in[0].dtype) || !is_float(s.out[0].dtype)) return nullptr;
  const Layouts l(s.in[0], s.out[0], axes, keep_dims);
  if (l.last_reduced || l.kept.empty()) return std::make_unique<Rows<R>>(s, l, finish, p);
  return std::make_unique<Columns<R>>(s, l, finish, p);
}

int64_t count(const Signature& s) {
  int64_t n = 1;
  for (int64_t a : s.attributes.integers("axes")) n *= s.in[0].shape[static_cast<size_t>(a)];
  return n;
}

double one_over(int64_t n) { return n ? 1.0 / static_cast<double>(n) : std::nan(""); }

template <class R>
std::unique_ptr<Kernel> over_axes(const Signature& s, Finish finish = {}, float p = 1.0f) {
  return make<R>(s, s.attributes.integers("axes"), s.attributes.flag("keep_dims"), finish, p);
}

std::unique_ptr<Kernel> sum(const Signature& s) { return over_axes<Sum>(s); }
std::unique_ptr<Kernel> mean(const Signature& s) { return over_axes<Sum>(s, {one_over(count(s))}); }
std::unique_ptr<Kernel> prod(const Signature& s) { return over_axes<Multiply>(s); }

template <class R>
std::unique_ptr<Kernel> extremum(const Signature& s) {
  if (s.attributes.flag("only_index")) {
    if (!is_float(s.in[0].dtype) || s.in[0].layout != Layout::plain) return nullptr;
    const Layouts l(s.in[0], s.out[0], s.attributes.integers("axes"),
                    s.attributes.flag("keep_dims"));
    return std::make_unique<Position<R>>(s, l);
  }
  if (s.out.size() > 1) return nullptr;
  return over_axes<R>(s);
}

std::unique_ptr<Kernel> norm(const Signature& s) {
  const double p = s.attributes.number("p");
  if (p == 2.0) return over_axes<Squares>(s, {1.0, 0.5});
  if (p == 1.0) return over_axes<Sizes>(s);
  return over_axes<Powers>(s, {1.0, 1.0 / p}, static_cast<float>(p));
}

std::unique_ptr<Kernel> over_all(const Signature& s, Finish finish) {
  std::vector<int64_t> axes(s.in[0].shape.size());
  std::iota(axes.begin(), axes.end(), int64_t{0});
  return make<Sum>(s, axes, false, finish);
}
std::unique_ptr<Kernel> reduce_sum(const Signature& s) { return over_all(s, {}); }
std::unique_ptr<Kernel> reduce_mean(const Signature& s) {
  return over_all(s, {one_over(s.in[0].size())});
}

// The mean over all axes from the third on; the result has two of size 1 there, whatever x has: it
// lies the same way in both layouts.
std::unique_ptr<Kernel> global_average(const Signature& s) {
  const Shape& shape = s.in[0].shape;
  if (shape.size() < 3 || s.out[0].size() == 0) return nullptr;
  Signature pixels = s;
  pixels.out[0] = {{shape[0], shape[1]}, s.out[0].dtype, Layout::plain};
  std::vector<int64_t> axes(shape.size() - 2);
  std::iota(axes.begin(), axes.end(), int64_t{2});
  const int64_t n = s.in[0].size() / std::max<int64_t>(shape[0] * shape[1], 1);
  return make<Sum>(pixels, axes, false, {one_over(n)});
}

const Registration registrations[] = {
    {"global_average_pooling", global_average},
    {"sum", sum},
    {"mean", mean},
    {"prod", prod},
    {"max", extremum<Max>},
    {"min", extremum<Min>},
    {"norm", norm},
    {"reduce_sum", reduce_sum},
    {"reduce_mean", reduce_mean},
};

}  // namespace
}  // namespace nnl
