# SPDX-License-Identifier: Apache-2.0
"""ONNX nodes for any size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nnl.converters.networks.open_operators import Opener
from nnl.converters.onnx.exporting.layout import LAST
from nnl.converters.onnx.exporting.nodes.context import Exporter
from nnl.converters.onnx.exporting.nodes.tensor import NodeRecord, Subgraph, Tensor
from nnl.graph.program.sizes import Solver, Unexplained, Vector, shown

_NAMES = {  # those that differ by more than capitals; no size is negative
    "FLOOR_DIV": "Div", "MINIMUM": "Min", "MAXIMUM": "Max", "CONCATENATION": "Concat",
    "BROADCAST_TO": "Expand",
}  # fmt: skip


class OnnxOpener(Opener):
    """Of a graph that is written in ONNX nodes."""

    whole = np.dtype(np.int64)
    graph: Exporter

    def __init__(self, found: Sequence[Exporter], sizes: Sequence[Mapping[str, int]]) -> None:
        super().__init__(found, sizes, "ONNX", found[0])

    def run(self) -> Any:
        solver = Solver(self.names)
        ends = [{**f.inputs, **f.outputs} for f in self.found]
        shapes = {}
        for name in ends[0]:
            vectors = enumerate(zip(*[e[name].shape for e in ends], strict=True))
            shapes[name] = tuple([_dim(solver, v, f"{name}_{axis}") for axis, v in vectors])
        first: Exporter = super().run()
        for name, shape in shapes.items():
            ends[0][name].shape = shape
        return first

    def label(self, op: NodeRecord) -> str:
        return op.origin

    def op(self, name: str, *ins: Any, shape: Any = None, dtype: Any = None, **more: Any) -> Tensor:
        options = {k: v for k, v in more.items() if k == "axis"}
        y: Tensor = self.graph.emit(_NAMES.get(name, name.title()), *ins, dtype=dtype, **options)
        y.shape = shape
        return y

    def axis_size(self, t: Tensor, axis: int) -> Tensor:
        ctx = self.graph
        if ctx.opset >= 15:
            y: Tensor = ctx.emit("Shape", t, dtype=np.int64, start=axis, end=axis + 1)
        else:
            y = ctx.emit("Gather", ctx.emit("Shape", t, dtype=np.int64), ctx.ints(axis), axis=0)
        y.shape = (1,)
        return y

    def reshaped(self, t: Tensor, shape: Sequence[int]) -> Tensor:
        y: Tensor = self.graph.reshape(t, shape)
        return y

    def operator(self, ops: Sequence[NodeRecord]) -> None:
        op = ops[0]
        self.graph._origin = op.origin
        shapes = [o.options.get("shape") for o in ops]
        if op.name.startswith("Random") and any(s != shapes[0] for s in shapes):
            rows = [self.solver.size(v) for v in zip(*shapes, strict=True)]
            whole = self.whole_numbers(rows, self.graph.ints(*shapes[0]))
            zero = self.graph.constant(np.zeros((), op.outs[0].dtype))
            op.name, op.ins = f"{op.name}Like", [self.op("BROADCAST_TO", zero, whole)]
            del op.options["shape"]
        super().operator(ops)

    def option(self, ops: Sequence[NodeRecord], key: str) -> Any:
        values = [o.options.get(key) for o in ops]
        first = values[0]
        if isinstance(first, Subgraph):
            outer, known, made = self.graph.ops, dict(self.solver.known), dict(self.made)
            for ts in zip(*[v.inputs for v in values], strict=True):
                self.know(ts)
            first.nodes = self.block([v.nodes for v in values])
            self.graph.ops, self.solver.known, self.made = outer, known, made
            return first
        if ops[0].name == "Slice" and key == "ends":
            return tuple([r[0] for r in self.left(ops, 2, list(zip(*values, strict=True)))])
        return super().option(ops, key)

    def left(self, ops: Sequence[NodeRecord], i: int, rows: list[Vector]) -> list[Vector]:
        op = ops[0]
        moving = [k for k, r in enumerate(rows) if len(set(r)) > 1]
        if op.name == "Reshape" and len(moving) == 1 and all(0 not in r for r in rows):
            rows[moving[0]] = (-1,) * len(ops)
        if op.name == "Slice" and i == 2:  # up to the end
            axes = op.options["axes"] if "axes" in op.options else op.ins[3].value
            for k in moving:
                sizes = [o.ins[0].shape and o.ins[0].shape[axes[k]] for o in ops]
                rows[k] = (LAST,) * len(ops) if list(rows[k]) == sizes else rows[k]
        return rows


def _dim(solver: Solver, v: Vector, name: str) -> str | int:
    """A size of an input or output as files have it."""
    try:
        found = solver.size(v)
    except Unexplained:
        return name
    return found if isinstance(found, int) else shown(found).replace(" ", "")
