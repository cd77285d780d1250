# SPDX-License-Identifier: Apache-2.0
"""x[key] and x[key] = value of Variable and NdArray, with numpy's meaning, in terms of functions.

Ints, slices, None and Ellipsis become slice and reshape. Index arrays and masks become gather_nd,
with a transpose before and after where slices stand beside them. Writing becomes scatter_nd.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from nnl.core.arguments.annotations import numbers
from nnl.core.arrays.array import NdArray
from nnl.core.arrays.item_methods import DOES
from nnl.core.arrays.spec import ShapeError, Spec
from nnl.core.graph.node import Value
from nnl.core.graph.variable import Variable
from nnl.core.ops.op import OPS
from nnl.core.settings.context import STATE

_ARRAYS = (Variable, NdArray)
Indices = Any  # an index array of one axis: numpy int64, or a Variable in a static graph


class Key:
    """What an index expression selects.

    Attributes:
        slices: axis -> slice, completed by slice.indices, for the axes that keep a size.
        picked: axis -> int or index array, in the order of the axes.
        advanced: Whether some index is an array; ints are then index arrays too.
        common: Shape that the index arrays have together.
        before: How many of the kept axes come before those of `common` in the result.
        shape: Shape of the result.
    """

    def __init__(self, spec: Spec, key: Any) -> None:
        self.spec = spec
        items = [_item(spec, k) for k in (key if isinstance(key, tuple) else (key,))]
        self.slices: dict[int, slice] = {}
        self.picked: dict[int, Indices] = {}
        self.advanced = any(isinstance(k, (np.ndarray, Variable)) for k in items)
        layout: list[int | None] = []  # an axis that keeps a size, or None for a new one
        picks: list[int] = []  # which entries of `parts` pick
        parts = self._complete(items)
        axis = 0
        at = 0  # entries of layout before the first index array
        for place, k in enumerate(parts):
            if k is None:
                layout.append(None)
            elif k is Ellipsis:
                continue  # takes no axis, but separates index arrays
            elif isinstance(k, slice):
                layout.append(axis)
                self.slices[axis] = self._slice(axis, k)
                axis += 1
            else:
                if not picks:
                    at = len(layout)
                picks.append(place)
                for one in self._positions(axis, k):
                    self.picked[axis] = one
                    axis += 1
        if picks and picks[-1] - picks[0] >= len(picks):
            at = 0  # separated index arrays: their axes come first
        self.common = self._common() if self.advanced else ()
        self.before = sum(a is not None for a in layout[:at])
        sizes = [1 if a is None else self.size(a) for a in layout]
        self.shape = (*sizes[:at], *self.common, *sizes[at:])

    def size(self, axis: int) -> int:
        """How many elements the slice of an axis selects."""
        s = self.slices[axis]
        return len(range(s.start, s.stop, s.step))

    def _complete(self, items: list[Any]) -> list[Any]:
        """The items with Ellipsis, or what is missing at the end, written out as slices."""
        spec = self.spec
        used = sum(_axes_of(k) for k in items)
        missing = spec.ndim - used
        if not spec.ndim and len(items) == 1 and type(items[0]) is int:
            # not an IndexError, which would end a loop over it as if it were empty
            raise TypeError("iteration over a scalar Variable or NdArray, or an index of it")
        if missing < 0:
            raise IndexError(f"indexing: {used} indices for {spec}, wanted at most {spec.ndim}")
        dots = [i for i, k in enumerate(items) if k is Ellipsis]
        if len(dots) > 1:
            raise IndexError("indexing: got two Ellipsis (...), wanted at most one")
        i = dots[0] if dots else len(items)
        fill: list[Any] = [slice(None)] * missing
        return items[:i] + (fill or [Ellipsis] * len(dots)) + items[i + 1 :]

    def _slice(self, axis: int, s: slice) -> slice:
        try:
            return slice(*s.indices(self.spec.shape[axis]))
        except (TypeError, ValueError) as e:
            raise IndexError(f"indexing: {s} for axis {axis} of {self.spec}: {e}") from None

    def _positions(self, axis: int, k: Any) -> list[Indices]:
        """One int or index array for each axis that k takes; masks become positions."""
        spec = self.spec
        if isinstance(k, Variable):
            return [k]
        if isinstance(k, np.ndarray) and k.dtype == bool:
            if k.shape != spec.shape[axis : axis + k.ndim]:
                raise IndexError(
                    f"indexing: a mask of shape {k.shape} for the axes from {axis} of {spec}, "
                    "wanted their sizes"
                )
            return list(np.nonzero(k))
        n = spec.shape[axis]
        a = np.asarray(k)
        if a.size and (a.min() < -n or a.max() >= n):
            bad = a[(a < -n) | (a >= n)].flat[0]
            raise IndexError(
                f"indexing: index {int(bad)} is outside [-{n}, {n}) for axis {axis} of {spec}"
            )
        a = np.where(a < 0, a + n, a)
        return [a if self.advanced else int(a)]

    def _common(self) -> tuple[int, ...]:
        shapes = [k.shape for k in self.picked.values()]
        try:
            return np.broadcast_shapes(*shapes)
        except ValueError:
            raise IndexError(
                f"indexing: index arrays of shapes {shapes} do not stretch to one shape"
            ) from None


def _axes_of(item: Any) -> int:
    """How many axes of the array an item of a key takes."""
    if item is None or item is Ellipsis:
        return 0
    return item.ndim if isinstance(item, np.ndarray) and item.dtype == bool else 1


def _item(spec: Spec, k: Any) -> Any:
    """One entry of a key: None, Ellipsis, int, slice, numpy int64 or bool array, or Variable."""
    if k is None or k is Ellipsis or isinstance(k, slice):
        return k
    if isinstance(k, (int, np.integer)) and not isinstance(k, bool):
        return int(k)
    if isinstance(k, Variable) and not STATE.auto_forward and k.spec.dtype != bool:
        return k  # a static graph reads it anew in every forward
    if isinstance(k, _ARRAYS):
        nd = k if isinstance(k, NdArray) else k.data
        host: Any = nd.read("host")
        return host if host.dtype == bool and host.ndim else host.astype(np.int64)
    if isinstance(k, (list, tuple, np.ndarray)):
        try:
            a = np.asarray(k)
        except ValueError:  # lists of different lengths
            raise IndexError(f"indexing: {k!r} is not an array of one shape") from None
        if np.ma.is_masked(k):
            raise IndexError(f"indexing: got an array with masked elements as an index of {spec}")
        if a.size == 0 and a.dtype != bool:
            a = a.astype(np.int64)
        if a.dtype.kind in "iu":
            return int(a) if a.ndim == 0 else a.astype(np.int64)
        if a.dtype == bool and a.ndim:
            return a
        k = a
    got = f"an array of {k.dtype}" if isinstance(k, np.ndarray) else repr(k)
    raise IndexError(
        f"indexing: got {got} as an index of {spec}, wanted an int, slice, Ellipsis, None, or an "
        "array of integers or of booleans"
    )


# ---- reading ----


def getitem(x: Any, key: Any) -> Any:
    """x[key] as numpy has it: the elements that key selects, copied.

    Args:
        x: Variable or NdArray.
        key: Ints, slices, None, Ellipsis, integer arrays, boolean masks, or a tuple of them. Arrays
            may be lists, numpy arrays, NdArrays or Variables. A Variable that is not of booleans is
            taken as integers; in a static graph it is read at every forward. The value of a mask
            decides a shape, so it is read at once. Several index arrays of which one is a Variable
            of a static graph go through the floating-point type: exact up to 2**24 in float32.
    Raises:
        IndexError: An index is out of range, there are too many, or one is of another kind.
    """
    k = Key(x.spec, _known(key) if isinstance(x, NdArray) else key)
    n = x.spec.ndim
    window = [k.slices.get(a) or slice(0, s, 1) for a, s in enumerate(x.shape)]
    if not k.advanced:
        for a, i in k.picked.items():
            window[a] = slice(i, i + 1, 1)
        return _reshape(_slice(x, window), k.shape)
    y = x
    if any(s != slice(0, x.shape[a], 1) for a, s in k.slices.items()):
        y = _slice(x, window)
    arrays = list(k.picked.values())
    (first, *more), others = k.picked, list(k.slices)
    if first > 0 and not more and isinstance(arrays[0], np.ndarray):
        y = OPS["gather"](y, _constant(y, arrays[0]), axis=first)
        return _reshape(y, k.shape)
    y = _transpose(y, [first, *more, *others])
    common = k.common or (1,)
    y = OPS["gather_nd"](y, _stacked(y, arrays, common))
    m, kept = len(common), n - len(arrays)
    lead = range(m, m + k.before)
    y = _transpose(y, [*lead, *range(m), *range(m + k.before, m + kept)])
    return _reshape(y, k.shape)


def _slice(x: Any, window: list[slice]) -> Any:
    # slice.indices says -1 for "before the first element", which slice would count from the end
    window = [s if len(range(s.start, s.stop, s.step)) else slice(0, 0, 1) for s in window]
    stops = [-n - 1 if s.stop < 0 else s.stop for s, n in zip(window, x.shape, strict=True)]
    return OPS["slice"](
        x,
        start=tuple(s.start for s in window),
        stop=tuple(stops),
        step=tuple(s.step for s in window),
    )


def _reshape(x: Any, shape: tuple[int, ...]) -> Any:
    return x if x.shape == shape else OPS["reshape"](x, shape=shape)


def _transpose(x: Any, axes: list[int]) -> Any:
    return x if axes == sorted(axes) else OPS["transpose"](x, axes=tuple(axes))


def _constant(x: Any, a: np.ndarray[Any, Any]) -> Any:
    """A numpy array as an operand for x: an NdArray, or a leaf."""
    nd = NdArray.from_numpy_array(a)
    return nd if isinstance(x, NdArray) else Variable.of_edge(Value.leaf(nd), nd)


def _stacked(x: Any, arrays: list[Indices], shape: tuple[int, ...]) -> Any:
    """Index arrays stretched to one shape, along a new first axis."""
    if all(isinstance(a, np.ndarray) for a in arrays):
        return _constant(x, np.stack([np.broadcast_to(a, shape) for a in arrays]))
    if len(arrays) == 1 and arrays[0].size == math.prod(shape):
        return OPS["reshape"](arrays[0], shape=(1, *shape))
    wide = []
    for a in arrays:
        v = _constant(x, a) if isinstance(a, np.ndarray) else a
        wide.append(v if v.shape == shape else OPS["broadcast"](v, shape=shape))
    return OPS["stack"](*wide, axis=0)


# ---- writing ----


def set_array_item(x: NdArray, key: Any, value: Any) -> None:
    """x[key] = value, at once and in place; x keeps its dtype.

    Args:
        key: As in getitem.
        value: Number, list, numpy array, NdArray or Variable, stretched to the shape of x[key].
    Raises:
        IndexError: As in getitem; nothing is written then.
        ShapeError: value does not stretch to the shape of x[key]; nothing is written then.
    """
    STATE.interpreter.write(x, "x[key] = value of an NdArray")
    known = _known(key)
    selected = Key(x.spec, known)
    a = _number_or_array(value)
    _check_value(np.shape(a), selected)
    x.touch("host")[tuple(_item(x.spec, k) for k in known)] = a


def _known(key: Any) -> tuple[Any, ...]:
    """The entries of a key with Variables replaced by the values that they have now."""
    items = key if isinstance(key, tuple) else (key,)
    return tuple(k.data if isinstance(k, Variable) else k for k in items)


def _number_or_array(value: Any) -> Any:
    if isinstance(value, _ARRAYS):
        return (value if isinstance(value, NdArray) else value.data).read("host")
    return numbers("x[key] = value", value, "a number or an array")


def _check_value(shape: tuple[int, ...], k: Key) -> None:
    while len(shape) > len(k.shape) and shape[0] == 1:
        shape = shape[1:]
    tail = k.shape[len(k.shape) - len(shape) :]
    if len(shape) > len(k.shape) or any(
        a != b and a != 1 for a, b in zip(shape, tail, strict=True)
    ):
        raise ShapeError(f"x[key] = value: value has the shape {shape}, x[key] the shape {k.shape}")


def set_variable_item(x: Variable, key: Any, value: Any) -> None:
    """x[key] = value: from now on this handle is x with these elements replaced.

    In a static graph the replacement is recorded: uses of x from now on see the new value, earlier
    ones the old. A leaf is written in memory too, at every forward, so that data can still be fed
    through x.d. In dynamic mode it happens now. Gradients go to value, and to x where it was not
    replaced; of several writes to one element the last one counts.

    Args:
        key: As in getitem.
        value: Number, list, numpy array, NdArray or Variable, stretched to the shape of x[key].
    Raises:
        IndexError: As in getitem; nothing is written then.
        ShapeError: value does not stretch to the shape of x[key]; nothing is written then.
    """
    if _acts_at_once(x, value):
        set_array_item(x.data, key, value)
        return
    k = Key(x.spec, key)
    source = value if isinstance(value, Variable) else _number_or_array(value)
    _check_value(source.shape, k)
    last = _last_touched(k)
    tail = x.shape[last:]
    if last:
        arrays, shape = _grid(k, last)
        data = _value(x, source, k, shape + tail)
        y = OPS["scatter_nd"](data, _stacked(x, arrays, shape), x)
    else:
        y = _value(x, source, k, x.shape)
    _become(x, y)


def _acts_at_once(x: Variable, value: Any = None) -> bool:
    """Whether x is an array of dynamic mode that no gradient will ask about."""
    needs = x.edge.need_grad or (isinstance(value, Variable) and value.edge.need_grad)
    recorded = needs and not STATE.no_grad
    return STATE.auto_forward and x.edge.node is None and not recorded


def _last_touched(k: Key) -> int:
    """One more than the last axis that the key restricts; at least 1 if there is an axis."""
    n = k.spec.ndim
    last = n
    while last and k.slices.get(last - 1) == slice(0, k.spec.shape[last - 1], 1):
        last -= 1
    return max(last, min(n, 1))


def _grid(k: Key, last: int) -> tuple[list[Indices], tuple[int, ...]]:
    """Index arrays of the axes before `last`, and the shape that they stretch to."""
    kept = [a for a in k.slices if a < last]
    sizes = [k.size(a) for a in kept]
    b = k.before
    shape = (*sizes[:b], *k.common, *sizes[b:])
    m = len(k.common)
    arrays: list[Indices] = []
    for axis in range(last):
        sizes_of_one = [1] * len(shape)
        if axis in k.slices:
            i = kept.index(axis)
            s = k.slices[axis]
            sizes_of_one[i if i < b else i + m] = k.size(axis)
            arrays.append(np.arange(s.start, s.stop, s.step).reshape(sizes_of_one))
            continue
        a = k.picked[axis]
        if k.advanced:
            own = a.shape
            sizes_of_one[b + m - len(own) : b + m] = own
        if isinstance(a, Variable):
            arrays.append(_reshape(a, tuple(sizes_of_one)))
        else:
            arrays.append(np.asarray(a).reshape(sizes_of_one))
    return arrays, shape or (1,)


def _value(x: Variable, source: Any, k: Key, shape: tuple[int, ...]) -> Any:
    """The value stretched to the shape of x[key], then without the axes that None made."""
    if isinstance(source, Variable):
        own = source.shape
        while len(own) > len(k.shape):
            own = own[1:]
        v = _reshape(source, own)
        if own != k.shape:
            v = OPS["broadcast"](v, shape=k.shape)
        return _reshape(v, shape)
    if source.ndim == 0:
        return OPS["constant"](val=float(source), shape=shape)
    while source.ndim > len(k.shape):
        source = source[0]
    return _constant(x, np.broadcast_to(source, k.shape).reshape(shape))


def _become(x: Variable, y: Variable) -> None:
    """Let the handle x stand for y from now on; if x is a leaf, write y into its memory as well."""
    leaf = _leaf_behind(x)
    if leaf is None or leaf.data is None:
        x.edge, x._data = y.edge, y._data
    else:
        stored = OPS["store"](Variable.of_edge(leaf, leaf.data), y)
        x.edge = stored.edge
        # Static: x.d stays the leaf's memory, where the caller feeds data in. Dynamic: what later
        # functions keep for their gradient must not change when the leaf is written again.
        x._data = stored._data if STATE.auto_forward else leaf.data
    x.sessions = None


def _leaf_behind(x: Variable) -> Value | None:
    """The leaf that x is, or was before elements of it were replaced."""
    edge: Value | None = x.edge
    while edge is not None and edge.node is not None:
        if edge.node.op.name != "store":
            return None
        edge = edge.node.inputs[0]
    return edge


# ---- filling ----


def _mask(x: Any, mask: Any) -> Any:
    return mask if isinstance(mask, _ARRAYS) else _constant(x, np.asarray(mask))


def fill_variable(self: Variable, mask: Any, value: float) -> Variable:
    """Replace the elements where mask is not zero, as x[mask] = value does; returns x.

    Args:
        mask: Variable, NdArray or array of a shape that stretches to that of x; in a static graph
            it is read at every forward.
        value: A number.
    Raises:
        ShapeError: mask does not stretch to the shape of x.
    """
    if _acts_at_once(self):
        fill_array(self.data, mask, value)
    else:
        mask = _mask(self, mask)
        if isinstance(mask, NdArray):
            mask = Variable.of_edge(Value.leaf(mask), mask)
        _become(self, OPS["bool_fill"](self, mask, value=float(value)))
    return self


def fill_array(self: NdArray, mask: Any, value: float) -> NdArray:
    """Overwrite the elements where mask is not zero, in place; returns x.

    Args:
        mask: NdArray, Variable or array of a shape that stretches to that of x.
        value: A number.
    Raises:
        ShapeError: mask does not stretch to the shape of x.
    """
    y = OPS["bool_fill"](self, _mask(self, mask), value=float(value))
    if STATE.interpreter.assign(self, y):
        return self
    np.copyto(self.touch("host"), y.read("host"), casting="unsafe")
    return self


DOES |= {
    f.__name__: f for f in (getitem, set_array_item, fill_array, set_variable_item, fill_variable)
}
