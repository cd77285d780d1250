# SPDX-License-Identifier: Apache-2.0
"""Importers of control flow, sequences and optional values."""

from __future__ import annotations

from typing import Any

import numpy as np

import nnl.functions as F
from nnl.converters.onnx.file.errors import OnnxError
from nnl.converters.onnx.file.registry import Handler, onnx_import
from nnl.converters.onnx.importing.control_values import (
    chosen_by_value,
    counted_trips,
    joined_rows,
    loop_by_value,
    loop_over_rows,
    number_of,
    scan_rows,
    take_row,
)
from nnl.converters.onnx.importing.shape import joined, part
from nnl.converters.onnx.values.values import (
    Rows,
    Sized,
    array,
    axis_of,
    dtype_of,
    ints,
    is_float,
    is_var,
    known,
    reshape,
    scalar,
    shape_of,
    tagged,
    var,
)


@onnx_import("If")
def if_(ctx: Any, node: Any, condition: Any) -> Any:
    """One of two subgraphs."""
    if not known(condition):
        return chosen_by_value(ctx, node, condition)
    chosen = bool(scalar(condition, what="the condition"))
    return ctx.run_inside(node.then_branch if chosen else node.else_branch, ())


def stacked(values: list[Any], axis: int, info: Any = None) -> Any:
    """Values of one shape along a new axis; none give an empty array of the type in `info`."""
    if not values:
        sizes = [n if isinstance(n, int) else 0 for n in (info.shape or ())] if info else []
        sizes.insert(axis if axis >= 0 else len(sizes) + 1 + axis, 0)
        return np.zeros(sizes, (info.dtype if info else None) or np.float32)
    axis = axis_of(axis, len(shape_of(values[0])) + 1)
    if all(map(known, values)) and not is_float(dtype_of(values[0])):
        return np.stack([array(v) for v in values], axis)
    if not any(map(is_var, values)):
        return np.stack(values, axis)
    return tagged(F.stack(*map(var, values), axis=axis), dtype_of(values[0]))


@onnx_import("Loop")
def loop(ctx: Any, node: Any, trips: Any, condition: Any, *state: Any) -> Any:
    """A subgraph again and again, as often as `trips` and the condition say."""
    body = node.body
    if not (known(trips) and known(condition)):
        return loop_by_value(ctx, node, trips, condition, state)
    limit = None if trips is None else int(scalar(trips, what="the trip count"))
    going = True if condition is None else bool(scalar(condition, what="the condition"))
    values, n = list(state), len(state)
    if ctx.open:
        count, sized = counted_trips(ctx, body, limit, going, values)
        if count is None and isinstance(trips, Sized):
            return loop_by_value(ctx, node, trips, condition, state)
        if count is not None and (sized or isinstance(trips, Sized)):  # other sizes, other trips
            return loop_over_rows(ctx, node, count, state)
    collected: list[list[Any]] = [[] for _ in body.outputs[1 + n :]]
    turn = 0
    while going and (limit is None or turn < limit):
        outs = ctx.run_inside(body, [np.array(turn, np.int64), np.array(going), *values])
        values = outs[1 : 1 + n]
        for many, one in zip(collected, outs[1 + n :], strict=True):
            many.append(one)
        turn += 1
        if outs[0] is not None and (limit is None or turn < limit):
            if not known(outs[0]):
                if any(map(_changes, state, values)):  # these trips are apart from the others
                    return loop_by_value(ctx, node, trips, outs[0], values, turn)
                return loop_by_value(ctx, node, trips, condition, state)
            going = bool(scalar(outs[0], what="the condition"))
    infos = body.outputs[1 + n :]
    return [*values, *(stacked(c, 0, i) for c, i in zip(collected, infos, strict=True))]


def _changes(old: Any, new: Any) -> bool:
    """Whether a value of a loop gets another shape, as some do in the first trip."""
    return hasattr(old, "shape") and hasattr(new, "shape") and shape_of(old) != shape_of(new)


