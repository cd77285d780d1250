# SPDX-License-Identifier: Apache-2.0
"""Recording at several sizes: what an open program is made of, and how its graphs become alike."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import count
from math import gcd
from typing import Any, NamedTuple, TypeVar

import numpy as np

from nnl.core.context import using
from nnl.core.graph import Node, Value, capture
from nnl.core.op import OPS
from nnl.core.variable import Variable
from nnl.ext.library import Library
from nnl.graph.open_program import Differ, unified
from nnl.graph.program import Program
from nnl.graph.sizes import Dim, Unexplained, wider, witnesses

Variables = Mapping[str, Variable]
Axes = Mapping[str, Sequence[str | int | None]]  # {input: the dim of each axis, if it is open}
Array = np.ndarray[Any, Any]
Build = Callable[[Mapping[str, int]], tuple[Variables, Variables]]
ROOM = 1 << 20  # numbers between those of two nodes, for new ones
# (of what sizes are multiples, how large they are, how far apart in multiples)
ATTEMPTS = (1, 1, 40), (1, 4, 40), (1, 16, 40), (1, 1, 12), (2, 2, 24), (8, 1, 16), (32, 1, 10)
MULTIPLES = (1, 2, 4, 8, 16)
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
) -> T:
    """Record a graph at the witnesses of its sizes, and at wider ones that must agree with them.

    Small sizes may be special ones, and graphs may be alike at multiples only: larger ones are
    tried where the first do not do, then multiples of powers of two, the least for each dim.

    Args:
        build: Gives outputs and inputs for sizes.
        ranged: Names of the dims whose range somebody has given.
        use: What makes something of the graphs.
    Returns:
        What `use` returns.
    Raises:
        ValueError: The graph cannot be built at other sizes, or `use` does not take what is built;
            the text is that of the first try.
    """
    error: Exception | None = None
    free = [n for n in dims if n not in ranged]

    def tried(multiples: Mapping[str, int], scale: int, span: int) -> T | None:
        nonlocal error
        found = {n: d._replace(multiple=multiples.get(n, d.multiple)) for n, d in dims.items()}
        sizes = witnesses(found, scale, span)
        try:
            opened = OpenGraphs(found, sizes, axes, [build(s) for s in sizes])
            for more in [*wider(found, sizes)]:
                with suppress(ValueError, TypeError, IndexError):  # a network may have a bound
                    opened.graphs.append(build(more))
                    sizes.append(more)
            compute_constants(opened)
            return use(opened)
        except (ValueError, TypeError, IndexError) as e:
            error = error or e
            return None

    for multiple, scale, span in ATTEMPTS:
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
            if all(v.array is leaf.array for v in edges):
                continue
            arrays = [v.array.read("host") for v in edges]
            if all(_equal(arrays[0], a) for a in arrays[1:]):
                continue
            affine = evenly_spaced(arrays)
            if affine is None:
                what = first.op.inputs[min(i, len(first.op.inputs) - 1)]
                raise Unexplained(
                    f"{first.label}: {what} is an array of the shapes "
                    f"{', '.join(str(a.shape) for a in arrays)} that depends on open sizes: "
                    "compute it with functions of nnl"
                )
            made[leaf.key] = [_computed(*affine, a.shape) for a in arrays]
            for node, value in zip(nodes, made[leaf.key], strict=True):
                for new in capture([value]):  # just before who reads it: sizes are known by then
                    new.seq = node.seq - ROOM + next(numbers)
        for node, value in zip(nodes, made[leaf.key], strict=True):
            node.inputs = (*node.inputs[:i], value, *node.inputs[i + 1 :])


def _equal(a: Array, b: Array) -> bool:
    return a.shape == b.shape and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")


def evenly_spaced(arrays: Sequence[Array]) -> tuple[Array, dict[int, Array]] | None:
    """(base, {axis: step}) if entry n along the axes that move is base + n step in all arrays."""
    first = max(arrays, key=lambda a: a.size)
    if first.dtype.kind not in "fiub" or len({a.ndim for a in arrays}) > 1:
        return None
    axes = [i for i in range(first.ndim) if len({a.shape[i] for a in arrays}) > 1]
    exact = first.astype(np.float64)
    corner = exact[tuple([slice(1) if i in axes else slice(None) for i in range(first.ndim)])]
    steps = {}
    for axis in axes:
        index = [slice(1) if i in axes else slice(None) for i in range(first.ndim)]
        index[axis] = slice(1, 2)
        step = exact[tuple(index)] - corner
        if step.size and step.any():
            steps[axis] = step
    if steps and (first.dtype.kind == "f" and not _whole([corner, *steps.values()])):
        return None  # steps of floats are not exact
    for a in arrays:
        want = np.broadcast_to(corner, a.shape)
        for axis, step in steps.items():
            numbers = np.arange(a.shape[axis])
            want = want + step * numbers.reshape([-1 if i == axis else 1 for i in range(a.ndim)])
        if not _equal(want.astype(a.dtype), a) or (steps and np.abs(want).max() >= 1 << 24):
            return None
    return corner.astype(first.dtype), steps


def _whole(arrays: Sequence[Array]) -> bool:
    return all(np.array_equal(a, np.rint(a)) for a in arrays)


def _computed(base: Array, steps: dict[int, Array], shape: Sequence[int]) -> Value:
    """base + n step along axes."""
    kind = base.dtype
    y: Variable = OPS["broadcast"](_leaf(base), shape=tuple(shape))
    for axis, step in steps.items():
        along = tuple([n if i == axis else 1 for i, n in enumerate(shape)])
        numbers = OPS["reshape"](OPS["arange"](start=0.0, stop=float(shape[axis])), shape=along)
        y = y + numbers * _leaf(step)
    if kind != np.float32:
        y = OPS["cast"](y, dtype=str(kind))
    return y.edge


def _leaf(value: Array) -> Variable:
    return Variable.from_numpy_array(value.astype(np.float32))


# ---- programs ----


def unify_with_passes(
    programs: Sequence[Program],
    opened: OpenGraphs,
    lib: Library | None,
    passes: Sequence[Callable[[Program, Any], None]],
) -> Program:
    """One open program of those of all graphs, after the passes that do the same at all sizes.

    Raises:
        ValueError: The programs are not one; the text says where.
    """
    unified(programs, opened.dims, opened.sizes, opened.axes)
    for rewrite in passes if lib is not None else ():
        tried = [p.copy() for p in programs]
        for p in tried:
            rewrite(p, lib)
        try:
            unified(tried, opened.dims, opened.sizes, opened.axes)
        except (Differ, Unexplained):  # it decides by the sizes: the step stays as it was
            continue
        programs = tried
    return unified(programs, opened.dims, opened.sizes, opened.axes)  # programs inside are shared
