# SPDX-License-Identifier: Apache-2.0
"""while_loop: a function again and again, for as long as values say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from nnl.core.arguments.annotations import shown
from nnl.core.arrays.spec import ShapeError, Spec
from nnl.core.graph.node import Value
from nnl.core.graph.variable import Variable
from nnl.core.ops.op import OPS, Cost, op
from nnl.core.settings.context import SPACES, STATE
from nnl.graph.control_flow.loop_gradient import loop_gradient, written_inside
from nnl.graph.control_flow.programs import (
    Recorded,
    as_it_was,
    as_recorded,
    check_function,
    check_variables,
    compute,
    input_specs,
    joined,
    leaf,
    listed,
    output_specs,
    returned,
    zeros,
)
from nnl.graph.program.costs import cost
from nnl.graph.program.program import Program

CATEGORY = "Control flow"
FOREVER = 2**63 - 1
COUNT, GOES_ON = Spec.of((), np.int64), Spec.of((), np.bool_)


def _written(attrs: Any) -> Any:
    return tuple([1 + p for p in sorted(written_inside(attrs))])


@op("while", outputs=("*y",), keep=("trips", "x"), writes=_written)
class _While:
    """A program again and again, at most `trips` times.

    x are `carried` values that go from trip to trip, then `scanned` arrays, of which each trip gets
    one row, then what stays the same. The body gives the new carried values, then what becomes one
    row each of further results. These come after the carried values, and the number of trips last.

    Args:
        body: A program over the carried values, the rows, and what stays the same.
        condition: A program over all but the rows: whether there is another trip. None: always.
        rows: The first size of all arrays with a row for each trip, and a bound of its number.
        backwards: Whether the last trip has row 0, and not the first.
        remembers: Whether the last inputs, which the programs do not read, are what those that they
            write held before.
    """

    body: object
    condition: object = None
    carried: int = 0
    scanned: int = 0
    rows: int | None = None
    backwards: bool = False
    remembers: bool = False

    @property
    def programs(self) -> list[Program]:
        both: Any = (self.condition, self.body)
        return [p for p in both if p is not None]

    def inside(self, shapes: Sequence[tuple[int, ...]]) -> list[tuple[tuple[int, ...], ...]]:
        """Shapes of the inputs of `programs`, for those of the step's inputs."""
        x, n, m = shapes[1:], self.carried, self.scanned
        body = (*x[:n], *[s[1:] for s in x[n : n + m]], *x[n + m :])
        return [(*x[:n], *x[n + m :])] * (self.condition is not None) + [body]

    def takes(self, trips: Spec, *x: Spec) -> tuple[Spec, ...]:
        wanted = input_specs(self.programs[-1])
        return trips, *as_recorded(x, wanted)

    def infer(self, trips: Spec, *x: Spec) -> tuple[Spec, ...]:
        n, m, rows = self.carried, self.scanned, self.rows
        *conditions, body = self.programs
        if trips is not COUNT:
            raise ShapeError(f"while: trips is {trips}, wanted one number of int64")
        if not (0 <= n and 0 <= m and n + m <= len(x)) or (rows is not None and rows < 0):
            raise ShapeError(f"while: {n} carried and {m} scanned of {len(x)}, {rows} rows")
        if rows is None and (m or len(output_specs(body)) > n):
            raise ShapeError("while: rows of scanned or stacked arrays have no number")
        if self.backwards and conditions:
            raise ShapeError("while: a loop that goes backwards has a condition")
        for k, s in enumerate(x[n : n + m]):
            if s.shape[:1] != (rows,):
                raise ShapeError(f"while: scanned array {k} is {s}, wanted {rows} rows")
        around = x[n + m :]
        inputs = (*x[:n], *[s.with_shape(s.shape[1:]) for s in x[n : n + m]], *around)
        for what, program, given in (
            *[("condition", p, (*x[:n], *around)) for p in conditions],
            ("body", body, inputs),
        ):
            if input_specs(program) != given:
                raise ShapeError(
                    f"while: the inputs are {listed(given)}, the {what} was recorded for "
                    f"{listed(input_specs(program))}"
                )
        made = output_specs(body)
        if made[:n] != x[:n]:
            raise ShapeError(f"while: carries {listed(x[:n])}, the body gives {listed(made)}")
        if any(output_specs(p) != (GOES_ON,) for p in conditions):
            raise ShapeError("while: the condition gives no boolean")
        if any(p < n + m for p in written_inside(self)):
            raise ShapeError("while: a program inside writes what is carried or scanned")
        return *x[:n], *[s.with_shape((rows or 0, *s.shape)) for s in made[n:]], COUNT

    def control(self, runs: Sequence[Callable[..., Any]], trips: Any, *x: Any) -> tuple[Any, ...]:
        """Run the loop on arrays."""
        n, m = self.carried, self.scanned
        *conditions, body = runs
        state, around = [a.copy() for a in x[:n]], x[n + m :]
        most = min(int(trips), FOREVER if self.rows is None else self.rows)
        stacks, done = self._stacks(), 0
        while done < most and all(bool(c(*state, *around)[0]) for c in conditions):
            row = most - 1 - done if self.backwards else done
            ys = body(*state, *[_row(a, row) for a in x[n : n + m]], *around)
            for a, y in zip(state, ys, strict=False):
                a[...] = y
            for a, y in zip(stacks, ys[n:], strict=True):
                a[row] = y
            done += 1
        return *state, *stacks, self._space.from_host(np.array(done))

    @property
    def _space(self) -> Any:
        return SPACES[self.programs[-1].space]

    def _stacks(self) -> list[Any]:
        specs = output_specs(self.programs[-1])[self.carried :]
        stacks = [self._space.empty((self.rows, *s.shape), s.dtype) for s in specs]
        for a in stacks:
            a[...] = 0
        return stacks

    def forward(self, xp: Any, trips: Any, *x: Any) -> tuple[Any, ...]:
        return self.control([partial(compute, p) for p in self.programs], trips, *x)

    def vjp(self, *gys: Any, trips: Any, x: Any, need: Any) -> Any:
        x = as_it_was("while_loop", self, x, written_inside(self))
        return None, *loop_gradient(self, gys, trips, x, need[1:])

    def cost(self, trips: Spec, *x: Spec) -> Cost:
        once = sum(cost(p, s).flops for p in self.programs for s in p.steps)
        nbytes = sum(s.nbytes for s in (*x, *self.infer(trips, *x)))
        return Cost(once * (1 if self.rows is None else self.rows), nbytes)


