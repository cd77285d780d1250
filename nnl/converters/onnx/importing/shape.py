# SPDX-License-Identifier: Apache-2.0
"""Importers of constants, types and shapes: what moves elements or asks for sizes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import nnl.functions as F
from nnl.converters.onnx.file.errors import OnnxError
from nnl.converters.onnx.file.registry import onnx_import
from nnl.converters.onnx.file.tensors import dtype_of_code
from nnl.converters.onnx.values.counted import counted
from nnl.converters.onnx.values.values import (
    Sized,
    array,
    axis_of,
    broadcast,
    check_size,
    dtype_of,
    ints,
    is_float,
    is_var,
    known,
    reshape,
    scalar,
    shape_of,
    tagged,
    transpose,
    var,
)


@onnx_import("Constant")
def constant(ctx: Any, node: Any) -> Any:
    """The value of the node's attribute."""
    for name, dtype in (
        ("value", None),
        ("sparse_value", None),
        ("value_float", np.float32),
        ("value_floats", np.float32),
        ("value_int", np.int64),
        ("value_ints", np.int64),
        ("value_string", object),
        ("value_strings", object),
    ):
        if name in node.attributes:
            return np.array(node.attributes[name], dtype) if dtype else node.attributes[name]
    raise OnnxError("has no value attribute")


@onnx_import("ConstantOfShape")
def constant_of_shape(ctx: Any, node: Any, shape: Any) -> Any:
    """One value, repeated."""
    value = np.zeros(1, np.float32) if node.value is None else node.value
    sizes = check_size(ints(shape, "shape"), value.dtype.itemsize)
    return np.full(sizes, value.reshape(-1)[0], value.dtype)


@onnx_import("Shape")
def shape(ctx: Any, node: Any, x: Any) -> Any:
    """Sizes of x, as int64."""
    sizes = shape_of(x)
    start = getattr(node, "start", None) or 0
    return _sizes(ctx, x, sizes[start : getattr(node, "end", None)])


@onnx_import("Size")
def size(ctx: Any, node: Any, x: Any) -> Any:
    """Number of elements, as int64."""
    return _sizes(ctx, x, math.prod(shape_of(x)))


def _sizes(ctx: Any, x: Any, numbers: Any) -> Any:
    found = np.array(numbers, np.int64)
    return found.view(Sized) if ctx.open and (is_var(x) or isinstance(x, Sized)) else found


@onnx_import("Reshape")
def reshape_to_attribute(ctx: Any, node: Any, x: Any) -> Any:
    """x in a shape that is an attribute."""
    return reshaped(x, node.shape, False)


@onnx_import("Reshape", since=5)
def reshape_to(ctx: Any, node: Any, x: Any, shape: Any) -> Any:
    """x in another shape: 0 keeps a size, -1 takes what is left."""
    return reshaped(x, ints(shape, "shape"), bool(getattr(node, "allowzero", 0)))


def reshaped(x: Any, target: Any, allow_zero: bool) -> Any:
    """x in the shape that ONNX's Reshape means by `target`."""
    sizes = shape_of(x)
    wanted = list(target)
    if not allow_zero:
        for i, n in enumerate(wanted):
            if n == 0:
                if i >= len(sizes):
                    raise OnnxError(f"keeps size {i} of x, which has the shape {sizes}")
                wanted[i] = sizes[i]
    total = math.prod(sizes)
    if wanted.count(-1) == 1:
        rest = math.prod(n for n in wanted if n != -1)
        if rest == 0 or total % rest:
            raise OnnxError(f"cannot put the shape {sizes} into {tuple(target)}")
        wanted[wanted.index(-1)] = total // rest
    if any(n < 0 for n in wanted) or math.prod(wanted) != total:
        raise OnnxError(f"cannot put the shape {sizes} into {tuple(target)}")
    return reshape(x, wanted)


