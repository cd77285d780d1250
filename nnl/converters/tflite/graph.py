# SPDX-License-Identifier: Apache-2.0
"""A network in operators: what handlers of functions add to, and what becomes a file.

Handlers get and give `Laid` values, arrays together with the order of their axes. What they add
for an order that nobody asks for in the end goes away.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nnl.converters.networks.layout import (
    Order,
    held_axes,
    merged,
    moves_nothing,
    permuted,
    plain,
    step,
    without,
)
from nnl.converters.tflite.schema import ACTIVATIONS, OPERATORS, TYPES
from nnl.core.graph.node import Node

FLOAT = np.dtype(np.float32)
INT = np.dtype(np.int32)
MOST_AXES = 4  # that operators take which broadcast, cut and pad
MOST_TRANSPOSED = 6
_MIXED = ("SELECT_V2",)  # the types of whose inputs may differ
SMALL = 64  # elements of constants that are written once


class Refused(Exception):
    """The format has no such form of a function; the argument is the reason."""


@dataclass(eq=False)
class Tensor:
    """An array as the file has it.

    Attributes:
        value: Of a constant.
        scale: What stored numbers stand for, in networks in 8 bits.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    value: Any = None
    name: str = ""
    scale: Any = None


@dataclass(frozen=True)
class Laid:
    """A value of the network: axis k of the tensor is its axis order[k]."""

    tensor: Tensor
    order: Order

    @property
    def shape(self) -> tuple[int, ...]:
        """As the network has it."""
        return permuted(self.tensor.shape, [self.order.index(a) for a in plain(self.rank)])

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.order)


@dataclass(eq=False)
class Op:
    """An operator with its tensors and options."""

    name: str
    ins: list[Tensor | None]
    outs: list[Tensor]
    options: dict[str, Any]


