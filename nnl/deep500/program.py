# SPDX-License-Identifier: Apache-2.0
"""A typed graph as a Python function, a line per node.

Names are looked up once, when it is made, and values live in local variables until their last use.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any, NamedTuple

from nnl.converters.onnx.file.model import Graph, Node

Program = Callable[[dict[str, Any]], list[Any]]


class Call(NamedTuple):
    """What computes a node: a function of its inputs and, after them, of `more`.

    Attributes:
        around: Whether it takes all values by name before the inputs.
        one: Whether it always gives the one output itself: no tuple, and not NotImplemented.
    """

    function: Callable[..., Any]
    more: tuple[Any, ...] = ()
    around: bool = False
    one: bool = False


def program(
    graph: Graph,
    call_of: Callable[[Node], Call],
    otherwise: Callable[..., Any],
) -> Program:
    """A function of the values around the graph, by name, that runs it and gives its outputs.

    Args:
        call_of: What computes a node.
        otherwise: What computes a node, its first argument, whose call gives NotImplemented.
    """
    scope: dict[str, Any] = {"otherwise": otherwise, "several": _several}
    variables, loads, lines = {"": "None"}, [], []  # type: dict[str, str], list[str], list[str]
    numbers, dead, outside = count(), _last_uses(graph), set()  # type: Any, Any, set[str]

    def variable(name: str) -> str:
        variables[name] = made = f"v{next(numbers)}"
        scope[f"name_of_{made}"] = name
        return made

    def read(name: str) -> str:
        if name not in variables:  # it comes from around the graph
            made = variable(name)
            outside.add(name)  # and whoever gave it keeps it
            loads.append(f"{made} = values[name_of_{made}]")
        return variables[name]

    for i, node in enumerate(graph.nodes):
        call = call_of(node)
        scope[f"call{i}"], scope[f"node{i}"] = call.function, node
        scope.update({f"more{i}_{k}": v for k, v in enumerate(call.more)})
        given = [read(n) for n in node.inputs]
        passed = ", ".join([*given, *[f"more{i}_{k}" for k in range(len(call.more))]])
        if call.around:
            for name in node.captured:
                read(name)
            known = "".join(f", name_of_{v}: {v}" for n, v in variables.items() if n)
            passed = ", ".join([f"{{**values{known}}}", *given])
        if call.one:
            lines.append(f"{variable(node.outputs[0])} = call{i}({passed})")
        else:
            lines.append(f"y = call{i}({passed})")
            again = ", ".join([f"node{i}", *given])
            lines.append(f"if y is NotImplemented: y = otherwise({again})")
            if len(node.outputs) == 1:
                lines.append(f"{variable(node.outputs[0])} = y[0] if isinstance(y, tuple) else y")
            elif node.outputs:
                made = ", ".join(variable(n) if n else "_" for n in node.outputs)
                lines.append(f"{made} = several(y, {len(node.outputs)})")
        gone = [variables.pop(n) for n in dead[i] if n in variables and n not in outside]
        if gone or not call.one:
            lines.append(" = ".join([*gone, "y", "None"]))
    results = ", ".join(read(v.name) for v in graph.outputs)
    body = "\n    ".join([*loads, *lines, f"return [{results}]"])
    exec(f"def run(values):\n    {body}", scope)
    made: Program = scope["run"]
    return made


def _several(y: Any, n: int) -> tuple[Any, ...]:
    """n outputs; None for those that a call does not give."""
    found = y if isinstance(y, tuple) else (y,)
    return (*found, *[None] * n)[:n]


def _last_uses(graph: Graph) -> list[list[str]]:
    """Of every node the values that nothing needs after it."""
    last: dict[str, int] = {}
    for i, node in enumerate(graph.nodes):
        for name in (*node.inputs, *node.captured, *node.outputs):
            last[name] = i
    last.pop("", None)
    for info in graph.outputs:
        last.pop(info.name, None)
    dead: list[list[str]] = [[] for _ in graph.nodes]
    for name, i in last.items():
        dead[i].append(name)
    return dead
