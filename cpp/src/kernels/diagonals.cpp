// SPDX-License-Identifier: Apache-2.0
// Diagonals and triangles of matrices, grids, and writing one array into another.
#include <algorithm>

#include "movement.h"

namespace nnl {
namespace {

bool plain(const Signature& s) {
  for (const Spec& x : s.in)
    if (x.layout != Layout::plain) return false;
  for (const Spec& y : s.out)
    if (y.layout != Layout::plain || !StridedCopy::takes(s.in[0].dtype, y.dtype)) return false;
  return true;
}

// Strides of the diagonals of square matrices, the last two axes as one.
Shape along_diagonals(const Spec& matrices) {
  Shape strides = matrices.strides();
  strides.pop_back();
  strides.back() += 1;
  return strides;
}

std::unique_ptr<Kernel> matrix_diag(const Signature& s) {
  if (!plain(s)) return nullptr;
  const Spec &x = s.in[0], &y = s.out[0];
  auto kernel = std::make_unique<Moves>();
  kernel->fill(0, y, 0.0);
  kernel->add(0, 0, {x.shape, x.strides(), 0, along_diagonals(y), 0, x.dtype, y.dtype});
  return kernel;
}

std::unique_ptr<Kernel> matrix_diag_part(const Signature& s) {
  if (!plain(s)) return nullptr;
  const Spec &x = s.in[0], &y = s.out[0];
  auto kernel = std::make_unique<Moves>();
  kernel->add(0, 0, {y.shape, along_diagonals(x), 0, y.strides(), 0, x.dtype, y.dtype});
  return kernel;
}

class Triangle : public Kernel {
 public:
  explicit Triangle(const Signature& s)
      : type_(s.in[0].dtype),
        rows_(s.in[0].shape[s.in[0].shape.size() - 2]),
        columns_(s.in[0].shape.back()),
        all_rows_(columns_ ? s.in[0].size() / columns_ : 0),
        k_(s.attributes.integer("k")),
        upper_(s.attributes.flag("upper")) {}
  void run(const Buffers& b) override {
    const auto bytes = static_cast<int64_t>(bytes_of(type_));
    const char* x = b.input<char>(0);
    char* y = b.output<char>();
    const int64_t least = 1 + (1 << 15) / std::max<int64_t>(columns_, 1);
    parallel_for(all_rows_, least, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        // the first column that belongs to the upper part
        const int64_t c = std::clamp<int64_t>(r % rows_ + k_ + (upper_ ? 0 : 1), 0, columns_);
        const int64_t kept = upper_ ? c : 0, size = upper_ ? columns_ - c : c;
        const int64_t zero = upper_ ? 0 : c, zeros = columns_ - size, at = r * columns_;
        if (x != y)
          std::memcpy(y + (at + kept) * bytes, x + (at + kept) * bytes,
                      static_cast<size_t>(size * bytes));
        std::memset(y + (at + zero) * bytes, 0, static_cast<size_t>(zeros * bytes));
      }
    });
  }
  bool may_overwrite(size_t, size_t) const override { return true; }

 private:
  DType type_;
  int64_t rows_, columns_, all_rows_, k_;
  bool upper_;
};

std::unique_ptr<Kernel> trilu(const Signature& s) {
  if (!plain(s) || s.in[0].dtype != s.out[0].dtype) return nullptr;
  return std::make_unique<Triangle>(s);
}

std::unique_ptr<Kernel> meshgrid(const Signature& s) {
  if (!plain(s)) return nullptr;
  const bool swapped = !s.attributes.flag("ij_indexing") && s.in.size() > 1;
  auto kernel = std::make_unique<Moves>();
  for (size_t i = 0; i < s.in.size(); ++i) {
    const Spec& y = s.out[i];
    Shape source(y.shape.size(), 0);
    source[swapped && i < 2 ? 1 - i : i] = 1;
    kernel->add(i, i, {y.shape, source, 0, y.strides(), 0, s.in[i].dtype, y.dtype});
  }
  return kernel;
}

// assign and store: src into dst, and a copy of it.
class Assign : public Kernel {
 public:
  explicit Assign(const Signature& s)
      : n_(s.in[1].size()), dst_(s.in[0].dtype), src_(s.in[1].dtype), out_(s.out[0].dtype) {}
  void run(const Buffers& b) override {
    parallel_for(n_, 1 << 16, [&](int64_t begin, int64_t end) {
      const void* x = at(b.in[1], src_, begin);
      for (auto [y, dtype] : {std::pair{b.in[0], dst_}, std::pair{b.out[0], out_}})
        if (y != b.in[1]) conversion(src_, dtype)(x, at(y, dtype, begin), end - begin);
    });
  }
  bool may_overwrite(size_t, size_t i) const override { return i == 1 && src_ == out_; }

 private:
  int64_t n_;
  DType dst_, src_, out_;
};

std::unique_ptr<Kernel> assign(const Signature& s) {
  if (s.in[0].layout != s.in[1].layout || s.in[1].layout != s.out[0].layout) return nullptr;
  return std::make_unique<Assign>(s);
}

const Registration registrations[] = {
    {"matrix_diag", matrix_diag},
    {"matrix_diag_part", matrix_diag_part},
    {"trilu", trilu},
    {"meshgrid", meshgrid},
    {"assign", assign},
    {"store", assign},
};

}  // namespace
}  // namespace nnl
