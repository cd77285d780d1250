# SPDX-License-Identifier: Apache-2.0
"""What importers of operators build a graph with: values that know the order of their axes."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import nnl.functions as F
from nnl.converters.networks.layout import Order, permuted, plain, step
from nnl.converters.tflite.file import FileOperator, FileTensor, is_impossible
from nnl.converters.tflite.flatbuffer import Damaged
from nnl.converters.tflite.schema import ACTIVATIONS
from nnl.core.graph.variable import Variable
from nnl.core.parameters.parameter import get_parameter, get_parameter_or_create, set_parameter

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Value:
    """A tensor of the file: axis k of x, a Variable or an array, is its axis order[k]."""

    x: Any
    order: Order
    name: str = ""  # of a constant in the file
    stored: tuple[Array, Array] | None = None  # `FileTensor.stored`, with axes as in the file

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


@dataclass(frozen=True)
class Complex:
    """Complex numbers: two values of one shape."""

    real: Value
    imag: Value

    @property
    def known(self) -> bool:
        return self.real.known and self.imag.known


@dataclass(frozen=True)
class Handle:
    """What operators that read and assign a state get."""

    name: str
    known = False


@dataclass
class States:
    """Values that are kept from run to run.

    Attributes:
        first: What they begin with, by name.
        leaves: Variables that hold them between runs, of those that are read before they are
            assigned.
        now: What they are after the operators so far, where these have assigned them.
    """

    first: dict[str, Array] = field(default_factory=dict)
    leaves: dict[str, Variable] = field(default_factory=dict)
    now: dict[str, Value] = field(default_factory=dict)


def computed(x: Any) -> Value:
    """A value in the order of the file."""
    return Value(x, plain(x.ndim))


class Builder:
    """What importers get: arrays of values in an order that they ask for.

    Attributes:
        inside: Runs another graph of the file: its number, Values of its inputs -> of its outputs.
        starting: Whether this is the graph that gives states their first values.
    """

    def __init__(self, inside: Callable[[int, Sequence[Any]], list[Any]]) -> None:
        self.inside, self.states, self.starting = inside, States(), False
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

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Within, what is made for `held` is nobody else's: programs that are steps of this one
        have values of their own."""
        made, now = self._made, dict(self.states.now)
        self._made = dict(made)
        try:
            yield
        finally:
            self._made = made
        if changed := [k for k, v in self.states.now.items() if now.get(k) is not v]:
            raise Damaged(f"only values of the run say whether it assigns the state {changed[0]!r}")

    # ---- states ----

    def read(self, name: str, shape: Sequence[int] | None = None) -> Value:
        """What a state is at this point; of this shape and 0 at first if it has no first value."""
        states = self.states
        if name not in states.now and name not in states.leaves:
            first = states.first.get(name)
            if first is None and shape is None:
                raise Damaged(f"it reads the state {name!r}, which nothing has given a first value")
            array = np.zeros(tuple(shape or ()), np.float32) if first is None else first
            array = array.astype(np.float32)
            leaf = Variable.from_numpy_array(array)
            set_parameter(_free(name), leaf)
            states.first[name], states.leaves[name] = array, leaf
        return states.now.get(name) or computed(states.leaves[name])

    def assign(self, name: str, v: Value) -> None:
        """Let a state be something from here on."""
        if self.starting:
            self.states.first[name] = self.array(v, f"the first value of the state {name!r}")
            return
        leaf = self.states.leaves.get(name)
        if leaf is not None and leaf.shape != v.shape:
            raise Damaged(f"the state {name!r} is {list(leaf.shape)}, and gets {list(v.shape)}")
        self.states.now[name] = v

    # ---- constants ----

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

    @property
    def in_bits(self) -> bool:
        """Whether the present operator computes with 8 bits: then its weights stay as they are."""
        return bool(self.outs and self.outs[0].scale and self.outs[0].dtype.itemsize == 1)

    def _parameter(self, v: Value, axes: Sequence[int]) -> Variable:
        if v.stored is not None and self.in_bits:
            bits, scale = (Variable.from_numpy_array(a.transpose(axes).copy()) for a in v.stored)
            bits.name, scale.name = v.name, v.name and f"{v.name}/scale"
            return F.dequantize_linear(bits, scale, F.constant(0.0, shape=scale.shape))  # type: ignore[no-any-return]
        moved = v.x.transpose(axes)
        value = np.ascontiguousarray(moved).reshape(moved.shape)  # which makes one axis of none
        if value.dtype.kind != "f" or not v.name or not value.ndim:
            return Variable.from_numpy_array(value)
        float32 = value.astype(np.float32)
        name = _free(v.name)
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


def _free(name: str) -> str:
    """A name for a parameter that none has."""
    stem = re.sub(r"[^\w/.-]+", "_", name).strip("/") or "constant"
    found, count = stem, 0
    while get_parameter(found) is not None:
        count += 1
        found = f"{stem}_{count}"
    return found


def check_size(shape: Sequence[int]) -> None:
    """Raise if an array about to be made would be absurd."""
    if is_impossible(shape):
        raise Damaged(f"it makes an array of the impossible shape {list(shape)}")


def _moved(x: Variable, axes: Sequence[int]) -> Variable:
    return x if list(axes) == list(range(len(axes))) else F.transpose(x, axes)


def clipped(x: Any, low: float, high: float) -> Any:
    return F.minimum_scalar(F.maximum_scalar(x, low), high)


ACTIVATION: dict[str, Callable[[Any], Any]] = {
    "RELU": F.relu,
    "RELU_N1_TO_1": lambda x: clipped(x, -1.0, 1.0),
    "RELU_0_TO_1": lambda x: clipped(x, 0.0, 1.0),
    "RELU6": F.relu6,
    "TANH": F.tanh,
    "SIGN_BIT": lambda x: F.less_scalar(x, 0.0),
}

Importer = Callable[..., Any]  # Builder, Values of the inputs -> Value or Values of the outputs
IMPORTERS: dict[str, Importer] = {}
BY_PARTS: set[str] = set()  # give of complex numbers what they give of the parts
TAKES: dict[str, type] = {}  # what some take besides Values


def reads(
    *names: str, parts: bool = False, takes: type | None = None
) -> Callable[[Importer], Importer]:
    """Register what reads operators; of complex numbers part by part, if they are read so."""

    def register(importer: Importer) -> Importer:
        for name in names:
            IMPORTERS[name] = importer
        BY_PARTS.update(names if parts else ())
        TAKES.update(dict.fromkeys(names, takes) if takes is not None else {})
        return importer

    return register
