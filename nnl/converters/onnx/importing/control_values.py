# SPDX-License-Identifier: Apache-2.0
"""If and Loop of static graphs where only values of the run decide: switch and while_loop."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

import nnl.functions as F
from nnl.converters.onnx.file.errors import OnnxError, UnsupportedOperator
from nnl.converters.onnx.values.counted import counted
from nnl.converters.onnx.values.values import (
    Counted,
    Rows,
    Sized,
    axis_of,
    dtype_of,
    is_float,
    known,
    reshape,
    scalar,
    shape_of,
    tagged,
    transpose,
    var,
)
from nnl.core.graph.variable import Variable
from nnl.core.ops.op import OPS
from nnl.core.settings.context import STATE
from nnl.graph import scan, switch, while_loop

if TYPE_CHECKING:
    from nnl.converters.onnx.file.model import Graph  # needs onnx, which other formats do without

logger = logging.getLogger("nnl")
_ADVICE = "pass what decides that as a numpy array, or call the model in nnl.auto_forward()"
MOST = 2**20  # trips that are a bound of the loop, and not another word for any number


def _plain(values: Sequence[Any]) -> list[Variable]:
    """Values as Variables; those of one ONNX type have one type in memory, as functions give it."""
    found, target = [], STATE.target
    floats = (target.float_dtype, target.half or target.float_dtype)
    for v in values:
        if v is None or isinstance(v, list):
            raise OnnxError(
                "gives a sequence or nothing, and only values of the run say which: " + _ADVICE
            )
        x, dtype = var(v), dtype_of(v)
        if not is_float(dtype):
            kept = np.dtype(np.float32) if dtype == np.bool_ else dtype
            x = x if x.spec.dtype == kept else OPS["cast"](x, dtype=kept.name)
        elif x.spec.dtype not in floats:
            x = F.mul_scalar(x, 1)  # converts, and lets gradients through
        found.append(x)
    return found


def _typed(values: Sequence[Variable], dtypes: Sequence[Any]) -> list[Variable]:
    """The Variables with their ONNX types."""
    return [tagged(v, t) for v, t in zip(values, dtypes, strict=True)]


class _Dead(Exception):
    """A branch cannot be taken at these sizes.

    Attributes:
        ranks: Whether it could, if results of one entry had the shapes that the file says.
    """

    def __init__(self, place: int, reason: OnnxError, ranks: bool = False) -> None:
        self.place, self.reason, self.ranks = place, reason, ranks
        super().__init__(str(reason))


def chosen_by_value(ctx: Any, node: Any, condition: Any) -> Any:
    """One of two subgraphs, of which both are recorded. Sequences have the same length in both.

    A branch that cannot be recorded at these sizes, or gives other shapes than the file says where
    the other one does not, is left out: a run that wants it is an error.
    """
    graphs = [node.else_branch, node.then_branch]
    kinds: dict[int, Any] = {}  # of each branch

    def branch(k: int, declared: bool = False) -> Any:
        def run() -> list[Variable]:
            try:
                outs = ctx.run_inside(graphs[k], ())
                if declared:
                    outs = list(map(_as_declared, outs, graphs[k].outputs))
            except UnsupportedOperator:
                raise
            except OnnxError as e:
                raise _Dead(k, e) from e
            lengths = [len(v) if isinstance(v, list) else None for v in outs]
            flat = [x for v in outs for x in (v if isinstance(v, list) else [v])]
            values = _plain(flat)
            shapes = [None if isinstance(v, list) else shape_of(v) for v in outs]
            kinds[k] = lengths, [dtype_of(v) for v in flat], shapes
            if len(kinds) == 2:
                _check_declared(graphs, [kinds[0][2], kinds[1][2]])
            return values

        return run

    index = _number(condition)
    try:
        ys = switch(index, [branch(0), branch(1)])
    except _Dead as first:
        k = 1 - first.place
        kinds.clear()
        if first.ranks:
            ys = switch(index, [branch(0, True), branch(1, True)])
        else:
            ys = _one_alive(node, index, k, branch(k), first.reason)
            kinds[1 - k] = kinds[k]
    (lengths, dtypes, _), (others, other_dtypes, _) = kinds[0], kinds[1]
    if lengths != others:
        raise OnnxError(f"its branches give sequences of {others} and {lengths} values")
    if dtypes != other_dtypes:
        raise OnnxError(f"its branches give {other_dtypes} and {dtypes}")
    flat = iter(_typed(ys, dtypes))
    return [next(flat) if n is None else [next(flat) for _ in range(n)] for n in lengths]


def _one_alive(node: Any, index: Any, k: int, branch: Any, reason: OnnxError) -> Any:
    try:
        ys = switch(F.logical_not(index) if k else index, [branch])
    except _Dead:
        raise reason from None
    logger.warning(
        "%s: a run whose condition is %s will be an error, as that branch cannot be taken at "
        "these sizes: %s",
        node.label,
        not k,
        reason,
    )
    return ys


def _as_declared(y: Any, info: Any) -> Any:
    has = None if y is None or isinstance(y, list) else shape_of(y)
    return reshape(y, info.shape) if _are_one(has, info.shape) else y


def _are_one(shape: Any, wanted: Any) -> bool:
    """Whether both are shapes of one entry, of any rank."""
    return None not in (shape, wanted) and all(n == 1 for n in (*shape, *wanted))


def _check_declared(graphs: Sequence[Any], shapes: Sequence[Any]) -> None:
    """
    Raises:
        _Dead: The branches give different shapes, and only one those that the file says.
    """
    if shapes[0] == shapes[1]:
        return
    wanted = [[v.shape for v in g.outputs] for g in graphs]
    fits = [all(map(_fits, *both)) for both in zip(shapes, wanted, strict=True)]
    if fits[0] != fits[1]:
        k = fits.index(False)
        both = zip(shapes[k], wanted[k], strict=True)
        numbers = all(_fits(s, w) or _are_one(s, w) for s, w in both)
        reason = OnnxError(f"it gives {shapes[k]}, and the file says {wanted[k]}")
        raise _Dead(k, reason, numbers)


def _fits(shape: Any, wanted: Any) -> bool:
    if shape is None or wanted is None:
        return True
    if len(shape) != len(wanted):
        return False
    return all(not isinstance(n, int) or m == n for m, n in zip(shape, wanted, strict=True))


class _Carried:
    """What a loop carries: values, and sequences, of which it makes rows.

    Args:
        state: Of the node. Sequences must be empty: what a loop adds to becomes one array.
        same: Places of values that every trip gives as they are: what is around the loop.
    """

    def __init__(self, state: Sequence[Any], same: Sequence[int] = ()) -> None:
        self.same = {k: state[k] for k in same}
        rest = [k for k in range(len(state)) if k not in self.same]
        self.sequences = [k for k in rest if isinstance(state[k], list)]
        if any(state[k] for k in self.sequences):
            raise OnnxError("begins with a sequence of values, wanted an empty one: " + _ADVICE)
        self.values = [state[k] for k in rest if k not in self.sequences]
        self.dtypes = [dtype_of(v) for v in self.values]
        self.made: list[Any] = []  # types of the rows

    def run(self, once: Callable[[list[Any]], list[Any]], values: Sequence[Variable]) -> Any:
        """What one trip gives: the values, then rows, those of sequences last."""
        given: list[Any] = _typed(values, self.dtypes)
        for k in sorted([*self.sequences, *self.same]):
            given.insert(k, self.same[k] if k in self.same else Rows())
        outs = once(given)
        added = [outs[k] for k in self.sequences]
        if not all(isinstance(v, Rows) and len(v.added) == 1 for v in added):
            raise OnnxError("adds something else than one value to a sequence in each trip")
        outs = [v for k, v in enumerate(outs) if k not in self.sequences and k not in self.same]
        outs += [v.added[0] for v in added]
        n = len(self.values)
        found, self.made = [dtype_of(v) for v in outs[:n]], [dtype_of(v) for v in outs[n:]]
        if found != self.dtypes:
            raise OnnxError(f"carries {self.dtypes}, and gives {found}")
        return _plain(outs)

    def results(self, found: Sequence[Variable], count: Variable | None) -> list[Any]:
        """The outputs of the node, for what the loop gives in the end."""
        n = len(self.values)
        values: list[Any] = _typed(found[:n], self.dtypes)
        rows: list[Any] = _typed(found[n:], self.made)
        if count is not None:
            rows = [counted(y, 0, count) for y in rows]
        made = zip(self.sequences, rows[len(rows) - len(self.sequences) :], strict=True)
        given = {**self.same, **{k: Rows(rows=y) for k, y in made}}
        for k in sorted(given):
            values.insert(k, given[k])
        return [*values, *rows[: len(rows) - len(self.sequences)]]


def loop_by_value(
    ctx: Any, node: Any, trips: Any, condition: Any, state: Sequence[Any], done: int = 0
) -> Any:
    """A subgraph that is recorded once, however often it runs.

    Args:
        done: Trips that are behind; `condition` is what the last of them gave, as is `state`.
    """
    body, most = node.body, ctx.max_trips
    given, made = [v.name for v in body.inputs[2:]], [v.name for v in body.outputs[1:]]
    carried = _Carried(state, [k for k, name in enumerate(given) if name == made[k]])
    limit = int(scalar(trips)) if trips is not None and known(trips) else None
    if limit is not None and limit <= MOST:
        most = limit if most is None else min(limit, most)
    collects = any(node.outputs[len(state) :]) or carried.sequences
    if collects and done:
        raise OnnxError("carries values that change their shape in the first trip: " + _ADVICE)
    if collects and not (ctx.bounded and most is not None):
        raise OnnxError(
            "collects a row of every trip, and only values of the run say how many there are: "
            + ("--max-trips says how many at most" if ctx.bounded else _ADVICE)
        )

    def goes_on(i: Variable, going: Variable, *values: Variable) -> Variable:
        if trips is None or limit is not None and limit <= MOST:
            return going
        return F.logical_and(going, F.less(i, _number(trips)))

    def once(i: Variable, going: Variable, *values: Variable) -> list[Variable]:
        goes: list[Any] = []

        def trip(given: list[Any]) -> list[Any]:
            inputs = [tagged(i, np.int64), tagged(going, np.bool_), *given]
            flag, *outs = ctx.run_inside(body, inputs)
            goes.append(going if flag is None else flag)
            return outs if collects else outs[: len(state)]

        made = carried.run(trip, values)
        following = OPS["cast"](F.add_scalar(i, 1), dtype="int64")
        return [following, _number(_plain(goes)[0]), *made]

    going = np.array(True) if condition is None else condition
    first = var(np.array(done, np.int64)), _number(_plain([going])[0])
    most = None if most is None else max(most - done, 0)
    count, _, *ys = while_loop(goes_on, once, *first, *_plain(carried.values), max_trips=most)
    return carried.results(ys, count)


def counted_trips(
    ctx: Any, body: Graph, limit: int | None, going: bool, state: Sequence[Any]
) -> tuple[int | None, bool]:
    """How many trips a Loop makes, by what its condition is computed from; None: values decide.

    Returns:
        The number, and whether open sizes decide.
    """
    if not going or limit == 0:
        return 0, False
    given, made = [v.name for v in body.inputs], [v.name for v in body.outputs]
    needed: set[str] = set()
    todo = {made[0]}
    while todo:  # what carried values become is needed where they are
        needed |= todo
        for n in reversed(body.nodes):
            if needed.intersection(n.outputs):
                needed.update(n.inputs, n.captured)
        todo = {made[k - 1] for k in range(2, len(given)) if given[k] in needed} - needed
    nodes = [n for n in body.nodes if needed.intersection(n.outputs)]
    ends = [v if v.name in needed else replace(v, name="") for v in body.outputs[: len(given) - 1]]
    part = replace(body, nodes=nodes, outputs=ends)
    always = not needed.intersection([given[0], *given[2:]])
    turn, sized, goes = 0, False, True
    values: Sequence[Any] = state
    while goes and (limit is None or turn < limit):
        flag, *values = ctx.run_inside(part, [np.array(turn, np.int64), np.array(True), *values])
        if not known(flag):
            return None, False
        sized, turn = sized or isinstance(flag, Sized), turn + 1
        goes = bool(scalar(flag))
        if goes and always and limit is not None:
            return limit, sized
    return turn, sized


def loop_over_rows(ctx: Any, node: Any, trips: int, state: Sequence[Any]) -> list[Any]:
    """A Loop whose number of trips follows from open sizes, recorded once."""
    going = np.array(True)
    return over_rows(
        lambda values, row: ctx.run_inside(node.body, [row[0], going, *values])[1:],
        state,
        [np.arange(trips)],
    )


def scan_rows(
    ctx: Any, body: Any, state: Any, many: Any, axes: Any, backwards: Any, to: Any, to_back: Any
) -> list[Any]:
    """A Scan, recorded once for rows of any number."""
    rows = []
    for v, axis, back in zip(many, axes, backwards, strict=True):
        rank = len(shape_of(v))
        row = transpose(v, [axis, *[i for i in range(rank) if i != axis]])
        rows.append(flipped(row) if back else row)
    found = over_rows(lambda s, r: ctx.run_inside(body, [*s, *r]), state, rows)
    n = len(state)
    for i, (axis, back) in enumerate(zip(to, to_back, strict=True), n):
        y = flipped(found[i]) if back else found[i]
        rank = len(shape_of(y))
        order = list(range(1, rank))
        order.insert(axis if axis >= 0 else axis + rank, 0)
        found[i] = transpose(y, order)
    return found


def flipped(x: Any) -> Any:
    """The rows of x, the last one first."""
    return tagged(F.flip(var(x), (0,)), dtype_of(x))


def over_rows(once: Any, state: Sequence[Any], arrays: Sequence[Any]) -> list[Any]:
    """once(values, rows), which gives new values and rows of results, for all rows of arrays."""
    kinds, carried = [dtype_of(a) for a in arrays], _Carried(state)
    n = len(carried.values)

    def step(values: Any, rows: Any) -> Any:
        made = carried.run(lambda given: once(given, _typed(rows, kinds)), values)
        return tuple(made[:n]), tuple(made[n:])

    new, results = scan(step, tuple(_plain(carried.values)), tuple(_plain(arrays)))
    return carried.results([*new, *results], None)


# ---- sequences that loops have made: rows ----


def number_of(rows: Variable) -> Any:
    """How many rows there are."""
    if isinstance(rows.info, Counted):
        return tagged(rows.info.count, np.int64)
    return np.array(rows.shape[0], np.int64).view(Sized)


def take_row(rows: Variable, position: Any) -> Any:
    """One of the rows; from the last one backwards for negative positions."""
    n, at = number_of(rows), F.reshape(F.add_scalar(var(position), 0.0), (1,))
    at = at + F.less_scalar(at, 0.0) * F.reshape(F.add_scalar(var(n), 0.0), (1,))
    y = F.gather(Variable.of_edge(rows.edge, rows._data), at, axis=0)
    return tagged(F.reshape(y, rows.shape[1:]), dtype_of(rows))


def joined_rows(rows: Variable, axis: int, new_axis: bool) -> Any:
    """The rows along an axis of theirs, or along a new one."""
    rank = len(rows.shape) - (not new_axis)
    axis = axis_of(axis, rank)
    order = list(range(1, len(rows.shape)))
    order.insert(axis, 0)
    y = F.transpose(Variable.of_edge(rows.edge, rows._data), order)
    count, shape = rows.info.count if isinstance(rows.info, Counted) else None, list(y.shape)
    if not new_axis:
        width = shape.pop(axis + 1)
        shape[axis] *= width
        y = F.reshape(y, shape)
        count = None if count is None else F.mul_scalar(count, float(width))
    y = tagged(y, dtype_of(rows))
    return y if count is None else counted(y, axis, count)


def _number(x: Any) -> Variable:
    """One number without axes."""
    v = var(x)
    return v if shape_of(v) == () else F.reshape(v, ())
