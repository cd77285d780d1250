# SPDX-License-Identifier: Apache-2.0
"""Importers of constants, and of what moves elements or asks for sizes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import nnl.functions as F
from nnl.converters.onnx.importing.control import stacked
from nnl.converters.onnx.importing.indexing import take
from nnl.converters.onnx.importing.shape import joined, padded, part, reshaped, sliced
from nnl.converters.onnx.values.values import (
    array,
    axis_of,
    broadcast,
    check_size,
    dtype_of,
    ints,
    is_var,
    known,
    reshape,
    scalar,
    shape_of,
    tagged,
    var,
)
from nnl.converters.tensorflow.interpreter import Handler, Unsupported, is_table, tf_import
from nnl.converters.tensorflow.messages import TensorFlowError, array_of, dtype_of_code
from nnl.converters.tensorflow.shared import onnx
from nnl.core.settings.context import STATE

MAX_PARTS = 2**16  # of a value that is taken apart


@tf_import("Placeholder", "PlaceholderV2")
def placeholder(ctx: Any, node: Any) -> Any:
    """An input that nobody has given."""
    raise TensorFlowError("it has no value: name it with --inputs")


# ---- sizes ----


@tf_import("Shape")
def shape(ctx: Any, node: Any, x: Any) -> Any:
    """Sizes of x."""
    return np.array(shape_of(x), dtype_of_code(node.attr("out_type", 3)))


@tf_import("Squeeze")
def squeeze(ctx: Any, node: Any, x: Any) -> Any:
    """x without axes of size 1."""
    axes = node.attr("squeeze_dims") or node.attr("axis") or None
    given = None if not axes else np.array(axes)
    source, order = ctx.axes.of(x)
    gone = range(len(order)) if given is None else [axis_of(a, len(order)) for a in axes]
    left = [order[a] for a in range(len(order)) if a not in gone or shape_of(x)[a] != 1]
    y = onnx("Squeeze", x, given)
    return reshape(source, shape_of(y)) if left == sorted(left) and is_var(x) else y


@tf_import("Transpose")
def transpose(ctx: Any, node: Any, x: Any, axes: Any) -> Any:
    """x with its axes in another order."""
    order = ints(axes, "the axes")
    n = len(shape_of(x))
    if sorted(a % max(n, 1) for a in order) != list(range(n)):
        raise TensorFlowError(f"orders {n} axes as {order}")
    return ctx.axes.transposed(x, [a % n for a in order])


@tf_import("Fill")
def fill(ctx: Any, node: Any, to: Any, value: Any) -> Any:
    """A shape full of one value."""
    sizes = check_size(ints(to, "the shape"))
    return broadcast(reshape(value, (1,) * len(sizes)), sizes)


# ---- parts ----


@tf_import("ConcatV2", "Concat")
def concat(ctx: Any, node: Any, *xs: Any) -> Any:
    """Values behind each other along an axis."""
    axis, values = (xs[0], xs[1:]) if node.op == "Concat" else (xs[-1], xs[:-1])
    at = axis_of(int(scalar(axis, what="the axis")), len(shape_of(values[0])))
    first = next((v for v in values if is_var(v)), None)
    order = None if first is None else ctx.axes.of(first)[1]
    if order is None or order == tuple(range(len(order))):
        return joined(list(values), at)
    back = [int(i) for i in np.argsort(order)]
    y = joined([ctx.axes.transposed(v, back) for v in values], order[at])
    return ctx.axes.transposed(y, order)


@tf_import("Unpack")
def unpack(ctx: Any, node: Any, x: Any) -> Any:
    """The parts of x along an axis, which goes."""
    axis = axis_of(node.attr("axis", 0), len(shape_of(x)))
    sizes = list(shape_of(x))
    n = _parts(sizes.pop(axis))
    return [reshape(part(x, axis, i, i + 1), sizes) for i in range(n)]


def _parts(n: int) -> int:
    """A number of outputs.

    Raises:
        TensorFlowError: No graph has so many.
    """
    if not 0 <= n <= MAX_PARTS:
        raise TensorFlowError(f"makes {n} parts, wanted at most {MAX_PARTS}")
    return n


def _cut(ctx: Any, x: Any, axis: Any, sizes: list[int]) -> list[Any]:
    at = axis_of(int(scalar(axis, what="the axis")), len(shape_of(x)))
    total = shape_of(x)[at]
    if sizes == [-1] * len(sizes) and sizes:
        if total % len(sizes):
            raise TensorFlowError(f"cuts the size {total} into {len(sizes)} equal parts")
        sizes = [total // len(sizes)] * len(sizes)
    elif sizes.count(-1) == 1:
        sizes[sizes.index(-1)] = total - sum(n for n in sizes if n != -1)
    if sum(sizes) != total or min(sizes, default=0) < 0:
        raise TensorFlowError(f"cuts the size {total} into {sizes}")
    ends = np.cumsum([0, *sizes]).tolist()
    source, order = ctx.axes.of(x)
    return [
        ctx.axes.transposed(part(source, order[at], a, b), order)
        for a, b in zip(ends[:-1], ends[1:], strict=True)
    ]


@tf_import("Slice")
def slice_(ctx: Any, node: Any, x: Any, begin: Any, size: Any) -> Any:
    """A region of x; a size of -1 is all that is left."""
    begins, sizes = ints(begin, "the start"), ints(size, "the size")
    whole = shape_of(x)
    ends = [n if s == -1 else b + s for b, s, n in zip(begins, sizes, whole, strict=True)]
    if any(not 0 <= b <= e <= n for b, e, n in zip(begins, ends, whole, strict=True)):
        raise TensorFlowError(f"cuts {begins} of sizes {sizes} out of {whole}")
    source, order = ctx.axes.of(x)
    at = [order[i] for i in range(len(order))]
    return ctx.axes.transposed(sliced(source, begins, ends, at, [1] * len(at)), order)


@tf_import("StridedSlice")
def strided_slice(ctx: Any, node: Any, x: Any, begin: Any, end: Any, step: Any) -> Any:
    """A region of x as Python's brackets say it, in masks."""
    begins, ends, steps = (list(ints(v, "a limit")) for v in (begin, end, step))
    masks = {k: node.attr(f"{k}_mask", 0) for k in ("begin", "end", "ellipsis", "new_axis")}
    shrink = node.attr("shrink_axis_mask", 0)
    if not len(begins) == len(ends) == len(steps) <= 32:
        raise TensorFlowError("its limits have several lengths")
    n, count = len(shape_of(x)), len(begins)
    new = sum(
        1 for i in range(count) if masks["new_axis"] >> i & 1 and not masks["ellipsis"] >> i & 1
    )
    skipped = n - (count - new - (1 if masks["ellipsis"] else 0))
    starts, stops, strides, axes, sizes = [], [], [], [], []  # type: ignore[var-annotated]
    axis = 0
    if skipped < 0:
        raise TensorFlowError(f"cuts {count} axes out of {shape_of(x)}")
    for i in range(count):
        if masks["ellipsis"] >> i & 1:
            sizes += [None] * skipped
            axis += skipped
        elif masks["new_axis"] >> i & 1:
            sizes.append(1)
        else:
            if steps[i] == 0:
                raise TensorFlowError("has a step of 0")
            if axis >= n:
                raise TensorFlowError(f"cuts more axes than {shape_of(x)} has")
            length = shape_of(x)[axis]
            if shrink >> i & 1:
                at = axis_of(begins[i], length, "the index")
                low, high, stride = at, at + 1, 1
                sizes.append(0)
            else:
                low, high, stride = slice(
                    None if masks["begin"] >> i & 1 else begins[i],
                    None if masks["end"] >> i & 1 else ends[i],
                    steps[i],
                ).indices(length)
                high = -length - 1 if high < 0 else high
                sizes.append(None)
            starts.append(low)
            stops.append(high)
            strides.append(stride)
            axes.append(axis)
            axis += 1
    sizes += [None] * (n - axis)
    source, order = ctx.axes.of(x)
    y = sliced(source, starts, stops, [order[a] for a in axes], strides)
    y = ctx.axes.transposed(y, order)
    left = iter(shape_of(y))
    result = [1 if s == 1 else next(left) for s in sizes]
    result = [m for m, s in zip(result, sizes, strict=True) if s != 0]
    return y if tuple(result) == shape_of(y) else reshape(y, result)


