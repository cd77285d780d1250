# SPDX-License-Identifier: Apache-2.0
"""Clipping by the norm of all gradients together."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from nnl.core.arguments.annotations import shown
from nnl.core.arrays.array import NdArray
from nnl.core.graph.variable import Variable
from nnl.core.ops.op import OPS
from nnl.core.settings.context import STATE, using
from nnl.solvers.base import Solver
from nnl.solvers.gradient import change
from nnl.solvers.hyperparameters import number


def clip_grad_norm(
    parameters: Solver | Mapping[str, Variable] | Iterable[Variable], max_norm: float
) -> Any:
    r"""Scale all gradients by one factor, so that their norm together is at most max_norm.

    $$g_i \leftarrow g_i \min(1, c / n)$$ with $n = \sqrt{\sum_i \|g_i\|^2}$ and max_norm $c$. It is
    called between `backward` and `update`, also in a function that `nnl.compile` records.
    `Solver.clip_grad_by_norm` clips each gradient by itself.

    Args:
        parameters: A solver, `nnl.get_parameters()` or Variables. Gradients that are lazily zero
            stay so.
    Returns:
        The norm $n$ before, of rank 0: an NdArray, a Variable where nnl.compile records.
    Raises:
        TypeError: parameters is something else.
        ValueError: max_norm is not finite or not positive.
    Source: Pascanu et al., arXiv:1211.5063, algorithm 1.
    Example:
        >>> w = nn.Variable.from_numpy_array(np.array([3.0, 4.0]), need_grad=True)
        >>> w.grad.fill(0)
        >>> F.sum(w * w / 2).backward(); w.g
        array([3., 4.], dtype=float32)
        >>> float(S.clip_grad_norm([w], 1).data), w.g
        (5.0, array([0.6, 0.8], dtype=float32))
    """
    limit = number("clip_grad_norm", "max_norm", max_norm)
    if not 0.0 < limit < math.inf:
        raise ValueError(f"clip_grad_norm: max_norm is {max_norm!r}, wanted a finite number > 0")
    return clip_together(_variables(parameters), limit)


def clip_together(variables: list[Variable], limit: float, stages: bool = True) -> Any:
    """As clip_grad_norm. stages: Whether parameters of other stages of a pipeline count as well."""
    there = [(v, STATE.interpreter.now.gradient(v)) for v in variables]
    grads = [g for _, g in there if g is not None]
    others = stages and any(getattr(getattr(v, "layout", None), "pipe", None) for v in variables)
    with using(auto_forward=False):
        if not grads and not others:
            return NdArray()
        total = _norm(there, stages)
        factor = OPS["r_div_scalar"](OPS["maximum_scalar"](total, limit), limit)
        by_rank = {n: OPS["reshape"](factor, shape=(1,) * n) for n in {len(g.shape) for g in grads}}
        inputs = [(g, by_rank[len(g.shape)]) for g in grads]
        mul = OPS["mul2"]
        change([v for v, g in there if g is not None], mul, mul.default_attrs, inputs)
    return total


def _norm(there: list[tuple[Variable, Any]], stages: bool) -> Any:
    """The norm of all gradients, of which other ranks may have parts."""
    norm, stack = OPS["norm"], OPS["stack"]
    by_axes: dict[Any, list[Any]] = {}
    pipe = None
    for v, g in there:
        layout = getattr(v, "layout", None)
        axes = tuple(layout.axes()) if layout is not None else ()
        pipe = layout.pipe if layout is not None and stages else pipe
        if g is not None and (layout is None or layout.counted or not stages):
            by_axes.setdefault(axes, []).append(norm(g))
    norms = []
    for axes, some in by_axes.items():
        total = norm(stack(*some))
        for over in axes:
            total = over.total(total)
        norms.append(total)
    if not norms:
        norms.append(NdArray())
    total = norms[0] if len(norms) == 1 else norm(stack(*norms))
    return total if pipe is None else pipe.total(total)


def _variables(parameters: Any) -> list[Variable]:
    found = parameters.get_parameters() if isinstance(parameters, Solver) else parameters
    found = found.values() if isinstance(found, Mapping) else found
    found = [found] if isinstance(found, Variable) else found
    variables = list(found) if isinstance(found, Iterable) else [found]
    for v in variables:
        if not isinstance(v, Variable):
            raise TypeError(
                f"clip_grad_norm: parameters holds {shown(v)}, wanted a solver or Variables"
            )
    return list({id(v.edge.grad): v for v in variables}.values())
