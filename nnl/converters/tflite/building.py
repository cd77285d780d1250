# SPDX-License-Identifier: Apache-2.0
"""What importers of operators build a graph with: values that know the order of their axes."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import nnl.functions as F
from nnl.converters.layout import Order, permuted, plain, step
from nnl.converters.tflite.file import FileOperator, FileTensor, is_impossible
from nnl.converters.tflite.flatbuffer import Damaged
from nnl.converters.tflite.schema import ACTIVATIONS
from nnl.core.parameter import get_parameter, get_parameter_or_create
from nnl.core.variable import Variable

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Value:
    """A tensor of the file: axis k of x, a Variable or an array, is its axis order[k]."""

    x: Any
    order: Order
    name: str = ""  # of a constant in the file

    @property
    def known(self) -> bool:
        """Whether it is a constant."""
        return isinstance(self.x, np.ndarray)

    @property
    def shape(self) -> tuple[int, ...]:
        """As the file has it."""
        return permuted(self.x.shape, [self.order.index(a) for a in plain(self.rank)])

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.order)


def computed(x: Any) -> Value:
    """A value in the order of the file."""
    return Value(x, plain(x.ndim))


class Builder:
    """What importers get: arrays of values in an order that they ask for."""

    def __init__(self) -> None:
        self._made: dict[Any, Variable] = {}
        self._alive: list[Any] = []
        self.op: FileOperator
        self.outs: list[FileTensor] = []  # of the present operator
        self.ins: list[FileTensor | None] = []
        self.sized = True  # whether shapes of the file are those of the graph

    def held(self, v: Value, order: Order | None = None) -> Variable:
        """The Variable of a value in an order, that of the file if left out."""
        order = plain(v.rank) if order is None else order
        axes = step(v.order, order)
        key = id(v.x), axes
        if key not in self._made:
            self._alive.append(v.x)
            self._made[key] = self._parameter(v, axes) if v.known else _moved(v.x, axes)
        return self._made[key]

    def array(self, v: Value | None, what: str) -> Array:
        """The value of a constant."""
        if v is None or not v.known:
            raise Damaged(f"{what} is computed, wanted a constant")
        return v.x.transpose(step(v.order, plain(v.rank)))  # type: ignore[no-any-return]

    def ints(self, v: Value | None, what: str) -> list[int]:
        """The numbers of a constant."""
        found = self.array(v, what)
        if found.dtype.kind not in "iu" or found.size > 64:
            raise Damaged(f"{what} is {found.dtype}{list(found.shape)}, wanted a few integers")
        return [int(n) for n in found.reshape(-1)]

    def axes(self, v: Value | None, rank: int, what: str = "the axes") -> list[int]:
        """Numbers of axes, each once."""
        found = self.ints(v, what)
        if any(not -rank <= a < rank for a in found) or len({a % rank for a in found}) < len(found):
            raise Damaged(f"{what} are {found}, with {rank} axes")
        return [a % rank for a in found]

    def _parameter(self, v: Value, axes: Sequence[int]) -> Variable:
        moved = v.x.transpose(axes)
        value = np.ascontiguousarray(moved).reshape(moved.shape)  # which makes one axis of none
        if value.dtype.kind != "f" or not v.name or not value.ndim:
            return Variable.from_numpy_array(value)
        stem = re.sub(r"[^\w/.-]+", "_", v.name).strip("/") or "constant"
        name, count = stem, 0
        while get_parameter(name) is not None:
            count += 1
            name = f"{stem}_{count}"
        float32 = value.astype(np.float32)
        made: Variable = get_parameter_or_create(name, value.shape, lambda shape: float32)
        return made

    # ---- several values ----

    def common(self, vs: Sequence[Value]) -> Order:
        """The order in which values of one rank meet."""
        unknown = [v for v in vs if not v.known] or list(vs)
        size = max(math.prod(v.shape) for v in unknown)
        orders = [v.order for v in unknown if math.prod(v.shape) == size]
        return next((o for o in orders if o != plain(len(o))), orders[0])

    def together(self, *vs: Value) -> tuple[list[Variable], Order]:
        """Values as Variables of one rank in one order, for functions that broadcast."""
        rank = max(v.rank for v in vs)
        full = [
            v if v.rank == rank else self.reshaped(v, (1,) * (rank - v.rank) + v.shape) for v in vs
        ]
        np.broadcast_shapes(*[v.shape for v in full])
        order = self.common(full)
        return [self.held(v, order) for v in full], order

    def reshaped(self, v: Value, shape: Sequence[int]) -> Value:
        """The same elements in another shape."""
        shape = tuple(shape)
        if math.prod(shape) != math.prod(v.shape):
            raise Damaged(f"{list(v.shape)} cannot become {list(shape)}")
        if shape == v.shape:
            return v
        if v.known:
            value = self.array(v, "")
            return Value(value.reshape(shape), plain(len(shape)), v.name)
        return computed(F.reshape(self.held(v), shape, inplace=False))

    def activated(self, y: Value) -> Value:
        """With the activation that is part of the operator."""
        kind = self.op.options.get("activation", 0)
        if not 0 <= kind < len(ACTIVATIONS):
            raise Damaged(f"there is no activation {kind}")
        return Value(ACTIVATION[ACTIVATIONS[kind]](y.x), y.order) if kind else y


def check_size(shape: Sequence[int]) -> None:
    """Raise if an array about to be made would be absurd."""
    if is_impossible(shape):
        raise Damaged(f"it makes an array of the impossible shape {list(shape)}")


def _moved(x: Variable, axes: Sequence[int]) -> Variable:
    return x if list(axes) == list(range(len(axes))) else F.transpose(x, axes)


def _clipped(x: Any, low: float, high: float) -> Any:
    return F.minimum_scalar(F.maximum_scalar(x, low), high)


ACTIVATION: dict[str, Callable[[Any], Any]] = {
    "RELU": F.relu,
    "RELU_N1_TO_1": lambda x: _clipped(x, -1.0, 1.0),
    "RELU_0_TO_1": lambda x: _clipped(x, 0.0, 1.0),
    "RELU6": F.relu6,
    "TANH": F.tanh,
    "SIGN_BIT": lambda x: F.less_scalar(x, 0.0),
}

Importer = Callable[..., Any]  # Builder, Values of the inputs -> Value or Values of the outputs
IMPORTERS: dict[str, Importer] = {}


def reads(*names: str) -> Callable[[Importer], Importer]:
    """Register what reads operators."""

    def register(importer: Importer) -> Importer:
        for name in names:
            IMPORTERS[name] = importer
        return importer

    return register