@tf_import("GatherV2", "Gather", "ResourceGather")
def gather(ctx: Any, node: Any, x: Any, indices: Any, axis: Any = 0) -> Any:
    """Parts of x at indices along an axis."""
    at = axis_of(int(scalar(axis, what="the axis")), len(shape_of(x)))
    lead = node.attr("batch_dims", 0)
    if lead:
        if lead < 0:
            lead += len(shape_of(indices))
        return F.gather(var(x), var(indices), axis=at, batch_dims=lead)
    if is_table(x) and not STATE.auto_forward:
        indices = var(indices)
    if is_var(indices) and not is_var(x) and at == 0 and x.dtype.kind == "f":
        x = ctx.parameter(node, "W", x)
    if is_var(indices) and at == 0 and len(shape_of(x)) > 1:
        return tagged(F.embed(indices, var(x)), dtype_of(x))
    return tagged(y, dtype_of(x)) if is_var(y := take(x, indices, at)) else y


@tf_import("ScatterNd")
def scatter_nd(ctx: Any, node: Any, indices: Any, updates: Any, to: Any) -> Any:
    """Zeros with values added at positions."""
    zeros = np.zeros(check_size(ints(to, "the shape")), dtype_of(updates))
    return onnx("ScatterND", zeros, indices, updates, reduction="add")


