# SPDX-License-Identifier: Apache-2.0
"""What cuDNN is asked to compute, as plain values: graphs of operations over strided arrays.

A `Graph` is one operation graph, which cuDNN compiles to one kernel or a few. A `Copy` is what
cuDNN has no engine for: it changes the order, the element type or the number of channels of an
array. A `Work` is a list of these, which together compute one op of a plan. All three are pure and
hashable, so they can be checked, evaluated by numpy and used as keys without a GPU.

The number of an array, its uid, says where its memory is: see `place`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nnl.ext.cuda.cudnn.rules import PRODUCTS, RULES, SpecError

__all__ = ["Array", "Copy", "Draft", "Graph", "Node", "SpecError", "Work", "place"]

# uids count from here: inputs of the op, its outputs, inputs that are written to, memory within the
# workspace, and values that exist only within a graph.
FIRST = {"in": 1, "out": 1001, "state": 2001, "scratch": 3001, "virtual": 4001}
PARTS = 100  # apart from each other are uids of arrays within one input or output
ALIGNMENT = 256  # bytes, between arrays in the workspace

Dims = tuple[int, ...]


def place(uid: int) -> tuple[str, int]:
    """("in" | "out" | "state" | "scratch" | "virtual", position) of an array."""
    kind = max((k for k, first in FIRST.items() if first <= uid), key=FIRST.__getitem__)
    position = uid - FIRST[kind]
    return kind, position % PARTS if kind in ("in", "out") else position


@dataclass(frozen=True)
class Array:
    """An operand or an intermediate value of a graph.

    Attributes:
        uid: Its number; see `place`.
        dim: Sizes: (N, C, spatial...), or (batch..., M, N) of matrices.
        stride: Distance of neighbours along each axis, in elements.
        dtype: "float32", "float16" or "bfloat16".
        value: The number itself, of a constant.
        start: Bytes before its first element, in the memory that its uid stands for.
    """

    uid: int
    dim: Dims
    stride: Dims
    dtype: str
    value: float | None = None
    start: int = 0

    @property
    def virtual(self) -> bool:
        return self.uid >= FIRST["virtual"] and self.value is None

    @property
    def extent(self) -> int:
        """Elements of memory from the first one to the last one."""
        return 1 + sum((n - 1) * s for n, s in zip(self.dim, self.stride, strict=True))

    @property
    def nbytes(self) -> int:
        return self.extent * (4 if self.dtype == "float32" else 2)

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.dim)}"


@dataclass(frozen=True)
class Node:
    """One operation: a name of the front end's, operands by port, and attributes."""

    op: str
    ins: tuple[tuple[str, int], ...]
    outs: tuple[tuple[str, int], ...]
    attrs: tuple[tuple[str, Any], ...] = ()

    def attr(self, name: str, default: Any = None) -> Any:
        return dict(self.attrs).get(name, default)


@dataclass(frozen=True)
class Graph:
    """Operations in an order in which they can run.

    Attributes:
        tf32: Whether float32 factors may be rounded to 10 bits for tensor cores.
    """

    arrays: tuple[Array, ...]
    nodes: tuple[Node, ...]
    tf32: bool = False

    @property
    def by_uid(self) -> dict[int, Array]:
        return {a.uid: a for a in self.arrays}

    @property
    def operands(self) -> tuple[Array, ...]:
        """What lies in memory, constants left out."""
        return tuple(a for a in self.arrays if not a.virtual and a.value is None)

    @property
    def written(self) -> frozenset[int]:
        return frozenset(uid for node in self.nodes for _, uid in node.outs)

    @property
    def multiplies_float32(self) -> bool:
        """Whether tensor cores would round what a convolution or a product reads."""
        return any(
            node.op in PRODUCTS and self.by_uid[node.ins[0][1]].dtype == "float32"
            for node in self.nodes
        )

    def validate(self) -> None:
        """Check that sizes, strides, channels and groups agree.

        Raises:
            SpecError: They do not; the message names the operation and the operands.
        """
        arrays = self.by_uid
        if len(arrays) != len(self.arrays):
            raise SpecError("cudnn graph: two arrays have one uid")
        for a in self.arrays:
            check_array(a, a.uid in self.written)
        made = {a.uid for a in self.arrays if not a.virtual} - self.written
        for node in self.nodes:
            for port, uid in node.ins + node.outs:
                if uid not in arrays:
                    raise SpecError(f"{node.op}: {port} is array {uid}, which is not declared")
            for port, uid in node.ins:
                if uid not in made:
                    raise SpecError(f"{node.op}: {port} is array {uid}, which nothing has made yet")
            for port, uid in node.outs:
                if uid in made:
                    raise SpecError(f"{node.op}: {port} is array {uid}, which exists already")
                made.add(uid)
            if node.op not in RULES:
                raise SpecError(f"{node.op}: not an operation; there are {sorted(RULES)}")
            given = {port: arrays[uid] for port, uid in node.ins + node.outs}
            RULES[node.op](node.op, given, dict(node.attrs))