@onnx_import("Flatten")
def flatten(ctx: Any, node: Any, x: Any) -> Any:
    """x as a matrix: the axes before `axis`, and the others."""
    sizes = shape_of(x)
    axis = node.axis + len(sizes) if node.axis < 0 else node.axis
    return reshape(x, (math.prod(sizes[:axis]), math.prod(sizes[axis:])))


def axes_given(node: Any, axes: Any) -> tuple[int, ...] | None:
    """Axes from the input of newer versions or the attribute of older ones."""
    if axes is not None:
        return ints(axes, "axes")
    value = node.attributes.get("axes")
    return None if value is None else tuple(value)


@onnx_import("Squeeze")
def squeeze(ctx: Any, node: Any, x: Any, axes: Any = None) -> Any:
    """x without axes of size 1."""
    sizes, given = shape_of(x), axes_given(node, axes)
    if given is None:
        return reshape(x, [n for n in sizes if n != 1])
    drop = {axis_of(a, len(sizes)) for a in given}
    if any(sizes[a] != 1 for a in drop):
        raise OnnxError(f"drops the axes {sorted(drop)} of {sizes}, whose size must be 1")
    return reshape(x, [n for i, n in enumerate(sizes) if i not in drop])


@onnx_import("Unsqueeze")
def unsqueeze(ctx: Any, node: Any, x: Any, axes: Any = None) -> Any:
    """x with new axes of size 1."""
    sizes, given = list(shape_of(x)), axes_given(node, axes) or ()
    rank = len(sizes) + len(given)
    at = sorted(axis_of(a, rank) for a in given)
    if len(set(at)) != len(at):
        raise OnnxError(f"adds an axis twice: {given}")
    for a in at:
        sizes.insert(a, 1)
    return reshape(x, sizes)


@onnx_import("Transpose")
def transposed(ctx: Any, node: Any, x: Any) -> Any:
    """x with its axes in another order, reversed if none is given."""
    rank = len(shape_of(x))
    return transpose(x, range(rank)[::-1] if node.perm is None else node.perm)


@onnx_import("Concat")
def concat(ctx: Any, node: Any, *values: Any) -> Any:
    """Values joined along an axis."""
    axis = axis_of(1 if node.axis is None else node.axis, len(shape_of(values[0])))
    return joined(values, axis)


def joined(values: Any, axis: int) -> Any:
    """Arrays or Variables joined along an axis."""
    if all(map(known, values)) and not is_float(dtype_of(values[0])):
        return np.concatenate([array(v) for v in values], axis)
    if not any(map(is_var, values)):
        return np.concatenate(values, axis)
    return F.concatenate(*map(var, values), axis=axis)