def _scanned(node: Any, values: Any) -> int:
    m = int(node.num_scan_inputs)
    if not 1 <= m <= len(values):
        raise OnnxError(f"num_scan_inputs is {m}, and there are {len(values)} inputs")
    return m


@onnx_import("Scan", since=9)
def scan(ctx: Any, node: Any, *values: Any) -> Any:
    """A subgraph for every slice of its inputs, with a state that goes from one to the next."""
    m = _scanned(node, values)
    n = len(values) - m
    state, many = list(values[:n]), values[n:]
    outs = len(node.body.outputs) - n
    in_axes = node.scan_input_axes or (0,) * m
    return _scan(
        ctx,
        node.body,
        state,
        many,
        [axis_of(a, len(shape_of(v))) for a, v in zip(in_axes, many, strict=True)],
        node.scan_input_directions or (0,) * m,
        node.scan_output_axes or (0,) * outs,
        node.scan_output_directions or (0,) * outs,
    )


def _scan(
    ctx: Any, body: Any, state: Any, many: Any, axes: Any, backwards: Any, to: Any, to_back: Any
) -> list[Any]:
    lengths = {shape_of(v)[a] for v, a in zip(many, axes, strict=True)}
    if len(lengths) != 1:
        raise OnnxError(f"scans inputs of different lengths {sorted(lengths)}")
    (length,) = lengths
    n = len(state)
    if ctx.open:
        return scan_rows(ctx, body, state, many, axes, backwards, to, to_back)
    collected: list[list[Any]] = [[] for _ in body.outputs[n:]]
    for t in range(length):
        slices = []
        for v, a, back in zip(many, axes, backwards, strict=True):
            i = length - 1 - t if back else t
            sizes = shape_of(v)
            slices.append(reshape(part(v, a, i, i + 1), sizes[:a] + sizes[a + 1 :]))
        outs = ctx.run_inside(body, [*state, *slices])
        state = outs[:n]
        for c, one in zip(collected, outs[n:], strict=True):
            c.append(one)
    results = []
    for c, info, axis, back in zip(collected, body.outputs[n:], to, to_back, strict=True):
        results.append(stacked(c[::-1] if back else c, axis, info))
    return [*state, *results]


@onnx_import("Scan")
def scan_8(ctx: Any, node: Any, lengths: Any, *values: Any) -> Any:
    """Version 8: a batch axis in front, and a length for every sample."""
    m = _scanned(node, values)
    n = len(values) - m
    back = node.directions or (0,) * m
    batch = shape_of(values[-1])[0]
    ends = None if lengths is None else ints(lengths, "sequence_lens")
    per_sample = []
    for b in range(batch):
        one = [reshape(part(v, 0, b, b + 1), shape_of(v)[1:]) for v in values]
        state, many = one[:n], one[n:]
        if ends is not None:
            many = [part(v, 0, 0, ends[b]) for v in many]
        outs = len(node.body.outputs) - n
        per_sample.append(_scan(ctx, node.body, state, many, [0] * m, back, [0] * outs, [0] * outs))
    return [stacked(list(column), 0) for column in zip(*per_sample, strict=True)]


# ---- sequences ----


def _place(position: Any, count: int, default: int) -> int:
    at = default if position is None else int(scalar(position, what="the position"))
    if not -count <= at <= count:
        raise OnnxError(f"position {at} is outside a sequence of {count}")
    return at + count if at < 0 else at


@onnx_import("SequenceInsert")
def sequence_insert(ctx: Any, node: Any, sequence: Any, value: Any, position: Any = None) -> Any:
    """A sequence with one value more."""
    if isinstance(sequence, Rows) and sequence.rows is None and position is None:
        return (Rows([*sequence.added, value]),)
    at = _place(position, len(sequence), len(sequence))
    return ([*sequence[:at], value, *sequence[at:]],)


