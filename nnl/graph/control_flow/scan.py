# SPDX-License-Identifier: Apache-2.0
"""scan: a function for each row of arrays, with values that go from one row to the next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nnl.core.arrays.spec import ShapeError, Spec
from nnl.core.graph.variable import Variable
from nnl.core.ops.op import OPS
from nnl.core.settings.context import STATE
from nnl.graph.control_flow.programs import (
    Recorded,
    check_function,
    check_variables,
    joined,
    leaf,
    listed,
)
from nnl.graph.control_flow.while_loop import FOREVER, stacked

Structure = Any  # a Variable, or a tuple or list of Variables


def scan(
    f: Callable[..., Any], init: Structure, xs: Structure, reverse: bool = False
) -> tuple[Structure, Structure]:
    """Call a function for each row of arrays: what a recurrent layer does.

        carry = init
        for x in rows of xs:
            carry, y = f(carry, x)
        ys = the y of all rows, in their order

    In static mode f is recorded once, as a program inside of one step, however many rows there are;
    the number of rows may be an open size. In dynamic mode (`nnl.auto_forward`) it is the loop
    above. Gradients of any order go through it.

    Args:
        f: A function of the carried values and one row, both as Variables or tuples of them as
            init and xs are, that returns the new carried values, of the same shapes and types, and
            what becomes one row of the results: a Variable, a tuple of them, or an empty tuple. It
            may use Variables around it, such as parameters.
        init: The carried values before the first row: a Variable, or a tuple of them.
        xs: An array with a row for each call, or a tuple of such arrays with one first size, at
            least one.
        reverse: Whether the last row comes first.
    Returns:
        The carried values after the last row, and the results of all rows in arrays with as many
        rows as xs.
    Raises:
        ShapeError: f returns other shapes or types than it carries, or arrays have other numbers
            of rows. TypeError: Something is no Variable, or f returns no pair.

    Example:
        >>> import numpy as np
        >>> import nnl as nn
        >>> x = nn.Variable.from_numpy_array(np.arange(1, 5))
        >>> total, sums = nn.scan(lambda s, x: (s + x, s + x), nn.Variable(()), x)
        >>> nn.forward_all([total, sums])
        >>> sums.d
        array([ 1.,  3.,  6., 10.], dtype=float32)
    """
    check_function("scan: f", f)
    carried, arrays = _listed(init), _listed(xs)
    check_variables("scan: init", carried)
    check_variables("scan: xs", arrays)
    sizes = [x.shape[:1] for x in arrays]
    if not sizes or len(set(sizes)) > 1 or () in sizes:
        raise ShapeError(
            f"scan: xs is {listed([x.spec for x in arrays])}, wanted arrays with one first size"
        )
    rows, n, single = sizes[0][0], len(carried), True

    def once(state: Sequence[Variable], row: Sequence[Variable]) -> list[Variable]:
        nonlocal single
        made = f(_like(init, state), _like(xs, row))
        if not isinstance(made, tuple) or len(made) != 2:
            raise TypeError(
                f"scan: f returned {type(made).__name__}, wanted a pair: carried values, results"
            )
        new, ys = map(_listed, made)
        check_variables("scan: what f carries", new)
        check_variables("scan: a result of f", ys)
        if [v.shape for v in new] != [v.shape for v in carried]:
            wanted, got = ([v.spec for v in vs] for vs in (carried, new))
            raise ShapeError(f"scan: carries {listed(wanted)}, and f returned {listed(got)}")
        single = isinstance(made[1], Variable)
        return [*new, *ys]

    if STATE.auto_forward and rows:
        found = _run_now(once, carried, arrays, rows, reverse)
    else:
        holes = [leaf(v.spec, v.need_grad) for v in carried]
        holes += [leaf(_row(x.spec), x.need_grad) for x in arrays]
        recorded = Recorded(lambda: once(holes[:n], holes[n:]), holes, "scan: f")
        if recorded.specs[:n] != [v.spec for v in carried]:
            raise ShapeError(
                f"scan: carries {listed([v.spec for v in carried])}, and f returned "
                f"{listed(recorded.specs[:n])}"
            )
        (body,), inputs, remembers = joined([recorded], [*carried, *arrays])
        trips = Variable.from_numpy_array(np.array(FOREVER))
        found = list(
            OPS["while"](
                trips, *inputs, body=body, carried=n, scanned=len(arrays), rows=rows,
                backwards=reverse, remembers=remembers,
            )[:-1]
        )  # fmt: skip
    ys = found[n:]
    return _like(init, found[:n]), ys[0] if single else tuple(ys)


def _listed(values: Structure) -> list[Variable]:
    return list(values) if isinstance(values, (tuple, list)) else [values]


def _like(structure: Structure, values: Sequence[Variable]) -> Structure:
    return tuple(values) if isinstance(structure, (tuple, list)) else values[0]


def _row(spec: Spec) -> Spec:
    return spec.with_shape(spec.shape[1:])


def _run_now(
    once: Callable[..., list[Variable]],
    carried: list[Variable],
    arrays: list[Variable],
    rows: int,
    reverse: bool,
) -> list[Variable]:
    """The loop in Python."""
    results: list[Any] = [None] * rows
    for k in reversed(range(rows)) if reverse else range(rows):
        made = once(carried, [x[k] for x in arrays])
        carried, results[k] = made[: len(carried)], made[len(carried) :]
    return [*carried, *[stacked(ys, rows) for ys in zip(*results, strict=True)]]