@tf_import("TensorScatterUpdate", "TensorScatterAdd")
def tensor_scatter(ctx: Any, node: Any, x: Any, indices: Any, updates: Any) -> Any:
    """x with values written, or added, at positions."""
    how = "add" if node.op.endswith("Add") else "none"
    return onnx("ScatterND", x, indices, updates, reduction=how)


@tf_import("OneHot")
def one_hot(ctx: Any, node: Any, x: Any, depth: Any, on: Any, off: Any) -> Any:
    """`on` at the index along a new axis; nowhere for an index outside."""
    n, rank = int(scalar(depth, what="the depth")), len(shape_of(x)) + 1
    sizes = list(shape_of(x))
    axis = axis_of(node.attr("axis", -1), rank)
    check_size([n, *sizes])
    sizes.insert(axis, 1)
    places = np.arange(n).reshape((-1,) + (1,) * (rank - 1 - axis))
    if known(x) and known(on) and known(off):
        return np.where(array(x).reshape(sizes) == places, array(on), array(off))
    same = onnx("Equal", reshape(x, sizes), places.astype(np.float32))
    return ctx.typed(onnx("Where", same, on, off), node.attr("T"))


@tf_import("TopKV2", "TopK")
def top_k(ctx: Any, node: Any, x: Any, k: Any = None) -> Any:
    """The k largest along the last axis, and where they are."""
    n = np.array(node.attr("k", 1)) if k is None else k
    values, at = onnx("TopK", x, n, axis=-1, largest=1)
    index = tagged(at, np.int32) if is_var(at) else at.astype(np.int32)
    return [values, index]


@tf_import("Unique", "UniqueV2")
def unique(ctx: Any, node: Any, x: Any, axis: Any = None) -> Any:
    """Distinct elements in their order, and where each went."""
    y, _, back, _ = onnx("Unique", x, sorted=0, axis=None)
    return [y, back.astype(dtype_of_code(node.attr("out_idx", 3)))]