def _row(a: Any, row: int) -> Any:
    return a[row : row + 1].reshape(a.shape[1:])


def while_loop(
    condition: Callable[..., Any],
    body: Callable[..., Any],
    *carried: Any,
    max_trips: int | None = None,
) -> Any:
    """Call a function again and again for as long as another one says.

        while condition(*carried):
            carried = body(*carried)

    In static mode both are recorded, each as a program inside one step. In dynamic mode
    (`nnl.auto_forward`) it is the loop above.

    Args:
        condition: A function of the carried Variables that returns a Variable with one number:
            0 or False ends the loop.
        body: A function of the carried Variables that returns new ones of the same shapes and
            types, as a Variable or a tuple. What it returns besides becomes, for all trips
            together, arrays with max_trips rows, those after the last trip zeros. Both functions
            may use Variables around them, such as parameters.
        carried: Variables, at least one.
        max_trips: At most so many trips. What it returns besides, and gradients, need this number:
            the values of every trip are kept for these.
    Returns:
        The carried Variables after the last trip, and then what the body returns besides; a
        Variable alone where it is only one.
    Raises:
        ShapeError: The body returns other shapes or types. TypeError: Something is no Variable.

    Example:
        >>> import nnl as nn
        >>> import nnl.functions as F
        >>> x = nn.Variable((2,))
        >>> y = nn.while_loop(lambda y: F.less_scalar(F.sum(y), 100), lambda y: y * 2, x)
        >>> x.d = [1.0, 2.0]
        >>> y.forward()
        >>> y.d
        array([ 64., 128.], dtype=float32)
    """
    if not carried:
        raise TypeError("while_loop: nothing is carried, wanted at least one Variable")
    check_variables("while_loop", carried)
    check_function("while_loop: condition", condition)
    check_function("while_loop: body", body)
    if max_trips is not None and (type(max_trips) is not int or max_trips < 0):
        raise ValueError(f"while_loop: max_trips is {shown(max_trips)}, wanted an int from 0 on")
    if STATE.auto_forward:
        return _run_now(condition, body, carried, max_trips)
    n = len(carried)
    holes = [[leaf(x.spec, x.need_grad) for x in carried] for _ in range(2)]
    going = Recorded(lambda: _goes_on(condition(*holes[0])), holes[0], "while_loop: the condition")
    once = Recorded(lambda: body(*holes[1]), holes[1], "while_loop: the body")
    _check_body(once.specs, [x.spec for x in carried], max_trips)
    programs, xs, remembers = joined([going, once], carried)
    trips = Variable.from_numpy_array(
        np.array(FOREVER)
    )  # rows, which may be an open size, bound it
    ys = OPS["while"](
        trips,
        *xs,
        condition=programs[0],
        body=programs[1],
        carried=n,
        rows=max_trips,
        remembers=remembers,
    )[:-1]
    return ys[0] if len(ys) == 1 else ys


