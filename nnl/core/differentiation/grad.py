# SPDX-License-Identifier: Apache-2.0
"""nnl.grad: gradients as Variables, which can be differentiated again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from nnl.core.arguments.annotations import flag, shown
from nnl.core.arguments.warn_once import warn_once
from nnl.core.arrays.spec import ShapeError, Spec
from nnl.core.graph.autodiff import _zeros, backprop, start_gradient
from nnl.core.graph.node import Copy, Value, capture
from nnl.core.graph.variable import Variable
from nnl.core.ops.op import OPS
from nnl.core.settings.context import STATE, using


def _listed(variables: Any) -> list[Any]:
    several = isinstance(variables, Iterable) and not isinstance(variables, Variable)
    return list(variables) if several else [variables]


def grad(
    outputs: Any,
    inputs: Any,
    grad_outputs: Any = None,
    persistent_outputs: Sequence[bool] = (),
    bind_grad_output: bool = False,
) -> list[Variable]:
    """Gradients of outputs with respect to inputs, as Variables that can be differentiated again.

    Args:
        outputs: Variable or several of them.
        inputs: Variable or several of them (`params.values()`).
        grad_outputs: Start gradients: None for ones, or a list of None, number, NdArray, Variable.
        persistent_outputs: Per input, whether its gradient is kept by clear_buffer.
        bind_grad_output: Let each input's `.grad` share the memory of its gradient.
    Returns:
        One Variable per input; zeros where outputs do not depend on it, and with a warning where
        it has need_grad=False, as running statistics have. An unlinked copy is an
        input of its own: what comes through it counts for the input it was made from only where
        outputs use that one nowhere else.
    Raises:
        ValueError: The numbers of arguments differ.
    Example:
        >>> x = nn.Variable((2,), need_grad=True)
        >>> x.d = [1, 2]
        >>> (g,) = nn.grad([F.sum(x**3)], [x])
        >>> (gg,) = nn.grad([F.sum(g)], [x])
        >>> gg.forward()
        >>> gg.d  # 6 x
        array([ 6., 12.], dtype=float32)
    """
    bind_grad_output = flag("grad", "bind_grad_output", bind_grad_output)
    outs, ins = _listed(outputs), _listed(inputs)
    gos = grad_outputs if isinstance(grad_outputs, (list, tuple)) else [grad_outputs] * len(outs)
    for name, vs in (("outputs", outs), ("inputs", ins)):
        if not vs:
            raise ValueError(f"grad: {name} is empty")
        for i, v in enumerate(vs):
            if not isinstance(v, Variable):
                raise TypeError(f"grad: {name}[{i}] is {type(v).__name__}, wanted nnl.Variable")
    if len(gos) != len(outs):
        raise ValueError(f"grad: grad_outputs has {len(gos)} entries, wanted {len(outs)}")
    for i, x in enumerate(ins):
        if not x.need_grad:
            warn_once(
                f"grad: inputs[{i}], {x.edge.label} {x.spec}, has need_grad=False: "
                "its gradient is zeros"
            )
    if not isinstance(persistent_outputs, (list, tuple)):
        raise TypeError(
            f"grad: persistent_outputs is {shown(persistent_outputs)}, wanted a list of bools"
        )
    if len(persistent_outputs) not in (0, len(ins)):
        raise ValueError(
            f"grad: persistent_outputs has {len(persistent_outputs)} entries, wanted {len(ins)}"
        )
    keys = {x.edge.key for x in ins}
    starts = [_start_variable(y, g) for y, g in zip(outs, gos, strict=True)]
    with using(make_nodes=True, no_grad=False):
        found = backprop([y.edge for y in outs], starts, wrt=keys)
    by_key: dict[Any, Any] = {}
    edges = [*[v for v, _ in found.leaves.values()], *[x.edge for x in ins]]
    there = _read(outs) if Copy in map(type, edges) else None
    for value, g in found.leaves.values():  # handles on one parameter share its key
        key = value.key
        if there is not None and type(value) is Copy:
            by_key[id(value)] = g
            if key in there:
                continue
        old = by_key.get(key)
        by_key[key] = g if old is None else OPS["add2"](old, g)
    for node, slots in found.edges.items():
        for i, g in enumerate(slots):
            if g is not None:
                by_key[(id(node), i)] = g
    result = []
    for i, x in enumerate(ins):
        edge = x.edge
        its_own = there is not None and type(edge) is Copy and id(edge) in there
        g = by_key.get(id(edge) if its_own else edge.key)
        g = _zeros(Spec.of(x.shape, STATE.target.float_dtype), True) if g is None else g
        if persistent_outputs and persistent_outputs[i]:
            g.persistent = True
        if bind_grad_output:
            x.grad = g.data
        result.append(g)
    return result


def _read(outputs: Sequence[Variable]) -> set[Any]:
    """What the outputs are computed from: keys of edges, and ids of those of unlinked copies."""
    edges = [v for n in capture([y.edge for y in outputs]) for v in n.inputs if v is not None]
    return {id(v) if type(v) is Copy else v.key for v in edges}


def _start_variable(y: Variable, g: Any) -> Variable:
    if isinstance(g, Variable):
        if g.shape != y.shape:
            raise ShapeError(f"grad: grad_outputs has the shape {g.shape}, wanted {y.shape}")
        return g
    nd = start_gradient(y.edge, y.shape, 1 if g is None else g)
    return Variable.of_edge(Value.leaf(nd), nd)
