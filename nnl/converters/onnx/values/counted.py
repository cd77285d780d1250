# SPDX-License-Identifier: Apache-2.0
"""Values of a static graph that have as many entries along an axis as the run finds.

Their arrays have the greatest size, the entries first. What is behind these is anything, so an
operator must not let it reach them: each one here says along which axis its results are counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import nnl.functions as F
from nnl.converters.onnx.file.errors import OnnxError
from nnl.converters.onnx.values.values import (
    Counted,
    axis_of,
    dtype_of,
    ints,
    is_float,
    is_var,
    known,
    shape_of,
    tagged,
    var,
)
from nnl.core.graph.variable import Variable
from nnl.graph.open_sizes.at_most import at_most

FEW = 1 << 12  # boxes of a class, for all of which there is room
Run = Callable[[list[Any]], list[Any]]
_ALIKE = frozenset(
    (
        "Abs Acos Acosh Add And Asin Asinh Atan Atanh BitShift Cast CastLike Ceil Celu Clip Cos "
        "Cosh Div Elu Equal Erf Exp Floor Gelu Greater GreaterOrEqual HardSigmoid HardSwish "
        "Identity IsInf IsNaN LeakyRelu Less LessOrEqual Log Max Mean Min Mish Mod Mul Neg Not Or "
        "Pow PRelu Reciprocal Relu Round Selu Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Sub Sum "
        "Tan Tanh Where Xor"
    ).split()
)
_MOVES = frozenset("Concat Flatten Gather Reshape Slice Split Squeeze Transpose Unsqueeze".split())
_ALONG = frozenset("ArgMax ArgMin LogSoftmax Softmax LayerNormalization CumSum".split())
# what is behind the entries must be, so that it changes nothing
_NEUTRAL = {"ReduceSum": 0.0, "ReduceMean": 0.0, "ReduceMax": -np.inf, "ReduceMin": np.inf}


def counted(x: Any, axis: int, count: Variable) -> Variable:
    """x, of which `count` entries along an axis are there."""
    y = Variable.of_edge(x.edge, x._data)
    y.info = Counted(dtype_of(x), axis, count)
    return y


def finished(y: Any) -> Any:
    """An output of a graph, as the program gives it."""
    if not is_var(y) or not isinstance(y.info, Counted):
        return y
    return tagged(at_most(y, y.info.count, y.info.axis), y.info.dtype)


def follow(node: Any, values: Sequence[Any], run: Run) -> list[Any]:
    """Run an operator on arrays of the greatest size.

    Args:
        run: Runs its handler.
    Raises:
        OnnxError: It needs the number of entries.
    """
    infos = [v.info if is_var(v) and isinstance(v.info, Counted) else None for v in values]
    plain = [
        v if i is None else tagged(_bare(v), i.dtype) for v, i in zip(values, infos, strict=True)
    ]
    first = next(i for i in infos if i is not None)
    if any(i is not None and i.count.edge is not first.count.edge for i in infos):
        raise _needs(node)
    kind = node.op_type
    if kind in _ALIKE:
        ends = {i.axis - len(shape_of(v)) for i, v in zip(infos, plain, strict=True) if i}
        (back,) = ends if len(ends) == 1 else (0,)
        for v, i in zip(plain, infos, strict=True):
            if v is None or i is not None or not back:
                continue
            if len(shape_of(v)) >= -back and shape_of(v)[back] != 1:
                back = 0
        if not back:
            raise _needs(node)
        return [counted(y, y.ndim + back, first.count) for y in run(plain)]
    if kind in ("Gather", "GatherND", "GatherElements") and infos[0] is None:
        shift = axis_of(node.axis, len(shape_of(plain[0]))) if kind == "Gather" else 0
        if kind == "GatherND" and first.axis == len(shape_of(plain[1])) - 1:
            raise _needs(node)
        return [counted(y, first.axis + shift, first.count) for y in run(plain)]
    if kind in ("MatMul", "Gemm") and infos[1:] == [None] * (len(infos) - 1):
        if first.axis != len(shape_of(plain[0])) - 1 and not getattr(node, "transA", 0):
            back = first.axis - len(shape_of(plain[0]))
            return [counted(y, y.ndim + back, first.count) for y in run(plain)]
    if kind in _MOVES and all(i or known(v) for i, v in zip(infos[1:], plain[1:], strict=True)):
        return _moved(node, plain, infos, first, run)
    if kind in _ALONG and axis_of(node.axis, len(shape_of(plain[0]))) != first.axis:
        keeps = bool(getattr(node, "keepdims", 1))
        lost = not keeps and axis_of(node.axis, len(shape_of(plain[0]))) < first.axis
        return [counted(y, first.axis - lost, first.count) for y in run(plain)]
    if kind in _NEUTRAL:
        return _reduced(node, plain, first, run)
    if kind == "ScatterND" and infos[0] is None and infos[1] is not None and infos[1].axis == 0:
        return _scattered(plain, first, run)
    raise _needs(node)


def _needs(node: Any) -> OnnxError:
    return OnnxError(
        f"needs to know how many entries there are, which only values of the run say: "
        f"{node.op_type} is not among the operators that a program follows these through"
    )


def _bare(x: Variable) -> Variable:
    return Variable.of_edge(x.edge, x._data)


def _moved(node: Any, plain: list[Any], infos: Any, first: Counted, run: Run) -> list[Any]:
    """An operator that moves elements: numbers of entries in their place say where they go."""

    def numbers(v: Any, info: Counted | None) -> Any:
        if info is None:
            return v
        shape = shape_of(v)
        row = np.arange(shape[info.axis]).reshape(
            [-1 if i == info.axis else 1 for i in range(len(shape))]
        )
        return np.ascontiguousarray(np.broadcast_to(row, shape))

    traces = run([numbers(v, i) for v, i in zip(plain, infos, strict=True)])
    found = []
    for y, trace in zip(run(plain), traces, strict=True):
        where = _axis_in(np.asarray(trace))
        if where is None:
            raise _needs(node)
        axis, start = where
        n, count = trace.shape[axis], first.count
        if start or n < _size(plain, infos):
            count = F.minimum_scalar(F.maximum_scalar(count - start, 0.0), float(n))
        found.append(counted(y, axis, count))
    return found


def _size(plain: Sequence[Any], infos: Any) -> int:
    return next(shape_of(v)[i.axis] for v, i in zip(plain, infos, strict=True) if i is not None)


def _axis_in(trace: Any) -> tuple[int, int] | None:
    """The axis along which numbers count up, and the first of them."""
    for axis in range(trace.ndim):
        row = np.moveaxis(trace, axis, 0)
        if not row.size:
            return None
        start = int(row.flat[0])
        want = start + np.arange(len(row)).reshape([-1] + [1] * (trace.ndim - 1))
        if (len(row) > 1 or trace.size == 1) and (row == want).all():
            return axis, start
    return None


def _reduced(node: Any, plain: list[Any], first: Counted, run: Run) -> list[Any]:
    x = plain[0]
    rank, given = len(shape_of(x)), node.attributes.get("axes")
    if len(plain) > 1 and plain[1] is not None:
        given = ints(plain[1], "axes")
    axes = {axis_of(a, rank) for a in (given if given is not None else range(rank))}
    if first.axis not in axes:
        lost = 0 if node.keepdims else sum(a < first.axis for a in axes)
        return [counted(y, first.axis - lost, first.count) for y in run(plain)]
    there = _there(shape_of(x), first)
    neutral = var(np.float32(_NEUTRAL[node.op_type]))
    y = F.where(
        F.broadcast(there, x.shape), x, F.broadcast(F.reshape(neutral, (1,) * rank), x.shape)
    )
    (made,) = run([tagged(y, dtype_of(x)), *plain[1:]])
    if node.op_type == "ReduceMean":
        mean = F.r_div_scalar(_number(first.count), float(shape_of(x)[first.axis]))
        rank = len(shape_of(made))
        made = made * F.broadcast(F.reshape(mean, (1,) * rank), made.shape)
    return [made]


def _number(count: Variable) -> Variable:
    return F.add_scalar(count, 0.0)  # in floats


def _there(shape: Sequence[int], info: Counted) -> Variable:
    """1 for entries that there are, of rank of the shape."""
    along = [n if i == info.axis else 1 for i, n in enumerate(shape)]
    row = var(np.arange(shape[info.axis], dtype=np.float32).reshape(along))
    count = F.broadcast(F.reshape(_number(info.count), (1,) * len(along)), along)
    return F.less(row, count)


def _scattered(plain: list[Any], first: Counted, run: Run) -> list[Any]:
    """ScatterND: entries that there are not go to a place of their own, behind the array."""
    x, at, updates = plain
    rows = shape_of(x)[0]
    longer = F.pad(var(x), [0, 1, *[0, 0] * (len(shape_of(x)) - 1)], mode="constant")
    there = F.broadcast(_there(shape_of(at), first), at.shape)
    n, m = at.shape
    behind = F.constant(float(rows), shape=(n, 1))
    if m > 1:
        behind = F.concatenate(behind, F.constant(0.0, shape=(n, m - 1)), axis=1)
    at = tagged(F.where(there, at, behind), dtype_of(at))
    (y,) = run([tagged(longer, dtype_of(x)), at, updates])
    stop = [rows, *shape_of(x)[1:]]
    return [tagged(F.slice(y, [0] * len(stop), stop, [1] * len(stop)), dtype_of(x))]


# ---- what is counted ----


def chosen(mask: Variable) -> tuple[Variable, Variable]:
    """Where a vector is not 0: positions in their order, then others, and how many there are."""
    there = F.not_equal_scalar(mask, 0.0)
    return F.sort(there, reverse=True, only_index=True), F.sum(there)


def non_zero(x: Any) -> Variable:
    """Positions of elements that are not 0, (rank, at most all)."""
    shape = shape_of(x) or (1,)
    size = int(np.prod(shape))
    order, count = chosen(F.reshape(var(x), (size,)))
    places = []
    for axis, n in enumerate(shape):
        row = np.arange(n).reshape([-1 if i == axis else 1 for i in range(len(shape))])
        all_ = F.reshape(var(np.broadcast_to(row, shape).astype(np.float32)), (size,))
        places.append(F.gather(all_, order))
    return counted(tagged(F.stack(*places, axis=0), np.int64), 1, count)


def compress(x: Any, mask: Any, axis: int) -> Variable:
    """Slices of x where a mask is not 0."""
    order, count = chosen(var(mask))
    return counted(tagged(F.gather(var(x), order, axis=axis), dtype_of(x)), axis, count)


def unique(x: Any, in_order: bool) -> list[Variable]:
    """Distinct elements, where they are first, where each went, and how often; see Unique."""
    n = int(np.prod(shape_of(x)))
    y, at = F.sort(F.reshape(var(x), (n,)), with_index=True)
    at = F.add_scalar(at, 0.0)
    new = F.not_equal(y[1:], y[:-1])
    new = F.concatenate(F.constant(1.0, shape=(1,)), new, axis=0)
    order, count = chosen(new)
    number = np.arange(n, dtype=np.float32)
    there = F.less(var(number), F.broadcast(F.reshape(count, (1,)), (n,)))
    every = F.constant(float(n), shape=(n,))
    start = F.where(there, F.add_scalar(order, 0.0), every)  # in y; behind the last: its end
    many = F.concatenate(start[1:], F.constant(float(n), shape=(1,)), axis=0) - start
    group = F.add_scalar(F.cumsum(new, axis=0), -1.0)
    back = F.gather(group, F.sort(at, only_index=True))
    found, first = F.gather(y, order), F.gather(at, order)
    if not in_order:  # by where they come first
        turn = F.sort(F.where(there, first, every), only_index=True)
        found, first, many = (F.gather(v, turn) for v in (found, first, many))
        back = F.gather(F.add_scalar(F.sort(turn, only_index=True), 0.0), back)
    results = [counted(tagged(found, dtype_of(x)), 0, count)]
    results.append(counted(tagged(first, np.int64), 0, count))
    return [*results, tagged(back, np.int64), counted(tagged(many, np.int64), 0, count)]


def unique_slices(x: Any, axis: int, in_order: bool) -> list[Variable]:
    """The same of slices along an axis, each known by how many others come before it."""
    order = [axis, *(i for i in range(len(shape_of(x))) if i != axis)]
    n = shape_of(x)[axis]
    rows = F.reshape(F.transpose(var(x), order), (n, -1))
    size = rows.shape[1]
    a, b = F.reshape(rows, (n, 1, size)), F.reshape(rows, (1, n, size))
    same = F.cumprod(F.equal(a, b), axis=2)[:, :, : size - 1]
    decides = F.concatenate(F.constant(1.0, shape=(n, n, 1)), same, axis=2) * F.less(b, a)
    _, first, *others = unique(F.sum(decides, axis=(1, 2)), in_order)
    found = tagged(F.gather(var(x), _bare(first), axis=axis), dtype_of(x))
    return [counted(found, axis, first.info.count), first, *others]


def suppressed(
    boxes: Any, scores: Any, centres: bool, limit: int, overlap: float, floor: Any
) -> Any:
    """Rows (image, class, box) of boxes that overlap no better one too much."""
    boxes, scores = var(boxes), var(scores)
    b, c, n = scores.shape
    if not centres:
        first, second = F.slice(boxes, (0, 0, 0), (b, n, 2)), F.slice(boxes, (0, 0, 2), (b, n, 4))
        low, high = F.minimum2(first, second), F.maximum2(first, second)
        boxes = F.concatenate((low + high) * 0.5, high - low, axis=2)
    order = F.sort(scores, axis=2, reverse=True, only_index=True)
    rank = F.sort(F.add_scalar(order, 0.0), axis=2, only_index=True)
    points = F.r_sub_scalar(F.add_scalar(rank, 0.0), float(n))  # n for the best one, down to 1
    if floor is not None:
        points = points * F.greater_scalar(scores, floor)
    rows = F.concatenate(
        boxes, F.constant(1.0, shape=(b, n, 1)), F.transpose(points, (0, 2, 1)), axis=2
    )
    kept = F.nms_detection2d(rows, thresh=0.0, nms=overlap, nms_per_class=True)
    left = F.transpose(F.slice(kept, (0, 0, 5), (b, n, 5 + c)), (0, 2, 1))
    left, box = F.sort(left, axis=2, reverse=True, with_index=True)
    box, most = F.add_scalar(box, 0.0), n
    if limit <= FEW:  # there may be fewer boxes
        more, most = F.constant(0.0, shape=(b, c, limit)), limit
        left, box = (
            F.slice(F.concatenate(v, more, axis=2), (0, 0, 0), (b, c, limit)) for v in (left, box)
        )
    size = (b, c, most)
    image, label = (
        var(np.broadcast_to(np.arange(k, dtype=np.float32).reshape(s), size))
        for k, s in ((b, (-1, 1, 1)), (c, (1, -1, 1)))
    )
    order, count = chosen(F.reshape(left, (b * c * most,)))
    all_ = F.reshape(F.stack(image, label, box, axis=3), (b * c * most, 3))
    return counted(tagged(F.gather(all_, order, axis=0), np.int64), 0, count)


__all__ = [
    "compress",
    "counted",
    "finished",
    "follow",
    "is_float",
    "non_zero",
    "suppressed",
    "unique",
]
