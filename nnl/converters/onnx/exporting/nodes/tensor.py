# SPDX-License-Identifier: Apache-2.0
"""What the exporter passes around: tensors with names, and ONNX nodes before they are written."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

Shape = tuple[int, ...]


@dataclass(eq=False)
class Tensor:
    """A value of the ONNX graph.

    Attributes:
        name: Its name in the file; given when the graph is finished.
        hint: What to call it if that is free.
        dtype: numpy dtype, None for what only nodes see (a sequence).
        shape: Sizes, names where they are open; None where nobody needed them.
        moving: Axes whose size depends on open ones; None where nobody knows.
        value: The array of a parameter or constant.
        open_axis: An axis whose size depends on values, so that nobody can know it before.
    """

    name: str = ""
    dtype: Any = None
    shape: Shape | None = None
    moving: frozenset[int] | None = None
    value: Any = None
    open_axis: int | None = None
    hint: str = ""

    @property
    def sizes(self) -> Shape:
        """The shape, where handlers know that there is one."""
        if self.shape is None:
            raise ValueError(f"export: the shape of the intermediate {self.name!r} is not known")
        return self.shape

    @property
    def ndim(self) -> int:
        return len(self.sizes)


@dataclass(eq=False)
class NodeRecord:
    """An ONNX node; a None input is an optional one left out. origin: the nnl function; given: its
    inputs, whose sizes explain numbers best."""

    name: str
    ins: list[Tensor | None]
    outs: list[Tensor]
    options: dict[str, Any] = field(default_factory=dict)
    origin: str = ""
    given: list[Tensor | None] = field(default_factory=list)

    @property
    def subgraphs(self) -> list[Subgraph]:
        """The graphs among its attributes."""
        return [v for v in self.options.values() if isinstance(v, Subgraph)]

    @property
    def reads(self) -> list[Tensor]:
        """Its inputs, and what the graphs inside read and end in."""
        found = [x for x in self.ins if x is not None]
        for graph in self.subgraphs:
            found += [x for node in graph.nodes for x in node.reads] + graph.outputs
        return found


@dataclass
class Subgraph:
    """A graph that is an attribute of a node; it may read what is around it."""

    nodes: list[NodeRecord]
    inputs: list[Tensor]
    outputs: list[Tensor]


@dataclass(eq=False)
class Call:
    """One function of the nnl graph, as a handler gets it.

    Attributes:
        name: The function.
        attrs: Its attributes, complete.
        inputs: Tensors in the dtypes that the function computes with; None for one left out.
        shapes: Output shapes.
        dtypes: Output dtypes of the function.
        target: Where the nnl function would run.
    """

    op: Any
    attrs: Any
    inputs: list[Tensor | None]
    shapes: list[Shape]
    dtypes: list[Any]
    target: Any

    @property
    def name(self) -> str:
        return str(self.op.name)

    @property
    def x(self) -> Tensor:
        """The first input."""
        return self.input(0)

    @property
    def shape(self) -> Shape:
        """Shape of the first output."""
        return self.shapes[0]

    def input(self, i: int) -> Tensor:
        """Input i, which the function cannot do without."""
        x = self.inputs[i]
        if x is None:
            raise ValueError(f"export: {self.name} has no input {i}")
        return x

    def optional(self, i: int) -> Tensor | None:
        """Input i, None if it was left out."""
        return self.inputs[i] if i < len(self.inputs) else None


def as_initializer(value: Any) -> np.ndarray[Any, Any]:
    """The array as it is stored: C-contiguous, little endian."""
    array = np.ascontiguousarray(value)
    if np.ndim(value) == 0:
        array = array.reshape(())
    return array.astype(array.dtype.newbyteorder("<"), copy=False)