class Graph:
    """Attributes:
    ops: In an order in which they can run.
    maker: Of a tensor, by its id.
    sizes_stay: Whether operators may be chosen by sizes, as they are the only ones.
    """

    def __init__(self, sizes_stay: bool = True) -> None:
        self.sizes_stay = sizes_stay
        self.ops: list[Op] = []
        self.maker: dict[int, Op] = {}
        self._known: dict[Any, Any] = {}
        self._alive: list[Any] = []  # ids are keys
        self.label = ""  # of tensors that are made

    # ---- operators ----

    def op(
        self, name: str, *ins: Any, shape: Any = None, dtype: Any = None, **options: Any
    ) -> Tensor:
        """Add an operator with one output.

        Args:
            ins: Tensors, None, or numbers and arrays, which become constants of the type of the
                first tensor.
            shape, dtype: Of the output; those of the first input if left out.
        """
        (y,) = self.ops_of(name, ins, [shape], dtype, **options)
        return y

    def ops_of(
        self,
        name: str,
        ins: Sequence[Any],
        shapes: Sequence[Any],
        dtype: Any = None,
        **options: Any,
    ) -> list[Tensor]:
        """Add an operator with outputs of some shapes."""
        assert name in OPERATORS or name == "ERF", name
        first = next(x for x in ins if isinstance(x, Tensor))
        made = []
        for shape in shapes:
            found = first.shape if shape is None else tuple(int(n) for n in shape)
            if not all(found):
                raise Refused("its result is empty")
            made.append(Tensor(found, np.dtype(dtype or first.dtype), name=self.label))
        given = [
            x if x is None or isinstance(x, Tensor) else self.constant(x, first.dtype) for x in ins
        ]
        added = Op(name, given, made, options)
        self.ops.append(added)
        for y in made:
            self.maker[id(y)] = added
        return made

    def constant(self, value: Any, dtype: Any = None) -> Tensor:
        """A tensor whose value is known; equal small ones are one."""
        array = np.asarray(value, dtype)
        if array.size > SMALL:
            return Tensor(array.shape, array.dtype, array, self.label)
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._known:
            self._known[key] = Tensor(array.shape, array.dtype, array)
        found: Tensor = self._known[key]
        return found

    def ints(self, *values: Any) -> Tensor:
        """A vector of int32."""
        return self.constant(np.array(values, INT))

    def once(self, key: Any, make: Callable[[], Any], *alive: Any) -> Any:
        """What `make` gave when it was asked for by this key first."""
        if key not in self._known:
            self._known[key] = make()
            self._alive.append(alive)
        return self._known[key]

    def reshaped(self, t: Tensor, shape: Sequence[int]) -> Tensor:
        """The same elements in another shape."""
        shape = tuple(int(n) for n in shape)
        maker = self.maker.get(id(t))
        if maker is not None and maker.name == "RESHAPE" and maker.ins[0] is not None:
            t = maker.ins[0]
        if t.shape == shape:
            return t
        if t.value is not None:
            return Tensor(shape, t.dtype, t.value.reshape(shape), t.name)
        to = self.ints(*shape)
        made: Tensor = self.once(
            ("reshape", id(t), shape),
            lambda: self.op("RESHAPE", t, to, shape=shape, new_shape=list(shape)),
            t,
        )
        return made

    def transposed(self, t: Tensor, axes: Sequence[int]) -> Tensor:
        """With its axes in another order."""
        maker = self.maker.get(id(t))
        if maker is not None and maker.name == "TRANSPOSE" and maker.ins[0] is not None:
            before = maker.ins[1].value  # type: ignore[union-attr]
            t, axes = maker.ins[0], [int(before[a]) for a in axes]
        axes = tuple(axes)
        shape = permuted(t.shape, axes)
        if axes == plain(len(axes)):
            return t
        if moves_nothing(t.shape, axes):
            return self.reshaped(t, shape)
        if t.value is not None:
            made = self.once(
                ("transpose", id(t), axes),
                lambda: Tensor(shape, t.dtype, t.value.transpose(axes), t.name),
                t,
            )
            return made  # type: ignore[no-any-return]
        if len(axes) > MOST_TRANSPOSED:
            sizes, fewer = merged(t.shape, axes)
            if len(fewer) > MOST_TRANSPOSED:
                raise Refused(f"{len(fewer)} axes change places, and the format moves 6")
            return self.reshaped(self.transposed(self.reshaped(t, sizes), fewer), shape)
        to = self.ints(*axes)
        made = self.once(
            ("transpose", id(t), axes), lambda: self.op("TRANSPOSE", t, to, shape=shape), t
        )
        return made  # type: ignore[no-any-return]

    def cast(self, t: Tensor, dtype: Any) -> Tensor:
        """The same numbers in another type."""
        dtype = np.dtype(dtype)
        if t.dtype == dtype:
            return t
        if t.value is not None:
            return self.constant(t.value.astype(dtype))
        kinds = {v: k for k, v in TYPES.items()}
        made: Tensor = self.once(
            ("cast", id(t), dtype),
            lambda: self.op("CAST", t, dtype=dtype, in_type=kinds[t.dtype], out_type=kinds[dtype]),
            t,
        )
        return made

    def truth(self, t: Tensor) -> Tensor:
        """Whether numbers are other than 0, as the format's booleans."""
        maker = self.maker.get(id(t))
        if maker is not None and maker.name == "CAST":
            before = maker.ins[0]
            if before is not None and before.dtype == bool:
                return before
        if t.dtype == bool:
            return t
        if t.value is not None:
            return self.constant(t.value != 0)
        made: Tensor = self.once(
            ("truth", id(t)), lambda: self.op("NOT_EQUAL", t, 0, dtype=bool), t
        )
        return made

    # ---- values in an order ----

    def held(self, x: Laid, order: Order) -> Tensor:
        """The tensor of a value in an order."""
        return self.transposed(x.tensor, step(x.order, order))

    def plain(self, x: Laid) -> Tensor:
        """The tensor with axes as the network has them."""
        return self.held(x, plain(x.rank))

    def reshape(self, x: Laid, shape: Sequence[int]) -> Laid:
        """A value in another shape. Axes of size 1 come and go without moving anything."""
        shape = tuple(shape)
        if x.shape == shape:
            return x
        if x.order != plain(x.rank):
            order = _order_with_other_ones(x, shape)
            if order is not None:
                return Laid(self.reshaped(x.tensor, permuted(shape, order)), order)
        y = Laid(self.reshaped(self.plain(x), shape), plain(len(shape)))
        if x.order != plain(x.rank):
            self._known["before", id(y.tensor)] = x
            self._alive.append(y)
        return y

    def before_reshape(self, x: Laid) -> Laid:
        """What a value was before it was transposed and flattened, if it was."""
        found: Laid = self._known.get(("before", id(x.tensor)), x)
        return found

    def common(self, xs: Sequence[Laid]) -> Order:
        """The order in which values of one rank meet: that of the largest, of the first of several
        that is not as in the network."""
        computed = [x for x in xs if x.tensor.value is None] or list(xs)
        size = max(math.prod(x.tensor.shape) for x in computed)
        orders = [x.order for x in computed if math.prod(x.tensor.shape) == size]
        return next((o for o in orders if o != plain(len(o))), orders[0])

    # ---- what many functions are ----

    def unary(self, name: str, x: Laid, **options: Any) -> Laid:
        """An operator on every element."""
        return Laid(self.op(name, x.tensor, **options), x.order)

    def binary(self, name: str, x: Laid, y: Any, dtype: Any = None, **options: Any) -> Laid:
        """An operator on elements of two values, which are broadcast; y may be a number."""
        if not isinstance(y, Laid):
            one = self.constant(y, x.tensor.dtype)
            return Laid(self.op(name, x.tensor, one, dtype=dtype, **options), x.order)
        order = self.common([x, y])
        return Laid(
            self.broadcasting(name, [self.held(v, order) for v in (x, y)], dtype, **options), order
        )

    def broadcasting(
        self, name: str, ts: Sequence[Tensor], dtype: Any = None, **options: Any
    ) -> Tensor:
        """An operator on tensors of one rank, whose shapes are broadcast."""
        shape = np.broadcast_shapes(*[t.shape for t in ts])
        if name not in _MIXED and len({t.dtype for t in ts}) > 1:
            ts = [self.cast(t, FLOAT) for t in ts]
            dtype = dtype or FLOAT
        if name == "ATAN2":
            ts = [self.stretched(t, shape) for t in ts]
        if len(shape) <= MOST_AXES or len({t.shape for t in ts}) == 1:
            return self.op(name, *ts, shape=shape, dtype=dtype, **options)
        kinds = [tuple(t.shape[a] == 1 for t in ts) for a in range(len(shape))]
        groups = _groups([None if all(k) else k for k in kinds])
        if len(groups) > MOST_AXES:
            ts = [self.stretched(t, shape) for t in ts]
            return self.op(name, *ts, dtype=dtype, **options)
        few = [self.reshaped(t, [math.prod(t.shape[a] for a in g) for g in groups]) for t in ts]
        sizes = np.broadcast_shapes(*[t.shape for t in few])
        return self.reshaped(self.op(name, *few, shape=sizes, dtype=dtype, **options), shape)

    def stretched(self, t: Tensor, shape: Sequence[int]) -> Tensor:
        """A tensor broadcast to a shape."""
        if t.shape == tuple(shape):
            return t
        return self.op("BROADCAST_TO", t, self.ints(*shape), shape=shape)

    def along(self, x: Laid, axis: int) -> tuple[Tensor, Order]:
        """A tensor with an axis behind all others, and its order."""
        axis %= max(x.rank, 1)
        order = x.order
        if order[-1] != axis:
            order = (*[a for a in range(x.rank) if a != axis], axis)
        return self.held(x, order), order

    def reduced(self, name: str, x: Laid, axes: Sequence[int], keep: bool, **more: Any) -> Laid:
        """An operator that reduces axes."""
        if not axes:
            return x
        order = x.order if keep else without(x.order, axes)
        at = sorted(held_axes(axes, x.order))
        sizes = [1 if k in at else n for k, n in enumerate(x.tensor.shape)]
        shape = sizes if keep else [n for k, n in enumerate(x.tensor.shape) if k not in at]
        return Laid(
            self.op(name, x.tensor, self.ints(*at), shape=shape, keep_dims=keep, **more), order
        )

    def few_axes(self, t: Tensor, touched: Sequence[int]) -> tuple[Tensor, list[list[int]]]:
        """A tensor whose other axes are merged where they lie side by side, if it has too many.

        Returns:
            It, and the axes that each of its axes is made of: at most one that is touched.
        """
        if len(t.shape) <= MOST_AXES:
            return t, [[a] for a in range(len(t.shape))]
        kinds = [a if a in touched else None if n == 1 else -1 for a, n in enumerate(t.shape)]
        groups = _groups(kinds)
        if len(groups) > MOST_AXES:
            raise Refused(f"it has {len(groups)} axes, wanted at most {MOST_AXES}")
        return self.reshaped(t, [math.prod(t.shape[a] for a in g) for g in groups]), groups


