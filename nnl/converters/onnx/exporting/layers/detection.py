# SPDX-License-Identifier: Apache-2.0
"""Export of non-maximum suppression."""

from __future__ import annotations

import numpy as np

from nnl.converters.onnx.exporting.arrays.elementwise import choose
from nnl.converters.onnx.exporting.nodes.context import Exporter
from nnl.converters.onnx.exporting.nodes.tensor import Call, Tensor
from nnl.converters.onnx.file.registry import onnx_export


@onnx_export("onnx_non_max_suppression")
def onnx_non_max_suppression(ctx: Exporter, call: Call) -> Tensor:
    a = call.attrs
    y = ctx.emit(
        "NonMaxSuppression",
        call.input(0),
        call.input(1),
        ctx.ints(a.max_output_boxes_per_class),
        ctx.constant([a.iou_threshold], np.float32),
        ctx.constant([a.score_threshold], np.float32),
        center_point_box=a.center_point_box,
        dtype=np.int64,
    )
    y.open_axis = 0
    return y


def _from(ctx: Exporter, x: Tensor, start: int, stop: int) -> Tensor:
    """Columns of (batch, boxes, columns)."""
    return ctx.slice(x, [start], [stop], [2])


def _above(ctx: Exporter, x: Tensor, threshold: float) -> Tensor:
    """x, with 0 in the place of what is below the threshold."""
    return choose(ctx, ctx.emit("Less", x, threshold, dtype=np.bool_), 0.0, x)


@onnx_export("nms_detection2d")
def nms_detection2d(ctx: Exporter, call: Call) -> Tensor:
    a, x = call.attrs, call.x
    boxes = _from(ctx, x, 0, 4)
    confidence = _above(ctx, _from(ctx, x, 4, 5), a.thresh)
    scores = ctx.emit("Mul", _from(ctx, x, 5, x.sizes[2]), confidence)
    scores = _above(ctx, scores, a.thresh)
    if a.nms_per_class:
        kept = ctx.emit("Transpose", scores, perm=(0, 2, 1))
        kept = ctx.emit("Mul", kept, _survivors(ctx, boxes, kept, x.sizes[1], a.nms))
        scores = ctx.emit("Transpose", kept, perm=(0, 2, 1))
    else:
        lost = _outshone(ctx, boxes, confidence, x.sizes[1], a.nms)
        none = ctx.emit("Or", lost, ctx.emit("Equal", confidence, 0.0, dtype=np.bool_))
        confidence = choose(ctx, lost, 0.0, confidence)
        scores = choose(ctx, none, 0.0, scores)
    return ctx.emit("Concat", boxes, confidence, scores, axis=2)


def _survivors(ctx: Exporter, boxes: Tensor, scores: Tensor, limit: int, nms: float) -> Tensor:
    """1 for the (batch, class, box) that suppression selects, else 0."""
    selected = ctx.emit(
        "NonMaxSuppression",
        boxes,
        scores,
        ctx.ints(limit),
        ctx.constant([nms], np.float32),
        ctx.constant([0.0], np.float32),
        center_point_box=1,
        dtype=np.int64,
    )
    rows = ctx.slice(ctx.emit("Shape", selected), [0], [1], [0])
    ones = ctx.emit("Expand", ctx.constant(1.0, scores.dtype), rows)
    zeros = ctx.emit("Mul", scores, 0.0)
    return ctx.emit("ScatterND", zeros, selected, ones)


def _outshone(ctx: Exporter, boxes: Tensor, scores: Tensor, count: int, nms: float) -> Tensor:
    """Whether a box overlaps too much with any that has a higher score (or the same, and comes
    first), suppressed itself or not. (batch, boxes, 1)"""

    def pairs(v: Tensor, op_type: str) -> Tensor:
        """(batch, one, other, ...)"""
        return ctx.emit(op_type, ctx.unsqueeze(v, 2), ctx.unsqueeze(v, 1))

    half = ctx.emit("Div", _from(ctx, boxes, 2, 4), 2.0)
    low = ctx.emit("Sub", _from(ctx, boxes, 0, 2), half)
    high = ctx.emit("Add", _from(ctx, boxes, 0, 2), half)

    def area(size: Tensor, axis: int) -> Tensor:
        return ctx.reduce("ReduceProd", ctx.emit("Relu", size), [axis])

    common = area(ctx.emit("Sub", pairs(high, "Min"), pairs(low, "Max")), 3)
    single = area(ctx.emit("Sub", high, low), 2)
    union = ctx.emit("Sub", pairs(single, "Add"), common)
    positive = ctx.emit("Greater", union, 0.0, dtype=np.bool_)
    overlap = ctx.emit("Div", common, choose(ctx, positive, union, 1.0))
    score = ctx.squeeze(scores, 2)
    one, other = ctx.unsqueeze(score, 2), ctx.unsqueeze(score, 1)
    higher = ctx.emit("Greater", one, other, dtype=np.bool_)
    earlier = ctx.constant(np.triu(np.ones((count, count), bool), 1))
    first = ctx.emit("And", ctx.emit("Equal", one, other, dtype=np.bool_), earlier)
    before = ctx.emit("Or", higher, first)
    counts = ctx.emit("Greater", other, 0.0, dtype=np.bool_)  # a score of 0 is no candidate
    close = ctx.emit("Greater", overlap, nms, dtype=np.bool_)
    lost = ctx.emit("And", ctx.emit("And", before, counts), close)
    any_of = ctx.reduce("ReduceMax", ctx.from_bool(lost, score.dtype), [1])
    return ctx.unsqueeze(ctx.cast(any_of, np.bool_), 2)