@onnx_import("Split")
def split(ctx: Any, node: Any, x: Any, sizes: Any = None) -> Any:
    """x cut along an axis, into given or equal sizes."""
    axis = axis_of(node.axis or 0, len(shape_of(x)))
    total, n = shape_of(x)[axis], len(node.outputs)
    given = node.attributes.get("split") if sizes is None else ints(sizes, "split")
    if given is None:
        each = -(-total // n)
        given = [max(0, min(each, total - i * each)) for i in range(n)]
    if sum(given) != total or min(given, default=0) < 0:
        raise OnnxError(f"cuts the size {total} into {tuple(given)}")
    ends = np.cumsum((0, *given))
    return [part(x, axis, int(a), int(b)) for a, b in zip(ends[:-1], ends[1:], strict=True)]


def part(x: Any, axis: int, start: int, stop: int, step: int = 1) -> Any:
    """Elements start, start + step, ... of one axis, for numbers within the axis."""
    sizes = shape_of(x)
    if (start, stop, step) == (0, sizes[axis], 1):
        return x
    if not is_var(x):
        return x[(slice(None),) * axis + (slice(start, stop, step),)]
    n = len(sizes)
    starts, stops, steps = [0] * n, list(sizes), [1] * n
    starts[axis], stops[axis], steps[axis] = start, stop, step
    return tagged(F.slice(x, starts, stops, steps), dtype_of(x))


@onnx_import("Slice")
def slice_attributes(ctx: Any, node: Any, x: Any) -> Any:
    """A region of x, given by attributes."""
    axes = range(len(node.starts)) if node.axes is None else node.axes
    return sliced(x, node.starts, node.ends, axes, [1] * len(node.starts))


@onnx_import("Slice", since=10)
def slice_inputs(
    ctx: Any, node: Any, x: Any, starts: Any, ends: Any, axes: Any = None, steps: Any = None
) -> Any:
    """A region of x, with steps of either sign."""
    if ctx.cuts and not known(ends) and known(starts):
        front = _cut(x, starts, ends, axes, steps)
        if front is not None:
            return front
    first, last = ints(starts, "starts"), ints(ends, "ends")
    at = range(len(first)) if axes is None else ints(axes, "axes")
    by = [1] * len(first) if steps is None else ints(steps, "steps")
    return sliced(x, first, last, at, by, ctx.open and any(n < 2**31 - 1 for n in last))


def _cut(x: Any, starts: Any, ends: Any, axes: Any, steps: Any) -> Any:
    """The first entries along one axis, as many as the run says; None of another slice."""
    first, by = ints(starts, "starts"), (1,) if steps is None else ints(steps, "steps")
    at = (0,) if axes is None else ints(axes, "axes")
    if (first, by, len(at), np.prod(shape_of(ends))) != ((0,), (1,), 1, 1):
        return None
    axis, n = axis_of(at[0], len(shape_of(x))), F.reshape(F.add_scalar(var(ends), 0.0), ())
    size = float(shape_of(x)[axis])
    n = n + F.mul_scalar(F.less_scalar(n, 0.0), size)
    return counted(var(x), axis, F.minimum_scalar(F.maximum_scalar(n, 0.0), size))


def sliced(x: Any, starts: Any, ends: Any, axes: Any, steps: Any, keep: bool = False) -> Any:
    """A region of x; numbers out of range are cut to it, as in Python.

    Args:
        keep: Record it even where it is all of x, as it may be at some of several sizes.
    """
    sizes = shape_of(x)
    cuts = [slice(0, n, 1) for n in sizes]
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        if step == 0:
            raise OnnxError("has a step of 0")
        a = axis_of(axis, len(sizes))
        cuts[a] = slice(*slice(start, end, step).indices(sizes[a]))
    if not is_var(x):
        return x[tuple(_python(c) for c in cuts)]
    dtype = dtype_of(x)
    backwards = [i for i, c in enumerate(cuts) if c.step < 0]
    for i in backwards:  # forwards over the same elements, then flipped
        n = len(range(sizes[i])[_python(cuts[i])])
        low = cuts[i].start + (n - 1) * cuts[i].step
        cuts[i] = slice(low if n else 0, cuts[i].start + 1 if n else 0, -cuts[i].step)
    starts, stops, steps = zip(
        *[(c.start, max(c.start, c.stop), c.step) for c in cuts], strict=True
    )
    if keep or starts != (0,) * len(sizes) or stops != sizes or steps != (1,) * len(sizes):
        x = F.slice(x, starts, stops, steps)
    return tagged(F.flip(x, backwards) if backwards else x, dtype)


def _python(c: slice) -> slice:
    """A slice of indices() in a form that Python reads the same way: -1 means "before 0" there."""
    return slice(c.start, None if c.stop < 0 else c.stop, c.step)


@onnx_import("Expand")
def expand(ctx: Any, node: Any, x: Any, shape: Any) -> Any:
    """x stretched; sizes of 1 in the shape keep those of x."""
    wanted = np.broadcast_shapes(shape_of(x), ints(shape, "shape"))
    return broadcast(x, check_size(wanted), ctx.open and isinstance(shape, Sized))


@onnx_import("Tile")
def tile(ctx: Any, node: Any, x: Any, repeats: Any, axis: Any = None) -> Any:
    """x repeated along its axes."""
    times = ints(repeats, "repeats")
    if axis is not None:  # version 1: one axis
        one = [1] * len(shape_of(x))
        one[scalar(axis)] = times[0]
        times = tuple(one)
    check_size([n * t for n, t in zip(shape_of(x), times, strict=True)])
    return F.tile(x, times) if is_var(x) else np.tile(x, times)


@onnx_import("Pad")
def pad(ctx: Any, node: Any, x: Any, pads: Any = None, value: Any = None, axes: Any = None) -> Any:
    """x enlarged at its ends; negative widths cut off."""
    rank = len(shape_of(x))
    if pads is None:
        widths = node.attributes.get("pads") or node.attributes.get("paddings")
        number = node.attributes.get("value", 0.0)
    else:
        widths, number = ints(pads, "pads"), scalar(value, 0.0, "the constant")
    at = range(rank) if axes is None else [axis_of(a, rank) for a in ints(axes, "axes")]
    if len(widths) != 2 * len(at):
        raise OnnxError(f"has {len(widths)} pads for {len(at)} axes")
    before, after = [0] * rank, [0] * rank
    for i, a in enumerate(at):
        before[a], after[a] = widths[i], widths[i + len(at)]
    keep = ctx.open and isinstance(pads, Sized)
    return padded(x, before, after, node.mode or "constant", number, keep)


def padded(
    x: Any, before: Any, after: Any, mode: str = "constant", value: float = 0.0, keep: bool = False
) -> Any:
    """x with `before` and `after` elements more along every axis.

    Args:
        keep: Record it even where nothing is added, as it may be at some of several sizes.
    """
    cut = [(max(0, -b), n - max(0, -a)) for b, a, n in zip(before, after, shape_of(x), strict=True)]
    for axis, (low, high) in enumerate(cut):
        x = part(x, axis, low, max(low, high))
    widths = [(max(0, b), max(0, a)) for b, a in zip(before, after, strict=True)]
    sizes = shape_of(x)
    check_size([n + b + a for n, (b, a) in zip(sizes, widths, strict=True)])
    if not any(map(any, widths)) and not (keep and is_var(x)):
        return x
    if not is_var(x):
        extra = {"constant_values": value} if mode == "constant" else {}
        return np.pad(x, widths, mode=mode, **extra)  # type: ignore[call-overload]
    if mode == "wrap":
        for axis, (b, a) in enumerate(widths):
            if b or a:
                index = np.arange(-b, sizes[axis] + a) % sizes[axis]
                x = F.gather(x, var(index), axis=axis)
        return x
    flat = [w for pair in widths for w in pair]
    ours = {"constant": "constant", "reflect": "reflect", "edge": "repeat"}.get(mode)
    if ours is None:
        raise OnnxError(f"mode is {mode!r}, wanted constant, reflect, edge or wrap")
    return F.pad(x, flat, mode=ours, constant_value=float(value))


@onnx_import("Cast")
def cast(ctx: Any, node: Any, x: Any) -> Any:
    """x in another element type."""
    to = node.to
    if isinstance(to, str):  # version 1
        from onnx import TensorProto

        to = TensorProto.DataType.Value(to.upper())
    dtype = dtype_of_code(to, "to")
    if dtype.name == "float8_e8m0fnu" and known(x):
        from onnx.numpy_helper import to_float8e8m0

        how = getattr(node, "round_mode", "up")
        return to_float8e8m0(array(x).astype(np.float32), bool(node.saturate), how).astype(dtype)
    return cast_to(x, dtype, getattr(node, "saturate", 1))


def cast_to(x: Any, dtype: Any, saturate: int = 1) -> Any:
    """x as this type; what is not a float becomes an array as soon as it is known."""
    old = dtype_of(x)
    if old == dtype:
        return x
    if is_var(x) and is_float(dtype):
        if known(x) and dtype.itemsize < 4 and not x.need_grad:  # round as the type does
            return _convert(array(x), dtype, saturate)
        return tagged(x, dtype)
    if known(x):
        return _convert(array(x), dtype, saturate)
    if dtype.kind == "O":
        raise OnnxError("makes strings of numbers that only a run knows")
    if dtype.kind == "b":
        return tagged(F.not_equal_scalar(x, 0.0), dtype)
    cut = x if not is_float(old) else F.sign(x, 0.0) * F.floor(F.abs(x))
    return tagged(cut, dtype)


def _convert(x: Any, dtype: Any, saturate: int) -> Any:
    if x.dtype.kind == "O":
        return x.astype(np.float64).astype(dtype) if dtype.kind == "f" else x.astype(dtype)
    if dtype.kind == "O":
        if is_float(x.dtype):
            return np.array([f"{v:.9g}" for v in x.reshape(-1)], object).reshape(x.shape)
        return x.astype(str).astype(object)
    if dtype.name.startswith("float8") and saturate:
        import ml_dtypes

        top = float(ml_dtypes.finfo(dtype).max)
        wide = x.astype(np.float32)
        kept = np.clip(wide, -top, top)
        return np.where(np.isnan(wide), np.nan, kept).astype(np.float32).astype(dtype)
    if is_float(x.dtype) and dtype.kind in "iu" and dtype.itemsize < 4:
        return x.astype(np.float32).astype(np.int64).astype(dtype)
    if dtype.name.endswith("int4") or dtype.name.endswith("int2"):
        return x.astype(np.int8 if dtype.name.startswith("i") else np.uint8).astype(dtype)
    with np.errstate(invalid="ignore"):  # of infinities, which are any whole number
        return x.astype(dtype)


@onnx_import("Range")
def range_(ctx: Any, node: Any, start: Any, limit: Any, delta: Any) -> Any:
    """start, start + delta, ... below limit."""
    a, b, step = (array(v, "a bound").reshape(()) for v in (start, limit, delta))
    if step == 0:
        raise OnnxError("has a step of 0")
    n = max(0, math.ceil((b.item() - a.item()) / step.item()))
    check_size((n,))
    return (a + np.arange(n).astype(a.dtype) * step).astype(a.dtype)


@onnx_import("EyeLike")
def eye_like(ctx: Any, node: Any, x: Any) -> Any:
    """Ones on a diagonal of a matrix of the size of x."""
    dtype = dtype_of(x) if node.dtype is None else dtype_of_code(node.dtype, "dtype")
    return np.eye(*shape_of(x), k=node.k, dtype=dtype)


@onnx_import("Trilu")
def trilu(ctx: Any, node: Any, x: Any, k: Any = None) -> Any:
    """The upper or lower triangle of matrices."""
    k = int(scalar(k, 0, "k"))
    if is_var(x):
        return F.trilu(x, k=k, upper=bool(node.upper))
    return np.triu(x, k) if node.upper else np.tril(x, k)


@onnx_import("DepthToSpace")
def depth_to_space(ctx: Any, node: Any, x: Any) -> Any:
    """Blocks of channels become blocks of pixels."""
    n, c, h, w = shape_of(x)
    b = node.blocksize
    if (getattr(node, "mode", None) or "DCR") == "DCR":
        y = transpose(reshape(x, (n, b, b, c // b**2, h, w)), (0, 3, 4, 1, 5, 2))
    else:
        y = transpose(reshape(x, (n, c // b**2, b, b, h, w)), (0, 1, 4, 2, 5, 3))
    return reshape(y, (n, c // b**2, h * b, w * b))


@onnx_import("SpaceToDepth")
def space_to_depth(ctx: Any, node: Any, x: Any) -> Any:
    """Blocks of pixels become blocks of channels."""
    n, c, h, w = shape_of(x)
    b = node.blocksize
    y = reshape(x, (n, c, h // b, b, w // b, b))
    crd = getattr(node, "mode", None) == "CRD"
    y = transpose(y, (0, 1, 3, 5, 2, 4) if crd else (0, 3, 5, 1, 2, 4))
    return reshape(y, (n, c * b * b, h // b, w // b))
