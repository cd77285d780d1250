# SPDX-License-Identifier: Apache-2.0
"""Recording at several sizes: what an open program is made of, and how its graphs become alike."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import count
from math import gcd
from typing import Any, NamedTuple, TypeVar

import numpy as np

from nnl.core.graph.node import Node, Value, capture
from nnl.core.graph.variable import Variable
from nnl.core.ops.op import OPS
from nnl.core.settings.context import using
from nnl.ext.library import AtAnySize, Library
from nnl.graph.program.open_program import Differ, unified
from nnl.graph.program.program import Program
from nnl.graph.program.sizes import WITNESSES, Dim, Unexplained, wider, witnesses

Variables = Mapping[str, Variable]
Axes = Mapping[str, Sequence[str | int | None]]  # {input: the dim of each axis, if it is open}
Array = np.ndarray[Any, Any]
Build = Callable[[Mapping[str, int]], tuple[Variables, Variables]]
Pass = Callable[[Program, Any], None]
ROOM = 1 << 20  # numbers between those of two nodes, for new ones
NUMBERS = 64  # of an array that are explained one by one
# (of what sizes are multiples, how large they are, how far apart in multiples)
ATTEMPTS = (
    (1, 1, 40), (1, 4, 40), (1, 16, 40), (1, 1, 12), (2, 2, 24), (8, 1, 16),
    (32, 1, 10), (32, 4, 10),
)  # fmt: skip
ASKED = 32  # sizes that tell which of several expressions a number is
MULTIPLES = (1, 2, 4, 8, 16)
UNBUILT = (
    ValueError,
    TypeError,
    IndexError,
    ArithmeticError,
)  # of sizes that a network does not take
T = TypeVar("T")


class OpenGraphs(NamedTuple):
    """A graph at several sizes.

    Attributes:
        dims: Open sizes by name. sizes: Those of each graph.
        axes: Which axes of which inputs they are.
        graphs: Outputs and inputs by name, of each.
    """

    dims: dict[str, Dim]
    sizes: list[dict[str, int]]
    axes: Axes
    graphs: list[tuple[Variables, Variables]]


def record_open(
    build: Build,
    dims: Mapping[str, Dim],
    axes: Axes,
    ranged: Collection[str],
    use: Callable[[OpenGraphs], T],
    attempts: Sequence[tuple[int, int, int]] = ATTEMPTS,
    count: int = WITNESSES,
    greatest: bool = False,
) -> T:
    """Record a graph at the witnesses of its sizes, and at wider ones that must agree with them.

    Small sizes may be special ones, and graphs may be alike at multiples only: larger ones are
    tried where the first do not do, then multiples of powers of two, the least for each dim.

    Args:
        build: Gives outputs and inputs for sizes.
        ranged: Names of the dims whose range somebody has given.
        use: What makes something of the graphs.
        attempts: See ATTEMPTS. count: Of witnesses.
        greatest: Whether the last graph is that of the greatest sizes, where there are such.
    Returns:
        What `use` returns.
    Raises:
        ValueError: The graph cannot be built at other sizes, or `use` does not take what is built;
            the text is that of the first try.
    """
    error: Exception | None = None
    free = [n for n in dims if n not in ranged]
    left = ASKED

    def tried(multiples: Mapping[str, int], scale: int, span: int) -> T | None:
        nonlocal error, left
        found = {n: d._replace(multiple=multiples.get(n, d.multiple)) for n, d in dims.items()}
        asked: list[dict[str, int]] = []
        while True:
            sizes = [*witnesses(found, scale, span, count), *asked]
            try:
                opened = OpenGraphs(found, sizes, axes, [build(s) for s in sizes])
                small = witnesses(found, 1, span, count) if asked and scale > 1 else []
                for more in [*wider(found, sizes[:count]), *small]:
                    with suppress(*UNBUILT):  # a network may have a bound
                        opened.graphs.append(build(more))
                        sizes.append(more)
                if greatest:
                    most = {
                        n: (d.greatest or d.example) // d.multiple * d.multiple
                        for n, d in found.items()
                    }
                    opened.graphs.append(build(most))
                    sizes.append(most)
                compute_constants(opened)
                return use(opened)
            except UNBUILT as e:
                ask = e.ask if isinstance(e, Unexplained) else {}
                if not ask or not left:
                    error = error or e
                    return None
                left -= 1
                asked.append({**sizes[0], **ask})

    for multiple, scale, span in attempts:
        if isinstance(error, Differ) or (error is not None and multiple > 1 and not free):
            raise error  # other steps at odd or small sizes are nothing to hide
        least = {n: gcd(multiple, dims[n].example) for n in free}
        found = tried(least, scale, span)
        if found is not None:
            break
    else:
        assert error is not None
        raise error
    for name in free:
        for fewer in [m for m in MULTIPLES if m < least[name]]:
            better = tried({**least, name: fewer}, scale, span)
            if better is not None:
                found, least[name] = better, fewer
                break
    return found


# ---- arrays that hold sizes ----


def compute_constants(opened: OpenGraphs) -> None:
    """Replace arrays that depend on the sizes, such as numbers of positions, by functions.

    Raises:
        Differ: The graphs have other functions. Unexplained: No simple function gives an array.
    """
    graphs = [capture([v.edge for v in outputs.values()]) for outputs, _ in opened.graphs]
    if any([n.op.name for n in g] != [n.op.name for n in graphs[0]] for g in graphs):
        return  # the comparison of the programs says where
    for first, second in zip(graphs[0], graphs[1], strict=True):
        if first is second:
            raise Differ(
                f"{first.label} was called outside of the function that is recorded: call it "
                "there, or give its result as an input"
            )
    for node in (n for g in graphs for n in g):
        node.seq *= ROOM
    known = {v.edge.key for v in opened.graphs[0][1].values()}
    made: dict[Any, list[Value]] = {}
    numbers = count(1)
    with using(auto_forward=False):
        for nodes in zip(*graphs, strict=True):
            _replace(nodes, known, made, numbers)


def _replace(
    nodes: Sequence[Node], known: set[Any], made: dict[Any, list[Value]], numbers: Iterator[int]
) -> None:
    first = nodes[0]
    for i, edges in enumerate(zip(*[n.inputs for n in nodes], strict=True)):
        leaf = edges[0]
        if leaf is None or leaf.key in known or any(v.node is not None for v in edges):
            continue
        if i in first.op.written(first.attrs):
            if len({v.current_spec for v in edges}) > 1:
                raise Differ(
                    f"{first.label} writes an array of the shapes "
                    f"{', '.join(str(v.current_spec.shape) for v in edges)}: what is kept from run "
                    "to run has one size"
                )
            continue
        if leaf.key not in made:
            if all(v.array.bufs is leaf.array.bufs for v in edges):
                continue
            arrays = [v.array.read("host") for v in edges]
            if all(_equal(arrays[0], a) for a in arrays[1:]):
                continue
            computed = _computed(arrays)
            if computed is None:
                what = first.op.inputs[min(i, len(first.op.inputs) - 1)]
                raise Unexplained(
                    f"{first.label}: {what} is an array of the shapes "
                    f"{', '.join(str(a.shape) for a in arrays)} that depends on open sizes: "
                    "compute it with functions of nnl"
                )
            made[leaf.key] = computed
            for node, value in zip(nodes, made[leaf.key], strict=True):
                for new in capture([value]):  # just before who reads it: sizes are known by then
                    new.seq = node.seq - ROOM + next(numbers)
        for node, value in zip(nodes, made[leaf.key], strict=True):
            node.inputs = (*node.inputs[:i], value, *node.inputs[i + 1 :])


def _equal(a: Array, b: Array) -> bool:
    return a.shape == b.shape and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")


def evenly_spaced(arrays: Sequence[Array]) -> tuple[Array, dict[int, Array]] | None:
    """(base, {axis: step}) if entry n along the axes that move is base + n step in all arrays."""
    axes = _moving(arrays)
    spaced = _spaced(arrays, axes)
    if spaced is None or not all(_alike(parts) for parts in spaced):
        return None
    base, *steps = [parts[0] for parts in spaced]
    found = {axis: step for axis, step in zip(axes, steps, strict=True) if step.any()}
    return base.astype(arrays[0].dtype), found


def _moving(arrays: Sequence[Array]) -> list[int]:
    return [i for i in range(arrays[0].ndim) if len({a.shape[i] for a in arrays}) > 1]


def _spaced(arrays: Sequence[Array], axes: Sequence[int]) -> list[list[Array]] | None:
    """The first entries along some axes, then the steps along each, of all arrays."""
    if arrays[0].dtype.kind not in "fiub" or len({a.ndim for a in arrays}) > 1:
        return None
    found: list[list[Any]] = [[] for _ in range(1 + len(axes))]
    for a in arrays:
        exact = a.astype(np.float64)
        corner = exact[tuple([slice(1) if i in axes else slice(None) for i in range(a.ndim)])]
        want = corner
        steps: list[Array | None] = []
        for axis in axes:
            index = [slice(1) if i in axes else slice(None) for i in range(a.ndim)]
            index[axis] = slice(1, 2)
            step = exact[tuple(index)] - corner if a.shape[axis] > 1 else None
            steps.append(step)
            if step is not None:
                count = np.arange(a.shape[axis]).reshape(_along(axis, a.shape[axis], a.ndim))
                want = want + step * count
        moves = [corner, *[s for s in steps if s is not None]]
        if a.dtype.kind == "f" and any(map(np.any, moves[1:])) and not _whole(moves):
            return None  # steps of floats are not exact
        if not _equal(np.broadcast_to(want, a.shape).astype(a.dtype), a):
            return None
        if any(map(np.any, moves[1:])) and np.abs(want).max() >= 1 << 24:
            return None
        for parts, part in zip(found, [corner, *steps], strict=True):
            parts.append(part)
    for parts in found[1:]:
        known = [p for p in parts if p is not None]
        if len(known) < len(parts):  # an axis of one entry has any step
            if not known or not _alike(known):
                return None
            parts[:] = [known[0]] * len(parts)
    return found


def _along(axis: int, n: int, rank: int) -> tuple[int, ...]:
    return tuple([n if i == axis else 1 for i in range(rank)])


def _alike(arrays: Sequence[Array]) -> bool:
    return all(_equal(arrays[0], a) for a in arrays[1:])


def _whole(arrays: Sequence[Array]) -> bool:
    return all(np.array_equal(a, np.rint(a)) for a in arrays)


def _computed(arrays: Sequence[Array]) -> list[Value] | None:
    """The arrays as functions of sizes: base + n step along axes, or a few numbers."""
    moving = _moving(arrays)
    every = [i for i in range(arrays[0].ndim) if any(a.shape[i] > 1 for a in arrays)]
    tried = [(axes, _spaced(arrays, axes)) for axes in (moving, every)]
    (_, first), (_, second) = tried
    if first is not None and (second is None or all(map(_alike, first))):
        tried = tried[:1]
    axes, spaced = tried[-1]
    if spaced is None or any(not _alike(p) and p[0].size > NUMBERS for p in spaced):
        return None
    found = []
    for k, a in enumerate(arrays):
        y, *steps = [_given(parts, k) for parts in spaced]
        if axes:
            y = OPS["broadcast"](y, shape=a.shape)
        for axis, parts, step in zip(axes, spaced[1:], steps, strict=True):
            if not any(map(np.any, parts)):
                continue
            shape = _along(axis, n := a.shape[axis], a.ndim)
            count = OPS["reshape"](OPS["arange"](start=0.0, stop=float(n)), shape=shape)
            y = y + count * step
        if a.dtype != np.float32:
            y = OPS["cast"](y, dtype=str(a.dtype))
        found.append(y.edge)
    return found


def _given(arrays: Sequence[Array], k: int) -> Variable:
    """One of some arrays: as it is where all are alike, else its numbers, which are sizes."""
    a = arrays[k]
    if _alike(arrays):
        return Variable.from_numpy_array(a.astype(np.float32))
    numbers = [OPS["constant"](val=float(n), shape=(1,)) for n in a.flat]
    y = numbers[0] if len(numbers) == 1 else OPS["concatenate"](*numbers, axis=0)
    return OPS["reshape"](y, shape=a.shape)  # type: ignore[no-any-return]


# ---- programs ----


def unify_with_passes(
    programs: Sequence[Program],
    opened: OpenGraphs,
    lib: Library | None,
    passes: Sequence[Pass],
) -> Program:
    """One open program of those of all graphs, after the passes that do the same at all sizes.

    Raises:
        ValueError: The programs are not one; the text says where.
    """

    def unify(found: Sequence[Program]) -> Program:
        return unified(found, opened.dims, opened.sizes, opened.axes)

    def passed(found: Sequence[Program], some: Sequence[Pass]) -> Sequence[Program]:
        """After those of some passes that do not decide by the sizes, which few do."""
        tried = [p.copy() for p in found]
        for p in tried:
            for rewrite in some:
                rewrite(p, at_any)
        try:
            unify(tried)
        except (Differ, Unexplained):
            half = len(some) // 2
            return passed(passed(found, some[:half]), some[half:]) if half else found
        return tried

    unify(programs)
    at_any = AtAnySize(lib) if lib is not None else None
    if at_any is not None and passes:
        programs = passed(programs, passes)
    return unify(programs)  # programs inside are shared
