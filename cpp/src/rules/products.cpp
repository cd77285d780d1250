// SPDX-License-Identifier: Apache-2.0
// Rules of products of matrices, of rows of tables, and of attention.
#include "rule.h"

namespace nnl {
namespace {

Specs affine_of(const RuleCall& c) {
  const Shape &x = c[0].shape, &w = c[1].shape;
  const int64_t base = c.integer("base_axis", 0, c[0].rank());
  c.rank_at_least(1, 2);
  const int64_t inner = product(x.begin() + base, x.end());
  if (w[0] != inner)
    c.fail(1, std::to_string(inner) + " rows for " + c.text(0) + " from axis " +
                  std::to_string(base) + " on");
  Shape y(x.begin(), x.begin() + base);
  y.insert(y.end(), w.begin() + 1, w.end());
  c.has_shape(2, {w.begin() + 1, w.end()});
  return {with_shape(c[0], y)};
}
const ShapeRule affine{"affine", "x weight bias?", affine_of};

Specs affine_fused_of(const RuleCall& c) {
  c.one_of("activation", {"identity", "relu", "gelu", "tanh", "sigmoid", "swish"});
  const Specs y = affine_of(c);
  c.has_shape(3, y[0].shape);
  return y;
}
const ShapeRule affine_fused{"affine_fused", "x weight bias? z?", affine_fused_of};

Specs affine_weight_of(const RuleCall& c) {
  for (size_t i : {0, 1})
    if (c[i].rank() != 2) c.fail(i, "rank 2");
  if (c[0].shape[0] != c[1].shape[0]) c.fail(1, "the rows of " + c.text(0));
  return {with_shape(c[0], {c[0].shape[1], c[1].shape[1]})};
}
const ShapeRule affine_weight{"affine_weight", "x gy", affine_weight_of};

Specs batch_matmul_of(const RuleCall& c) {
  const size_t n = static_cast<size_t>(c.rank_at_least(0, 2));
  if (c[1].shape.size() != n) c.fail(1, "the rank of " + c.text(0));
  const auto matrix = [&](size_t i, const char* transpose) -> std::pair<int64_t, int64_t> {
    const Shape& s = c[i].shape;
    if (c.attributes.flag(transpose)) return {s[n - 1], s[n - 2]};
    return {s[n - 2], s[n - 1]};
  };
  const auto [rows, inner] = matrix(0, "transpose_a");
  const auto [inner_b, columns] = matrix(1, "transpose_b");
  if (inner != inner_b) c.fail(1, "the inner size " + std::to_string(inner));
  RuleCall batch = c;
  for (Spec& x : batch.in) x.shape.resize(n - 2);
  Shape y = together(batch, 0, 1);
  y.push_back(rows), y.push_back(columns);
  return {with_shape(c[0], y)};
}
const ShapeRule batch_matmul{"batch_matmul", "a b", batch_matmul_of};

// ---- weights of 4 or 8 bits ----

int64_t columns_of(const RuleCall& c, size_t w) {
  const int64_t bits = c.integer("bits", 4, 8), size = c.integer("group_size", 2);
  c.in_range("bits", bits == 4 || bits == 8, "4 or 8");
  c.in_range("group_size", size % 2 == 0, "an even number");
  c.has_type(w, DType::u8);
  if (c[w].rank() != 2) c.fail(w, "rank 2");
  const int64_t rows = c[w].shape[0], columns = c[w].shape[1] * 8 / bits;
  if (columns % size) c.fail(w, "a multiple of group_size " + std::to_string(size));
  for (size_t i : {w + 1, w + 2}) c.has_shape(i, {rows, columns / size});
  return columns;
}
Specs dequantize_groups_of(const RuleCall& c) {
  return {with_type(with_shape(c[0], {c[0].shape[0], columns_of(c, 0)}), DType::f32)};
}
Specs quantized_matmul_of(const RuleCall& c) {
  c.rank_at_least(0, 1);
  const int64_t columns = columns_of(c, 1), bits = c.integer("activation_bits", 8, 32);
  c.in_range("activation_bits", bits == 8 || bits == 32, "8 or 32");
  Shape y = c[0].shape;
  if (y.back() != columns) c.fail(0, std::to_string(columns) + " columns");
  y.back() = c[1].shape[0];
  return {with_shape(c[0], y)};
}
const ShapeRule dequantize_groups{"dequantize_groups", "w scale offset?", dequantize_groups_of};
const ShapeRule quantized_matmul{"quantized_matmul", "x w scale offset?", quantized_matmul_of};

// ---- rows that indices choose ----

Shape rows_at(const Shape& index, const Shape& table) {
  Shape y = index;
  y.insert(y.end(), table.begin() + 1, table.end());
  return y;
}
Specs embed_of(const RuleCall& c) {
  c.rank_at_least(1, 1);
  return {with_shape(c[1], rows_at(c[0].shape, c[1].shape))};
}
Specs embed_backward_of(const RuleCall& c) {
  const Spec w = with_shape(c[1], c.shape());
  if (w.shape.empty()) c.fail("shape is empty");
  c.has_shape(1, rows_at(c[0].shape, w.shape));
  if (c.given(2)) c.has_shape(2, w.shape);
  return {w};
}
const ShapeRule embed{"embed", "x0# w", embed_of};
const ShapeRule embed_backward{"embed_backward", "x0# gy z?", embed_backward_of};

// ---- attention ----

// q is the place of query; mask, lengths, offsets and segments follow each other from `mask` on.
void check_attention(const RuleCall& c, size_t q, size_t mask) {
  const Shape &sq = c[q].shape, &sk = c[q + 1].shape, &sv = c[q + 2].shape;
  const size_t rank = sq.size();
  if (rank != 3 && rank != 4) c.fail(q, "rank 3 or 4");
  for (size_t i : {q + 1, q + 2})
    if (c[i].shape.size() != rank || c[i].shape[0] != sq[0])
      c.fail(i, "the rank and the samples of " + c.text(q));
  const bool turned = c.attributes.flag("transpose_k");
  const int64_t keys = sk[rank - (turned ? 1 : 2)];
  if (sk[rank - (turned ? 2 : 1)] != sq.back()) c.fail(q + 1, "the width of " + c.text(q));
  if (sv[rank - 2] != keys || sv[1] != (rank == 4 ? sk[1] : keys))
    c.fail(q + 2, "the heads and positions of " + c.text(q + 1));
  if (rank == 4 && (!sk[1] || sq[1] % sk[1]))
    c.fail(q + 1, "a divisor of the " + std::to_string(sq[1]) + " heads of " + c.text(q));
  const int64_t heads = c.integer("heads", rank == 3 ? 1 : -longest_axis);
  if (rank == 3 && sq[0] % heads) c.fail(q, "a multiple of heads " + std::to_string(heads));
  c.integer("causal_offset", -longest_axis);
  if (c.attributes.has("window")) c.integer("window", 0);
  Shape full = {sq[0], sq[1], sq[rank - 2], keys};
  if (rank == 3) full[0] = sq[0] / heads, full[1] = heads;
  for (size_t i : {mask + 1, mask + 2}) c.has_shape(i, {full[0]});
  if (c.given(mask + 3) && full[2] != keys)
    c.fail(mask + 3, "nothing, as there are not as many keys as queries");
  c.has_shape(mask + 3, {full[0], keys});
  if (!c.given(mask)) return;
  Shape own = c[mask].shape;
  if (own.size() == 3 && heads == 1) own.insert(own.begin() + 1, 1);
  if (own.size() < 4) own.insert(own.begin(), 4 - own.size(), 1);
  if (!stretches(own, full))
    c.fail(mask, "what stretches to the scores " + with_shape(c[q], full).text());
}

Specs attention_of(const RuleCall& c) {
  check_attention(c, 0, 3);
  Spec y = c[0], sums = c[0];
  y.shape.back() = c[2].shape.back();
  sums.shape.pop_back();
  return {y, sums};
}
const ShapeRule attention{"attention", "query key value mask? lengths?# offsets?# segments?#",
                          attention_of};

Specs attention_backward_of(const RuleCall& c) {
  check_attention(c, 1, 6);
  Shape y = c[1].shape;
  y.back() = c[3].shape.back();
  c.has_shape(0, y);
  c.has_shape(4, y);
  y.pop_back();
  c.has_shape(5, y);
  return {c[1], c[2], c[3]};
}
const ShapeRule attention_backward{
    "attention_backward", "gy query key value y lse mask? lengths?# offsets?# segments?# glse?",
    attention_backward_of};

Specs cached_attention_of(const RuleCall& c) {
  for (size_t i : {0, 1, 2, 3, 4})
    if (c[i].shape.size() != 4) c.fail(i, "rank 4");
  const Shape &q = c[0].shape, &k = c[1].shape, &v = c[2].shape, &keys = c[3].shape;
  if (!k[1] || q[1] % k[1])
    c.fail(1, "a divisor of the " + std::to_string(q[1]) + " heads of " + c.text(0));
  c.has_shape(1, {q[0], k[1], q[2], q[3]});
  c.has_shape(2, {q[0], k[1], q[2], v[3]});
  c.has_shape(3, {keys[0], k[1], keys[2], q[3]});
  c.has_shape(4, {keys[0], k[1], keys[2], v[3]});
  if (!c.given(7) && keys[0] != q[0]) c.fail(3, std::to_string(q[0]) + " slots, one for each row");
  for (size_t i : {5, 6, 7}) c.has_shape(i, {q[0]});
  if (c.given(8) && !stretches(c[8].shape, {q[0], q[1], q[2], keys[2]}))
    c.fail(8, "what stretches to the scores");
  c.integer("window", 0);
  c.in_range("soft_cap", c.attributes.number("soft_cap") >= 0, "at least 0");
  return {with_shape(c[0], {q[0], q[1], q[2], v[3]})};
}
const ShapeRule cached_attention{
    "cached_attention", "query key value key_cache value_cache positions# counts?# slots?# mask?",
    cached_attention_of};

}  // namespace
}  // namespace nnl