def _groups(kinds: Sequence[Any]) -> list[list[int]]:
    """Neighbouring axes of the same kind; None goes with any."""
    groups: list[list[int]] = []
    last: Any = None
    for axis, kind in enumerate(kinds):
        if groups and (kind is None or last is None or kind == last):
            groups[-1].append(axis)
        else:
            groups.append([axis])
            last = None
        last = kind if last is None else last
    return groups


def _order_with_other_ones(x: Laid, shape: tuple[int, ...]) -> Order | None:
    """The order of x in a shape that has other axes of size 1; None if more has changed."""
    kept = [a for a, n in enumerate(x.shape) if n != 1]
    there = [a for a, n in enumerate(shape) if n != 1]
    if [x.shape[a] for a in kept] != [shape[a] for a in there]:
        return None
    order = [there[kept.index(a)] for a in x.order if a in kept]
    for a, n in enumerate(shape):  # ones go before the axis that they are before
        if n == 1:
            after = next((order.index(b) for b in range(a + 1, len(shape)) if b in order), None)
            order.insert(len(order) if after is None else after, a)
    return tuple(order)


# ---- what is left of a graph ----

_FUSES = {n for n, o in OPERATORS.items() if any(f.name == "activation" for f in o.options)} - {
    "CONCATENATION",
    "L2_NORMALIZATION",
    "LSTM",
    "UNIDIRECTIONAL_SEQUENCE_LSTM",
    "RNN",
}


