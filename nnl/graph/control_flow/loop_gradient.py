# SPDX-License-Identifier: Apache-2.0
"""The gradient of a loop: the loop again, keeping the state of every trip, then one backwards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nnl.core.graph.autodiff import _zeros
from nnl.core.graph.variable import Variable
from nnl.core.ops.op import OPS
from nnl.graph.control_flow.programs import (
    Recorded,
    copied,
    gradient,
    input_specs,
    leaf,
    output_specs,
    record,
    written,
)
from nnl.graph.program.program import Program


def written_inside(loop: Any) -> list[int]:
    """Positions of the inputs x of a `while` that its programs write; conditions see no rows."""
    n, m = loop.carried, loop.scanned
    *conditions, body = loop.programs
    return sorted(written([body]) | {p if p < n else p + m for p in written(conditions)})


def loop_gradient(loop: Any, gys: Sequence[Any], trips: Any, x: Any, need: Any) -> list[Any]:
    """Gradients of the inputs x of a `while`, None where there is none.

    Args:
        gys: Those of its outputs; None for integers.
        x: Of what the loop writes, the values from before.
        need: Which of x want one.
    Raises:
        NotImplementedError: The number of trips has no bound.
    """
    n, m, body = loop.carried, loop.scanned, loop.programs[-1]
    if loop.rows is None:
        raise NotImplementedError(
            "while_loop: its gradient keeps the values of every trip, and max_trips does not say "
            "for how many there must be room"
        )
    starts = [k for k, s in enumerate(output_specs(body)) if s.is_float]
    wanted = [k for k, s in enumerate(input_specs(body)) if s.is_float and (k < n or need[k])]
    carried = [k for k in wanted if k < n]
    sums = [k for k in wanted if k >= n + m]
    specs = input_specs(body)
    state = written_inside(loop)
    made = loop.__dict__.setdefault("gradients", {})
    key = tuple(wanted), tuple([gys[k].spec for k in starts if k >= n])
    if key not in made:
        rows = [gys[k].spec for k in starts if k >= n]
        given = [*[specs[k] for k in carried], *[s.with_shape(s.shape[1:]) for s in rows]]
        own = gradient(body, wanted, dict(zip(starts, given, strict=True)))
        made[key] = _with_states(body, n, state), _backwards(loop, own, wanted, given, state)
    keeping, back = made[key]
    again = [copied(v) if k in state else v for k, v in enumerate(x)]
    kept = OPS["while"](
        trips, *again, condition=loop.condition, body=keeping, carried=n, scanned=m, rows=loop.rows,
        backwards=loop.backwards,
    )  # fmt: skip
    states, count = kept[n:-1], kept[-1]
    as_graph = isinstance(count, Variable)
    first = [_in_type(gys[k], specs[k]) for k in carried]
    found = OPS["while"](
        count,
        *first,
        *[_zeros(specs[k], as_graph) for k in sums],
        *states,
        *x[n : n + m],
        *[gys[k] for k in starts if k >= n],
        *x[n + m :],
        body=back,
        carried=len(carried) + len(sums),
        scanned=len(states) + m + sum(k >= n for k in starts),
        rows=loop.rows,
        backwards=not loop.backwards,
    )
    scanned = [k for k in wanted if n <= k < n + m]
    gxs = dict(zip([*carried, *sums, *scanned], found, strict=False))
    return [gxs.get(k) for k in range(len(x))]


def _in_type(g: Any, spec: Any) -> Any:
    return g if g.spec.dtype == spec.dtype else OPS["cast"](g, dtype=spec.type_name)


def _with_states(body: Program, carried: int, state: Sequence[int]) -> Program:
    """The body, which also gives what it begins with: the carried values, and what it writes."""
    xs = [leaf(s) for s in input_specs(body)]

    def once() -> list[Variable]:
        old = [copied(xs[k]) for k in state]
        return [*record(body, xs)[:carried], *xs[:carried], *old]

    return Recorded(once, xs, "a loop").program()


def _backwards(
    loop: Any, own: Program, wanted: Sequence[int], given: Sequence[Any], state: Sequence[int]
) -> Program:
    """The body of the loop backwards. It carries gradients of what the loop carries, and sums of
    those of what stays the same; it scans what the body began with, what the loop scans, and
    gradients of its rows.

    Args:
        own: The gradient of the loop's body; wanted: the inputs of that which it is for.
        given: Specs of the gradients that it takes, the carried ones first.
        state: Inputs that the body writes.
    """
    n, m = loop.carried, loop.scanned
    specs = input_specs(loop.programs[-1])
    carried, sums = [k for k in wanted if k < n], [k for k in wanted if k >= n + m]
    c, of_sums, of_state = len(carried), [specs[k] for k in sums], [specs[k] for k in state]
    parts = [given[:c], of_sums, specs[:n], of_state, specs[n : n + m], given[c:], specs[n + m :]]
    g_carried, g_sums, values, old, rows, g_rows, around = (
        [leaf(s) for s in part] for part in parts
    )

    def once() -> list[Variable]:
        xs = [*values, *rows, *around]
        for k, v in zip(state, old, strict=True):
            xs[k] = v
        gs = dict(zip(wanted, record(own, [*xs, *g_carried, *g_rows]), strict=True))
        added = [OPS["add2"](a, gs[k]) for a, k in zip(g_sums, sums, strict=True)]
        scanned = [gs[k] for k in wanted if n <= k < n + m]
        return [*[gs[k] for k in carried], *added, *scanned]

    holes = [*g_carried, *g_sums, *values, *old, *rows, *g_rows, *around]
    return Recorded(once, holes, "a gradient").program()
