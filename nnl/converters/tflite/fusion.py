# SPDX-License-Identifier: Apache-2.0
"""Products that are one operator: GELU is x (1 + erf(x / sqrt(2))) / 2, HARD_SWISH is
x relu6(x + 3) / 6. What is left of ERF, which is no operator of the format, becomes a series."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from nnl.converters.tflite.graph import FLOAT, Graph, Op, Tensor

ERF = "ERF"
CLOSE = 1e-6


def fused(ops: Sequence[Op], outputs: Sequence[Tensor]) -> list[Op]:
    """Operators with products in the place of their parts, which stay if others read them."""
    work = _Fusing(ops, outputs)
    return [made for op in ops for made in work.operators(op)]


class _Fusing:
    def __init__(self, ops: Sequence[Op], outputs: Sequence[Tensor]) -> None:
        self.maker = {id(t): op for op in ops for t in op.outs}
        self.readers: dict[int, list[Op]] = {id(t): [] for t in outputs}
        for op in ops:
            for t in op.ins:
                if t is not None:
                    self.readers.setdefault(id(t), []).append(op)
        self.kept = {id(t) for t in outputs}
        self.instead: dict[int, Op] = {}  # of a product, by its id
        for op in ops:
            if op.name == ERF:
                self.find(op, "GELU", self.of_erf(op), 0.5)
            elif op.name == "RELU6":
                self.find(op, "HARD_SWISH", op, 1 / 6)

    def operators(self, op: Op) -> list[Op]:
        """What an operator becomes."""
        if id(op) in self.instead:
            return [self.instead[id(op)]]
        return series(op) if op.name == ERF else [op]

    def scaled(self, t: Tensor | None) -> tuple[Tensor | None, float]:
        """A tensor as another one times a number."""
        op = self.maker.get(id(t))
        if op is not None and op.name in ("MUL", "DIV"):
            x, number = self.parts(op)
            if x is not None:
                return x, number if op.name == "MUL" else 1 / number
        return t, 1.0

    def parts(self, op: Op) -> tuple[Tensor | None, float]:
        """The operand of an operator whose other one is a number."""
        for i, t in enumerate(op.ins[:2]):
            if (
                t is not None
                and t.value is not None
                and t.value.size == 1
                and (i or op.name != "DIV")
            ):
                return op.ins[1 - i], float(t.value.reshape(()))
        return None, 0.0

    def of_erf(self, op: Op) -> Op | None:
        """1 + erf, if that is all that reads it."""
        readers = self.readers.get(id(op.outs[0]), [])
        if len(readers) == 1 and readers[0].name == "ADD":
            _, number = self.parts(readers[0])
            return readers[0] if number == 1 else None
        return None

    def argument(self, op: Op) -> Tensor | None:
        """x of erf(x / sqrt(2)) or relu6(x + 3)."""
        if op.name == ERF:
            x, number = self.scaled(op.ins[0])
            return x if abs(number - math.sqrt(0.5)) < CLOSE else None
        added = self.maker.get(id(op.ins[0]))
        if added is None or added.name != "ADD":
            return None
        x, number = self.parts(added)
        return x if number == 3 else None

    def find(self, start: Op, name: str, at: Op | None, wanted: float) -> None:
        """Follow the products with what `at` gives, until they are by x and a number."""
        x = self.argument(start)
        if x is None or at is None:
            return
        number, met = 1.0, False
        while True:
            readers = self.readers.get(id(at.outs[0]), [])
            if (
                len(readers) != 1
                or id(at.outs[0]) in self.kept
                or readers[0].name not in ("MUL", "DIV")
            ):
                return
            op = readers[0]
            other, factor = self.parts(op)
            if other is not None:
                number *= factor if op.name == "MUL" else 1 / factor
            elif op.name == "MUL" and not met:
                t = op.ins[1] if op.ins[0] is at.outs[0] else op.ins[0]
                base, factor = (t, 1.0) if t is x else self.scaled(t)
                if base is not x:
                    return
                number, met = number * factor, True
            else:
                return
            at = op
            if met and abs(number - wanted) < CLOSE:
                options = {"approximate": False} if name == "GELU" else {}
                self.instead[id(at)] = Op(name, [x], at.outs, options)
                return


def series(op: Op) -> list[Op]:
    """The error function.

    Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26; within 1.5e-7.
    """
    g = Graph()
    x = op.ins[0]
    assert x is not None
    m = g.op("ABS", x)
    t = g.op(
        "DIV", g.constant(1, FLOAT), g.op("ADD", g.op("MUL", m, 0.3275911), 1.0), shape=x.shape
    )
    total = g.op("ADD", g.op("MUL", t, 1.061405429), -1.453152027)
    for number in (1.421413741, -0.284496736, 0.254829592):
        total = g.op("ADD", g.op("MUL", t, total), number)
    tail = g.op("EXP", g.op("NEG", g.op("MUL", m, m)))
    y = g.op(
        "SUB", g.constant(np.float32(1)), g.op("MUL", g.op("MUL", t, total), tail), shape=x.shape
    )
    g.op("MUL", y, g.op("SIGN", x))
    g.ops[-1].outs = op.outs
    return g.ops