def finished(ops: Sequence[Op], outputs: Sequence[Tensor]) -> list[Op]:
    """The operators that outputs need; activations become part of what is before them."""
    needed = {id(t) for t in outputs}
    kept = []
    for op in reversed(ops):
        if any(id(t) in needed for t in op.outs):
            needed.update(id(t) for t in op.ins if t is not None)
            kept.append(op)
    kept.reverse()
    readers: dict[int, int] = {id(t): 1 for t in outputs}
    maker: dict[int, Op] = {}
    for op in kept:
        for t in op.ins:
            readers[id(t)] = readers.get(id(t), 0) + 1
    result: list[Op] = []
    for op in kept:
        x = op.ins[0]
        before = maker.get(id(x))
        if (
            op.name in ACTIVATIONS
            and op.name not in ("NONE", "TANH")
            and before is not None
            and before.name in _FUSES
            and readers[id(x)] == 1
            and not before.options.get("activation")
        ):
            before.options["activation"] = ACTIVATIONS.index(op.name)
            before.outs[0] = op.outs[0]
            maker[id(op.outs[0])] = before
            continue
        result.append(op)
        for t in op.outs:
            maker[id(t)] = op
    return result


# ---- handlers ----

Handler = Callable[..., Any]  # graph, node, Laid of its inputs -> Laid of its outputs
HANDLERS: dict[str, Handler] = {}


def says(*names: str) -> Callable[[Handler], Handler]:
    """Register what says functions in operators."""

    def register(handler: Handler) -> Handler:
        for name in names:
            HANDLERS[name] = handler
        return handler

    return register


def run_handler(g: Graph, node: Node, xs: Sequence[Laid | None]) -> list[Laid]:
    """What a node gives, in floating point where the function does."""
    ys = HANDLERS[node.op.name](g, node, *xs)
    found = [ys] if isinstance(ys, Laid) else list(ys)
    return [
        Laid(g.cast(y.tensor, FLOAT), y.order) if spec.dtype.kind in "fV" else y
        for y, spec in zip(found, node.out_specs, strict=False)
    ]
