# SPDX-License-Identifier: Apache-2.0
"""Operators for any size, made of those for several: what differs is computed from sizes.

A network is said in operators at each witness of its open sizes. A number that an operator is told
and that differs becomes -1 where the format reads that as "what is left", else operators that
compute it from the shapes of tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np

from nnl.converters.tflite.graph import FLOAT, INT, SMALL, Graph, Op, Tensor
from nnl.converters.tflite.schema import TYPES
from nnl.graph.open_program import Differ
from nnl.graph.open_recording import evenly_spaced
from nnl.graph.sizes import Expression, Solver, Unexplained, Vector

_OPERATORS = {
    "+": "ADD",
    "-": "SUB",
    "*": "MUL",
    "//": "FLOOR_DIV",
    "min": "MINIMUM",
    "max": "MAXIMUM",
    "/": "DIV",
}
_KINDS = {v: k for k, v in TYPES.items()}
_LEFT = {"RESHAPE": 1, "SLICE": 2}  # the input in which -1 is what is left


def opened(found: Sequence[Any], sizes: Sequence[Mapping[str, int]], name: str) -> Any:
    """The operators of a network at several sizes, as one; its tensors have -1 where sizes differ.

    Args:
        found: What `emitted` gave at each witness; the first one is changed.
        sizes: Of the dims, for each.
        name: Of the format, for messages.
    Raises:
        Differ: Other sizes need other operators. Unexplained: A number that an operator is told
            follows from no sizes.
    """
    return _Opener(found, {n: tuple([s[n] for s in sizes]) for n in sizes[0]}, name).run()


class _Opener:
    def __init__(self, found: Sequence[Any], names: Mapping[str, Vector], name: str) -> None:
        self.found, self.name, self.names = found, name, names
        self.solver = Solver(names)
        self.graph = Graph()
        self.tensors: list[Tensor] = []
        self.vectors: list[list[Vector]] = []  # sizes of tensors at the witnesses
        self.number: dict[int, int] = {}
        self.dims: dict[str, Expression] = {}  # where names are to be read

    def run(self) -> Any:
        first = self.found[0]
        for ops in zip_longest(*[f.ops for f in self.found]):
            kinds = list(dict.fromkeys([o.name if o else "none" for o in ops]))
            if len(kinds) > 1:
                label = next(o.outs[0].name for o in ops if o)
                raise Differ(
                    f"{self.name} needs other operators at other sizes, for {label}: "
                    f"{' and '.join(kinds)}"
                )
        for ts in zip(*[f.inputs.values() for f in self.found], strict=True):
            self._know(ts)
            for axis, v in enumerate(self.vectors[-1]):
                for n, vector in self.names.items():
                    if v == vector:
                        self.dims.setdefault(n, (len(self.tensors) - 1, axis))
        for ops in zip(*[f.ops for f in self.found], strict=True):
            self._operator(ops)
        for t, vectors in zip(self.tensors, self.vectors, strict=True):
            t.shape = tuple([-1 if len(set(v)) > 1 else v[0] for v in vectors])
        first.ops = self.graph.ops
        return first

    def _know(self, ts: Sequence[Tensor]) -> None:
        """A tensor that is there from now on."""
        if len({len(t.shape) for t in ts}) > 1:
            raise Differ(f"{self.name} needs other operators at other sizes")
        i = self.number[id(ts[0])] = len(self.tensors)
        self.tensors.append(ts[0])
        self.vectors.append(list(zip(*[t.shape for t in ts], strict=True)))
        for axis, v in enumerate(self.vectors[i]):
            self.solver.add(v, (i, axis))

    def _operator(self, ops: Sequence[Op]) -> None:
        op = ops[0]
        self.graph.label = op.outs[0].name
        own = [
            (v, (self.number[id(t)], axis))
            for t in op.ins
            if t is not None and id(t) in self.number
            for axis, v in enumerate(self.vectors[self.number[id(t)]])
            if len(set(v)) > 1
        ]
        for key, value in op.options.items():
            if key != "new_shape" and any(o.options[key] != value for o in ops):
                raise self._told(op, f"its {key} is", [o.options[key] for o in ops])
        for i, t in enumerate(op.ins):
            if t is not None and t.value is not None:
                op.ins[i] = self._constant(ops, i, own)
        shape = op.ins[1] if op.name == "RESHAPE" else None
        if shape is not None:
            op.options["new_shape"] = [] if shape.value is None else shape.value.tolist()
        self.graph.ops.append(op)
        for ts in zip(*[o.outs for o in ops], strict=True):
            self._know(ts)

    def _told(self, op: Op, what: str, values: Sequence[Any]) -> Unexplained:
        at = "; ".join(f"{n}={', '.join(map(str, v[:3]))}" for n, v in self.names.items())
        shown = ", ".join([f"{v}" for v in values[:3]])
        return Unexplained(
            f"{self.name} cannot leave sizes open: {op.name} has to be told a number that no "
            f"expression of sizes gives: {what} {shown} at {at}"
        )

    # ---- constants that depend on sizes ----

    def _constant(self, ops: Sequence[Op], i: int, own: Any) -> Tensor:
        """What an operator is told at any sizes."""
        op, ts = ops[0], [o.ins[i] for o in ops]
        values = [t.value for t in ts if t is not None]
        first: Tensor = ts[0]  # type: ignore[assignment]
        if all(v is values[0] or _equal(v, values[0]) for v in values[1:]):
            return first
        try:
            if len({v.shape for v in values}) > 1:
                return self._spread(values, first, own)
            if values[0].size > SMALL:
                raise Unexplained
            rows = list(zip(*[v.reshape(-1).tolist() for v in values], strict=True))
            if first.dtype.kind == "f":
                return self._floats([self.solver.factor(r, own) for r in rows], first)
            if _LEFT.get(op.name) == i:
                rows = self._left(ops, rows)
            return self._ints([self.solver.size(r, own) for r in rows], first)
        except Unexplained:
            texts = [v.tolist() if v.size < 9 else f"{v.dtype}{list(v.shape)}" for v in values]
            raise self._told(op, f"input {i} is", texts) from None

    def _left(self, ops: Sequence[Op], rows: list[Vector]) -> list[Vector]:
        """With -1 where that says the same."""
        if ops[0].name == "RESHAPE":
            moving = [k for k, r in enumerate(rows) if len(set(r)) > 1]
            free = len(moving) == 1
            return [(-1,) * len(r) if free and k in moving else r for k, r in enumerate(rows)]
        for k, r in enumerate(rows):
            ends = [o.ins[0].shape[k] - o.ins[1].value[k] for o in ops]  # type: ignore[union-attr]
            if len(set(r)) > 1 and list(r) == ends:
                rows[k] = (-1,) * len(r)
        return rows

    def _ints(self, numbers: Sequence[Expression], like: Tensor) -> Tensor:
        """An array of whole numbers."""
        g = self.graph
        if all(isinstance(n, int) for n in numbers):
            return g.constant(np.array(numbers, like.dtype).reshape(like.shape))
        parts: list[Tensor] = []
        known: list[int] = []
        for n in [*numbers, None]:
            if isinstance(n, int):
                known.append(n)
                continue
            if known:
                parts.append(g.ints(*known))
                known = []
            if n is not None:
                parts.append(self.size(n))
        shape = (len(numbers),)
        y = parts[0] if len(parts) == 1 else g.op("CONCATENATION", *parts, shape=shape, axis=0)
        if like.shape != shape:
            y = g.reshaped(y, like.shape)
        return g.cast(y, like.dtype)

    def _floats(self, numbers: Sequence[Expression], like: Tensor) -> Tensor:
        parts = [self.size(n, FLOAT) for n in numbers]
        shape = (len(parts),)
        g = self.graph
        y = parts[0] if len(parts) == 1 else g.op("CONCATENATION", *parts, shape=shape, axis=0)
        return y if like.shape == shape else g.reshaped(y, like.shape)

    def _spread(self, values: Sequence[Any], like: Tensor, own: Any) -> Tensor:
        """An array that is the same along an axis, or evenly spaced, as numbers of places are."""
        found = evenly_spaced(values)
        if found is None:
            raise Unexplained
        base, steps = found
        shape = values[0].shape
        vectors = list(zip(*[v.shape for v in values], strict=True))
        sizes = [self.solver.size(v, own) for v in vectors]
        whole = self._ints(sizes, Tensor((len(shape),), INT))
        g, kind = self.graph, FLOAT if base.dtype.kind == "f" else INT
        y = g.op("BROADCAST_TO", g.constant(base, kind), whole, shape=shape)
        for axis, step in steps.items():
            end = g.reshaped(self.size(sizes[axis]), ())
            count = g.op("RANGE", g.constant(0, INT), end, 1, shape=(shape[axis],))
            row = g.cast(
                g.op(
                    "RESHAPE",
                    count,
                    g.ints(*_along(axis, len(shape))),
                    shape=_ones(axis, shape),
                    new_shape=_along(axis, len(shape)),
                ),
                kind,
            )
            moved = g.op(
                "MUL", row, g.constant(step, kind), shape=np.broadcast_shapes(row.shape, step.shape)
            )
            y = g.op("ADD", y, moved, shape=shape)
        return g.cast(y, like.dtype)

    # ---- expressions ----

    def size(self, e: Expression, dtype: Any = INT) -> Tensor:
        """A number as a vector of one element."""
        g = self.graph
        if isinstance(e, (int, float)):
            return g.constant([e], dtype)
        if isinstance(e, str):
            e = self.dims[e]
        if len(e) == 2:
            t = self.tensors[e[0]]
            shape = g.once(
                ("shape", e[0]),
                lambda: g.op("SHAPE", t, shape=(len(t.shape),), dtype=INT, out_type=_KINDS[INT]),
            )
            y = g.once(("size", e), lambda: g.op("GATHER", shape, g.ints(e[1]), shape=(1,), axis=0))
            return g.cast(y, dtype)
        inner = FLOAT if e[0] == "/" or isinstance(e[1], float) else dtype
        a, b = self.size(e[1], inner), self.size(e[2], inner)
        made: Tensor = g.once(("of", e, inner), lambda: g.op(_OPERATORS[e[0]], a, b, dtype=inner))
        return made


def _equal(a: Any, b: Any) -> bool:
    return a.shape == b.shape and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")


def _along(axis: int, rank: int) -> list[int]:
    return [-1 if i == axis else 1 for i in range(rank)]


def _ones(axis: int, shape: Sequence[int]) -> tuple[int, ...]:
    return tuple([n if i == axis else 1 for i, n in enumerate(shape)])