def _one_number(y: Any) -> Variable:
    """What a condition returns, if it is that."""
    if not isinstance(y, Variable):
        raise TypeError(f"while_loop: the condition returned {type(y).__name__}, wanted a Variable")
    if y.size != 1:
        raise ShapeError(f"while_loop: the condition returned {y.spec}, wanted one number")
    return y


def _goes_on(y: Any) -> Any:
    """The same as one boolean."""
    y = _one_number(y)
    y = y if y.spec.dtype == np.bool_ else OPS["cast"](y, dtype="bool")
    return y if y.shape == () else OPS["reshape"](y, shape=())


def _check_body(made: Sequence[Spec], carried: Sequence[Spec], max_trips: int | None) -> None:
    if list(made[: len(carried)]) != list(carried):
        raise ShapeError(
            f"while_loop: carries {listed(carried)}, and the body returned {listed(made)}"
        )
    if max_trips is None and len(made) > len(carried):
        raise ShapeError(
            f"while_loop: carries {listed(carried)}, and the body returned {listed(made)}: to keep "
            "more than that of every trip, max_trips must say how many there may be"
        )


def _run_now(
    condition: Callable[..., Any], body: Callable[..., Any], carried: Any, most: int | None
) -> Any:
    """The loop in Python."""
    state, n = list(carried), len(carried)
    rows: list[list[Variable]] = []
    specs = [x.spec for x in carried]
    while (most is None or len(rows) < most) and _one_number(condition(*state)).d.item():
        ys = returned("while_loop: the body", body(*state))
        _check_body([y.spec for y in ys], specs, most)
        state = ys[:n]
        rows.append(ys[n:])
    if most is None:
        found = state
    elif rows:
        found = [*state, *[stacked(ys, most) for ys in zip(*rows, strict=True)]]
    else:  # how many there would be, and of which shapes, the body says
        once = Recorded(lambda: body(*state), [], "while_loop: the body")
        _check_body(once.specs, specs, most)
        stacks = [s.with_shape((most, *s.shape)) for s in once.specs[n:]]
        found = [*state, *[Variable.of_edge(Value.leaf(nd), nd) for nd in map(zeros, stacks)]]
    return found[0] if len(found) == 1 else tuple(found)


def stacked(rows: Sequence[Variable], most: int) -> Variable:
    """Rows of all trips and then zeros, in one array."""
    missing, spec = most - len(rows), rows[0].spec
    if spec.dtype != STATE.target.float_dtype and not rows[0].need_grad:  # functions would convert
        stack = np.zeros((most, *spec.shape), spec.dtype)
        stack[: len(rows)] = [y.d for y in rows]
        return Variable.from_numpy_array(stack)
    y: Variable = OPS["stack"](*rows, axis=0)
    if missing:
        zeros_ = OPS["constant"](val=0, shape=(missing, *spec.shape))
        y = OPS["concatenate"](y, zeros_, axis=0)
    return y
