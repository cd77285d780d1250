# SPDX-License-Identifier: Apache-2.0
"""Gradients, and graphs that are looked through or copied."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

import nnl.functions as F
import nnl.workspace as ws
from nnl.converters.onnx.values.values import is_var, var
from nnl.core.differentiation.grad import grad as _grad
from nnl.core.graph.variable import Variable
from nnl.dialects.theano import elementwise as E
from nnl.dialects.theano.elementwise import given
from nnl.dialects.theano.variable import Apply, as_tensor_variable, made, sizes_of
from nnl.workspace.tensor import gradient_values


class DisconnectedInputError(ValueError):
    """A gradient was asked for with respect to what the cost does not depend on."""


def _listed(x: Any) -> tuple[list[Any], Callable[[list[Any]], Any]]:
    """Several values, and what gives results in the form that these had."""
    if isinstance(x, (list, tuple)):
        return list(x), list if isinstance(x, list) else tuple
    return [x], lambda found: found[0]


# ---- graphs ----


def ancestors(outputs: Iterable[Any]) -> list[ws.Tensor]:
    """All that tensors depend on, and these."""
    operators, leaves = ws.needed(outputs)
    return [*leaves, *[t for op in operators for t in op.outputs]]


def inputs(variables: Iterable[Any]) -> list[ws.Tensor]:
    """What variables depend on that nothing makes, and constants, from the last to the first."""
    found: dict[ws.Tensor, None] = {}
    todo = list(variables)
    seen = set(todo)
    while todo:
        t = todo.pop(0)
        if t.operator is None or not t.operator.inputs:
            found[t] = None
            continue
        new = [x for x in t.operator.tensors if x not in seen]
        seen.update(new)
        todo += new
    return list(found)


def is_same_graph(x: Any, y: Any, givens: Any = None) -> bool:
    """Whether two variables are computed in the same way of the same variables."""
    pairs = dict(givens or {})
    todo = [(x, y)]
    while todo:
        a, b = todo.pop()
        if a is b or pairs.get(a) is b:
            continue
        p, q = a.operator, b.operator
        if p is None or q is None or p.type != q.type or a.index != b.index:
            return False
        if p.type == "constant":
            if not np.array_equal(a.data, b.data):
                return False
        elif len(p.inputs) != len(q.inputs):
            return False
        for m, n in zip(p.inputs, q.inputs, strict=False):
            if isinstance(m, ws.Tensor) and isinstance(n, ws.Tensor):
                todo.append((m, n))
            elif isinstance(m, ws.Tensor) or isinstance(n, ws.Tensor) or not np.array_equal(m, n):
                return False
    return True


def equal_computations(xs: Any, ys: Any, in_xs: Any = (), in_ys: Any = ()) -> bool:
    """Whether variables are computed in the same way, of inputs in each other's place."""
    pairs = dict(zip(in_xs, in_ys, strict=True))
    return all(is_same_graph(x, y, pairs) for x, y in zip(xs, ys, strict=True))


def clone(
    output: Any, replace: Any = None, strict: bool = True, share_inputs: bool = True, **more: Any
) -> Any:
    """Variables that are computed in the same way, with others in the place of some."""
    outputs, form = _listed(output)
    pairs = replace.items() if isinstance(replace, Mapping) else replace or ()
    taken: dict[Any, Any] = {old: as_tensor_variable(new) for old, new in pairs}
    new = dict(taken)
    for op in ws.needed(outputs, taken)[0]:
        if not any(x in new for x in op.tensors):
            continue
        again = copy.copy(op)
        again.number = next(ws.Operator.numbers)
        again.inputs = tuple([new.get(x, x) if isinstance(x, ws.Tensor) else x for x in op.inputs])
        again.wrt = tuple([new.get(x, x) for x in op.wrt])
        again.outputs = tuple(
            [type(t)(t.workspace, t.key, t.sizes, t.dtype, again, t.index) for t in op.outputs]
        )
        again.anchor = again.outputs[0].key
        for old, t in zip(op.outputs, again.outputs, strict=True):
            new.setdefault(old, t)
    return form([new.get(t, t) for t in outputs])


# ---- gradients ----


