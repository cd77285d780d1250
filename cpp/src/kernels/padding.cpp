// SPDX-License-Identifier: Apache-2.0
// pad, shift and their gradients. For each axis a list says which index of the source every index
// of the result reads, or -1 for a constant; it falls into runs that are copied as they are.
#include <algorithm>

#include "movement.h"

namespace nnl {
namespace {

using Sources = std::vector<std::vector<int64_t>>;

int64_t modulo(int64_t i, int64_t n) { return ((i % n) + n) % n; }

// The axes that an attribute leaves out are the first ones.
Sources pad_sources(const Shape& shape, const Attributes& attributes) {
  const auto& width = attributes.integers("pad_width");
  const std::string& mode = attributes.text("mode");
  Sources all;
  for (size_t a = 0; a < shape.size(); ++a) {
    const size_t lead = shape.size() - width.size() / 2;
    const int64_t n = shape[a], before = a < lead ? 0 : width[2 * (a - lead)];
    const int64_t after = a < lead ? 0 : width[2 * (a - lead) + 1];
    std::vector<int64_t> axis;
    for (int64_t i = -before; i < n + after; ++i) {
      if (i >= 0 && i < n) {
        axis.push_back(i);
      } else if (mode == "constant") {
        axis.push_back(-1);
      } else if (mode == "repeat" || n == 1) {
        axis.push_back(std::clamp<int64_t>(i, 0, n - 1));
      } else {
        const int64_t phase = modulo(i, 2 * n - 2);
        axis.push_back(phase < n ? phase : 2 * n - 2 - phase);
      }
    }
    all.push_back(std::move(axis));
  }
  return all;
}

Sources shift_sources(const Shape& shape, const Attributes& attributes) {
  const auto& shifts = attributes.integers("shifts");
  const bool nearest = attributes.text("border_mode") == "nearest";
  Sources all;
  for (size_t a = 0; a < shape.size(); ++a) {
    const size_t lead = shape.size() - shifts.size();
    const int64_t n = shape[a], shift = a < lead ? 0 : shifts[a - lead];
    std::vector<int64_t> axis;
    for (int64_t i = -shift; i < n - shift; ++i) {
      const int64_t phase = modulo(i, 2 * n);
      axis.push_back(nearest ? std::clamp<int64_t>(i, 0, n - 1)
                             : (phase < n ? phase : 2 * n - 1 - phase));
    }
    all.push_back(std::move(axis));
  }
  return all;
}

// A range of the result in which the place in the source runs evenly.
struct Run {
  int64_t to, size, from, step;
};

std::vector<Run> runs_of(const std::vector<int64_t>& sources) {
  std::vector<Run> runs;
  const auto n = static_cast<int64_t>(sources.size());
  auto source = [&](int64_t i) { return sources[static_cast<size_t>(i)]; };
  for (int64_t i = 0; i < n;) {
    if (source(i) < 0) {
      ++i;
      continue;
    }
    int64_t end = i + 1;
    const int64_t step = end < n && source(end) >= 0 ? source(end) - source(i) : 1;
    while (end < n && source(end) >= 0 && source(end) - source(end - 1) == step) ++end;
    runs.push_back({i, end - i, source(i), step});
    i = end;
  }
  return runs;
}

// Reading where rows are short, in floats: a list says where each element of the axes that change
// is read, and serves for every index of those before them.
class ReadShort : public Kernel {
 public:
  static std::unique_ptr<Kernel> of(const Signature& s, const Sources& sources) {
    const Spec &x = s.in[0], &y = s.out[0];
    if (x.dtype != DType::f32 || y.dtype != DType::f32 || x.layout != Layout::plain ||
        y.layout != Layout::plain || sources.back().size() >= 128)
      return nullptr;
    auto kernel = std::make_unique<ReadShort>();
    size_t axis = 0;
    for (; axis < sources.size() && same(sources[axis], x.shape[axis]); ++axis)
      kernel->count_ *= x.shape[axis];
    std::vector<int32_t>& from = kernel->from_;
    from.push_back(0);
    for (size_t a = axis; a < sources.size(); ++a) {
      if (from.size() * sources[a].size() > 1 << 14) return nullptr;
      std::vector<int32_t> next;
      for (const int32_t before : from)
        for (const int64_t i : sources[a])
          next.push_back(before * static_cast<int32_t>(x.shape[a]) + static_cast<int32_t>(i));
      from = std::move(next);
      kernel->size_ *= x.shape[a];
    }
    return kernel->size_ < 1 << 20 ? std::move(kernel) : nullptr;
  }

  void run(const Buffers& b) override {
    const auto n = static_cast<int64_t>(from_.size());
    const int32_t* from = from_.data();
    parallel_for(count_, 1 + (1 << 15) / n, [=, this](int64_t begin, int64_t end) {
      for (int64_t k = begin; k < end; ++k) {
        const float* x = b.input<float>(0) + k * size_;
        float* y = b.output<float>() + k * n;
#pragma omp simd
        for (int64_t i = 0; i < n; ++i) y[i] = x[from[i]];
      }
    });
  }

 private:
  static bool same(const std::vector<int64_t>& axis, int64_t n) {
    for (size_t i = 0; i < axis.size(); ++i)
      if (axis[i] != static_cast<int64_t>(i)) return false;
    return static_cast<int64_t>(axis.size()) == n;
  }

