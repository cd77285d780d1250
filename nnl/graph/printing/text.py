# SPDX-License-Identifier: Apache-2.0
"""A graph as readable text."""

from __future__ import annotations

import sys
from typing import Any, TextIO

from nnl.core.graph.node import Node, Value, capture
from nnl.core.graph.variable import Variable


def describe(variable: Variable) -> str:
    """One line per function below a Variable: outputs, function, inputs, attributes, cost.

    Computed edges are called %0, %1, ... in the order of the program; leaves by their name.
    """
    nodes = capture([variable.edge])
    number = {node: i for i, node in enumerate(nodes)}
    names: dict[int, str] = {}

    def label(v: Value | None) -> str:
        if v is None:
            return "-"
        if v.node is None:
            if id(v.data) not in names:
                names[id(v.data)] = v.name or f"leaf{len(names)}"
            grad = " grad" if v.need_grad else ""
            return f"{names[id(v.data)]}:{v.current_spec}{grad}"
        part = f".{v.index}" if len(v.node.out_specs) > 1 else ""
        return f"%{number[v.node]}{part}"

    lines = []
    flops = moved = 0
    for node in nodes:
        c = _cost(node)
        if c is not None:
            flops, moved = flops + c.flops, moved + c.bytes
        out = ", ".join(str(s) for s in node.out_specs)
        inputs = ", ".join(label(v) for v in node.inputs)
        attrs = ", ".join(f"{k}={v!r}" for k, v in _changed(node).items())
        name = next(
            (v.name for n in nodes for v in n.inputs if v and v.node is node and v.name), ""
        )
        flags = "" if node.need_grad else "  # no grad"
        lines.append(
            f"%{number[node]}{f' {name}' if name else ''}: {out} = {node.op.name}({inputs})"
            f"{f' [{attrs}]' if attrs else ''}{flags}"
        )
    lines.append(f"{len(nodes)} functions, {flops / 1e6:.3f} Mflop, {moved / 1e6:.3f} MB moved")
    return "\n".join(lines)


def _cost(node: Node) -> Any:
    cost = getattr(node.attrs, "cost", None)
    return None if cost is None else cost(*[v and v.current_spec for v in node.inputs])


def _changed(node: Node) -> dict[str, Any]:
    """Attributes that differ from their defaults."""
    op = node.op
    values = zip(op.fields, node.attrs.values, op.defaults, strict=True)
    return {f: v for f, v, d in values if v is not d and v != d}


def print_graph(variable: Variable, file: TextIO | None = None) -> None:
    """Print the graph below a Variable; to stdout unless a file is given.

    Example:
        >>> nn.print_graph(F.relu(nn.Variable((2, 3))))
        %0: float32[2, 3] = relu(leaf0:float32[2, 3])  # no grad
        1 functions, 0.000 Mflop, 0.000 MB moved
    """
    print(describe(variable), file=file or sys.stdout)