def grad(
    cost: Any, wrt: Any, consider_constant: Sequence[Any] | None = None,
    disconnected_inputs: str = "raise", add_names: bool = True,
    known_grads: Mapping[Any, Any] | None = None, return_disconnected: str = "zero",
    null_gradients: str = "raise",
) -> Any:  # fmt: skip
    """The gradient of a number with respect to variables.

    Args:
        cost: A variable without axes; None where known_grads says with what to begin.
        wrt: A variable, or several in a list.
        consider_constant: Variables that the gradient does not go through.
        disconnected_inputs: What happens where the cost does not depend on a variable of wrt:
            "raise", "warn" or "ignore"; then the gradient is zeros.
        known_grads: {variable: gradient with respect to it}.
    Returns:
        A variable, or as many as wrt has.
    Raises:
        TypeError: The cost has axes, or wrt has what is no variable with fractions.
        DisconnectedInputError: The cost does not depend on a variable of wrt.
    """
    wanted, form = _listed(wrt)
    for x in wanted:
        if not isinstance(x, ws.Tensor):
            raise TypeError(f"grad: wrt has {x!r}, wanted symbolic variables")
        if np.dtype(x.dtype).kind != "f":
            raise TypeError(f"grad: {x!r} has the type {x.dtype}, of which there are no gradients")
    if cost is not None and cost.ndim != 0:
        raise TypeError(f"cost must be a scalar. It has {cost.ndim} axes")
    outputs = [] if cost is None else [cost]
    starts = [] if cost is None else [np.ones((), cost.dtype)]
    for y, g in (known_grads or {}).items():
        outputs.append(y)
        starts.append(given(g))
    if consider_constant:
        where = {c: disconnected_grad(c) for c in consider_constant}
        asked = [x for x in wanted if x not in where]
        copies = clone([*outputs, *asked], where)
        outputs = copies[: len(outputs)]
        again = dict(zip(asked, copies[len(outputs) :], strict=True))
        wanted = [again.get(x, x) for x in wanted]
    found = set(ancestors(outputs))
    for x in wanted:
        if x not in found and disconnected_inputs == "raise":
            raise DisconnectedInputError(
                f"grad method was asked to compute the gradient with respect to a variable that is "
                f"not part of the computational graph of the cost: {x!r}"
            )
    return form(_gradients(outputs, wanted, starts))


def _gradients(outputs: list[Any], wrt: list[Any], starts: list[Any]) -> list[Any]:
    compute, given = partial(gradient_values, len(outputs), len(wrt)), [*outputs, *wrt, *starts]
    op = Apply("gradients", compute, given, [x.sizes for x in wrt], [x.dtype for x in wrt])
    op.wrt = tuple(wrt)
    return list(op.outputs)


def Lop(f: Any, wrt: Any, eval_points: Any, consider_constant: Any = None, **more: Any) -> Any:
    """Gradients of f, begun with eval_points: the row vector times the Jacobian matrix."""
    wanted, form = _listed(wrt)
    fs, starts = _listed(f)[0], _listed(eval_points)[0]
    return form(_gradients(fs, wanted, [given(g) for g in starts]))


def Rop(f: Any, wrt: Any, eval_points: Any, **more: Any) -> Any:
    """How f changes along eval_points: the Jacobian matrix times the column vector."""
    fs, form = _listed(f)
    xs, vs = _listed(wrt)[0], [given(v) for v in _listed(eval_points)[0]]
    n, m = len(fs), len(xs)

    def compute(*values: Any) -> list[Any]:
        values = tuple(map(var, values))
        ys, at, along = values[:n], values[n : n + m], values[n + m :]
        us = [Variable.from_numpy_array(np.ones(y.shape, y.spec.dtype), need_grad=True) for y in ys]
        gs = _grad(list(ys), list(at), us)  # linear in us
        total = sum((F.sum(g * v) for g, v in zip(gs, along, strict=True)), F.sum(us[0]) * 0.0)
        return _grad([total], us)

    op = Apply("Rop", compute, [*fs, *xs, *vs], [y.sizes for y in fs], [y.dtype for y in fs])
    op.wrt = tuple(xs)
    return form(list(op.outputs))


def jacobian(expression: Any, wrt: Any, **more: Any) -> Any:
    """The gradient of each element of a vector, in rows."""
    wanted, form = _listed(wrt)
    if expression.ndim > 1:
        raise ValueError(f"jacobian: expression has {expression.ndim} axes, wanted 1 or none")

    def compute(y: Any, *xs: Any) -> list[Any]:
        y, xs = var(y), tuple(map(var, xs))
        if not y.shape:
            return _grad([y], list(xs))
        rows = [_grad([y[i]], list(xs)) for i in range(y.shape[0])]
        return [F.stack(*gs, axis=0) for gs in zip(*rows, strict=True)]

    lead = expression.sizes
    op = Apply(
        "jacobian",
        compute,
        [expression, *wanted],
        [(*lead, *x.sizes) for x in wanted],
        [x.dtype for x in wanted],
    )
    op.wrt = tuple(wanted)
    return form(list(op.outputs))


def hessian(cost: Any, wrt: Any, **more: Any) -> Any:
    """The second derivatives of a number with respect to a vector, as a matrix."""
    wanted, form = _listed(wrt)
    return form([jacobian(grad(cost, x), x) for x in wanted])


def _through(type: str, f: Callable[..., Any], x: Any) -> Any:
    x = given(x)
    return made(type, lambda x: f(x) if is_var(x) else x, [x], sizes_of(x), x.dtype)


def disconnected_grad(x: Any) -> Any:
    """x, which no gradient goes through."""
    return _through("disconnected_grad", F.unlink, x)


zero_grad = consider_constant = disconnected_grad


def grad_clip(x: Any, lower_bound: float, upper_bound: float) -> Any:
    """x; gradients that go through it are cut to these bounds."""

    def f(x: Any) -> Any:
        low, high = (F.constant(b, shape=x.shape) for b in (lower_bound, upper_bound))
        return F.clip_grad_by_value(x, low, high)

    return _through("grad_clip", f, x)


def grad_scale(x: Any, multiplier: float) -> Any:
    """x; gradients that go through it are multiplied."""
    x = as_tensor_variable(x)
    part = E.mul(x, multiplier)
    return part + disconnected_grad(x - part)
