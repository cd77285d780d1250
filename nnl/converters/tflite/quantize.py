# SPDX-License-Identifier: Apache-2.0
"""Networks in 8 bits: every number of a file but the biases is an int8, and nothing is a float.

A real number is scale (stored - zero point). Scales of activations come from the ranges that a
data set takes, those of weights from the weights, one for each map. Operators that only move
elements have one scale for what goes in and out.

Source: Jacob et al., Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-
Only Inference, arXiv:1712.05877.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from nnl.converters.networks.scale import Scale
from nnl.converters.tflite.graph import FLOAT, Graph, Op, Tensor

Array = np.ndarray[Any, Any]
INT8 = np.dtype(np.int8)
LOW, HIGH = -128, 127
UNBOUNDED = 1e30  # constants beyond stand for infinity, and say nothing about ranges

# Operators with an 8-bit form whose inputs and outputs have scales of their own. Comparisons are
# not among them: interpreters abort where a scale is 1 or more.
_FREE = {
    *("ABS", "ADD", "BATCH_MATMUL", "ELU", "EXP", "GELU", "HARD_SWISH", "LEAKY_RELU", "LOG"),
    *("MEAN", "MUL", "PRELU", "RELU", "RELU6", "RELU_N1_TO_1", "RSQRT", "SQUARED_DIFFERENCE"),
    *("SUB", "SUM"),
}
# Operators that move numbers, so that scales stay.
_MOVING = {
    *("AVERAGE_POOL_2D", "BROADCAST_TO", "CONCATENATION", "GATHER", "GATHER_ND", "MAXIMUM"),
    *("MAX_POOL_2D", "MINIMUM", "MIRROR_PAD", "PAD", "PADV2", "REDUCE_MAX", "REDUCE_MIN"),
    *("RESHAPE", "RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR", "REVERSE_V2", "SELECT_V2"),
    *("SLICE", "STRIDED_SLICE", "TILE", "TOPK_V2", "TRANSPOSE", "UNPACK"),
}
# Operators whose outputs have a scale and a zero point that the format prescribes.
_PRESCRIBED = {
    "LOGISTIC": (1 / 256, -128),
    "LOG_SOFTMAX": (16 / 256, 127),
    "SOFTMAX": (1 / 256, -128),
    "TANH": (1 / 128, 0),
}
# Operators with weights and biases: where these are, and the axis of the maps.
_WEIGHTED = {
    "CONV_2D": (0, 1, 2, 0),
    "DEPTHWISE_CONV_2D": (0, 1, 2, 3),
    "FULLY_CONNECTED": (0, 1, 2, 0),
    "TRANSPOSE_CONV": (2, 1, 3, 0),
}


@dataclass(frozen=True)
class Scales:
    """What the stored numbers of an array stand for.

    Attributes:
        scale: One for all, or one for each element of the axis.
    """

    scale: Any
    zero: int
    axis: int = 0

    @classmethod
    def of(cls, one: Scale) -> Scales:
        """The same for all elements."""
        return cls(np.array([one.scale], np.float32), one.zero)

    def stored(self, value: Array) -> Array:
        """The nearest int8 numbers."""
        shape = [1] * value.ndim
        if len(self.scale) > 1:
            shape[self.axis] = -1
        value = np.clip(value, -UNBOUNDED, UNBOUNDED)
        whole = np.rint(value / self.scale.reshape(shape if value.ndim else ())) + self.zero
        found: Array = np.clip(whole, LOW, HIGH).astype(INT8)
        return found


Ranges = Mapping[int, tuple[float, float]]  # of tensors, by id


def quantized(
    g: Graph, ops: Iterable[Op], inputs: Iterable[Tensor], ranges: Ranges
) -> tuple[list[Op], list[str]]:
    """Operators in 8 bits; their tensors become those of the file.

    Args:
        g: Where operators are made.
        ranges: Of all tensors that are computed.
    Returns:
        Operators, and what they cannot say.
    """
    ops = list(ops)
    problems = [f"{o.outs[0].name}: {why}" for o in ops if (why := _refused(o)) is not None]
    if problems:
        return ops, list(dict.fromkeys(problems))
    work = _Quantizing(g, ops, list(inputs), ranges)
    return [made for op in ops for made in work.operators(op)], []


def _refused(op: Op) -> str | None:
    if op.name == "CAST" and op.ins[0] is not None:
        before, after = op.ins[0].dtype, op.outs[0].dtype
        if FLOAT in (before, after) and before.kind != "b":
            return f"{before} becomes {after}, which needs a scale"
        return None
    if op.name in _WEIGHTED:
        _, weight, _, _ = _WEIGHTED[op.name]
        w = op.ins[weight]
        return None if w is not None and w.value is not None else "its weights are computed"
    known = op.name in _FREE | _MOVING | set(_PRESCRIBED)
    if known or not any(t.dtype == FLOAT for t in (*op.ins, *op.outs) if t is not None):
        return None
    return f"the operator {op.name} has no form in 8 bits"


def _floats(op: Op) -> list[Tensor]:
    """Tensors of real numbers that are computed."""
    every = [*op.ins, *op.outs]
    known = (FLOAT, INT8)  # the latter as soon as they are stored so
    return [t for t in every if t is not None and t.value is None and t.dtype in known]


def _range(tensors: Iterable[Tensor], ranges: Ranges) -> tuple[float, float]:
    """The smallest and the largest number of several tensors."""
    low, high = 0.0, 0.0
    for t in tensors:
        a, b = ranges.get(id(t), (0.0, 0.0))
        if t.value is not None and t.dtype == FLOAT:
            known = t.value[np.abs(t.value) < UNBOUNDED]
            a, b = (known.min(), known.max()) if known.size else (0.0, 0.0)
        low, high = min(low, float(a)), max(high, float(b))
    return low, high


class _Quantizing:
    """Attributes:
    group: Of a tensor that is computed, by id: the one whose scale it has.
    scales: Of groups, by the id of that one.
    members: Of groups; constants that meet them decide about the scale, too.
    """

    def __init__(self, g: Graph, ops: list[Op], inputs: list[Tensor], ranges: Ranges) -> None:
        self.g = g
        self.group: dict[int, int] = {}
        self.scales: dict[int, Scales] = {}
        self.members: dict[int, list[Tensor]] = {}
        computed = [t for op in ops for t in op.outs] + inputs
        for op in ops:
            parts = _floats(op) if op.name in _MOVING else []
            for t in parts[1:]:
                self.join(parts[0], t)
        for t in computed:
            if t.dtype == FLOAT:
                self.members.setdefault(self.root(id(t)), []).append(t)
        met: dict[int, list[Tensor]] = {}
        for op in ops:
            if op.name in _MOVING and (parts := _floats(op)):
                known = [t for t in op.ins if t is not None and t.value is not None]
                met.setdefault(self.root(id(parts[0])), []).extend(known)
        for root, members in self.members.items():
            both = _range([*members, *met.get(root, [])], ranges)
            self.scales[root] = Scales.of(Scale.of(*both))
        for op in ops:
            if op.name in _PRESCRIBED and self.alone(op.outs[0]):
                scale, zero = _PRESCRIBED[op.name]
                self.prescribe(op.outs[0], scale, zero)
            if op.name == "CAST" and op.outs[0].dtype == FLOAT and self.alone(op.outs[0]):
                self.prescribe(op.outs[0], 1.0, 0)

    def root(self, i: int) -> int:
        while (up := self.group.get(i, i)) != i:
            i = up
        return i

    def join(self, a: Tensor, b: Tensor) -> None:
        self.group[self.root(id(b))] = self.root(id(a))

    def alone(self, t: Tensor) -> bool:
        return len(self.members[self.root(id(t))]) == 1

    def prescribe(self, t: Tensor, scale: float, zero: int) -> None:
        self.scales[self.root(id(t))] = Scales.of(Scale(scale, zero))

    def scale(self, t: Tensor) -> Scales:
        return self.scales[self.root(id(t))]

    def store(self, t: Tensor, like: Tensor | None = None) -> Tensor:
        """The tensor in 8 bits: a constant anew, others as they are from now on.

        Args:
            like: What a constant has its scale from; its own numbers if left out.
        """
        if t.dtype != FLOAT:
            return t
        if t.value is not None:
            scale = self.scale(like) if like is not None else Scales.of(Scale.of(*_range([t], {})))
            made: Tensor = self.g.once(
                ("int8", id(t), scale.scale.tobytes(), scale.zero),
                lambda: Tensor(t.shape, INT8, scale.stored(t.value), t.name, scale),
                t,
            )
            return made
        t.dtype, t.scale = INT8, self.scale(t)
        return t

    def operators(self, op: Op) -> list[Op]:
        """What an operator becomes."""
        if op.name in _WEIGHTED:
            self.store_weights(op)
        like = next(iter(_floats(op)), None) if op.name in _MOVING else None
        op.ins = [None if t is None else self.store(t, like) for t in op.ins]
        y = op.outs[0]
        prescribed = _PRESCRIBED.get(op.name)
        if op.name == "CAST" and y.dtype == FLOAT:
            op.options["out_type"] = 9
            prescribed = (1.0, 0)
        if prescribed is not None and not self.alone(y):
            scale = Scales.of(Scale(*prescribed))
            before = Tensor(y.shape, INT8, None, y.name, scale)
            op.outs = [before]
            return [op, Op("QUANTIZE", [before], [self.store(y)], {})]
        op.outs = [self.store(t) for t in op.outs]
        return [op]

    def store_weights(self, op: Op) -> None:
        """Weights with a scale for each map, biases with the product of both scales."""
        data, weight, bias, axis = _WEIGHTED[op.name]
        x, w = op.ins[data], op.ins[weight]
        assert x is not None and w is not None
        self.store(x)
        assert x.scale is not None
        others = tuple(i for i in range(w.value.ndim) if i != axis)
        largest = np.abs(w.value).max(axis=others)
        scale = Scales((np.maximum(largest, 1e-8) / HIGH).astype(np.float32), 0, axis)
        whole = np.clip(scale.stored(w.value), -HIGH, HIGH)
        op.ins[weight] = Tensor(w.shape, INT8, whole, w.name, scale)
        b = op.ins[bias] if len(op.ins) > bias else None
        if b is not None:
            each = x.scale.scale * scale.scale
            limit = 2**31 - 1
            numbers = np.clip(np.rint(b.value / each), -limit, limit).astype(np.int32)
            op.ins[bias] = Tensor(b.shape, np.dtype(np.int32), numbers, b.name, Scales(each, 0))


VERSIONS = {  # of operators in 8 bits, where it is not 2
    "CONV_2D": 3,
    "DEPTHWISE_CONV_2D": 3,
    "FULLY_CONNECTED": 4,
    "ELU": 1,
    "HARD_SWISH": 1,
    "RESHAPE": 1,
}
