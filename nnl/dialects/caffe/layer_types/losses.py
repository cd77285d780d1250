# SPDX-License-Identifier: Apache-2.0
"""Losses, with Caffe's normalizations."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

import nnl.functions as F
from nnl.converters.caffe.messages import enum_name
from nnl.converters.caffe.weights import read_blob
from nnl.core.ops.op import OPS
from nnl.dialects.caffe.layer import Blob, Layer, builds
from nnl.dialects.caffe.layer_types.neurons import constant

TINY = 1e-20  # the least probability whose logarithm is taken


def _normalizer(layer: Layer, default: str) -> Callable[[Any, int, int], Any]:
    """f(number of labels that count or None, outer, inner) -> what a sum is divided by."""
    p = layer.message.loss_param
    how = default
    if p.HasField("normalization"):
        how = enum_name(p, "normalization")
    elif p.HasField("normalize"):
        how = "VALID" if p.normalize else "BATCH_SIZE"

    def of(valid: Any, outer: int, inner: int) -> Any:
        if how == "VALID" and valid is not None:
            return F.maximum_scalar(valid, 1.0)
        whole = {"BATCH_SIZE": outer, "NONE": 1}.get(how, outer * inner)
        return float(max(1, whole))

    return of


def _labels(t: Any, shape: tuple[int, ...], ignored: int | None) -> tuple[Any, Any]:
    """Labels as integers, 0 where they are ignored, and where they count (None: everywhere)."""
    t = F.reshape(t, shape)
    counts = None if ignored is None else F.not_equal_scalar(t, ignored)
    return OPS["cast"](t if counts is None else t * counts, dtype="int64"), counts


def _ignored(layer: Layer) -> int | None:
    p = layer.message.loss_param
    return int(p.ignore_label) if p.HasField("ignore_label") else None


@builds("SoftmaxWithLoss", bottoms=(2, 3), tops=(1, 2), loss=True)
def softmax_with_loss(layer: Layer, x: Blob, label: Blob, weights: Blob | None = None) -> None:
    axis = layer.axis(layer.message.softmax_param.axis, len(x.sizes))
    ignored, divisor = _ignored(layer), _normalizer(layer, "VALID")
    if weights is not None:
        raise layer.fail("a third bottom is not supported")

    def compute(x: Any, t: Any) -> Any:
        shape = tuple(1 if i == axis else n for i, n in enumerate(x.shape))
        t, counts = _labels(t, shape, ignored)
        each = F.softmax_cross_entropy(x, t, axis=axis)
        valid = None
        if counts is not None:
            each, valid = each * counts, F.sum(counts)
        outer = math.prod(x.shape[:axis])
        n = divisor(valid, outer, math.prod(x.shape[axis + 1 :]))
        return F.mean(each) if counts is None and n == each.size else F.sum(each) / n

    layer.op(compute, x, label)
    if len(layer.message.top) > 1:
        layer.op(lambda x: F.softmax(x, axis=axis), x)


@builds("EuclideanLoss", bottoms=2, loss=True)
def euclidean_loss(layer: Layer, x: Blob, y: Blob) -> None:
    if x.count != y.count:
        raise layer.fail(f"bottoms have the shapes {x.shape} and {y.shape}, wanted one size")

    def compute(x: Any, y: Any) -> Any:
        return F.sum(F.squared_error(x, F.reshape(y, x.shape))) * (0.5 / x.shape[0])

    layer.op(compute, x, y)


@builds("HingeLoss", bottoms=2, loss=True)
def hinge_loss(layer: Layer, x: Blob, label: Blob) -> None:
    square = enum_name(layer.message.hinge_loss_param, "norm") == "L2"

    def compute(x: Any, t: Any) -> Any:
        rows = F.reshape(x, (x.shape[0], -1))
        hot = F.one_hot(_labels(t, (rows.shape[0], 1), None)[0], (rows.shape[1],))
        margin = F.relu(1 + rows * (1 - 2 * hot))
        return F.sum(margin * margin if square else margin) / x.shape[0]

    layer.op(compute, x, label)


@builds("ContrastiveLoss", bottoms=3, loss=True)
def contrastive_loss(layer: Layer, a: Blob, b: Blob, same: Blob) -> None:
    p = layer.message.contrastive_loss_param

    def compute(a: Any, b: Any, same: Any) -> Any:
        n = a.shape[0]
        d = F.sum(F.reshape(F.squared_error(a, b), (n, -1)), 1)
        far = F.relu(p.margin - d)
        if not p.legacy_version:
            # the square root has no slope at 0: of equal pairs no gradient comes
            zero = F.equal_scalar(d, 0.0)
            far = F.relu(p.margin - (d + zero) ** 0.5 * (1 - zero)) ** 2
        y = F.reshape(same, (n,))
        return F.sum(y * d + (1 - y) * far) * (0.5 / n)

    layer.op(compute, a, b, same)


@builds("SigmoidCrossEntropyLoss", bottoms=2, tops=(1, 2), loss=True)
def sigmoid_cross_entropy_loss(layer: Layer, x: Blob, target: Blob) -> None:
    ignored, divisor = _ignored(layer), _normalizer(layer, "BATCH_SIZE")

    def compute(x: Any, t: Any) -> Any:
        t = F.reshape(t, x.shape)
        each, valid = F.relu(x) - x * t + F.softplus(-F.abs(x)), None
        if ignored is not None:
            counts = F.not_equal_scalar(t, ignored)
            each, valid = each * counts, F.sum(counts)
        return F.sum(each) / divisor(valid, x.shape[0], x.size // x.shape[0])

    layer.op(compute, x, target)
    if len(layer.message.top) > 1:
        layer.op(F.sigmoid, x)


@builds("MultinomialLogisticLoss", bottoms=2, loss=True)
def multinomial_logistic_loss(layer: Layer, x: Blob, label: Blob) -> None:
    def compute(x: Any, t: Any) -> Any:
        rows = F.reshape(x, (x.shape[0], -1))
        hot = F.one_hot(_labels(t, (rows.shape[0], 1), None)[0], (rows.shape[1],))
        return F.sum(F.log(F.maximum_scalar(F.sum(rows * hot, 1), TINY))) * (-1 / x.shape[0])

    layer.op(compute, x, label)


@builds("InfogainLoss", bottoms=(2, 3), tops=(1, 2), loss=True)
def infogain_loss(layer: Layer, x: Blob, label: Blob, gains: Blob | None = None) -> None:
    p = layer.message.infogain_loss_param
    axis = layer.axis(p.axis, len(x.sizes))
    ignored, divisor = _ignored(layer), _normalizer(layer, "VALID")
    size = int(x.sizes[axis] or 0)
    given: list[Any] = [gains]
    if gains is None:
        if not p.source:
            raise layer.fail("wanted a third bottom, or infogain_loss_param.source")
        given = [read_blob(p.source, str(layer)).reshape(-1)]
    count = given[0].count if isinstance(given[0], Blob) else given[0].size
    if count != size * size:
        raise layer.fail(f"the matrix has {count} elements, wanted {size} x {size}")

    def compute(x: Any, t: Any, h: Any) -> Any:
        h = constant(h) if isinstance(h, np.ndarray) else h
        shape = tuple(n for i, n in enumerate(x.shape) if i != axis)
        t, counts = _labels(t, shape, ignored)
        rows = F.embed(t, F.reshape(h, (size, size)))
        order = (*(i for i in range(x.ndim) if i != axis), axis)
        logs = F.maximum_scalar(F.log_softmax(F.transpose(x, order), axis=-1), math.log(TINY))
        each, valid = F.sum(rows * logs, -1), None
        if counts is not None:
            each, valid = each * counts, F.sum(counts)
        return -F.sum(each) / divisor(
            valid, math.prod(x.shape[:axis]), math.prod(x.shape[axis + 1 :])
        )

    layer.op(compute, x, label, *given)
    if len(layer.message.top) > 1:
        layer.op(lambda x: F.softmax(x, axis=axis), x)


@builds("SmoothL1Loss", bottoms=(2, 4), loss=True)
def smooth_l1_loss(layer: Layer, x: Blob, target: Blob, *weights: Blob) -> None:
    s = layer.message.smooth_l1_loss_param.sigma**2

    def compute(x: Any, t: Any, inside: Any = None, outside: Any = None) -> Any:
        d = x - F.reshape(t, x.shape)
        if inside is not None:
            d = d * F.reshape(inside, x.shape)
        size = F.abs(d)
        near = F.less_scalar(size, 1 / s)
        each = near * (d * d * (0.5 * s)) + (1 - near) * (size - 0.5 / s)
        if outside is not None:
            each = each * F.reshape(outside, x.shape)
        return F.sum(each) / x.shape[0]

    layer.op(compute, x, target, *weights)