@dataclass(frozen=True)
class Copy:
    """target = source in another order or element type; zeros where target is larger."""

    source: Array
    target: Array

    def validate(self) -> None:
        """Raises SpecError where shapes cannot be copied."""
        s, t = self.source, self.target
        check_array(s, False)
        check_array(t, True)
        if len(s.dim) != len(t.dim):
            raise SpecError(f"copy: source {s} and target {t} have different ranks")

    @property
    def both(self) -> Dims:
        """Sizes of the part that both have."""
        return tuple(map(min, self.source.dim, self.target.dim))


@dataclass(frozen=True)
class Work:
    """Graphs and copies that run one after the other and compute one op."""

    steps: tuple[Graph | Copy, ...]

    def validate(self) -> None:
        for step in self.steps:
            step.validate()

    def scratch(self) -> tuple[Dims, int]:
        """(offset of each array in the workspace, their bytes in all)."""
        sizes: dict[int, int] = {}
        for step in self.steps:
            arrays = step.operands if isinstance(step, Graph) else (step.source, step.target)
            for a in arrays:
                kind, i = place(a.uid)
                if kind == "scratch":
                    sizes[i] = max(sizes.get(i, 0), a.nbytes)
        offsets, end = [], 0
        for i in range(len(sizes)):
            offsets.append(end)
            end += (sizes[i] + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
        return tuple(offsets), end


def check_array(a: Array, written: bool) -> None:
    """Raise unless sizes and strides are those of memory, without overlap if it is written."""
    if len(a.dim) != len(a.stride):
        raise SpecError(f"array {a.uid}: {len(a.dim)} sizes and {len(a.stride)} strides")
    if not a.dim or min(a.dim) < 1:
        raise SpecError(f"array {a.uid}: sizes {a.dim} must be >= 1")
    if min(a.stride) < 1:
        raise SpecError(f"array {a.uid}: strides {a.stride} must be >= 1")
    if not written:
        return
    end = 1
    for stride, n in sorted((s, n) for s, n in zip(a.stride, a.dim, strict=True) if n > 1):
        if stride < end:
            raise SpecError(f"array {a.uid}: sizes {a.dim} and strides {a.stride} overlap")
        end = stride * (n - 1) + end


def rows(dim: Sequence[int]) -> Dims:
    """Strides of memory in which the last axis is contiguous."""
    return tuple(math.prod(dim[i + 1 :]) for i in range(len(dim)))


def channels_last(dim: Sequence[int]) -> Dims:
    """Strides of (N, C, *S) in the order (N, *S, C)."""
    inner = rows((dim[0], *dim[2:], dim[1]))
    return (inner[0], inner[-1], *inner[1:-1])


def dtype_name(dtype: Any) -> str:
    return str(np.dtype(dtype).name)


class Draft:
    """Makes a Graph: methods by name of operation add nodes and return uids.

    Args:
        tf32: As of Graph.
    """

    def __init__(self, tf32: bool = False) -> None:
        self.arrays: dict[int, Array] = {}
        self.nodes: list[Node] = []
        self.tf32 = tf32
        self.next = FIRST["virtual"]

    def array(self, kind: str, position: int, dim: Dims, stride: Dims, dtype: str) -> int:
        """Declare memory; kind as of `place`."""
        uid = FIRST[kind] + position
        self.arrays[uid] = Array(uid, tuple(dim), tuple(stride), dtype)
        return uid

    def add(self, array: Array) -> int:
        """Declare an array that was made elsewhere."""
        self.arrays[array.uid] = array
        return array.uid

    def constant(self, value: float, rank: int) -> int:
        uid = self.next
        self.next += 1
        self.arrays[uid] = Array(uid, (1,) * rank, (1,) * rank, "float32", float(value))
        return uid

    def node(
        self,
        op: str,
        ins: Mapping[str, int],
        outs: Mapping[str, int | Dims],
        dtype: str = "float32",
        **attrs: Any,
    ) -> int:
        """Add an operation; returns the uid of its first output.

        Args:
            outs: By port, the uid of a declared array, or the sizes of a value within the graph.
            dtype: Of values within the graph.
        """
        made = {}
        for port, out in outs.items():
            if isinstance(out, tuple):
                uid = self.next
                self.next += 1
                self.arrays[uid] = Array(uid, out, rows(out), dtype)
                out = uid
            made[port] = out
        given, made_ = tuple(ins.items()), tuple(made.items())
        self.nodes.append(Node(op, given, made_, tuple(sorted(attrs.items()))))
        return next(iter(made.values()))

    def pointwise(
        self, op: str, *ins: int, out: int | None = None, dtype: str = "float32", **attrs: Any
    ) -> int:
        """Add an operation on elements; sizes of 1 stretch."""
        ports = dict(zip("abc", ins, strict=False))
        dim = np.broadcast_shapes(*[self.arrays[i].dim for i in ins])
        return self.node(op, ports, {"out": dim if out is None else out}, dtype, **attrs)

    def graph(self) -> Graph:
        arrays = tuple(self.arrays[uid] for uid in sorted(self.arrays))
        return Graph(arrays, tuple(self.nodes), self.tf32)
