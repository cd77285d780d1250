// SPDX-License-Identifier: Apache-2.0
// Rules of running sums, sorting, and elements at positions that are data.
#include <algorithm>

#include "rule.h"

namespace nnl {
namespace {

Specs along_axis(const RuleCall& c) {
  c.axis("axis", c[0].shape.size());
  if (c.in.size() > 1) c.same_shape(1, 0);
  return {c[0]};
}
Specs transformed(const RuleCall& c) {
  const auto d = static_cast<size_t>(c.integer("signal_ndim", 1));
  const Shape& x = c[0].shape;
  if (x.size() < d + 1 || x.back() != 2)
    c.fail(0, "signals of " + std::to_string(d) + " axes before one of size 2");
  for (size_t a = x.size() - 1 - d; a + 1 < x.size(); ++a)
    if (!x[a]) c.fail(0, "no empty signals");
  return {c[0]};
}
const ShapeRule fourier{{"fft", "ifft"}, "x", transformed};

const ShapeRule cumulative{{"cumsum", "cumprod", "product_before", "delay"}, "x", along_axis};
const ShapeRule recurrence{{"recurrence", "transposed_recurrence"}, "g x", along_axis};

Specs sorted(const RuleCall& c) {
  const Spec x = along_axis(c)[0], index = with_type(x, DType::u64);
  if (c.attributes.flag("only_index")) return {index};
  if (c.attributes.flag("with_index")) return {x, index};
  return {x};
}
const ShapeRule sort{"sort", "x", sorted};

Specs confusion(const RuleCall& c) {
  std::vector<bool> axes(c[0].shape.size());
  const size_t axis = c.axis("axis", axes.size());
  axes[axis] = true;
  c.has_shape(1, kept_shape(c[0].shape, axes));
  const int64_t n = c[0].shape[axis];
  return {{{n, n}, DType::i32}};
}
const ShapeRule confusion_matrix{"confusion_matrix", "x target#", confusion};

// ---- positions that name the first axes: indices (m, ...) ----

Shape at_positions(const RuleCall& c, const Spec& x) {
  const Shape& indices = c[1].shape;
  if (indices.size() < 2 || indices[0] < 1 || indices[0] > x.rank())
    c.fail(1, "(m, ...) with m from 1 to the rank of " + x.text());
  Shape y(indices.begin() + 1, indices.end());
  y.insert(y.end(), x.shape.begin() + indices[0], x.shape.end());
  return y;
}
Specs gathered(const RuleCall& c) { return {with_shape(c[0], at_positions(c, c[0]))}; }
const ShapeRule gather_nd{"gather_nd", "data indices#", gathered};

Specs scattered(const RuleCall& c) {
  if (!c.attributes.has("shape")) c.fail("shape is missing");
  const Spec y = with_shape(c[0], c.shape());
  c.has_shape(2, y.shape);
  c.has_shape(0, at_positions(c, y));
  return {y};
}
const ShapeRule scatter_nd{"scatter_nd", "data indices# out?", scattered};

// ---- positions of which indices give one coordinate, or that count all elements ----

void check_along(const RuleCall& c, const Spec& x) {
  const size_t axis = c.axis("axis", x.shape.size());
  if (c[1].rank() != x.rank()) c.fail(1, "the rank of " + x.text());
  for (size_t d = 0; d < x.shape.size(); ++d)
    if (d != axis && c[1].shape[d] > x.shape[d]) c.fail(1, "no size above those of " + x.text());
}
Specs taken(const RuleCall& c) {
  check_along(c, c[0]);
  return {with_shape(c[0], c[1].shape)};
}
Specs put(const RuleCall& c) {
  const Spec y = with_shape(c[0], c.shape());
  check_along(c, y);
  c.same_shape(0, 1);
  return {y};
}
const ShapeRule take_along{"take_along", "x indices#", taken};
const ShapeRule scatter_along{"scatter_along", "x indices#", put};

Specs taken_flat(const RuleCall& c) { return {with_shape(c[0], c[1].shape)}; }
Specs put_flat(const RuleCall& c) {
  c.same_shape(1, 0);
  return {with_shape(c[0], c.shape())};
}
const ShapeRule index_gather{"index_gather", "x index", taken_flat};
const ShapeRule index_scatter{"index_scatter", "x index", put_flat};

// ---- masks, whose elements that are not zero are as many as a shape says ----

bool begins(const Shape& y, const Shape& with) {
  return with.size() <= y.size() && std::equal(with.begin(), with.end(), y.begin());
}
Specs masked(const RuleCall& c) {
  const Shape &x = c[0].shape, &mask = c[1].shape;
  if (mask.empty() || !begins(x, mask)) c.fail(1, "the first sizes of " + c.text(0));
  Shape y = {c.integer("count", 0)};
  if (x.size() > mask.size())
    y.push_back(product(x.begin() + static_cast<std::ptrdiff_t>(mask.size()), x.end()));
  return {with_shape(c[0], y)};
}
Specs unmasked(const RuleCall& c) {
  c.rank_at_least(0, 1);
  c.rank_at_least(1, 1);
  Shape y = c[1].shape;
  y.insert(y.end(), c[0].shape.begin() + 1, c[0].shape.end());
  c.has_shape(2, y);
  return {with_shape(c[0], y)};
}
Specs nonzero_of(const RuleCall& c) { return {{{c[0].rank(), c.integer("count", 0)}, DType::u64}}; }
const ShapeRule bool_gather{"bool_gather", "input mask", masked};
const ShapeRule bool_scatter{"bool_scatter", "input mask output?", unmasked};
const ShapeRule nonzero{"nonzero", "x", nonzero_of};

// ---- trees: nodes (M, 4), roots (T,), leaves (L, W) and where their values belong (L,) ----

Specs ensemble(const RuleCall& c) {
  const int64_t n = c.integer("n_targets", 1);
  c.one_of("together", {"sum", "min", "max"});
  if (c[0].rank() != 2) c.fail(0, "(N, F)");
  if (c[1].dtype != DType::i64) c.has_type(1, DType::i32);
  if (c[1].rank() != 2 || c[1].shape[1] != 4) c.fail(1, "(M, 4)");
  c.has_type(2, DType::i32);
  if (c[2].rank() != 1) c.fail(2, "(T,)");
  if (c[3].rank() != 2 || c[3].shape[0] < 1 || c[3].shape[1] < 1 || c[3].shape[1] > n)
    c.fail(3, "(L, W) with L from 1 on and W from 1 to n_targets");
  c.has_type(4, DType::i32);
  c.has_shape(4, {c[3].shape[0]});
  return {with_shape(c[0], {c[0].shape[0], n})};
}
const ShapeRule tree_ensemble{"tree_ensemble", "x nodes roots weights targets", ensemble};

// ---- pixels: images (B, C, S), taps (B, T, P), positions (B, d, P) ----

Specs corners(const RuleCall& c) {
  const Shape sizes = c.shape("sizes");
  const auto d = static_cast<int64_t>(sizes.size());
  if (c[0].rank() != 3 || c[0].shape[1] != d || d < 1 || d > 16)
    c.fail(0, "(B, " + std::to_string(d) + ", P)");
  double pixels = 1;
  for (int64_t n : sizes) pixels *= static_cast<double>(n);
  if (pixels > static_cast<double>(longest_axis)) c.fail("sizes are those of no image");
  const int64_t taps = c.attributes.flag("nearest") ? 1 : int64_t{1} << d;
  const Spec y = with_shape(c[0], {c[0].shape[0], taps, c[0].shape[2]});
  return {with_type(y, DType::i64), y, c[0]};
}
const ShapeRule corner_pixels{"corner_pixels", "p", corners};

Specs sampled(const RuleCall& c) {
  if (c[0].rank() != 3) c.fail(0, "(B, C, S)");
  if (c[1].rank() != 3 || c[1].shape[0] != c[0].shape[0]) c.fail(1, "(B, T, P) for " + c.text(0));
  c.same_shape(2, 1);
  return {with_shape(c[0], {c[0].shape[0], c[0].shape[1], c[1].shape[2]})};
}
const ShapeRule sample_pixels{"sample_pixels", "x index# weight", sampled};

Specs spread(const RuleCall& c) {
  sampled(c);
  return {with_shape(c[0], {c[0].shape[0], c[0].shape[1], c.integer("size", 0)})};
}
const ShapeRule spread_to_pixels{"spread_to_pixels", "gy index# weight", spread};

Specs products(const RuleCall& c) {
  if (c[0].rank() != 3) c.fail(0, "(B, C, S)");
  if (c[2].rank() != 3 || c[2].shape[0] != c[0].shape[0]) c.fail(2, "(B, T, P) for " + c.text(0));
  return {with_shape(c[1], c[2].shape)};
}
const ShapeRule pixel_products{"pixel_products", "x gy index#", products};

Specs largest(const RuleCall& c) {
  const auto base =
      static_cast<size_t>(c.integer("base_axis", 0, static_cast<int64_t>(c[0].rank())));
  const Shape& x = c[0].shape;
  const int64_t size = product(x.begin() + static_cast<std::ptrdiff_t>(base), x.end());
  const int64_t k = c.integer("k", 1);
  c.in_range("k", k <= size, "at most the sample size");
  const bool index = c.attributes.flag("with_index"), reduce = c.attributes.flag("reduce");
  if (index && !reduce) c.fail("with_index is True, which needs reduce=True");
  Shape y(x.begin(), x.begin() + static_cast<std::ptrdiff_t>(base));
  y.push_back(k);
  const Spec found = reduce ? with_shape(c[0], y) : c[0];
  if (index) return {found, with_type(found, DType::u64)};
  return {found};
}
const ShapeRule top_k_data{"top_k_data", "x", largest};

// ---- sequences, padded (T, B, ...) or (B, T, ...) and packed (N, ...) ----

Specs packed(const RuleCall& c) {
  c.rank_at_least(0, 2);
  const bool first = c.attributes.flag("batch_first");
  c.has_shape(1, {c[0].shape[first ? 0 : 1]});
  Shape y = {c.integer("count", 0)};
  y.insert(y.end(), c[0].shape.begin() + 2, c[0].shape.end());
  return {with_shape(c[0], y), {{c[0].shape[first ? 1 : 0]}, DType::i64}};
}
Specs unpacked(const RuleCall& c) {
  c.rank_at_least(0, 1);
  if (c[1].rank() != 1 || !c[1].size()) c.fail(1, "(T,)");
  const int64_t batch = c.integer("count", 0);
  const int64_t steps = std::max(c.integer("total_length", -longest_axis), c[1].shape[0]);
  Shape y = {steps, batch};
  if (c.attributes.flag("batch_first")) std::swap(y[0], y[1]);
  y.insert(y.end(), c[0].shape.begin() + 1, c[0].shape.end());
  return {with_shape(c[0], y), {{batch}, DType::i64}};
}
const ShapeRule pack_padded_sequence{"pack_padded_sequence", "padded_sequence lengths#", packed};
const ShapeRule pad_packed_sequence{"pad_packed_sequence", "packed_sequence batch_sizes#",
                                    unpacked};

Specs shifted_bits(const RuleCall& c) {
  c.one_of("direction", {"LEFT", "RIGHT"});
  const DType t = c[0].dtype;
  if (t != DType::u8 && t != DType::u16 && t != DType::u32 && t != DType::u64)
    c.fail(0, "unsigned integers");
  return {with_shape(c[0], together(c, 0, 1))};
}
const ShapeRule bit_shift{"bit_shift", "x shift", shifted_bits};

// ---- random moves: the result, and where its elements come from ----

Specs moved(const RuleCall& c, Shape y) {
  c.has_type(1, DType::u64);
  c.has_shape(1, {2});
  c.integer("base_axis", 0, c[0].rank());
  const Spec out = with_shape(c[0], std::move(y));
  return {out, with_type(out, DType::i64)};
}
Specs cropped(const RuleCall& c) {
  const Shape piece = c.shape(), &x = c[0].shape;
  if (piece.size() > x.size()) c.fail(0, "an axis for each size of shape");
  Shape y(x.begin(), x.end() - static_cast<std::ptrdiff_t>(piece.size()));
  y.insert(y.end(), piece.begin(), piece.end());
  for (size_t i = 0; i < y.size(); ++i)
    if (y[i] > x[i]) c.fail(0, "no size below that of shape");
  return moved(c, y);
}
Specs flipped(const RuleCall& c) {
  c.axes("axes", c[0].shape.size());
  return moved(c, c[0].shape);
}
Specs shifted(const RuleCall& c) {
  if (c.integers("shifts", 0, largest_step).size() > c[0].shape.size())
    c.fail(0, "an axis for each of shifts");
  c.one_of("border_mode", {"nearest", "reflect", "constant"});
  return moved(c, c[0].shape);
}
const ShapeRule random_crop{"random_crop", "x rng", cropped};
const ShapeRule random_flip{"random_flip", "x rng", flipped};
const ShapeRule random_shift{"random_shift", "x rng", shifted};

Specs boxes(const RuleCall& c) {
  if (c[0].rank() != 3 || c[0].shape[2] < 6) c.fail(0, "(B, N, 5 + C) with at least one class");
  return {c[0]};
}
const ShapeRule nms_detection2d{"nms_detection2d", "x", boxes};

}  // namespace
}  // namespace nnl
