# SPDX-License-Identifier: Apache-2.0
"""Layers of the single shot detector: boxes to begin with, and the boxes that are found.

Source: Liu et al., SSD: Single Shot MultiBox Detector, arXiv:1512.02325.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import nnl.functions as F
from nnl.converters.caffe.messages import enum_name
from nnl.dialects.caffe.layer import Blob, Layer, builds
from nnl.dialects.caffe.layer_types.neurons import constant
from nnl.graph.open_sizes.at_most import at_most


@builds("PriorBox", bottoms=2)
def prior_box(layer: Layer, x: Blob, image: Blob) -> None:
    p = layer.message.prior_box_param
    if not p.min_size or (p.max_size and len(p.max_size) != len(p.min_size)):
        raise layer.fail(f"{len(p.min_size)} min_size and {len(p.max_size)} max_size")
    if len(p.variance) not in (0, 1, 4):
        raise layer.fail(f"{len(p.variance)} variance, wanted 1 or 4")
    ratios = [1.0]
    for ratio in p.aspect_ratio:
        for r in (ratio, 1 / ratio) if p.flip else (ratio,):
            if all(abs(r - known) >= 1e-6 for known in ratios):
                ratios.append(r)
    sizes = []
    for i, low in enumerate(p.min_size):
        sizes.append((low, low))
        if p.max_size:
            sizes.append((math.sqrt(low * p.max_size[i]),) * 2)
        sizes += [(low * math.sqrt(r), low / math.sqrt(r)) for r in ratios[1:]]
    variance = list(p.variance) or [0.1]

    def compute(x: Any, image: Any) -> np.ndarray[Any, Any]:
        h, w = x.shape[2:]
        whole_h = p.img_h or p.img_size or image.shape[2]
        whole_w = p.img_w or p.img_size or image.shape[3]
        step_h = p.step_h or p.step or whole_h / h
        step_w = p.step_w or p.step or whole_w / w
        cy, cx = np.meshgrid(
            (np.arange(h) + p.offset) * step_h, (np.arange(w) + p.offset) * step_w, indexing="ij"
        )
        half = np.array(sizes) / 2
        corners = [
            (cx[..., None] - half[:, 0]) / whole_w,
            (cy[..., None] - half[:, 1]) / whole_h,
            (cx[..., None] + half[:, 0]) / whole_w,
            (cy[..., None] + half[:, 1]) / whole_h,
        ]
        boxes = np.stack(corners, axis=-1)
        boxes = boxes.clip(0, 1) if p.clip else boxes
        spread = np.broadcast_to(np.array(variance), boxes.shape)
        return np.stack([boxes.reshape(-1), spread.reshape(-1)])[None].astype(np.float32)

    layer.op(compute, x, image)


def decode(loc: Any, prior: Any, variance: Any, code: str) -> list[Any]:
    """Corners (x1, y1, x2, y2), each (N, P, 1), of offsets (N, P, 4) from priors (1, P, 4)."""

    def columns(v: Any) -> list[Any]:
        return [F.slice(v, (0, 0, i), (v.shape[0], v.shape[1], i + 1)) for i in range(4)]

    d = columns(loc if variance is None else loc * variance)
    x1, y1, x2, y2 = columns(prior)
    w, h = x2 - x1, y2 - y1
    if code == "CORNER":
        return [e + m for e, m in zip((x1, y1, x2, y2), d, strict=True)]
    if code == "CORNER_SIZE":
        return [e + m * s for e, m, s in zip((x1, y1, x2, y2), d, (w, h, w, h), strict=True)]
    cx, cy = (x1 + x2) * 0.5 + d[0] * w, (y1 + y2) * 0.5 + d[1] * h
    w, h = F.exp(d[2]) * w * 0.5, F.exp(d[3]) * h * 0.5
    return [cx - w, cy - h, cx + w, cy + h]


def _best(scores: Any, k: int, axis: int) -> Any:
    """Scores, those that are not among the k largest along an axis set to 0."""
    if not 0 < k < scores.shape[axis]:
        return scores
    ordered = F.sort(scores, axis=axis, reverse=True)
    start, stop = [0] * scores.ndim, list(scores.shape)
    start[axis], stop[axis] = k - 1, k
    return scores * F.greater_equal(scores, F.slice(ordered, start, stop) + scores * 0)


@builds("DetectionOutput", bottoms=3)
def detection_output(layer: Layer, loc: Blob, conf: Blob, prior: Blob) -> None:
    p = layer.message.detection_output_param
    classes, code = p.num_classes, enum_name(p, "code_type")
    priors = prior.sizes[-1] // 4
    sets = 1 if p.share_location else classes
    if p.nms_param.eta != 1:
        raise layer.fail("nms_param.eta is not 1, which is not supported")
    if conf.count != conf.num * priors * classes or loc.count != loc.num * priors * 4 * sets:
        raise layer.fail(
            f"bottoms have the shapes {loc.shape}, {conf.shape}, {prior.shape}: wanted {priors} "
            f"priors times {4 * sets}, and times {classes} classes"
        )
    labels = [c for c in range(classes) if c != p.background_label_id]

    def compute(loc: Any, conf: Any, prior: Any) -> Any:
        n, k = loc.shape[0], p.nms_param.top_k if p.nms_param.HasField("top_k") else -1
        rows = F.reshape(prior, (2, priors, 4))
        given, variance = (F.slice(rows, (i, 0, 0), (i + 1, priors, 4)) for i in (0, 1))
        loc = F.reshape(loc, (n, priors, sets, 4))
        scores = F.reshape(conf, (n, priors, classes))
        scores = scores * F.greater_scalar(scores, p.confidence_threshold)
        kept, boxes = [], []
        groups = [labels] if sets == 1 else [[c] for c in labels]
        for group in groups:
            i = 0 if sets == 1 else group[0]
            offsets = F.reshape(F.slice(loc, (0, 0, i, 0), (n, priors, i + 1, 4)), (n, priors, 4))
            x1, y1, x2, y2 = decode(
                offsets, given, None if p.variance_encoded_in_target else variance, code
            )
            s = F.concatenate(
                *(F.slice(scores, (0, 0, c), (n, priors, c + 1)) for c in group), axis=2
            )
            s = _best(s, k, 1)
            centres = [(x1 + x2) * 0.5, (y1 + y2) * 0.5, x2 - x1, y2 - y1]
            found = F.nms_detection2d(
                F.concatenate(*centres, x1 * 0 + 1, s, axis=2), 0.0, p.nms_param.nms_threshold
            )
            found = F.slice(found, (0, 0, 5), (n, priors, 5 + len(group)))
            kept.append(F.transpose(found, (0, 2, 1)))
            corners = F.reshape(F.concatenate(x1, y1, x2, y2, axis=2), (n, 1, priors, 4))
            boxes += [corners] * len(group)
        flat = F.reshape(F.concatenate(*kept, axis=1), (n, -1))
        every = F.reshape(F.concatenate(*boxes, axis=1), (n, -1, 4))
        return rows_of(flat, every, labels, priors, p.keep_top_k, layer.net.deploy)

    layer.op(compute, loc, conf, prior)


def rows_of(scores: Any, boxes: Any, labels: list[int], priors: int, most: int, whole: bool) -> Any:
    """(1, 1, M, 7): image, label, score and corners of what has a score, in Caffe's order.

    Args:
        scores: (N, labels x priors).
        boxes: (N, labels x priors, 4).
        whole: Give as many rows as there may be, zeros where there are fewer.
    """
    n, size = scores.shape
    k = min(most, size) if most > 0 else size
    best, index = F.sort(scores, axis=1, reverse=True, with_index=True)
    best, index = (F.slice(v, (0, 0), (n, k)) for v in (best, index))
    label_of = np.repeat(np.array(labels, np.float32), priors)
    label = F.gather(constant(label_of), index)
    # by label, those without a score last; equals keep their order, that of falling scores
    order = F.sort(
        label + F.equal_scalar(best, 0.0) * float(len(labels) + 2), only_index=True, axis=1
    )
    best, label, index = (F.gather(v, order, axis=1, batch_dims=1) for v in (best, label, index))
    corners = F.gather(boxes, index, axis=1, batch_dims=1)
    image = constant(np.repeat(np.arange(n, dtype=np.float32)[:, None], k, 1))
    columns = [F.reshape(v, (n, k, 1)) for v in (image, label, best)]
    rows = F.reshape(F.concatenate(*columns, corners, axis=2), (n * k, 7))
    there = F.greater_scalar(F.reshape(best, (n * k,)), 0.0)
    place = constant(np.arange(n * k).reshape(-1, 1))
    rows = F.gather(rows, F.sort(1 - there, only_index=True), axis=0)
    if whole:
        count = F.reshape(F.sum(there), (1, 1))
        return F.reshape(rows * F.less(place, count + place * 0), (1, 1, n * k, 7))
    return at_most(F.reshape(rows, (1, 1, n * k, 7)), F.sum(there), axis=2)