@tf_import("ReverseV2", "Reverse")
def reverse(ctx: Any, node: Any, x: Any, axes: Any) -> Any:
    """x backwards along axes."""
    n = len(shape_of(x))
    given = np.flatnonzero(array(axes)) if node.op == "Reverse" else ints(axes, "the axes")
    at = tuple(sorted(axis_of(int(a), n) for a in given))
    return tagged(F.flip(x, at), dtype_of(x)) if is_var(x) else np.flip(x, at)


@tf_import("ReverseSequence")
def reverse_sequence(ctx: Any, node: Any, x: Any, lengths: Any) -> Any:
    """The first steps of every sample, as many as its length, backwards."""
    axes = {"time_axis": node.attr("seq_dim", 0), "batch_axis": node.attr("batch_dim", 0)}
    return onnx("ReverseSequence", x, lengths, **axes)


@tf_import("Pad", "PadV2", "MirrorPad")
def pad(ctx: Any, node: Any, x: Any, widths: Any, value: Any = 0.0) -> Any:
    """x with more elements at its ends."""
    rows = array(widths, "the widths").reshape(-1, 2)
    if len(rows) != len(shape_of(x)) or (rows < 0).any():
        raise TensorFlowError(f"pads {shape_of(x)} by {rows.tolist()}")
    source, order = ctx.axes.of(x)
    held = [0] * len(order)
    for i, a in enumerate(order):
        held[a] = i
    before, after = ([int(n) for n in rows[held, k]] for k in (0, 1))
    mode = "constant"
    if node.op == "MirrorPad":
        mode = node.attr("mode", "REFLECT").lower()
        if mode == "symmetric":
            y = _symmetric(source, before, after)
            return ctx.axes.transposed(y, order)
    number = 0.0 if node.op != "PadV2" else scalar(value, what="the value")
    if not is_var(source) and mode == "constant":
        check_size([n + b + a for n, b, a in zip(source.shape, before, after, strict=True)])
    return ctx.axes.transposed(padded(source, before, after, mode, number), order)


def _symmetric(x: Any, before: list[int], after: list[int]) -> Any:
    """The elements at the border again, the outermost ones too."""
    for axis, (b, a) in enumerate(zip(before, after, strict=True)):
        n = shape_of(x)[axis]
        if max(a, b) > n:
            raise TensorFlowError(f"mirrors {max(a, b)} of {n} elements")
        if a or b:
            check_size((n + a + b,), 8)
            at = np.pad(np.arange(n), (b, a), mode="symmetric")
            x = take(x, at, axis)
    return x


@tf_import("MatrixBandPart")
def band(ctx: Any, node: Any, x: Any, low: Any, high: Any) -> Any:
    """Matrices without what lies far from the diagonal."""
    below, above = (int(scalar(v, what="a width")) for v in (low, high))
    rows, columns = shape_of(x)[-2:]
    check_size((rows, columns))
    distance = np.arange(columns) - np.arange(rows)[:, None]
    kept = ((below < 0) | (-distance <= below)) & ((above < 0) | (distance <= above))
    return onnx("Mul", x, kept.astype(dtype_of(x)))


@tf_import("DepthToSpace", "SpaceToDepth")
def blocks(ctx: Any, node: Any, x: Any) -> Any:
    """Blocks of channels become blocks of pixels, or back."""
    n = node.attr("block_size", 0)
    layout = node.attr("data_format", "NHWC")
    if n < 2 or layout == "NCHW_VECT_C" or len(shape_of(x)) != 4:
        raise Unsupported(f"has the block size {n} and the layout {layout}")
    return ctx.axes.on_images(
        lambda v: onnx(node.op, v, blocksize=n, mode="DCR"), x, layout == "NCHW"
    )


