# SPDX-License-Identifier: Apache-2.0
"""Boxes and masks of objects, by the rules of COCO."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from nnl.core.arrays.spec import ShapeError
from nnl.metrics.checks import Array

THRESHOLDS = np.linspace(0.5, 0.95, 10)  # of IoU
RECALLS = np.linspace(0, 1, 101)
# by the area in square pixels
AREAS = {"": (0, 1e10), "small": (0, 32**2), "medium": (32**2, 96**2), "large": (96**2, 1e10)}
MOST = 100  # detections of an image and a class


def box_iou(a: Any, b: Any) -> Array:
    """The intersections of boxes by their unions, (N, M).

    Args:
        a, b: (N, 4) and (M, 4): left, top, right and bottom.
    Raises:
        ShapeError, ValueError: There are not four columns, or a right end lies left of a left one.
    Example:
        >>> box_iou([[0, 0, 2, 2]], [[1, 0, 3, 2], [5, 5, 6, 6]])
        array([[0.3333, 0.    ]])
    """
    x, y = _boxes("box_iou", "a", a), _boxes("box_iou", "b", b)
    inside = _inside(x, y)
    union = _area(x)[:, None] + _area(y)[None] - inside
    return np.divide(inside, union, out=np.zeros_like(inside), where=union > 0)


def coco_average_precision(
    truth: Sequence[Mapping[str, Any]], predicted: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """The twelve numbers of COCO: average precision and recall of detections.

    Args:
        truth: One dictionary for each image: boxes (N, 4) as of box_iou, or masks (N, H, W) of
            bool; classes (N,), integers; and if wanted crowd (N,), whether an object is a crowd,
            which may be found any number of times, and area (N,) in square pixels.
        predicted: The same, with scores (N,), without crowd and area.
    Returns:
        AP, AP50, AP75, APsmall, APmedium, APlarge, AR1, AR10, AR100, ARsmall, ARmedium, ARlarge:
        -1 where there is nothing to find. classes: AP of each class by its number.
    Raises:
        ShapeError, ValueError: Numbers of images differ, or arrays of an image do not fit.
    Source: Lin et al., Microsoft COCO, arXiv:1405.0312, and cocodataset.org/#detection-eval.
    Example:
        >>> image = {"boxes": [[0, 0, 9, 9]], "classes": [3], "scores": [0.9]}
        >>> round(coco_average_precision([image], [image])["AP"], 4)
        1.0
    """
    where = "coco_average_precision"
    if len(truth) != len(predicted):
        raise ShapeError(f"{where}: truth has {len(truth)} images, predicted {len(predicted)}")
    images = [
        (_read(where, f"truth[{i}]", t, False), _read(where, f"predicted[{i}]", p, True))
        for i, (t, p) in enumerate(zip(truth, predicted, strict=True))
    ]
    for i, (t, p) in enumerate(images):
        both = len(t.shapes) and len(p.shapes)
        if both and t.shapes.shape[1:] != p.shapes.shape[1:]:
            raise ShapeError(
                f"{where}: shapes of truth[{i}] are {t.shapes.shape}, of predicted[{i}] "
                f"{p.shapes.shape}"
            )
    known = sorted({int(c) for t, _ in images for c in t.classes})
    found = {name: [_of_class(images, c, limits) for c in known] for name, limits in AREAS.items()}

    def mean(values: list[Array]) -> float:
        kept = [v for v in values if v.size and v.min() > -1]
        return float(np.mean(kept)) if kept else -1.0

    result: dict[str, Any] = {"AP": mean([c.precision for c in found[""]])}
    for name, t in (("AP50", 0), ("AP75", 5)):
        result[name] = mean([c.precision[t] for c in found[""]])
    for name in ("small", "medium", "large"):
        result[f"AP{name}"] = mean([c.precision for c in found[name]])
    for k, most in enumerate((1, 10, 100)):
        result[f"AR{most}"] = mean([c.recall[k] for c in found[""]])
    for name in ("small", "medium", "large"):
        result[f"AR{name}"] = mean([c.recall[2] for c in found[name]])
    result["classes"] = {c: mean([f.precision]) for c, f in zip(known, found[""], strict=True)}
    return result


class _Objects(NamedTuple):
    shapes: Array  # boxes or masks
    classes: Array
    scores: Array
    crowd: Array
    area: Array


class _Class(NamedTuple):
    precision: Array  # (thresholds, recalls); -1 where there is nothing to find
    recall: Array  # (3, thresholds), with at most 1, 10 and 100 detections of an image


def _of_class(images: list[tuple[_Objects, _Objects]], c: int, limits: Any) -> _Class:
    scores, hits, out, ranks, count = [], [], [], [], 0
    for t, p in images:
        t, p = _part(t, t.classes == c), _part(p, p.classes == c)
        p = _part(p, np.argsort(-p.scores, kind="stable")[:MOST])
        ignored = t.crowd | (t.area < limits[0]) | (t.area > limits[1])
        order = np.argsort(ignored, kind="stable")
        t, ignored = _part(t, order), ignored[order]
        count += int((~ignored).sum())
        hit, leave = _matched(_overlap(p, t), t.crowd, ignored)
        leave |= ~hit & ((p.area < limits[0]) | (p.area > limits[1]))
        scores.append(p.scores)
        hits.append(hit)
        out.append(leave)
        ranks.append(np.arange(len(p.scores)))
    shape = len(THRESHOLDS), len(RECALLS)
    if not count:
        return _Class(np.full(shape, -1.0), np.full((3, len(THRESHOLDS)), -1.0))
    rank, score = np.concatenate(ranks), np.concatenate(scores)
    hit, leave = np.concatenate(hits, axis=1), np.concatenate(out, axis=1)
    recall = np.zeros((3, len(THRESHOLDS)))
    precision = np.zeros(shape)
    for k, most in enumerate((1, 10, MOST)):
        chosen = np.flatnonzero(rank < most)
        order = chosen[np.argsort(-score[chosen], kind="stable")]
        right = np.cumsum(hit[:, order] & ~leave[:, order], axis=1)
        wrong = np.cumsum(~hit[:, order] & ~leave[:, order], axis=1)
        if not len(order):
            continue
        recall[k] = right[:, -1] / count
        if most == MOST:
            level = right / (right + wrong + np.spacing(1))
            level = np.maximum.accumulate(level[:, ::-1], axis=1)[:, ::-1]
            for i in range(len(THRESHOLDS)):
                at = np.searchsorted(right[i] / count, RECALLS)
                reached = at < len(order)
                precision[i, reached] = level[i, at[reached]]
    return _Class(precision, recall)


def _matched(overlap: Array, crowd: Array, ignored: Array) -> tuple[Array, Array]:
    """Which detections found an object, and which of those are to be left out: (thresholds, N).

    Each detection takes the object that it overlaps most and that nobody has taken, one that
    counts if there is one. Objects that do not count stand last.
    """
    hit = np.zeros((len(THRESHOLDS), overlap.shape[0]), bool)
    leave = np.zeros_like(hit)
    for i, threshold in enumerate(THRESHOLDS):
        free = np.ones(len(crowd), bool)
        for d in range(overlap.shape[0]):
            for pool in (free & ~ignored, (free | crowd) & ignored):
                candidates = np.flatnonzero(pool & (overlap[d] >= min(threshold, 1 - 1e-10)))
                if len(candidates):
                    best = overlap[d, candidates].max()
                    g = candidates[overlap[d, candidates] == best][-1]
                    free[g], hit[i, d], leave[i, d] = False, True, ignored[g]
                    break
    return hit, leave


def _overlap(p: _Objects, t: _Objects) -> Array:
    """IoU; of a crowd, the share of the detection that lies in it."""
    if not len(p.scores) or not len(t.classes):
        return np.zeros((len(p.scores), len(t.classes)))
    if p.shapes.ndim == 2:
        inside, sizes = _inside(p.shapes, t.shapes), (_area(p.shapes), _area(t.shapes))
    else:
        a, b = (s.reshape(len(s), -1).astype(np.float64) for s in (p.shapes, t.shapes))
        inside, sizes = a @ b.T, (a.sum(1), b.sum(1))
    union = np.where(t.crowd, sizes[0][:, None], sizes[0][:, None] + sizes[1] - inside)
    return np.divide(inside, union, out=np.zeros_like(inside), where=union > 0)


def _part(objects: _Objects, which: Array) -> _Objects:
    return _Objects(*(field[which] for field in objects))


def _read(where: str, name: str, given: Mapping[str, Any], scored: bool) -> _Objects:
    if ("boxes" in given) == ("masks" in given):
        raise ValueError(f"{where}: {name} has {', '.join(given)}, wanted boxes or masks")
    if "boxes" in given:
        shapes = _boxes(where, f"{name}['boxes']", given["boxes"])
        area = _area(shapes)
    else:
        shapes = np.asarray(given["masks"], bool)
        if shapes.ndim != 3:
            raise ShapeError(f"{where}: {name}['masks'] has the shape {shapes.shape}")
        area = shapes.sum((1, 2)).astype(np.float64)
    n = len(shapes)
    found = {"classes": np.zeros(n, int), "scores": np.ones(n), "crowd": np.zeros(n, bool)}
    found["area"] = area
    for key in ("classes", *(("scores",) if scored else ("crowd", "area"))):
        if key not in given and key in ("crowd", "area"):
            continue
        if key not in given:
            raise ValueError(f"{where}: {name} has no {key!r}")
        found[key] = np.asarray(given[key], found[key].dtype).reshape(-1)
        if len(found[key]) != n:
            raise ShapeError(f"{where}: {name} has {n} objects and {len(found[key])} of {key!r}")
    if not np.isfinite(found["scores"]).all():
        raise ValueError(f"{where}: {name} has scores that are not finite")
    return _Objects(shapes, found["classes"], found["scores"], found["crowd"], found["area"])


def _boxes(where: str, name: str, given: Any) -> Array:
    boxes = np.asarray(given, np.float64)
    boxes = boxes.reshape(0, 4) if not boxes.size else boxes
    if boxes.ndim != 2 or boxes.shape[1] != 4:
        raise ShapeError(f"{where}: {name} has the shape {boxes.shape}, wanted (N, 4)")
    if not (boxes[:, 2:] >= boxes[:, :2]).all():
        raise ValueError(f"{where}: {name} has a box that ends before it begins")
    return boxes


def _area(boxes: Array) -> Array:
    return np.prod(boxes[:, 2:] - boxes[:, :2], axis=1)


def _inside(a: Array, b: Array) -> Array:
    begin, end = (
        np.maximum(a[:, None, :2], b[None, :, :2]),
        np.minimum(a[:, None, 2:], b[None, :, 2:]),
    )
    return np.prod((end - begin).clip(0), axis=2)
