# SPDX-License-Identifier: Apache-2.0
"""Layers that put elements together, take them apart and reduce them."""

from __future__ import annotations

import math
from typing import Any

import nnl.functions as F
from nnl.converters.caffe.messages import enum_name
from nnl.core.ops.op import OPS
from nnl.dialects.caffe.layer import MANY, Blob, Layer, builds
from nnl.dialects.caffe.layer_types.neurons import constant


def _ndim(x: Blob) -> int:
    return len(x.sizes)


@builds("Concat", bottoms=(1, MANY))
def concat(layer: Layer, *xs: Blob) -> None:
    p = layer.message.concat_param
    axis = p.concat_dim if p.HasField("concat_dim") else layer.axis(p.axis, _ndim(xs[0]))
    layer.op(lambda *xs: F.concatenate(*xs, axis=axis), *xs)


@builds("Slice", tops=(1, MANY))
def slice_layer(layer: Layer, x: Blob) -> None:
    p = layer.message.slice_param
    axis = p.slice_dim if p.HasField("slice_dim") else layer.axis(p.axis, _ndim(x))
    n, size = len(layer.message.top), int(x.sizes[axis] or 0)
    if p.slice_point and len(p.slice_point) != n - 1:
        raise layer.fail(f"{len(p.slice_point)} slice_point for {n} tops, wanted {n - 1}")
    if not p.slice_point and size % n:
        raise layer.fail(f"{size} along axis {axis} is no multiple of {n} tops")
    if (
        list(p.slice_point) != sorted({*p.slice_point} - {0})
        or max(p.slice_point, default=0) >= size
    ):
        raise layer.fail(f"slice_point {list(p.slice_point)} must rise from 1 to {size - 1}")

    for i in range(n):

        def compute(x: Any, i: int = i) -> Any:
            size = x.shape[axis]
            ends = [0, *(p.slice_point or [size // n * (j + 1) for j in range(n - 1)]), size]
            start, stop = [0] * x.ndim, list(x.shape)
            start[axis], stop[axis] = ends[i], ends[i + 1]
            return F.slice(x, start, stop)

        layer.op(compute, x)


@builds("Split", tops=(1, MANY))
def split(layer: Layer, x: Blob) -> None:
    for _ in layer.message.top:
        layer.op(F.identity, x)


@builds("Silence", bottoms=(1, MANY), tops=0)
def silence(layer: Layer, *xs: Blob) -> None:
    pass


@builds("Eltwise", bottoms=(1, MANY))
def eltwise(layer: Layer, *xs: Blob) -> None:
    p = layer.message.eltwise_param
    how, coeff = enum_name(p, "operation"), list(p.coeff)
    if coeff and (how != "SUM" or len(coeff) != len(xs)):
        raise layer.fail(f"{len(coeff)} coeff for {len(xs)} bottoms and operation {how}")
    shapes = {x.shape for x in xs}
    if len(shapes) > 1:
        raise layer.fail(f"bottoms have the shapes {[x.shape for x in xs]}, wanted one")

    def compute(*xs: Any) -> Any:
        if coeff:
            xs = tuple(x if c == 1 else x * c for x, c in zip(xs, coeff, strict=True))
        f = {"SUM": F.add2, "PROD": F.mul2, "MAX": F.maximum2}[how]
        y = xs[0]
        for x in xs[1:]:
            y = f(y, x)
        return F.identity(y) if len(xs) == 1 else y

    layer.op(compute, *xs)


@builds("Axpy", bottoms=3)
def axpy(layer: Layer, a: Blob, x: Blob, y: Blob) -> None:
    layer.op(lambda a, x, y: F.reshape(a, (*a.shape[:2], 1, 1)) * x + y, a, x, y)


@builds("Flatten")
def flatten(layer: Layer, x: Blob) -> None:
    p = layer.message.flatten_param
    first, last = layer.axis(p.axis, _ndim(x)), layer.axis(p.end_axis, _ndim(x))
    if first > last:
        raise layer.fail(f"axis {p.axis} lies behind end_axis {p.end_axis}")
    layer.op(
        lambda x: F.reshape(
            x, (*x.shape[:first], math.prod(x.shape[first : last + 1]), *x.shape[last + 1 :])
        ),
        x,
    )


@builds("Reshape")
def reshape(layer: Layer, x: Blob) -> None:
    p = layer.message.reshape_param
    n = _ndim(x)
    axis = p.axis if p.axis >= 0 else n + p.axis + 1
    end = n if p.num_axes == -1 else axis + p.num_axes
    if not 0 <= axis <= end <= n or list(p.shape.dim).count(-1) > 1:
        raise layer.fail(
            f"axis {p.axis}, num_axes {p.num_axes}, shape {[*p.shape.dim]} of {x.shape}"
        )

    def compute(x: Any) -> Any:
        sizes = []
        for i, d in enumerate(p.shape.dim):
            if d == 0 and axis + i >= x.ndim:
                raise ValueError(f"shape {list(p.shape.dim)} copies axis {axis + i} of {x.shape}")
            sizes.append(x.shape[axis + i] if d == 0 else d)
        return F.reshape(x, (*x.shape[:axis], *sizes, *x.shape[end:]))

    layer.op(compute, x)


@builds("Permute")
def permute(layer: Layer, x: Blob) -> None:
    order = list(layer.message.permute_param.order)
    n = _ndim(x)
    if len({*order}) != len(order) or max(order, default=0) >= n:
        raise layer.fail(f"order {order} does not name different axes of {n}")
    order += [i for i in range(n) if i not in order]
    layer.op(lambda x: F.transpose(x, order), x)


@builds("ShuffleChannel")
def shuffle_channel(layer: Layer, x: Blob) -> None:
    g = layer.message.shuffle_channel_param.group

    def compute(x: Any) -> Any:
        n, c, *size = x.shape
        y = F.reshape(x, (n, g, c // g, *size))
        return F.reshape(F.transpose(y, (0, 2, 1, *range(3, y.ndim))), x.shape)

    layer.op(compute, x)


@builds("Tile")
def tile(layer: Layer, x: Blob) -> None:
    p = layer.message.tile_param
    axis = layer.axis(p.axis, _ndim(x))
    layer.op(lambda x: F.tile(x, [p.tiles if i == axis else 1 for i in range(x.ndim)]), x)


@builds("Reduction")
def reduction(layer: Layer, x: Blob) -> None:
    p = layer.message.reduction_param
    axis, how, coeff = layer.axis(p.axis, _ndim(x)), enum_name(p, "operation"), p.coeff

    def compute(x: Any) -> Any:
        x = {"ASUM": F.abs, "SUMSQ": lambda x: x * x}.get(how, lambda x: x)(x)
        y = (F.mean if how == "MEAN" else F.sum)(x, tuple(range(axis, x.ndim)))
        return y if coeff == 1 else y * coeff

    layer.op(compute, x)


@builds("Softmax")
def softmax(layer: Layer, x: Blob) -> None:
    axis = layer.axis(layer.message.softmax_param.axis, _ndim(x))
    layer.op(lambda x: F.softmax(x, axis=axis), x)


@builds("ArgMax")
def arg_max(layer: Layer, x: Blob) -> None:
    p = layer.message.argmax_param
    k, both = p.top_k, p.out_max_val
    axis = layer.axis(p.axis, _ndim(x)) if p.HasField("axis") else None
    size = math.prod(x.sizes[1:]) if axis is None else x.sizes[axis]
    if not 1 <= k <= int(size or 0):
        raise layer.fail(f"top_k is {k}, wanted 1 to {size}")

    def compute(x: Any) -> Any:
        rows = F.reshape(x, (x.shape[0], -1)) if axis is None else x
        along = 1 if axis is None else axis
        values, places = F.sort(rows, axis=along, reverse=True, with_index=True)
        start, stop = [0] * rows.ndim, list(rows.shape)
        stop[along] = k
        values, places = (F.slice(v, start, stop) for v in (values, places))
        places = OPS["cast"](places, dtype="float32")
        if axis is not None:
            return values if both else places
        y = F.stack(places, values, axis=1) if both else F.reshape(places, (x.shape[0], 1, k))
        return y

    layer.op(compute, x)


@builds("BatchReindex", bottoms=2)
def batch_reindex(layer: Layer, x: Blob, index: Blob) -> None:
    layer.op(lambda x, i: F.gather(x, OPS["cast"](i, dtype="int64"), axis=0), x, index)


@builds("Accuracy", bottoms=2, tops=(1, 2))
def accuracy(layer: Layer, x: Blob, label: Blob) -> None:
    p = layer.message.accuracy_param
    axis, k = layer.axis(p.axis, _ndim(x)), p.top_k
    ignore = p.ignore_label if p.HasField("ignore_label") else None

    def right(x: Any, label: Any) -> tuple[Any, Any, Any]:
        """Whether each label is among the best, whether it counts, and which it is."""
        shape = tuple(n for i, n in enumerate(x.shape) if i != axis)
        t = F.reshape(label, shape)
        counts = constant_like(t, 1.0) if ignore is None else F.not_equal_scalar(t, ignore)
        safe = t * counts
        order = (*(i for i in range(x.ndim) if i != axis), axis)
        scores = F.transpose(x, order)
        index = OPS["cast"](F.reshape(safe, (*shape, 1)), dtype="int64")
        hot = F.one_hot(index, (x.shape[axis],))
        own = F.max(F.where(hot, scores, scores * 0 - 3.0e38), -1, keepdims=True)
        better = F.sum(F.greater_equal(scores, own + scores * 0), -1) - 1
        return F.less_scalar(better, k) * counts, counts, hot

    def compute(x: Any, label: Any) -> Any:
        hits, counts, _ = right(x, label)
        return F.sum(hits) / F.maximum_scalar(F.sum(counts), 1.0)

    def by_class(x: Any, label: Any) -> Any:
        hits, counts, hot = right(x, label)
        axes = tuple(range(hits.ndim))
        hot = hot * F.reshape(counts, (*counts.shape, 1))
        found = F.sum(hot * F.reshape(hits, (*hits.shape, 1)), axes)
        return found / F.maximum_scalar(F.sum(hot, axes), 1.0)

    layer.op(compute, x, label)
    if len(layer.message.top) > 1:
        layer.op(by_class, x, label)


def constant_like(x: Any, value: float) -> Any:
    """Numbers of one value, of the shape of x."""
    return F.constant(value, x.shape) if x.shape else constant(value)
