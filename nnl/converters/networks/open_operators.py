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

from nnl.graph.open_sizes.recording import evenly_spaced
from nnl.graph.program.open_program import Differ
from nnl.graph.program.sizes import Expression, Solver, Unexplained, Vector

SMALL = 64  # elements of arrays of which every one is explained
# Operators by what they do, as TensorFlow Lite names them.
_OPERATORS = {
    "+": "ADD", "-": "SUB", "*": "MUL", "//": "FLOOR_DIV", "/": "DIV", "min": "MINIMUM",
    "max": "MAXIMUM",
}  # fmt: skip


class Opener:
    """Makes one of the operators of a network at several sizes; a format says how, in a subclass.

    Args:
        found: What the format's writer gave at each witness, with `ops`, `inputs` and `outputs`;
            the first one is changed.
        sizes: Of the dims, for each.
        name: Of the format, for messages.
        graph: What makes constants; its `ops` are what is written so far.
    Attributes:
        whole, real: Types of sizes, and of what is divided by them.
    """

    whole: np.dtype[Any] = np.dtype(np.int32)
    real: np.dtype[Any] = np.dtype(np.float32)

    def __init__(
        self, found: Sequence[Any], sizes: Sequence[Mapping[str, int]], name: str, graph: Any
    ) -> None:
        self.found, self.name, self.graph = found, name, graph
        self.names = {n: tuple([s[n] for s in sizes]) for n in sizes[0]}
        self.solver = Solver(self.names)
        self.tensors: list[Any] = []
        self.vectors: list[list[Vector]] = []  # sizes of tensors at the witnesses
        self.number: dict[int, int] = {}
        self.dims: dict[str, Expression] = {}  # where names are to be read
        self.made: dict[Any, Any] = {}  # of an expression

    # ---- what a format says ----

    def op(self, name: str, *ins: Any, shape: Any = None, dtype: Any = None, **more: Any) -> Any:
        """Add an operator of TensorFlow Lite."""
        raise NotImplementedError

    def axis_size(self, t: Any, axis: int) -> Any:
        """The size of an axis as a vector of one element."""
        raise NotImplementedError

    def reshaped(self, t: Any, shape: Sequence[int]) -> Any:
        """The same elements in another shape."""
        raise NotImplementedError

    def option(self, ops: Sequence[Any], key: str) -> Any:
        """What an operator is told by an option, where it differs."""
        raise self.told(ops[0], f"its {key} is", [o.options.get(key) for o in ops])

    def left(self, ops: Sequence[Any], i: int, rows: list[Vector]) -> list[Vector]:
        """The numbers of input i with such as say "what is left", where that says the same."""
        return rows

    # ---- operators ----

    def run(self) -> Any:
        """The operators, whose tensors have -1 where sizes differ.

        Raises:
            Differ: Other sizes need other operators. Unexplained: A number that an operator is told
                follows from no sizes.
        """
        first = self.found[0]
        for ts in zip(*[f.inputs.values() for f in self.found], strict=True):
            self.know(ts)
            for axis, v in enumerate(self.vectors[-1]):
                for n, vector in self.names.items():
                    if v == vector:
                        self.dims.setdefault(n, (len(self.tensors) - 1, axis))
        first.ops = self.block([f.ops for f in self.found])
        for t, vectors in zip(self.tensors, self.vectors, strict=True):
            t.shape = tuple([-1 if len(set(v)) > 1 else v[0] for v in vectors])
        return first

    def block(self, found: Sequence[Sequence[Any]]) -> list[Any]:
        """Operators at all witnesses as one."""
        for ops in zip_longest(*found):
            kinds = list(dict.fromkeys([o.name if o else "none" for o in ops]))
            if len(kinds) > 1:
                label = self.label(next(o for o in ops if o))
                raise Differ(
                    f"{self.name} needs other operators at other sizes, for {label}: "
                    f"{' and '.join(kinds)}"
                )
        self.graph.ops = made = []
        for ops in zip(*found, strict=True):
            self.operator(ops)
        return made

    def label(self, op: Any) -> str:
        """What messages call an operator."""
        return str(op.outs[0].name)

    def know(self, ts: Sequence[Any]) -> None:
        """A tensor that is there from now on."""
        if any(t.shape is None for t in ts):
            return
        if len({len(t.shape) for t in ts}) > 1:
            raise Differ(f"{self.name} needs other operators at other sizes")
        i = self.number[id(ts[0])] = len(self.tensors)
        self.tensors.append(ts[0])
        self.vectors.append(list(zip(*[t.shape for t in ts], strict=True)))
        for axis, v in enumerate(self.vectors[i]):
            if axis != getattr(ts[0], "open_axis", None):  # which follows from values
                self.solver.add(v, (i, axis))

    def operator(self, ops: Sequence[Any]) -> None:
        """One operator, after what it is told."""
        op = ops[0]
        own = [
            (v, (self.number[id(t)], axis))
            for t in (*op.ins, *getattr(op, "given", ()))
            if t is not None and id(t) in self.number
            for axis, v in enumerate(self.vectors[self.number[id(t)]])
            if len(set(v)) > 1
        ]
        for key in list(op.options):
            if any(o.options.get(key) != op.options[key] for o in ops):
                op.options[key] = self.option(ops, key)
        for i, t in enumerate(op.ins):
            if t is not None and t.value is not None:
                op.ins[i] = self._constant(ops, i, own)
        self.graph.ops.append(op)
        for ts in zip(*[o.outs for o in ops], strict=True):
            self.know(ts)

    def told(self, op: Any, what: str, values: Sequence[Any]) -> Unexplained:
        """The error of a number without expression."""
        at = "; ".join(f"{n}={', '.join(map(str, v[:3]))}" for n, v in self.names.items())
        shown = ", ".join([f"{v}" for v in values[:3]])
        return Unexplained(
            f"{self.name} cannot leave sizes open: {op.name} has to be told a number that no "
            f"expression of sizes gives: {what} {shown} at {at}"
        )

    # ---- constants that depend on sizes ----

    def _constant(self, ops: Sequence[Any], i: int, own: Any) -> Any:
        """What an operator is told at any sizes."""
        op, ts = ops[0], [o.ins[i] for o in ops]
        values, first = [t.value for t in ts], ts[0]
        if all(v is values[0] or _equal(v, values[0]) for v in values[1:]):
            return first
        try:
            if any(v is None for v in values):
                raise Unexplained
            if len({v.shape for v in values}) > 1:
                return self._spread(values, first.dtype, own)
            if values[0].size > SMALL or first.dtype.kind not in "fiu":
                raise Unexplained
            rows = list(zip(*[v.reshape(-1).tolist() for v in values], strict=True))
            if first.dtype.kind == "f":
                kind = first.dtype.type
                parts = [self.size(self.solver.factor(r, own, kind), self.real) for r in rows]
                y = self.graph.cast(self._joined(parts), first.dtype)
                return y if first.shape == (len(parts),) else self.reshaped(y, first.shape)
            rows = self.left(ops, i, rows)
            return self.whole_numbers([self.solver.size(r, own) for r in rows], first)
        except Unexplained:
            texts = [
                "none" if v is None else v.tolist() if v.size < 9 else f"{v.dtype}{list(v.shape)}"
                for v in values
            ]
            raise self.told(op, f"input {i} is", texts) from None

    def _joined(self, parts: Sequence[Any]) -> Any:
        if len(parts) == 1:
            return parts[0]
        return self.op("CONCATENATION", *parts, shape=(len(parts),), axis=0)

    def whole_numbers(self, numbers: Sequence[Expression], like: Any) -> Any:
        """An array of whole numbers, of the type and shape of another."""
        if all(isinstance(n, int) for n in numbers):
            return self.graph.constant(np.array(numbers, like.dtype).reshape(like.shape))
        parts: list[Any] = []
        known: list[int] = []
        for n in [*numbers, None]:
            if isinstance(n, int):
                known.append(n)
                continue
            if known:
                parts.append(self.graph.ints(*known))
                known = []
            if n is not None:
                parts.append(self.size(n))
        y = self._joined(parts)
        if like.shape != (len(numbers),):
            y = self.reshaped(y, like.shape)
        return self.graph.cast(y, like.dtype)

    def _spread(self, values: Sequence[Any], dtype: Any, own: Any) -> Any:
        """An array that is the same along an axis, or evenly spaced, as numbers of places are."""
        found = evenly_spaced(values)
        if found is None:
            raise Unexplained
        base, steps = found
        shape = values[0].shape
        vectors = list(zip(*[v.shape for v in values], strict=True))
        sizes = [self.solver.size(v, own) for v in vectors]
        whole = self.whole_numbers(sizes, self.graph.ints(*shape))
        g, kind = self.graph, self.real if base.dtype.kind == "f" else self.whole
        y = self.op("BROADCAST_TO", g.constant(base, kind), whole, shape=shape)
        for axis, step in steps.items():
            end = self.reshaped(self.size(sizes[axis]), ())
            ends = g.constant(0, self.whole), end, g.constant(1, self.whole)
            along = [-1 if i == axis else 1 for i in range(len(shape))]
            ones = tuple([n if i == axis else 1 for i, n in enumerate(shape)])
            count = self.op("RANGE", *ends, shape=(shape[axis],))
            row = self.op("RESHAPE", count, g.ints(*along), shape=ones, new_shape=along)
            steps_of = g.constant(step, kind)
            wide = np.broadcast_shapes(ones, step.shape)
            moved = self.op("MUL", g.cast(row, kind), steps_of, shape=wide)
            y = self.op("ADD", y, moved, shape=shape)
        return g.cast(y, dtype)

    # ---- expressions ----

    def size(self, e: Expression, dtype: Any = None) -> Any:
        """A number as a vector of one element."""
        dtype = self.whole if dtype is None else dtype
        if isinstance(e, (int, float)):
            return self.graph.constant(np.array([e], dtype))
        if isinstance(e, str):
            e = self.dims[e]
        if len(e) == 2:
            if e not in self.made:
                self.made[e] = self.axis_size(self.tensors[e[0]], e[1])
            return self.graph.cast(self.made[e], dtype)
        inner = self.real if e[0] == "/" or isinstance(e[1], float) else dtype
        a, b = self.size(e[1], inner), self.size(e[2], inner)
        if (e, inner) not in self.made:
            self.made[e, inner] = self.op(_OPERATORS[e[0]], a, b, shape=(1,), dtype=inner)
        return self.made[e, inner]


def _equal(a: Any, b: Any) -> bool:
    if a is None or b is None:
        return a is b
    return a.shape == b.shape and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
