# SPDX-License-Identifier: Apache-2.0
"""If and Loop of static graphs where only values of the run decide: switch and while_loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import nnl.functions as F
from nnl.converters.onnx.errors import OnnxError
from nnl.converters.onnx.values import dtype_of, is_float, known, scalar, shape_of, tagged, var
from nnl.core.context import STATE
from nnl.core.op import OPS
from nnl.core.variable import Variable
from nnl.graph import switch, while_loop

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


def chosen_by_value(ctx: Any, node: Any, condition: Any) -> Any:
    """One of two subgraphs, of which both are recorded. Sequences have the same length in both."""
    kinds: list[Any] = []  # of each branch

    def branch(graph: Any) -> Any:
        def run() -> list[Variable]:
            outs = ctx.run_inside(graph, ())
            lengths = [len(v) if isinstance(v, list) else None for v in outs]
            flat = [x for v in outs for x in (v if isinstance(v, list) else [v])]
            values = _plain(flat)
            kinds.append((lengths, [dtype_of(v) for v in flat]))
            return values

        return run

    ys = switch(var(condition), [branch(node.else_branch), branch(node.then_branch)])
    (lengths, dtypes), (others, other_dtypes) = kinds
    if lengths != others:
        raise OnnxError(f"its branches give sequences of {others} and {lengths} values")
    if dtypes != other_dtypes:
        raise OnnxError(f"its branches give {other_dtypes} and {dtypes}")
    flat = iter(_typed(ys, dtypes))
    return [next(flat) if n is None else [next(flat) for _ in range(n)] for n in lengths]


def loop_by_value(ctx: Any, node: Any, trips: Any, condition: Any, state: Sequence[Any]) -> Any:
    """A subgraph that is recorded once, however often it runs."""
    body, n = node.body, len(state)
    if any(node.outputs[n:]):
        raise OnnxError(
            "collects a row of every trip, and only values of the run say how many there are: "
            + _ADVICE
        )
    most = ctx.max_trips
    limit = int(scalar(trips)) if trips is not None and known(trips) else None
    if limit is not None and limit <= MOST:
        most = limit if most is None else min(limit, most)
    carried = _plain(state)
    dtypes = [dtype_of(v) for v in state]

    def goes_on(i: Variable, going: Variable, *values: Variable) -> Variable:
        if trips is None or limit is not None and limit <= MOST:
            return going
        return F.logical_and(going, F.less(i, _number(trips)))

    def once(i: Variable, going: Variable, *values: Variable) -> list[Variable]:
        inputs = [tagged(i, np.int64), tagged(going, np.bool_), *_typed(values, dtypes)]
        outs = ctx.run_inside(body, inputs)[: 1 + n]
        if [dtype_of(v) for v in outs[1:]] != dtypes:
            raise OnnxError(f"carries {dtypes}, and gives {[dtype_of(v) for v in outs[1:]]}")
        following = OPS["cast"](F.add_scalar(i, 1), dtype="int64")
        next_, *values_ = _plain([going if outs[0] is None else outs[0], *outs[1:]])
        return [following, _number(next_), *values_]

    going = np.array(True) if condition is None else condition
    first = var(np.array(0, np.int64)), _number(_plain([going])[0])
    ys = while_loop(goes_on, once, *first, *carried, max_trips=most)[2:]
    return _typed(ys, dtypes)


def _number(x: Any) -> Variable:
    """One number without axes."""
    v = var(x)
    return v if shape_of(v) == () else F.reshape(v, ())
