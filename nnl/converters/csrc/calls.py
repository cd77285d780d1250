# SPDX-License-Identifier: Apache-2.0
"""How each function is said in C: as loops, or as calls of kernels."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from nnl.converters.csrc.loops import (
    COPY,
    Call,
    Key,
    Loop,
    Pattern,
    Read,
    Sizes,
    Window,
    Work,
    Written,
    dense,
    instructions,
    stretched,
)
from nnl.core.graph.node import Node
from nnl.core.ops.elementwise import is_elementwise, program_of

KERNELS = Path(__file__).parent / "kernels"
Steps = Iterator[Loop | Call]
Say = Callable[[Node], Steps]

SAY: dict[str, Say] = {}
REFUSES: dict[str, Callable[[Node], str | None]] = {}  # what the calls cannot do with arguments

_PANEL = {  # sizes that the kernels have their panels in
    name: int(re.search(rf"{name} = (\d+)", (KERNELS / "product.h").read_text())[1])  # type: ignore[index]
    for name in ("NNL_PANEL_ROWS", "NNL_PANEL_COLUMNS")
}


def says(*names: str, refuses: Callable[[Node], str | None] | None = None) -> Callable[[Say], Say]:
    """Register how functions are said, and for which arguments they are not."""

    def register(say: Say) -> Say:
        for name in names:
            SAY[name] = say
            if refuses is not None:
                REFUSES[name] = refuses
        return say

    return register


def _whole_remainder(node: Node) -> str | None:
    whole = node.inputs[0].current_spec.dtype.kind in "iu"  # type: ignore[union-attr]
    return "of whole numbers it has the sign of the divisor" if whole else None


REFUSES["mod2"] = lambda node: None if node.attrs.fmod else _whole_remainder(node)


def has(name: str) -> bool:
    """Whether C can say a function, if not with all arguments."""
    return name in SAY or is_elementwise(name)


def steps_of(node: Node) -> Steps:
    """What a function is in C."""
    if node.op.name in SAY:
        yield from SAY[node.op.name](node)
        return
    space = node.out_specs[0].shape
    shapes = [v.current_spec.shape for v in node.inputs if v is not None]
    program = program_of(node.op.name, node.attrs.as_dict(), shapes)
    assert program is not None
    keys = [v.key for v in node.inputs if v is not None]
    patterns = [stretched(s, len(space)) for s in program.shapes]
    reads = tuple(zip(keys, patterns, strict=True))
    yield Loop(space, reads, instructions(program), ((id(node), 0), dense(space))).of_used()


# ---- what a node is called with ----


def _shape(node: Node, i: int = 0) -> tuple[int, ...]:
    return node.inputs[i].current_spec.shape  # type: ignore[union-attr]


def _key(node: Node, i: int = 0) -> Key:
    return node.inputs[i].key  # type: ignore[union-attr]


def _in(node: Node, i: int = 0) -> Read | None:
    """An input; None where it is left out."""
    given = i < len(node.inputs) and node.inputs[i] is not None
    return Read(_key(node, i)) if given else None


def _out(node: Node, i: int = 0) -> Written:
    return Written((id(node), i))


def _around(shape: Sequence[int], axis: int) -> tuple[int, int, int]:
    """A shape as (what is before an axis, the axis, what is after it)."""
    return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])


# ---- what only moves elements ----


def _moved(space: Sequence[int], x: Key, read: Pattern, y: Key, write: Pattern) -> Loop:
    return Loop(tuple(space), ((x, read),), COPY, (y, write))


def _read(node: Node, pattern: Pattern) -> Loop:
    """The output, whose elements come from one input."""
    space = node.out_specs[0].shape
    return _moved(space, _key(node), pattern, (id(node), 0), dense(space))


def _filled(node: Node, value: float) -> Loop:
    space = node.out_specs[0].shape
    return Loop(space, (), (("copy", (value,)),), ((id(node), 0), dense(space)))


@says("constant")
def _constant(node: Node) -> Steps:
    yield _filled(node, node.attrs.val)


@says("reshape", "identity", "unlink")
def _same(node: Node) -> Steps:
    yield _read(node, dense(node.out_specs[0].shape))


@says("transpose")
def _transpose(node: Node) -> Steps:
    strides = dense(_shape(node)).strides
    yield _read(node, Pattern(tuple(strides[a] for a in node.attrs.axes)))


@says("slice")
def _slice(node: Node) -> Steps:
    shape = _shape(node)
    region = node.attrs.region(shape)
    parts = [r.indices(n) for r, n in zip(region, shape, strict=True)]
    yield _read(node, _part(shape, [(start, step) for start, _, step in parts]))


@says("flip")
def _flip(node: Node) -> Steps:
    shape = _shape(node)
    flipped = {a % len(shape) for a in node.attrs.axes}
    yield _read(
        node, _part(shape, [(n - 1, -1) if i in flipped else (0, 1) for i, n in enumerate(shape)])
    )


def _part(shape: Sequence[int], parts: Sequence[tuple[int, int]]) -> Pattern:
    """Every step-th element from a start on, along each axis."""
    pairs = list(zip(dense(shape).strides, parts, strict=True))
    return Pattern(tuple(s * step for s, (_, step) in pairs), sum(s * at for s, (at, _) in pairs))


@says("matrix_diag_part")
def _diagonal(node: Node) -> Steps:
    *rest, _, inner = dense(_shape(node)).strides
    yield _read(node, Pattern((*rest, _shape(node)[-1] + inner)))


@says("matrix_diag")
def _diagonal_matrix(node: Node) -> Steps:
    y = node.out_specs[0].shape
    yield _filled(node, 0.0)
    *rest, _, inner = dense(y).strides
    into = Pattern((*rest, y[-1] + inner))
    yield _moved(_shape(node), _key(node), dense(_shape(node)), (id(node), 0), into)


@says("pad", refuses=lambda n: None if n.attrs.mode == "constant" else "of its mode")
def _pad(node: Node) -> Steps:
    shape, y = _shape(node), node.out_specs[0].shape
    yield _filled(node, node.attrs.constant_value)
    before = [w for w, _ in node.attrs.widths(len(shape))]
    into = _part(y, [(w, 1) for w in before])
    yield _moved(shape, _key(node), dense(shape), (id(node), 0), into)


@says("concatenate")
def _concatenate(node: Node) -> Steps:
    y = dense(node.out_specs[0].shape)
    axis, at = node.attrs.axis % len(y.strides), 0
    for i in range(len(node.inputs)):
        shape = _shape(node, i)
        into = Pattern(y.strides, at * y.strides[axis])
        yield _moved(shape, _key(node, i), dense(shape), (id(node), 0), into)
        at += shape[axis]


@says("stack")
def _stack(node: Node) -> Steps:
    strides = dense(node.out_specs[0].shape).strides
    axis = node.attrs.axis % len(strides)
    kept = strides[:axis] + strides[axis + 1 :]
    for i in range(len(node.inputs)):
        shape, into = _shape(node, i), Pattern(kept, i * strides[axis])
        yield _moved(shape, _key(node, i), dense(shape), (id(node), 0), into)


@says("split")
def _split(node: Node) -> Steps:
    strides = dense(_shape(node)).strides
    axis = node.attrs.axis % len(strides)
    kept = strides[:axis] + strides[axis + 1 :]
    for i, spec in enumerate(node.out_specs):
        pattern = Pattern(kept, i * strides[axis])
        yield _moved(spec.shape, _key(node), pattern, (id(node), i), dense(spec.shape))


# ---- products ----


_FEW_ROWS = 8  # of a left matrix: copying panels of the right one costs more than it saves


_BEHIND = 16  # floats that nnl_patches may write behind a panel


def _panel(rows: int, columns: int, behind: int = 0, spare: bool = False) -> Work:
    r, c = _PANEL["NNL_PANEL_ROWS"], _PANEL["NNL_PANEL_COLUMNS"]
    return Work(min(rows, r) * min(columns, c) + behind, r * c + behind, spare)


@says("affine")
def _affine(node: Node) -> Steps:
    x, w = _shape(node), _shape(node, 1)
    base = node.attrs.base_axis % len(x)
    m, k = math.prod(x[:base]), math.prod(x[base:])
    n = math.prod(w) // k
    ins = (_in(node), k, 1, _in(node, 1), n, 1, _in(node, 2))
    panel = _panel(k, n, spare=m < _FEW_ROWS)
    yield Call("matmul", (1, m, n, k, *ins, _out(node), panel))


def _no_matmul(node: Node) -> str | None:
    a, b = _shape(node), _shape(node, 1)
    if min(len(a), len(b)) < 2 or a[:-2] != b[:-2]:
        return "its batches stretch"
    return None


@says("batch_matmul", refuses=_no_matmul)
def _batch_matmul(node: Node) -> Steps:
    a, y = node.attrs, node.out_specs[0].shape
    m, n = y[-2:]
    k = _shape(node)[-2 if a.transpose_a else -1]
    left = (1, m) if a.transpose_a else (k, 1)
    right = (1, k) if a.transpose_b else (n, 1)
    count = math.prod(y[:-2])
    ins = (_in(node), *left, _in(node, 1), *right, None)
    panel = _panel(k, n, spare=m < _FEW_ROWS and not a.transpose_b)
    yield Call("matmul", (count, m, n, k, *ins, _out(node), panel))


# ---- windows ----


def _three(values: Sequence[int], fill: int) -> tuple[int, ...]:
    return (fill,) * (3 - len(values)) + tuple(values)


def _no_window(node: Node) -> str | None:
    a = node.attrs
    if getattr(a, "channel_last", False):
        return "the maps are last"
    return None if len(a.pad) <= 3 else f"its windows have {len(a.pad)} axes, wanted at most 3"


def _window(node: Node, image: Sequence[int], out: Sequence[int], kernel: Sequence[int]) -> Window:
    a = node.attrs
    window = Window(
        _three(image, 1),
        _three(out, 1),
        _three(kernel, 1),
        _three(a.stride, 1),
        _three(getattr(a, "dilation", (1,) * len(kernel)), 1),
        _three(a.pad, 0),
    )
    if window.size == window.out and set(kernel) == set(window.stride) == {1}:
        line, one = (1, 1, math.prod(image)), (1, 1, 1)  # a window of one pixel: one long line
        return Window(line, line, one, one, one, (0, 0, 0))
    return window


@says("convolution", refuses=_no_window)
def _convolution(node: Node) -> Steps:
    x, w, y = _shape(node), _shape(node, 1), node.out_specs[0].shape
    base, groups = node.attrs.base_axis, node.attrs.group
    batch, maps, out = math.prod(x[:base]), w[1], w[0] // groups
    window = _window(node, x[base + 1 :], y[base + 1 :], w[2:])
    if maps == 1 and groups > 1:
        found = (batch, groups, out, window, _in(node), _in(node, 1), _in(node, 2), _out(node))
        yield Call("depthwise", found)
        return
    work = _panel(maps * math.prod(w[2:]), math.prod(window.out), _BEHIND)
    ends = (_in(node), _in(node, 1), _in(node, 2), _out(node), work)
    yield Call("convolution", (batch, groups, maps, out, window, *ends))


@says("deconvolution", refuses=_no_window)
def _deconvolution(node: Node) -> Steps:
    a, x, w = node.attrs, _shape(node), _shape(node, 1)
    y, base = node.out_specs[0].shape, node.attrs.base_axis
    batch, maps, out = math.prod(x[:base]), x[base] // a.group, w[1]
    window = _window(node, y[base + 1 :], x[base + 1 :], w[2:])
    rows, most = out * math.prod(w[2:]), _PANEL["NNL_PANEL_COLUMNS"]
    work = Work(min(math.prod(window.out), most) * rows, most * rows)
    ends = (_in(node), _in(node, 1), _in(node, 2), _out(node), work)
    yield Call("deconvolution", (batch, a.group, maps, out, window, *ends))


@says("max_pooling", "sum_pooling", refuses=_no_window)
def _pooling(node: Node) -> Steps:
    x, y, n = _shape(node), node.out_specs[0].shape, len(node.attrs.kernel)
    at = len(x) - n
    window = _window(node, x[at:], y[at:], node.attrs.kernel)
    yield Call(node.op.name, (math.prod(x[:at]), window, _in(node), _out(node)))


# ---- along axes ----


def _one_run(node: Node) -> tuple[int, int, int] | None:
    """(before, reduced, after) where the reduced axes are beside each other, else None."""
    sizes = [1, 1, 1]
    part = 0
    for i, n in enumerate(_shape(node)):
        if n == 1:
            continue
        reduced = i in node.attrs.axes
        if reduced and part == 0 or not reduced and part == 1:
            part += 1
        if reduced != (part == 1):
            return None
        sizes[part] *= n
    return sizes[0], sizes[1], sizes[2]


def _scattered(node: Node) -> str | None:
    return "its axes are not beside each other" if _one_run(node) is None else None


@says("sum", "prod", refuses=_scattered)
def _reduce(node: Node) -> Steps:
    sizes = _one_run(node)
    assert sizes is not None
    yield Call(node.op.name, (*sizes, _in(node), _out(node)))


@says("max", "min", refuses=_scattered)
def _extreme(node: Node) -> Steps:
    a, sizes = node.attrs, _one_run(node)
    assert sizes is not None
    y = None if a.only_index else _out(node)
    index = _out(node, 0 if a.only_index else 1) if a.only_index or a.with_index else None
    yield Call("extreme", (*sizes, 1 if node.op.name == "max" else -1, _in(node), y, index))


@says("softmax")
def _softmax(node: Node) -> Steps:
    axis = node.attrs.axis % len(_shape(node))
    yield Call("softmax", (*_around(_shape(node), axis), _in(node), _out(node)))


@says("cumsum", "cumprod")
def _scan(node: Node) -> Steps:
    a = node.attrs
    how = (int(node.op.name == "cumprod"), int(a.exclusive), int(a.reverse))
    yield Call("scan", (*_around(_shape(node), a.axis), *how, _in(node), _out(node)))


@says(
    "sort",
    refuses=lambda n: "its axis is too long" if _shape(n)[n.attrs.axis] > 2**24 else None,
)
def _sort(node: Node) -> Steps:
    a, sizes = node.attrs, _around(_shape(node), node.attrs.axis)
    y = None if a.only_index else _out(node)
    index = _out(node, 0 if a.only_index else 1) if a.only_index or a.with_index else None
    yield Call("sort", (*sizes, int(a.reverse), _in(node), y, index, Work(2 * sizes[1])))


# ---- by index ----


@says("gather")
def _gather(node: Node) -> Steps:
    sizes = node.attrs.four_sizes(_shape(node))
    count = math.prod(_shape(node, 1)[node.attrs.batch_dims :])
    yield Call("gather", (*sizes[:3], count, sizes[3], _in(node), _in(node, 1), _out(node)))


@says("embed")
def _embed(node: Node) -> Steps:
    n, *rest = _shape(node, 1)
    sizes = (1, 1, n, math.prod(_shape(node)), math.prod(rest))
    yield Call("gather", (*sizes, _in(node, 1), _in(node), _out(node)))


@says("gather_nd")
def _gather_nd(node: Node) -> Steps:
    x, (m, *counts) = _shape(node), _shape(node, 1)
    sizes = (math.prod(counts), math.prod(x[m:]), m, Sizes(x[:m]))
    yield Call("gather_nd", (*sizes, _in(node), _in(node, 1), _out(node)))


@says("scatter_nd")
def _scatter_nd(node: Node) -> Steps:
    y, (m, *counts) = node.out_specs[0].shape, _shape(node, 1)
    if _in(node, 2) is None:
        yield _filled(node, 0.0)
    else:
        yield _moved(y, _key(node, 2), dense(y), (id(node), 0), dense(y))
    sizes = (math.prod(counts), math.prod(y[m:]), m, Sizes(y[:m]), int(node.attrs.add))
    yield Call("scatter_nd", (*sizes, _in(node), _in(node, 1), _out(node)))


def _narrower(node: Node) -> str | None:
    axis = node.attrs.axis
    x, y = _shape(node), node.out_specs[0].shape
    if x[:axis] + x[axis + 1 :] != y[:axis] + y[axis + 1 :]:
        return "its indices are for a part of the array"
    return None


@says("take_along", refuses=_narrower)
def _take_along(node: Node) -> Steps:
    sizes = _around(_shape(node), node.attrs.axis)
    count = _shape(node, 1)[node.attrs.axis]
    yield Call("take_along", (*sizes, count, _in(node), _in(node, 1), _out(node)))


@says("scatter_along", refuses=_narrower)
def _scatter_along(node: Node) -> Steps:
    sizes = _around(node.attrs.shape, node.attrs.axis)
    count = _shape(node, 1)[node.attrs.axis]
    yield Call("scatter_along", (*sizes, count, _in(node), _in(node, 1), _out(node)))


@says("sample_pixels")
def _sample_pixels(node: Node) -> Steps:
    (batch, maps, pixels), (_, taps, count) = _shape(node), _shape(node, 1)
    ins = (_in(node), _in(node, 1), _in(node, 2))
    yield Call("sample_pixels", (batch, maps, pixels, taps, count, *ins, _out(node)))