  int64_t count_ = 1, size_ = 1;
  std::vector<int32_t> from_;
};

std::unique_ptr<Kernel> read_along(const Signature& s, const Sources& sources, double constant) {
  const Spec &x = s.in[0], &y = s.out[0];
  if (!StridedCopy::takes(x.dtype, y.dtype)) return nullptr;
  std::vector<std::vector<Run>> runs;
  size_t pieces = 1;
  bool covered = true;
  for (const auto& axis : sources) {
    runs.push_back(runs_of(axis));
    pieces *= runs.back().size();
    covered = covered && std::count(axis.begin(), axis.end(), -1) == 0;
  }
  if (covered && y.size() && !sources.empty())
    if (auto kernel = ReadShort::of(s, sources)) return kernel;
  if (pieces > 4096) return nullptr;  // many mirrors of a small array
  auto kernel = std::make_unique<Moves>();
  if (!covered) kernel->fill(0, y, constant);
  const Shape own = x.strides(), all = y.strides();
  for (size_t piece = 0; piece < pieces; ++piece) {
    size_t rest = piece;
    Shape sizes, source;
    int64_t from = 0, to = 0;
    for (size_t a = 0; a < runs.size(); ++a) {
      const Run& r = runs[a][rest % runs[a].size()];
      rest /= runs[a].size();
      sizes.push_back(r.size);
      source.push_back(r.step * own[a]);
      from += r.from * own[a];
      to += r.to * all[a];
    }
    kernel->add(0, 0, {sizes, source, from, all, to, x.dtype, y.dtype});
  }
  return kernel;
}

std::unique_ptr<Kernel> pad(const Signature& s) {
  return read_along(s, pad_sources(s.in[0].shape, s.attributes),
                    s.attributes.number("constant_value"));
}
std::unique_ptr<Kernel> shift(const Signature& s) {
  return read_along(s, shift_sources(s.in[0].shape, s.attributes), 0.0);
}

// The transpose of reading: each gradient is added where its element was read, row by row of the
// last axis. Indices of the first one that are all read once, as images of a batch are, go to
// several threads.
class AddAlong : public Kernel {
 public:
  AddAlong(const Signature& s, Sources sources)
      : shape_(s.in[0].shape),
        out_n_(s.out[0].size()),
        g_strides_(s.in[0].strides()),
        strides_(s.out[0].strides()),
        sources_(std::move(sources)),
        runs_(runs_of(sources_.back())) {
    apart_ = shape_.size() > 1;
    for (size_t i = 0; i < sources_[0].size(); ++i)
      apart_ = apart_ && sources_[0][i] == static_cast<int64_t>(i);
    for (size_t a = 0; a + 1 < shape_.size(); ++a) rows_ *= shape_[a];
  }

  void run(const Buffers& b) override {
    const float* g = b.input<float>(0);
    float* y = b.output<float>();
    std::fill(y, y + out_n_, 0.0f);
    if (!apart_) return add_rows(g, y, 0, rows_);
    const int64_t each = rows_ / std::max<int64_t>(shape_[0], 1), work = each * shape_.back();
    parallel_for(shape_[0], 1 + (1 << 15) / std::max<int64_t>(work, 1),
                 [=](int64_t begin, int64_t end) { add_rows(g, y, begin * each, end * each); });
  }

 private:
  void add_rows(const float* g, float* y, int64_t begin, int64_t end) const {
    const int64_t from_step = g_strides_.back(), to_step = strides_.back();
    for (int64_t row = begin; row < end; ++row) {
      int64_t rest = row, from = 0, to = 0;
      for (size_t a = shape_.size() - 1; a-- > 0; rest /= shape_[a]) {
        const int64_t k = rest % shape_[a];
        from += k * g_strides_[a];
        to += sources_[a][static_cast<size_t>(k)] * strides_[a];
      }
      for (const Run& r : runs_) {
        const float* source = g + from + r.to * from_step;
        float* target = y + to + r.from * to_step;
        const int64_t step = r.step * to_step;
        if (from_step == 1 && step == 1) {
#pragma omp simd
          for (int64_t i = 0; i < r.size; ++i) target[i] += source[i];
        } else {
          for (int64_t i = 0; i < r.size; ++i) target[i * step] += source[i * from_step];
        }
      }
    }
  }

  Shape shape_;
  int64_t out_n_, rows_ = 1;
  Shape g_strides_, strides_;
  Sources sources_;
  std::vector<Run> runs_;
  bool apart_ = false;
};

std::unique_ptr<Kernel> add_along(const Signature& s, Sources sources) {
  const Spec& g = s.in[0];
  if (g.dtype != DType::f32 || s.out[0].dtype != DType::f32 || sources.empty()) return nullptr;
  if (g.shape.size() != sources.size()) return nullptr;
  for (size_t a = 0; a < sources.size(); ++a)
    if (g.shape[a] != static_cast<int64_t>(sources[a].size())) return nullptr;
  return std::make_unique<AddAlong>(s, std::move(sources));
}
std::unique_ptr<Kernel> pad_backward(const Signature& s) {
  return add_along(s, pad_sources(s.out[0].shape, s.attributes));
}
std::unique_ptr<Kernel> shift_backward(const Signature& s) {
  return add_along(s, shift_sources(s.out[0].shape, s.attributes));
}

const Registration registrations[] = {
    {"pad", pad},
    {"pad_backward", pad_backward},
    {"shift", shift},
    {"shift_backward", shift_backward},
};

}  // namespace
}  // namespace nnl
