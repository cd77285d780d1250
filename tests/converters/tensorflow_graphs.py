# SPDX-License-Identifier: Apache-2.0
"""Graphs of TensorFlow, written node by node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from nnl.converters.tensorflow.messages import add_node, messages
from tests.graph.saved import normal

FLOAT = np.dtype(np.float32)


class Graph:
    """A GraphDef; its methods give names of nodes.

    Attributes:
        proto: The message; a FunctionDef inside `function`.
    """

    def __init__(self) -> None:
        self.proto = messages()["GraphDef"]()
        self.count = 0

    def __call__(self, op: str, *inputs: Any, name: str = "", **attributes: Any) -> str:
        """Add a node; arrays and numbers among the inputs become constants."""
        names = [v if isinstance(v, str) else self.constant(v) for v in inputs]
        self.count += 1
        return add_node(self.proto, op, name or f"{op}_{self.count}", names, **attributes)

    def constant(self, value: Any) -> str:
        """A Const node."""
        value = np.asarray(value)
        value = value.astype({"f": np.float32, "i": np.int32}.get(value.dtype.kind, value.dtype))
        return self("Const", value=value, dtype=value.dtype)

    def input(self, name: str, *shape: int | None) -> str:
        """A Placeholder."""
        return self("Placeholder", name=name, dtype=FLOAT, shape=shape)

    def function(self, name: str, args: list[str], results: dict[str, str]) -> Any:
        """A function of the library, as a builder of its body; `results` are its edges by name,
        such as "Add_1:z:0"."""
        inner = Graph()
        inner.proto = self.proto.library.function.add()
        inner.proto.signature.name = name
        for a in args:
            inner.proto.signature.input_arg.add(name=a, type=1)
        for r, edge in results.items():
            inner.proto.signature.output_arg.add(name=r, type=1)
            inner.proto.ret[r] = edge
        return inner

    def save(self, path: Path) -> Path:
        """Write a .pb file."""
        path.write_bytes(self.proto.SerializeToString())
        return path


IMAGE = {"data_format": "NHWC", "padding": "SAME", "strides": [1, 2, 2, 1]}


def images() -> tuple[Graph, Any, Any, Any]:
    """A convolution, a squeeze-and-excite block, a mean and a matrix, and their weights."""
    g, w, b, m = Graph(), normal(3, 2, 3, 5), normal(5), normal(5, 4)
    h = g("BiasAdd", g("Conv2D", g.input("x", None, 7, 6, 3), w, **IMAGE), b, data_format="NHWC")
    h = g("Relu", h)
    scale = g("Sigmoid", g("Mean", h, [1, 2], keep_dims=True))
    h = g("Pad", g("Mul", h, scale), [[0, 0], [1, 0], [0, 2], [0, 0]])
    g("MatMul", g("Mean", h, [1, 2], keep_dims=False), m, name="y")
    return g, w, b, m


def loop(g: Graph, turns: Any) -> str:
    """x * 1.5 + 1, again and again, as graphs of version 1 have it."""
    frame = {"frame_name": "f", "is_constant": False}
    i = g("Merge", g("Enter", 0, **frame), "next_i")
    v = g("Merge", g("Enter", "x", **frame), "next_v")
    most = g("Enter", turns, frame_name="f", is_constant=True)
    going = g("LoopCond", g("Less", i, most))
    i, v = (g("Switch", n, going) for n in (i, v))
    g("NextIteration", g("Add", f"{i}:1", 1), name="next_i")
    g("NextIteration", g("Add", g("Mul", f"{v}:1", 1.5), 1.0), name="next_v")
    g("Exit", i, name="count")
    return g("Exit", v, name="y")


def functions() -> Graph:
    """32 x, by a loop of functions and a condition."""
    g = Graph()
    going = g.function("going", ["i", "v"], {"r": "less:z:0"})
    going("Less", "i", 4, name="less")
    body = g.function("body", ["i", "v"], {"i2": "add:z:0", "v2": "call:output:0"})
    body("AddV2", "i", 1, name="add", T=np.dtype(np.int32))
    body("PartitionedCall", "v", name="call", f={"func": "twice"})
    twice = g.function("twice", ["v"], {"r": "double:z:0"})
    twice("Add", "v", "v", name="double")
    g("While", 0, g.input("x", 3), name="w", cond={"func": "going"}, body={"func": "body"})
    g(
        "If",
        np.array(True),
        "w:1",
        name="y",
        then_branch={"func": "twice"},
        else_branch={"func": "?"},
    )
    return g