@onnx_import("SequenceErase")
def sequence_erase(ctx: Any, node: Any, sequence: Any, position: Any = None) -> Any:
    """A sequence with one value less."""
    at = _existing(position, len(sequence))
    return ([*sequence[:at], *sequence[at + 1 :]],)


def _existing(position: Any, count: int) -> int:
    at = _place(position, count, count - 1)
    if not 0 <= at < count:
        raise OnnxError(f"position {at} is outside a sequence of {count}")
    return at


@onnx_import("SequenceAt")
def sequence_at(ctx: Any, node: Any, sequence: Any, position: Any) -> Any:
    """One value of a sequence."""
    if isinstance(sequence, Rows) and sequence.rows is not None:
        return take_row(sequence.rows, position)
    return (sequence[_existing(position, len(sequence))],)


@onnx_import("SequenceLength")
def sequence_length(ctx: Any, node: Any, sequence: Any) -> Any:
    """How many values a sequence has."""
    if isinstance(sequence, Rows) and sequence.rows is not None:
        return number_of(sequence.rows)
    return np.array(len(sequence), np.int64)


@onnx_import("ConcatFromSequence")
def concat_from_sequence(ctx: Any, node: Any, sequence: Any) -> Any:
    """The values of a sequence joined along an axis, which may be a new one."""
    if isinstance(sequence, Rows) and sequence.rows is not None:
        return joined_rows(sequence.rows, node.axis, bool(node.new_axis))
    if node.new_axis:
        return stacked(sequence, node.axis)
    return joined(sequence, axis_of(node.axis, len(shape_of(sequence[0]))))


@onnx_import("SplitToSequence")
def split_to_sequence(ctx: Any, node: Any, x: Any, sizes: Any = None) -> Any:
    """x cut along an axis into a sequence."""
    axis = axis_of(node.axis, len(shape_of(x)))
    total = shape_of(x)[axis]
    if sizes is None:
        widths = (1,) * total
    elif shape_of(sizes) == ():
        width = int(scalar(sizes, what="split"))
        if width < 1:
            raise OnnxError(f"split is {width}, wanted at least 1")
        widths = tuple(min(width, total - i) for i in range(0, total, width))
    else:
        widths = ints(sizes, "split")
    if sum(widths) != total or min(widths, default=0) < 0:
        raise OnnxError(f"cuts the size {total} into {widths}")
    ends = np.cumsum((0, *widths))
    out = [part(x, axis, int(a), int(b)) for a, b in zip(ends[:-1], ends[1:], strict=True)]
    if sizes is None and not node.keepdims:
        kept = shape_of(x)[:axis] + shape_of(x)[axis + 1 :]
        out = [reshape(v, kept) for v in out]
    return (out,)


@onnx_import("SequenceMap")
def sequence_map(ctx: Any, node: Any, sequence: Any, *more: Any) -> Any:
    """A subgraph for every value of a sequence."""
    results: list[list[Any]] = [[] for _ in node.body.outputs]
    for i, value in enumerate(sequence):
        rest = [v[i] if isinstance(v, list) else v for v in more]
        for many, one in zip(results, ctx.run_inside(node.body, [value, *rest]), strict=True):
            many.append(one)
    return tuple(results)


@onnx_import("OptionalGetElement")
def optional_get_element(ctx: Any, node: Any, x: Any) -> Any:
    """The value of an optional."""
    if x is None:
        raise OnnxError("the optional is empty")
    return (x,)


# ---- operators that are one expression ----

_EXPRESSIONS: dict[str, Handler] = {
    "SequenceEmpty": lambda ctx, node: ([],),
    "SequenceConstruct": lambda ctx, node, *values: (list(values),),
    "Optional": lambda ctx, node, x=None: (x,),
    "OptionalHasElement": lambda ctx, node, x=None: np.array(x is not None),
}

for _names, _expression in _EXPRESSIONS.items():
    onnx_import(*_names.split())(_expression)
