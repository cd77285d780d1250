// SPDX-License-Identifier: Apache-2.0
// Rules of what moves, joins and cuts arrays.
#include <algorithm>
#include <cmath>

#include "rule.h"

namespace nnl {
namespace {

Specs reshaped(const RuleCall& c) {
  const Spec y = with_shape(c[0], c.shape());
  double size = 1;  // nobody has looked at this shape yet
  for (int64_t n : y.shape) size *= static_cast<double>(n);
  if (size != static_cast<double>(c[0].size()) || (size < 0x1p53 && y.size() != c[0].size()))
    c.fail(0, std::to_string(c[0].size()) + " elements in the result, not " + y.text());
  return {y};
}
const ShapeRule reshape{"reshape", "x", reshaped};

Specs at_most_of(const RuleCall& c) {
  c.axis("axis", c[0].shape.size());
  if (c[1].rank() != 0 || c[1].dtype != DType::i64) c.fail(1, "one number of int64");
  return {c[0]};
}
const ShapeRule at_most{"at_most", "x count#", at_most_of};

Specs broadcasted(const RuleCall& c) {
  const Shape y = c.shape();
  Shape x = c[0].shape;
  if (x.size() < y.size()) x.insert(x.begin(), y.size() - x.size(), 1);
  if (!stretches(x, y)) c.fail(0, "what stretches to " + with_shape(c[0], y).text());
  return {with_shape(c[0], y)};
}
const ShapeRule broadcast{"broadcast", "x", broadcasted};

Specs transposed(const RuleCall& c) {
  const std::vector<bool> all = c.axes("axes", c[0].shape.size());
  Shape y;
  for (int64_t a : c.attributes.integers("axes")) y.push_back(c[0].shape[static_cast<size_t>(a)]);
  if (y.size() != all.size()) c.fail(0, "one entry of axes for each axis");
  return {with_shape(c[0], y)};
}
const ShapeRule transpose{"transpose", "x", transposed};

Specs flipped(const RuleCall& c) {
  c.axes("axes", c[0].shape.size());
  return {c[0]};
}
const ShapeRule flip{"flip", "x", flipped};

const ShapeRule to_layout{"to_layout", "x", same};

Specs cast_of(const RuleCall& c) {
  return {with_type(c[0], type_named(c.attributes.text("dtype")))};
}
const ShapeRule cast{"cast", "x", cast_of};

// ---- several arrays ----

Specs concatenated(const RuleCall& c) {
  if (c.in.empty()) c.fail("got no array, wanted at least one");
  const size_t a = c.axis("axis", c[0].shape.size());
  Shape y = c[0].shape;
  for (size_t i = 1; i < c.in.size(); ++i) {
    Shape other = c[i].shape;
    if (other.size() == y.size()) other[a] = c[0].shape[a];
    if (other != c[0].shape)
      c.fail(i, "the sizes of " + c.text(0) + " except along axis " + std::to_string(a));
    y[a] += c[i].shape[a];
  }
  return {with_shape(c[0], y)};
}
const ShapeRule concatenate{"concatenate", "*x", concatenated};

Specs stacked(const RuleCall& c) {
  if (c.in.empty()) c.fail("got no array, wanted at least one");
  for (size_t i = 1; i < c.in.size(); ++i) c.same_shape(i, 0);
  Shape y = c[0].shape;
  y.insert(y.begin() + static_cast<std::ptrdiff_t>(c.axis("axis", y.size() + 1)),
           static_cast<int64_t>(c.in.size()));
  return {with_shape(c[0], y)};
}
const ShapeRule stack{"stack", "*x", stacked};

Specs split_of(const RuleCall& c) {
  Shape y = c[0].shape;
  const size_t a = c.axis("axis", y.size());
  const int64_t n = y[a];
  if (n < 1 || n > largest_step) c.fail(0, "1 to " + std::to_string(largest_step) + " parts");
  y.erase(y.begin() + static_cast<std::ptrdiff_t>(a));
  return Specs(static_cast<size_t>(n), with_shape(c[0], y));
}
const ShapeRule split{"split", "x", split_of};

Specs grid(const RuleCall& c) {
  Shape y;
  for (size_t i = 0; i < c.in.size(); ++i) {
    if (c[i].rank() != 1) c.fail(i, "rank 1");
    y.push_back(c[i].shape[0]);
  }
  if (y.empty()) c.fail("got no array, wanted at least one");
  if (!c.attributes.flag("ij_indexing") && y.size() > 1) std::swap(y[0], y[1]);
  return Specs(y.size(), with_shape(c[0], y));
}
const ShapeRule meshgrid{"meshgrid", "*x", grid};

// ---- parts ----

// The number of i from start on, by step, before stop, both counted as Python counts them.
int64_t length(int64_t n, int64_t start, int64_t stop, int64_t step) {
  const bool down = step < 0;
  const auto bounded = [&](int64_t i) {
    if (i < 0) return i < -n ? (down ? int64_t{-1} : int64_t{0}) : i + n;
    return std::min(i, down ? n - 1 : n);
  };
  const int64_t a = bounded(start), b = bounded(stop);
  if (down) return b < a ? (a - b - 1) / -step + 1 : 0;
  return a < b ? (b - a - 1) / step + 1 : 0;
}

Shape part_of(const RuleCall& c, const Shape& x) {
  const auto &start = c.attributes.integers("start"), &stop = c.attributes.integers("stop"),
             &step = c.attributes.integers("step");
  const size_t n = start.size();
  if (stop.size() != n || step.size() != n || n > x.size())
    c.fail("start, stop and step must have one length, at most the " + std::to_string(x.size()) +
           " axes of the array");
  Shape y = x;
  for (size_t i = 0; i < n; ++i) {
    if (step[i] == 0 || step[i] == INT64_MIN) c.fail("step has a 0, wanted other numbers");
    int64_t& size = y[x.size() - n + i];
    size = length(size, start[i], stop[i], step[i]);
  }
  return y;
}
Specs sliced(const RuleCall& c) { return {with_shape(c[0], part_of(c, c[0].shape))}; }
const ShapeRule slice{"slice", "x", sliced};

Specs slice_backward_of(const RuleCall& c) {
  c.has_shape(0, part_of(c, c.shape()));
  return {with_shape(c[0], c.shape())};
}
const ShapeRule slice_backward{"slice_backward", "gy", slice_backward_of};

Shape padded(const RuleCall& c, const Shape& x) {
  const std::vector<int64_t> widths = c.integers("pad_width", 0, longest_axis / 4);
  if (widths.size() % 2 || widths.size() > 2 * x.size())
    c.fail("pad_width has " + std::to_string(widths.size()) +
           " numbers, wanted two for each of at most " + std::to_string(x.size()) + " axes");
  c.one_of("mode", {"constant", "reflect", "repeat"});
  const bool constant = c.attributes.text("mode") == "constant";
  Shape y = x;
  for (size_t i = 0; i < widths.size(); i += 2) {
    int64_t& n = y[x.size() - widths.size() / 2 + i / 2];
    const int64_t more = widths[i] + widths[i + 1];
    if (more && !n && !constant) c.fail("an axis is empty, which the mode cannot pad");
    n += more;
  }
  return y;
}
Specs pad_of(const RuleCall& c) { return {with_shape(c[0], padded(c, c[0].shape))}; }
const ShapeRule pad{"pad", "x", pad_of};

Specs pad_backward_of(const RuleCall& c) {
  c.has_shape(0, padded(c, c.shape()));
  return {with_shape(c[0], c.shape())};
}
const ShapeRule pad_backward{"pad_backward", "gy", pad_backward_of};

Specs shifted(const RuleCall& c) {
  if (c.integers("shifts", -longest_axis, longest_axis).size() > c[0].shape.size())
    c.fail(0, "an axis for each of shifts");
  c.one_of("border_mode", {"nearest", "reflect"});
  return {c[0]};
}
const ShapeRule shift{"shift", "x", shifted};
const ShapeRule shift_backward{"shift_backward", "gy", shifted};

Specs tiled(const RuleCall& c) {
  std::vector<int64_t> reps = c.integers("reps", 1, largest_step);
  Shape y = c[0].shape;
  if (y.size() < reps.size()) y.insert(y.begin(), reps.size() - y.size(), 1);
  reps.insert(reps.begin(), y.size() - reps.size(), 1);
  for (size_t i = 0; i < y.size(); ++i) y[i] *= reps[i];
  return {with_shape(c[0], y)};
}
const ShapeRule tile{"tile", "x", tiled};

// ---- made of attributes ----

Specs arange_of(const RuleCall& c) {
  const double start = c.attributes.number("start"), stop = c.attributes.number("stop"),
               step = c.attributes.number("step");
  const double n = (stop - start) / step;
  if (step == 0 || !std::isfinite(start) || !std::isfinite(stop) || !std::isfinite(step))
    c.fail("start, stop and step are " + std::to_string(start) + ", " + std::to_string(stop) +
           " and " + std::to_string(step) + ", wanted finite numbers and a step other than 0");
  if (n > static_cast<double>(longest_axis)) c.fail("the result is larger than any memory");
  return {{{static_cast<int64_t>(std::max(0.0, std::ceil(n)))}, DType::f32, Layout::plain}};
}
const ShapeRule arange{"arange", "", arange_of};

// ---- gather ----

Shape gathered(const RuleCall& c, const Shape& x, const Shape& indices) {
  const size_t a = c.axis("axis", x.size());
  const auto b = static_cast<std::ptrdiff_t>(
      c.integer("batch_dims", 0, static_cast<int64_t>(std::min({a, x.size(), indices.size()}))));
  if (!std::equal(x.begin(), x.begin() + b, indices.begin()))
    c.fail("x and indices must have the same first " + std::to_string(b) + " sizes");
  Shape y(x.begin(), x.begin() + static_cast<std::ptrdiff_t>(a));
  y.insert(y.end(), indices.begin() + b, indices.end());
  y.insert(y.end(), x.begin() + static_cast<std::ptrdiff_t>(a) + 1, x.end());
  return y;
}
Specs gather_of(const RuleCall& c) {
  return {with_shape(c[0], gathered(c, c[0].shape, c[1].shape))};
}
const ShapeRule gather{"gather", "x Indices#", gather_of};

Specs gather_backward_of(const RuleCall& c) {
  RuleCall of_x = c;
  of_x.in[0].shape = c.shape();
  c.has_shape(0, gathered(of_x, c.shape(), c[1].shape));
  return {of_x[0]};
}
const ShapeRule gather_backward{"gather_backward", "gy indices#", gather_backward_of};

// ---- matrices in the last two axes ----

Specs diagonal(const RuleCall& c) {
  c.rank_at_least(0, 1);
  Shape y = c[0].shape;
  y.push_back(y.back());
  return {with_shape(c[0], y)};
}
const ShapeRule matrix_diag{"matrix_diag", "x", diagonal};

Specs diagonal_part(const RuleCall& c) {
  const int rank = c.rank_at_least(0, 2);
  Shape y = c[0].shape;
  if (y[static_cast<size_t>(rank) - 2] != y.back()) c.fail(0, "two last axes of one size");
  y.pop_back();
  return {with_shape(c[0], y)};
}
const ShapeRule matrix_diag_part{"matrix_diag_part", "x", diagonal_part};

Specs triangle(const RuleCall& c) {
  c.rank_at_least(0, 2);
  c.integer("k", -longest_axis);
  return {c[0]};
}
const ShapeRule trilu{"trilu", "x", triangle};

// ---- made, and written ----

Specs one_hot_of(const RuleCall& c) {
  const Shape classes = c.shape();
  Shape y = c[0].shape;
  c.rank_at_least(0, 1);
  if (y.back() != static_cast<int64_t>(classes.size()))
    c.fail(0, "one index for each size of shape in its last axis");
  y.pop_back();
  y.insert(y.end(), classes.begin(), classes.end());
  return {{y}};
}
const ShapeRule one_hot{"one_hot", "x#", one_hot_of};

Specs constant_of(const RuleCall& c) { return {{c.shape()}}; }
const ShapeRule constant{"constant", "", constant_of};

Specs drawn(const RuleCall& c) { return {{c.shape()}}; }
const ShapeRule rand{{"rand", "randn"}, "rng", drawn};

Specs augmented(const RuleCall& c) {
  const int rank = c.rank_at_least(0, 2);
  const Shape own = c.shape();
  const auto n = static_cast<int>(own.size());
  Shape y = c[0].shape;
  c.in_range("shape", n >= 2 && n <= rank, "height and width, and some sizes of x before them");
  std::copy(own.begin(), own.end(), y.end() - n);
  for (int i = 0; i < rank - 2; ++i)
    if (y[static_cast<size_t>(i)] != c[0].shape[static_cast<size_t>(i)])
      c.fail(0, "the sizes of shape before height and width");
  if (!c[0].shape.end()[-1] || !c[0].shape.end()[-2]) c.fail(0, "at least one pixel");
  c.in_range("pad", c.integers("pad", 0, largest_step).size() == 2, "two numbers");
  for (const char* name : {"min_scale", "max_scale", "aspect_ratio", "contrast"})
    c.in_range(name, c.attributes.number(name) > 0, "a number > 0");
  return {with_shape(c[0], y)};
}
const ShapeRule image_augmentation{"image_augmentation", "x rng", augmented};

Specs drawn_integers(const RuleCall& c) {
  const int64_t low = c.integer("low", -(int64_t{1} << 31), int64_t{1} << 31);
  c.integer("high", low + 1, int64_t{1} << 31);
  return {{c.shape(), DType::i32}};
}
const ShapeRule randint{"randint", "rng", drawn_integers};

Specs dropout_of(const RuleCall& c) {
  const double p = c.attributes.number("p");
  c.in_range("p", p >= 0 && p < 1, "0 <= p < 1");
  return {c[0], with_type(c[0], DType::boolean)};
}
const ShapeRule dropout{"dropout", "x rng", dropout_of};

Specs assigned(const RuleCall& c) {
  c.same_shape(0, 1);
  return {c[1]};
}
const ShapeRule assign{{"assign", "store"}, "dst src", assigned};

Specs first(const RuleCall& c) { return {c[0]}; }
const ShapeRule keep_states{"keep_states", "y *done", first};

}  // namespace
}  // namespace nnl
