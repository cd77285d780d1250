# SPDX-License-Identifier: Apache-2.0
"""Non-maximum suppression: of boxes that overlap, only the one with the highest score stays."""

from __future__ import annotations

from typing import Any

import numpy as np

from nnl.core.arguments.annotations import Input, checked
from nnl.core.arrays.spec import ShapeError, Spec, check_rank
from nnl.core.ops.op import Cost, Sample, op
from nnl.functions.mask import current_value

CATEGORY = "Special"

__all__ = ["nms_detection2d", "onnx_non_max_suppression"]


def overlaps(xp, corners, i, others):
    """Intersection over union of box i with the others: 0 where both are empty.

    Args:
        corners: (N, 4), rows (low 0, low 1, high 0, high 1).
    """
    low = xp.maximum(corners[i, :2], corners[others, :2])
    high = xp.minimum(corners[i, 2:], corners[others, 2:])
    common = xp.prod(xp.maximum(high - low, 0), axis=1)
    areas = xp.prod(xp.maximum(corners[:, 2:] - corners[:, :2], 0), axis=1)
    union = areas[i] + areas[others] - common
    return common / xp.where(union > 0, union, 1)


def outshone(xp, corners, scores, candidates, threshold):
    """Candidates that overlap any other of higher score, left or suppressed, by more."""
    order = candidates[xp.argsort(-scores[candidates], kind="stable")]
    lost = xp.zeros(len(order), bool)
    for i, box in enumerate(order):
        lost[i + 1 :] |= overlaps(xp, corners, box, order[i + 1 :]) > threshold
    return order[lost]


def survivors(xp, corners, scores, candidates, threshold, limit=None):
    """Candidates of falling score that overlap none before them by more than threshold.

    Args:
        candidates: Indices of boxes. Of equal scores the first counts as higher.
        limit: How many are wanted at most.
    """
    rest = candidates[xp.argsort(-scores[candidates], kind="stable")]
    kept: list[int] = []
    while len(rest) and (limit is None or len(kept) < limit):
        kept.append(int(rest[0]))
        rest = rest[1:]
        rest = rest[overlaps(xp, corners, kept[-1], rest) <= threshold]
    return kept


def corners_of(xp, boxes):
    """Rows (centre 0, centre 1, size 0, size 1) as rows (low 0, low 1, high 0, high 1)."""
    half = boxes[:, 2:] / 2
    return xp.concatenate((boxes[:, :2] - half, boxes[:, :2] + half), axis=1)


@op("nms_detection2d", nnp="NmsDetection2d")
class nms_detection2d:
    r"""Suppress the overlapping boxes that an object detector gives.

    The probabilities of the classes are multiplied by the objectness; they and the objectness
    become 0 where they are below thresh. Then boxes suppress those of lower score that overlap
    them by more than nms, with the overlap $o = |A \cap B| / |A \cup B|$ of A and B by areas.

    Args:
        x: (B, N, 5 + C), for N boxes the centre x, y, width, height, objectness and the
            probabilities of C >= 1 classes.
        thresh: Least score that counts.
        nms: Overlap above which the box with the lower score is suppressed.
        nms_per_class: Take the classes one by one, with their probabilities as scores, and set
            those of suppressed boxes to 0; a suppressed box does not suppress others. Otherwise
            objectness is the score, suppressed boxes do suppress others, and objectness and all
            probabilities of suppressed boxes become 0.
    Returns:
        The shape of x. No gradient.
    Raises:
        ShapeError: x is not of rank 3, or its last axis shorter than 6.
    Source: Redmon and Farhadi, YOLO9000, arXiv:1612.08242.
    """

    thresh: float = 0.5
    nms: float = 0.45
    nms_per_class: bool = True

    def infer(self, x):
        check_rank("nms_detection2d", "x", x, 3)
        if x.shape[2] < 6:
            raise ShapeError(
                f"nms_detection2d: x {x} has {x.shape[2]} values per box, wanted 5 and at least "
                "one class"
            )
        return x

    def forward(self, xp, x):
        y = x.copy()
        thresh = x.dtype.type(self.thresh)
        y[:, :, 4][y[:, :, 4] < thresh] = 0
        y[:, :, 5:] *= y[:, :, 4:5]
        y[:, :, 5:][y[:, :, 5:] < thresh] = 0
        for image in y:
            corners = corners_of(xp, image[:, :4])
            if self.nms_per_class:
                for scores in image[:, 5:].T:
                    kept = survivors(xp, corners, scores, xp.flatnonzero(scores), self.nms)
                    lost = xp.ones(len(scores), bool)
                    lost[kept] = False
                    scores[lost] = 0
            else:
                scores = image[:, 4]
                image[outshone(xp, corners, scores, xp.flatnonzero(scores), self.nms), 4:] = 0
                image[scores == 0, 5:] = 0
        return y

    def cost(self, x):
        # every class compares every pair of boxes at worst
        return Cost(10 * x.shape[1] * x.size, 2 * x.nbytes)

    def samples(rng):
        x = rng.uniform(0, 1, (2, 12, 8))
        x[:, :, 2:4] = x[:, :, 2:4] * 0.3 + 0.3
        for per_class in (True, False):
            for nms in (0.2, 0.45):
                yield Sample(x, grad=(False,), thresh=0.2, nms=nms, nms_per_class=per_class)
        yield Sample(x[:0], grad=(False,))