@tf_import("SpaceToBatchND", "BatchToSpaceND")
def batches(ctx: Any, node: Any, x: Any, block: Any, widths: Any) -> Any:
    """Pixels between each other become samples, or back."""
    sizes, rows = ints(block, "the block"), array(widths, "the widths").reshape(-1, 2)
    n, shape = len(sizes), shape_of(x)
    if len(rows) != n or len(shape) <= n or min(sizes, default=1) < 1 or (rows < 0).any():
        raise TensorFlowError(f"cuts {shape} into blocks {sizes}")
    rest = (*range(1 + 2 * n, n + len(shape)),)
    if node.op == "SpaceToBatchND":
        more = [0] * (len(shape) - n - 1)
        x = padded(x, [0, *rows[:, 0].tolist(), *more], [0, *rows[:, 1].tolist(), *more])
        shape = shape_of(x)
        inner = [m for s, b in zip(shape[1:], sizes, strict=False) for m in (s // b, b)]
        y = reshape(x, (shape[0], *inner, *shape[1 + n :]))
        odd, even = range(2, 2 * n + 1, 2), range(1, 2 * n, 2)
        y = ctx.axes.transposed(y, (*odd, 0, *even, *rest))
        outer = [s // b for s, b in zip(shape[1:], sizes, strict=False)]
        return reshape(y, (shape[0] * math.prod(sizes), *outer, *shape[1 + n :]))
    count = shape[0] // math.prod(sizes)
    y = reshape(x, (*sizes, count, *shape[1:]))
    order = [n, *[a for i in range(n) for a in (n + 1 + i, i)], *rest]
    y = ctx.axes.transposed(y, order)
    outer = [s * b for s, b in zip(shape[1:], sizes, strict=False)]
    y = reshape(y, (count, *outer, *shape[1 + n :]))
    for axis, ((low, high), m) in enumerate(zip(rows.tolist(), outer, strict=True), 1):
        y = part(y, axis, low, max(low, m - high))
    return y


# ---- operators that are one expression ----

_EXPRESSIONS: dict[str, Handler] = {
    "Const": lambda ctx, node: array_of(node.attr("value")),
    "CheckNumerics EnsureShape Identity PlaceholderWithDefault": lambda ctx, node, x, *rest: [x],
    "PreventGradient RefIdentity Snapshot StopGradient": lambda ctx, node, x: [x],
    "IdentityN": lambda ctx, node, *xs: list(xs),
    "NoOp Assert Print PrintV2 ControlTrigger": lambda ctx, node, *xs: [],
    "ShapeN": lambda ctx, node, *xs: [shape(ctx, node, x) for x in xs],
    "Rank": lambda ctx, node, x: np.array(len(shape_of(x)), np.int32),
    "Size": lambda ctx, node, x: np.array(
        math.prod(shape_of(x)), dtype_of_code(node.attr("out_type", 3))
    ),
    "BroadcastArgs": lambda ctx, node, x, y: np.array(
        np.broadcast_shapes(ints(x), ints(y)), dtype_of(x)
    ),
    "Reshape": lambda ctx, node, x, to: reshaped(x, ints(to, "the shape"), True),
    "ExpandDims": lambda ctx, node, x, axis: onnx("Unsqueeze", x, np.array(ints(axis, "the axis"))),
    "BroadcastTo": lambda ctx, node, x, to: broadcast(x, check_size(ints(to, "the shape"))),
    "Tile": lambda ctx, node, x, times: (
        x if all(n == 1 for n in ints(times)) else onnx("Tile", x, times)
    ),
    "Pack": lambda ctx, node, *xs: stacked(list(xs), node.attr("axis", 0)),
    "Split": lambda ctx, node, axis, x: _cut(
        ctx, x, axis, [-1] * _parts(node.attr("num_split", 1))
    ),
    "SplitV": lambda ctx, node, x, sizes, axis: _cut(ctx, x, axis, list(ints(sizes, "the sizes"))),
    "GatherNd": lambda ctx, node, x, indices: ctx.typed(
        onnx("GatherND", x, indices, batch_dims=0), node.attr("Tparams")
    ),
    "Where": lambda ctx, node, x: np.argwhere(array(x, "the condition")).astype(np.int64),
    "InvertPermutation": lambda ctx, node, x: np.argsort(array(x)).astype(dtype_of(x)),
}

for _names, _expression in _EXPRESSIONS.items():
    tf_import(*_names.split())(_expression)
