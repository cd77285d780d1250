# SPDX-License-Identifier: Apache-2.0
"""Operators of TensorFlow Lite for any size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nnl.converters.networks.open_operators import Opener
from nnl.converters.tflite.graph import INT, Graph, Tensor
from nnl.converters.tflite.schema import TYPES
from nnl.graph.program.sizes import Vector

_KINDS = {v: k for k, v in TYPES.items()}
_LEFT = {"RESHAPE": 1, "SLICE": 2}  # the input in which -1 is what is left


class LiteOpener(Opener):
    """Of a network that is said in operators of TensorFlow Lite."""

    def __init__(self, found: Sequence[Any], sizes: Sequence[Mapping[str, int]], name: str) -> None:
        super().__init__(found, sizes, name, Graph())

    def op(self, name: str, *ins: Any, shape: Any = None, dtype: Any = None, **more: Any) -> Tensor:
        return self.graph.op(name, *ins, shape=shape, dtype=dtype, **more)

    def axis_size(self, t: Tensor, axis: int) -> Tensor:
        g, rank = self.graph, len(t.shape)
        shape = g.once(
            ("shape", id(t)),
            lambda: g.op("SHAPE", t, shape=(rank,), dtype=INT, out_type=_KINDS[INT]),
        )
        return self.op("GATHER", shape, g.ints(axis), shape=(1,), axis=0)

    def reshaped(self, t: Tensor, shape: Sequence[int]) -> Tensor:
        return self.graph.reshaped(t, shape)

    def option(self, ops: Sequence[Any], key: str) -> Any:
        return [] if key == "new_shape" else super().option(ops, key)

    def left(self, ops: Sequence[Any], i: int, rows: list[Vector]) -> list[Vector]:
        if _LEFT.get(ops[0].name) != i:
            return rows
        if ops[0].name == "RESHAPE":
            moving = [k for k, r in enumerate(rows) if len(set(r)) > 1]
            free = len(moving) == 1
            return [(-1,) * len(r) if free and k in moving else r for k, r in enumerate(rows)]
        computed = ops[0].ins[1].value is None
        for k, r in enumerate([] if computed else rows):
            ends = [o.ins[0].shape[k] - o.ins[1].value[k] for o in ops]
            if len(set(r)) > 1 and list(r) == ends:
                rows[k] = (-1,) * len(r)
        return rows

    def operator(self, ops: Sequence[Any]) -> None:
        op = ops[0]
        self.graph.label = op.outs[0].name
        super().operator(ops)
        shape = op.ins[1] if op.name == "RESHAPE" else None
        if shape is not None:
            op.options["new_shape"] = [] if shape.value is None else shape.value.tolist()
