// SPDX-License-Identifier: Apache-2.0
// Rules of normalizations: the result, and the mean and variance that were used.
#include "rule.h"

namespace nnl {
namespace {

using Axes = std::vector<bool>;

Axes others(Axes axes) {
  axes.flip();
  return axes;
}

Specs with_statistics(const RuleCall& c, const Shape& parameter, Shape statistics) {
  for (size_t i : {1, 2}) c.has_shape(i, parameter);
  const Spec s = with_shape(c[0], std::move(statistics));
  return {c[0], s, s};
}

Specs layer(const RuleCall& c) {
  const Axes batch = c.axes("batch_axis", c[0].shape.size());
  return with_statistics(c, kept_shape(c[0].shape, batch), kept_shape(c[0].shape, others(batch)));
}
const ShapeRule layer_normalization{
    {"layer_normalization", "layer_normalization_with_statistics"}, "x beta? gamma?", layer};

Specs instance(const RuleCall& c) {
  const size_t rank = c[0].shape.size(), channel = c.axis("channel_axis", rank);
  Axes kept(rank), batch = c.axes("batch_axis", rank);
  kept[channel] = true;
  const Shape shared = kept_shape(c[0].shape, others(kept));
  for (size_t i = 0; i < rank; ++i) kept[i] = kept[i] || batch[i];
  const Shape own = kept_shape(c[0].shape, others(kept));
  Shape parameter = shared;
  for (size_t i : {1, 2}) {  // beta and gamma may differ from sample to sample
    if (!c.given(i)) continue;
    Shape p = c[i].shape;
    for (size_t k = 0; k < p.size() && k < rank; ++k)
      if (batch[k] && p[k] == 1) p[k] = own[k];
    if (p == own) parameter = c[i].shape;
  }
  return with_statistics(c, parameter, own);
}
const ShapeRule instance_normalization{
    {"instance_normalization", "instance_normalization_with_statistics"},
    "x beta? gamma?",
    instance};

Specs group(const RuleCall& c) {
  const Shape& x = c[0].shape;
  const size_t rank = x.size(), channel = c.axis("channel_axis", rank);
  const int64_t groups = c.integer("num_groups", 1);
  if (x[channel] % groups) c.fail(0, "a multiple of num_groups " + std::to_string(groups));
  Axes of_channel(rank), kept = c.axes("batch_axis", rank);
  of_channel[channel] = true;
  kept[channel] = false;
  Shape statistics = kept_shape(x, others(kept));
  statistics.insert(statistics.begin() + static_cast<std::ptrdiff_t>(channel), groups);
  return with_statistics(c, kept_shape(x, others(of_channel)), statistics);
}
const ShapeRule group_normalization{
    {"group_normalization", "group_normalization_with_statistics"}, "x beta? gamma?", group};

Specs tensor(const RuleCall& c) {
  const Shape kept = kept_shape(c[0].shape, others(c.axes("axes", c[0].shape.size())));
  return with_statistics(c, kept, kept);
}
const ShapeRule tensor_normalization{
    {"tensor_normalization", "tensor_normalization_with_statistics"}, "x beta? gamma?", tensor};

Specs weight(const RuleCall& c) {
  Axes kept(c[0].shape.size());
  kept[c.axis("channel_axis", kept.size())] = true;
  return with_statistics(c, {}, kept_shape(c[0].shape, others(kept)));
}
const ShapeRule weight_standardization{
    {"weight_standardization", "weight_standardization_with_statistics"}, "x", weight};

// ---- batch normalization ----

Shape batch_statistics(const RuleCall& c, size_t x) {
  return kept_shape(c[x].shape, others(c.axes("axes", c[x].shape.size())));
}

Specs batch(const RuleCall& c) {
  const Shape statistics = batch_statistics(c, 0);
  for (size_t i : {3, 4}) c.has_shape(i, statistics);
  if (!c.attributes.flag("batch_stat") && (!c.given(3) || !c.given(4)))
    c.fail("mean or variance is missing, wanted both when batch_stat is false");
  return with_statistics(c, statistics, statistics);
}
const ShapeRule batch_normalization{{"batch_normalization", "batch_normalization_with_statistics"},
                                    "x beta? gamma? mean? variance?",
                                    batch};

Specs batch_and_relu(const RuleCall& c) {
  c.one_of("nonlinearity", {"relu"});
  c.same_shape(5, 0);
  return batch(c);
}
const ShapeRule fused_batch_normalization{
    {"fused_batch_normalization", "fused_batch_normalization_with_statistics"},
    "x beta? gamma? mean? variance? z?",
    batch_and_relu};

Specs batch_backward(const RuleCall& c) {
  c.one_of("activation", {"identity", "relu"});
  for (size_t i : {0, 1, 3}) c.same_shape(i, 2);
  const Shape statistics = batch_statistics(c, 2);
  for (size_t i : {4, 5, 6, 7}) c.has_shape(i, statistics);
  const Spec s = with_shape(c[2], statistics);
  return {c[2], s, s, c[2]};
}
const ShapeRule batch_normalization_backward_fused{
    "batch_normalization_backward_fused", "gy gy2? x y? batch_mean batch_variance gamma? beta?",
    batch_backward};

Specs backward(const RuleCall& c) {
  const Shape& x = c[3].shape;
  c.has_shape(0, x);
  Shape statistics = kept_shape(x, c.axes("axes", x.size()));
  const int64_t groups = c.attributes.has("groups") ? c.attributes.integer("groups") : 0;
  if (groups) {
    const int64_t channel = c.attributes.integer("channel_axis");
    if (channel < 0 || channel >= c[3].rank()) c.fail("channel_axis is no axis of " + c.text(3));
    int64_t& n = statistics[static_cast<size_t>(channel)];
    if (groups < 0 || n % groups) c.fail("groups do not divide the channels of " + c.text(3));
    n = groups;
  }
  for (size_t i : {1, 2, 4, 5}) c.has_shape(i, statistics);
  if (!c.attributes.has("parameter")) {
    if (c.given(6)) c.fail(6, "parameter, its shape");
    return {c[3]};
  }
  const Shape parameter = c.shape("parameter");
  if (!stretches(parameter, x)) c.fail("parameter does not stretch to " + c.text(3));
  c.has_shape(6, parameter);
  const Spec p = with_shape(c[3], parameter);
  return {c[3], p, p};
}
const ShapeRule normalization_backward{"normalization_backward",
                                       "gy gmean? gvariance? x mean variance gamma?", backward};

Specs moments(const RuleCall& c) {
  const Shape& x = c[0].shape;
  const Spec s = with_shape(c[0], kept_shape(x, others(c.axes("axes", x.size()))));
  return {s, s};
}
const ShapeRule batch_moments{"batch_moments", "x", moments};

Specs sums(const RuleCall& c) {
  c.same_shape(0, 1);
  c.same_shape(3, 2);
  if (c[2].shape.size() != c[1].shape.size() || !stretches(c[2].shape, c[1].shape))
    c.fail(2, "what stretches to " + c.text(1));
  return {c[2], c[2]};
}
const ShapeRule normalization_sums{"normalization_sums", "gy x mean variance", sums};

}  // namespace
}  // namespace nnl
