# SPDX-License-Identifier: Apache-2.0
"""Whether a static graph gives what the types of an ONNX model hold.

It computes whole numbers in float32, which is exact as long as they stay small. So the largest
value that each can have is followed through the model. What is given is small: calls with larger
whole numbers, also among floats that the model makes whole, go another way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nnl.converters.onnx.file.model import Model
from nnl.converters.onnx.file.operators import Node
from nnl.converters.onnx.running.interpreter import Interpreter
from nnl.converters.onnx.values.values import Rows, dtype_of, is_float, is_var
from nnl.core.graph.node import Value

LARGEST = 2**24  # float32 holds all whole numbers up to here, and what was cast from float32
OF_INPUTS = 2**20
Bound = Callable[[Sequence[float], int], float]  # of the inputs, and the elements of the first


def _of_all(bounds: Sequence[float], size: int) -> float:
    return max(bounds)


def _of_first(bounds: Sequence[float], size: int) -> float:
    return bounds[0]


def _quotient(bounds: Sequence[float], size: int) -> float:
    return bounds[0] if bounds[0] < LARGEST else math.inf


def _of_size(bounds: Sequence[float], size: int) -> float:
    return size


def _byte(bounds: Sequence[float], size: int) -> float:
    return 255


_MOVES = (
    "Abs Cast CastLike CenterCropPad Compress DepthToSpace Expand Flatten Gather GatherElements "
    "GatherND Identity Neg ReduceMax ReduceMin Reshape Sign Slice SpaceToDepth Split Squeeze Tile "
    "Transpose Trilu Unsqueeze"
)
_INDICES = "ArgMax", "ArgMin"
BOUNDS: dict[str, Bound] = {
    **dict.fromkeys(_MOVES.split(), _of_first),
    **dict.fromkeys(["Clip", "Concat", "Max", "Min", "Pad", "Where"], _of_all),
    **dict.fromkeys(["Add", "Sub", "Sum"], lambda bounds, size: sum(bounds)),
    **dict.fromkeys(["CumSum", "ReduceSum"], lambda bounds, size: bounds[0] * size),
    **dict.fromkeys(["Div", "Mod"], _quotient),
    **dict.fromkeys(_INDICES, _of_size),
    **dict.fromkeys(
        ["QuantizeLinear", "DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul"], _byte
    ),
    # what follows reads them as float32, here and in kernels of int32
    **dict.fromkeys(["ConvInteger", "MatMulInteger"], lambda bounds, size: LARGEST),
    "Mul": lambda bounds, size: bounds[0] * bounds[1],
    "ScatterElements": lambda bounds, size: max(bounds[0], bounds[2]),  # but with a reduction
    # of the values that trips give each other, see ExactInterpreter.run
    **dict.fromkeys(["If", "Loop", "Scan"], lambda bounds, size: LARGEST),
}
_NEGATIVE = {"Neg", "Sub"}
_ROUNDS_ONCE = {"Add", "Sub", "Mul"}  # of two exact numbers, as a cast to float32 does


def _numbers(node: Node) -> list[float]:
    """The sizes of the largest whole numbers among the attributes."""
    found = [np.asarray(v) for v in node.attributes.values() if isinstance(v, (int, tuple))]
    return [float(np.abs(a).max(initial=0)) for a in found if a.dtype.kind == "i"]


def made_whole(model: Model) -> set[str]:
    """The inputs that a model casts to whole numbers."""
    casts = {n.inputs[0] for n in model.walk() if "INT" in _cast_to(n)}
    return casts & {v.name for v in model.graph.inputs}


def _cast_to(node: Node) -> str:
    """ONNX's name of the type that a node casts to; "" of other nodes and of no type."""
    from onnx import TensorProto

    names = {code: name for name, code in TensorProto.DataType.items()}
    return names.get(node.attributes.get("to"), "") if node.op_type == "Cast" else ""


class _Inexact(TypeError):
    """A static graph would round what the types of the model hold."""


class ExactInterpreter(Interpreter):
    """Records a model as a static graph if that is exact for whole inputs up to OF_INPUTS.

    Raises:
        _Inexact: It is not.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.cuts = True
        self._bounds: dict[Any, tuple[float, Value]] = {}  # with the edge, or its key came again
        self._rounded_once: set[Any] = set()
        self._given: set[Any] = set()

    def run(self, graph: Any, inputs: Sequence[Any], outer: Any = None) -> list[Any]:
        if self.depth == 0:
            for x in filter(is_var, inputs):
                self._bounds[x.edge.key] = OF_INPUTS, x.edge
                self._given.add(x.edge.key)
        for x in filter(is_var, inputs):  # of a trip: so they are, if its outputs then are so
            self._bounds.setdefault(x.edge.key, (LARGEST, x.edge))
        outputs = super().run(graph, inputs, outer)
        for y in outputs:
            self._bound(y)
        return outputs

    def _call(self, node: Node, values: list[Any], captured: list[Any]) -> list[Any]:
        to_float = _cast_to(node) == "FLOAT"
        bounds = [self._bound(v, to_float) for v in values]
        if node.op_type == "Cast" and is_var(values[0]) and values[0].edge.key in self._given:
            bounds = [min(bounds[0], OF_INPUTS)]  # made_whole() says so to who checks it
        outs = super()._call(node, values, captured)
        rule = BOUNDS.get(node.op_type) if node.domain == "" else None
        if getattr(node, "reduction", None) in ("add", "mul"):
            rule = None
        if node.domain == "ai.onnx.ml":  # what it gives or moves, or a number of its attributes
            bounds, rule = [*bounds, *_numbers(node)], _of_all
        if node.domain == "com.microsoft":  # of which some are quantized
            rule = _byte
        for y in filter(is_var, outs):
            kind = dtype_of(y)
            if node.op_type == "TopK":  # the largest, then their places
                rule = _of_size if y is outs[1] else _of_first
            if is_float(kind) and kind.itemsize == 1:
                raise _Inexact(f"{node.label}: {kind} is computed in float32")
            if rule is not None and kind.kind in "iu":
                shape = np.shape(values[0])
                axis = node.attributes.get("axis", 0) if node.op_type in _INDICES else None
                bound = rule(bounds, math.prod(shape) if axis is None else shape[axis])
                wraps = bound > np.iinfo(kind).max or kind.kind == "u" and node.op_type in _NEGATIVE
                self._bounds[y.edge.key] = math.inf if wraps else bound, y.edge
                if node.op_type in _ROUNDS_ONCE and not wraps:
                    self._rounded_once.add(y.edge.key)
        return outs

    def _bound(self, value: Any, to_float: bool = False) -> float:
        """The largest absolute value; LARGEST for floats, as whole numbers are exact in them.

        Args:
            to_float: Whether the value is cast to float32: then it may be rounded, once.
        Raises:
            _Inexact: It is beyond LARGEST, or nobody knows.
        """
        if value is None or isinstance(value, (list, Rows)):
            return 0
        kind = dtype_of(value)
        if kind.kind == "b":
            return 1
        if kind.kind not in "iu":
            return LARGEST
        if is_var(value):
            bound, _ = self._bounds.get(value.edge.key, (math.inf, None))
            if bound > LARGEST and not (to_float and value.edge.key in self._rounded_once):
                raise _Inexact(f"{kind} may be too large for float32")
            return bound
        whole = np.asarray(value)
        return float(max(-int(whole.min(initial=0)), int(whole.max(initial=0))))
