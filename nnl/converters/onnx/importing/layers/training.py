# SPDX-License-Identifier: Apache-2.0
"""Importers of ONNX's training operators: optimizers, and the gradient of a part of the graph."""

from __future__ import annotations

from typing import Any

import numpy as np

import nnl.functions as F
from nnl.converters.onnx.file.errors import OnnxError
from nnl.converters.onnx.file.model import Graph, ValueInfo
from nnl.converters.onnx.file.registry import onnx_import
from nnl.converters.onnx.values.values import dtype_of, scalar, tagged, var
from nnl.core.differentiation.grad import grad
from nnl.core.graph.variable import Variable
from nnl.core.settings.context import using

DOMAIN = "ai.onnx.preview.training"


def _parts(values: Any, kinds: int) -> list[tuple[Any, ...]]:
    """Inputs grouped by tensor: all X, then all gradients, then each kind of state."""
    if len(values) % kinds:
        raise OnnxError(f"has {len(values)} tensors, wanted a multiple of {kinds}")
    n = len(values) // kinds
    return [tuple(var(values[i + k * n]) for k in range(kinds)) for i in range(n)]


def _flat(columns: Any) -> list[Any]:
    """Outputs in the order of ONNX: all X, then each kind of state."""
    return [v for kind in zip(*columns, strict=True) for v in kind]


@onnx_import("Adagrad", domain=DOMAIN)
def adagrad(ctx: Any, node: Any, rate: Any, step: Any, *values: Any) -> Any:
    """Gradients scaled by the root of the sum of their squares (Duchi et al., 2011)."""
    r = float(scalar(rate)) / (1.0 + int(scalar(step)) * node.decay_factor)
    out = []
    for x, g, h in _parts(values, 3):
        g = g + F.mul_scalar(x, node.norm_coefficient)
        h = h + g * g
        out.append((x - F.mul_scalar(g / F.add_scalar(F.pow_scalar(h, 0.5), node.epsilon), r), h))
    return _flat(out)


@onnx_import("Adam", domain=DOMAIN)
def adam(ctx: Any, node: Any, rate: Any, step: Any, *values: Any) -> Any:
    """Moments of the gradient (Kingma and Ba, arXiv:1412.6980)."""
    r, t = float(scalar(rate)), int(scalar(step))
    if t > 0:
        r *= np.sqrt(1 - node.beta**t) / (1 - node.alpha**t)
    out = []
    for x, g, v, h in _parts(values, 4):
        g = g + F.mul_scalar(x, node.norm_coefficient)
        v = F.mul_scalar(v, node.alpha) + F.mul_scalar(g, 1 - node.alpha)
        h = F.mul_scalar(h, node.beta) + F.mul_scalar(g * g, 1 - node.beta)
        x = x - F.mul_scalar(v / F.add_scalar(F.pow_scalar(h, 0.5), node.epsilon), float(r))
        out.append((F.mul_scalar(x, 1 - node.norm_coefficient_post), v, h))
    return _flat(out)


@onnx_import("Momentum", domain=DOMAIN)
def momentum(ctx: Any, node: Any, rate: Any, step: Any, *values: Any) -> Any:
    """Gradient descent with momentum, Nesterov's if the mode says so."""
    r, t = float(scalar(rate)), int(scalar(step))
    beta = node.beta if t > 0 else 1.0
    out = []
    for x, g, v in _parts(values, 3):
        g = g + F.mul_scalar(x, node.norm_coefficient)
        v = F.mul_scalar(v, node.alpha) + F.mul_scalar(g, beta)
        change = g + F.mul_scalar(v, node.alpha) if node.mode == "nesterov" else v
        out.append((x - F.mul_scalar(change, r), v))
    return _flat(out)


@onnx_import("Gradient", domain=DOMAIN)
def gradient(ctx: Any, node: Any, *values: Any) -> Any:
    """Gradients of the value y with respect to xs, at the values given for xs and zs.

    The nodes between them and y are run again on these values.
    """
    xs, zs = tuple(node.xs), tuple(node.zs or ())
    names = (*xs, *zs)
    if len(values) != len(names):
        raise OnnxError(f"has {len(values)} inputs for xs {xs} and zs {zs}")
    part = _part_between(ctx.scope.graph, names, node.y)
    fed: list[Any] = [_leaf(v) for v in values[: len(xs)]]
    with using(no_grad=False, make_nodes=True):
        (y,) = ctx.run(part, [*fed, *values[len(xs) :]], ctx.scope)
        if not isinstance(y, Variable):
            raise OnnxError(f"y {node.y!r} does not depend on xs {xs}")
        return list(grad([y], fed))


def _leaf(value: Any) -> Any:
    """A Variable whose gradient can be asked for."""
    v = var(value)
    if v.need_grad:
        return v
    return tagged(v.unlinked(need_grad=True), dtype_of(value))


def _part_between(graph: Any, names: tuple[str, ...], y: str) -> Graph:
    maker = {o: n for n in graph.nodes for o in n.outputs}
    wanted, chosen = [y], set()
    while wanted:
        name = wanted.pop()
        node = maker.get(name)
        if name in names or node is None or id(node) in chosen:
            continue
        chosen.add(id(node))
        wanted += [*node.inputs, *node.captured]
    nodes = [n for n in graph.nodes if id(n) in chosen]
    return Graph("gradient", nodes, [ValueInfo(n) for n in names], [ValueInfo(y)])