def check_boxes(boxes, scores, center_point_box):
    """Raise unless boxes (B, N, 4) and scores (B, C, N) belong together."""
    name = "onnx_non_max_suppression"
    check_rank(name, "boxes", boxes, 3)
    check_rank(name, "scores", scores, 3)
    b, n, four = boxes.shape
    if four != 4 or scores.shape[0] != b or scores.shape[2] != n:
        raise ShapeError(
            f"{name}: boxes {boxes} and scores {scores} must have the shapes (B, N, 4) and "
            "(B, C, N)"
        )
    if center_point_box not in (0, 1):
        raise ValueError(f"{name}: center_point_box is {center_point_box}, wanted 0 or 1")


def select(xp, boxes, scores, center_point_box, limit, iou_threshold, score_threshold):
    """Rows (image, class, box) of the boxes that stay, (M, 3)."""
    rows = []
    threshold = scores.dtype.type(score_threshold)
    for b in range(len(boxes)):
        if center_point_box:
            corners = corners_of(xp, boxes[b])
        else:
            first, second = boxes[b, :, :2], boxes[b, :, 2:]
            corners = xp.concatenate((xp.minimum(first, second), xp.maximum(first, second)), axis=1)
        for c, s in enumerate(scores[b]):
            candidates = xp.flatnonzero(s >= threshold)
            kept = survivors(xp, corners, s, candidates, iou_threshold, max(limit, 0))
            rows += [(b, c, k) for k in kept]
    return xp.asarray(rows, np.uint64).reshape(len(rows), 3)


@op("onnx_non_max_suppression", nnp="ONNXNonMaxSuppression")
class onnx_non_max_suppression_op:
    """See onnx_non_max_suppression."""

    center_point_box: int = 0
    max_output_boxes_per_class: int = 0
    iou_threshold: float = 0.0
    score_threshold: float = 0.0
    count: int = 0

    def infer(self, boxes, scores):
        check_boxes(boxes, scores, self.center_point_box)
        return Spec.of((self.count, 3), np.uint64)

    def forward(self, xp, boxes, scores):
        y = select(xp, boxes, scores, *self.values[:-1])
        if len(y) != self.count:
            raise ValueError(
                f"onnx_non_max_suppression: {len(y)} boxes stay, the call was made for "
                f"{self.count}; make it again for these boxes and scores"
            )
        return y

    def cost(self, boxes, scores):
        return Cost(10 * boxes.shape[1] * scores.size, boxes.nbytes + scores.nbytes)

    def samples(rng):
        boxes, scores = rng.uniform(0, 1, (2, 8, 4)), rng.uniform(0, 1, (2, 3, 8))
        for center, limit, threshold, count in ((0, 3, 0.2, 18), (1, 2, 0.7, 12)):
            yield Sample(
                boxes, scores, grad=(False, False), center_point_box=center,
                max_output_boxes_per_class=limit, iou_threshold=0.3, score_threshold=threshold,
                count=count,
            )  # fmt: skip
        yield Sample(boxes, scores, grad=(False, False), count=0)


@checked
def onnx_non_max_suppression(
    boxes: Input,
    scores: Input,
    center_point_box: int = 0,
    max_output_boxes_per_class: int = 0,
    iou_threshold: float = 0.0,
    score_threshold: float = 0.0,
    n_outputs: int = -1,
    outputs: Any = None,
) -> Any:
    r"""Indices of the boxes that stay when those that overlap better ones are left out.

    For every image and class, boxes are taken in the order of falling score, unless they overlap
    one taken before by more than iou_threshold: $o = |A \cap B| / |A \cup B|$ of boxes A and B by
    areas, intersection over union.

    Args:
        boxes: (B, N, 4). Its value and that of scores at the time of the call fix the shape of the
            result; a static graph is run again with as many boxes that stay only.
        scores: (B, C, N).
        center_point_box: 0: boxes are two opposite corners (y1, x1, y2, x2). 1: centre and size
            (x, y, width, height).
        max_output_boxes_per_class: How many boxes are taken at most for every image and class.
        iou_threshold: Overlap above which a box is left out.
        score_threshold: Least score of a box.
    Returns:
        (M, 3), uint64, rows (image, class, box). No gradient.
    Raises:
        ShapeError: boxes and scores do not have the shapes above.
        ValueError: center_point_box is neither 0 nor 1; boxes or scores have no value yet; or, in
            forward, another number of boxes stays.
    Source: ONNX, operator NonMaxSuppression.
    Example:
        >>> boxes = array([[[0, 0, 2, 2], [0, 0, 2, 1.9], [5, 5, 6, 6]]])
        >>> F.onnx_non_max_suppression(boxes, array([[[0.9, 0.8, 0.7]]]), 0, 3, 0.5).d
        array([[0, 0, 0],
               [0, 0, 2]], dtype=uint64)
    """
    name = "onnx_non_max_suppression"
    at = {
        "center_point_box": center_point_box,
        "max_output_boxes_per_class": max_output_boxes_per_class,
        "iou_threshold": iou_threshold,
        "score_threshold": score_threshold,
    }
    check_boxes(boxes.spec, scores.spec, center_point_box)
    values = [
        np.asarray(current_value(name, arg, v)) for arg, v in (("boxes", boxes), ("scores", scores))
    ]
    count = len(select(np, *(v.astype(np.float32) for v in values), *at.values()))
    return onnx_non_max_suppression_op(boxes, scores, **at, count=count, outputs=outputs)
