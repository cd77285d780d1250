# SPDX-License-Identifier: Apache-2.0
"""Shapes as scripts of TensorFlow 1 see them, and what is wrong with them before anything runs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

Sizes = tuple[int | None, ...] | None


class Dimension(int):
    """A size. One that is not known is equal to None, and so is what is computed with it."""

    def __new__(cls, value):
        if value is None:
            return object.__new__(_Unknown)
        return super().__new__(cls, getattr(value, "value", value))

    @property
    def value(self):
        """The size, or None."""
        return int(self)

    def __repr__(self):
        return f"Dimension({int(self)})"


class _Unknown:
    value = None

    def _same(self, *_):
        return self

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _same
    __floordiv__ = __truediv__ = __mod__ = _same

    def __eq__(self, other):
        return other is None or isinstance(other, _Unknown)

    def __hash__(self):
        return hash(None)

    def __int__(self):
        raise TypeError("the size of this axis is not known")

    __index__ = __int__

    def __repr__(self):
        return "Dimension(None)"


class TensorShape:
    """Sizes of a tensor.

    Args:
        dims: Sizes, None for those that are not known; None where not even their number is.
    """

    def __init__(self, dims):
        self.sizes = sizes_of(dims)

    @property
    def ndims(self):
        """Number of axes."""
        return None if self.sizes is None else len(self.sizes)

    rank = ndims

    @property
    def dims(self):
        """The sizes as Dimensions."""
        return None if self.sizes is None else [Dimension(d) for d in self.sizes]

    def _known(self, method):
        if self.sizes is None:
            raise ValueError(f"{method} is not defined on an unknown TensorShape.")
        return self.sizes

    def as_list(self):
        """The sizes as ints and None."""
        return list(self._known("as_list()"))

    def is_fully_defined(self):
        """Whether every size is known."""
        return self.sizes is not None and None not in self.sizes

    def num_elements(self):
        """Their product, None where it is not known."""
        return math.prod(self.sizes) if self.is_fully_defined() else None

    def is_compatible_with(self, other):
        """Whether one tensor can have both shapes."""
        theirs = sizes_of(other)
        return merged(self.sizes, theirs) is not False

    def assert_is_compatible_with(self, other):
        """Raise ValueError where no tensor can have both shapes."""
        if not self.is_compatible_with(other):
            raise ValueError(f"Shapes {self} and {TensorShape(other)} are incompatible")

    def merge_with(self, other):
        """What is known from either."""
        self.assert_is_compatible_with(other)
        return TensorShape(merged(self.sizes, sizes_of(other)))

    def concatenate(self, other):
        """These sizes, then others."""
        theirs = sizes_of(other)
        return TensorShape(None if None in (self.sizes, theirs) else (*self.sizes, *theirs))

    def with_rank(self, rank):
        """The same, of which the number of axes is known."""
        if self.ndims not in (None, rank):
            raise ValueError(f"Shape {self} must have rank {rank}")
        return self if self.sizes is not None else TensorShape([None] * rank)

    def __len__(self):
        return len(self._known("len()"))

    def __bool__(self):
        return self.sizes is not None

    def __iter__(self):
        return iter([Dimension(d) for d in self._known("iteration")])

    def __getitem__(self, key):
        if self.sizes is None:
            return TensorShape(None) if isinstance(key, slice) else Dimension(None)
        found = self.sizes[key]
        return TensorShape(found) if isinstance(key, slice) else Dimension(found)

    def __add__(self, other):
        return self.concatenate(other)

    def __eq__(self, other):
        return self.sizes == sizes_of(other)

    def __hash__(self):
        return hash(self.sizes)

    def __repr__(self):
        return f"TensorShape({None if self.sizes is None else self.as_list()})"

    def __str__(self):
        return shown(self.sizes)


def sizes_of(shape):
    """The sizes of what a script calls a shape."""
    if shape is None or isinstance(shape, TensorShape):
        return None if shape is None else shape.sizes
    values = [shape] if isinstance(shape, int) else list(shape)
    return tuple([None if d is None or d == -1 or d == None else int(d) for d in values])  # noqa: E711


def shown(sizes):
    """As messages have it: (?, 3)."""
    if sizes is None:
        return "<unknown>"
    text = ", ".join("?" if d is None else str(d) for d in sizes)
    return f"({text},)" if len(sizes) == 1 else f"({text})"


def merged(x, y):
    """What is known of a shape from two sides; False where they contradict each other."""
    if x is None or y is None:
        return y if x is None else x
    if len(x) != len(y) or any(None not in (m, n) and m != n for m, n in zip(x, y, strict=True)):
        return False
    return tuple([n if m is None else m for m, n in zip(x, y, strict=True)])


def in_both(x, y):
    """What two shapes have in common: that of a value that has either."""
    if x is None or y is None or len(x) != len(y):
        return None
    return tuple([m if m == n else None for m, n in zip(x, y, strict=True)])


# ---- what operators ask of shapes ----


class _Misfit(Exception):
    """Sizes that do not fit an operator, in TensorFlow's words."""


def equal(m, n):
    """Two sizes that must be one."""
    if None not in (m, n) and m != n:
        raise _Misfit(f"Dimensions must be equal, but are {m} and {n}")
    return n if m is None else m


def ranked(x, rank):
    """A shape of so many axes."""
    if x is not None and len(x) != rank:
        raise _Misfit(f"Shape must be rank {rank} but is rank {len(x)}")
    return (None,) * rank if x is None else x


def broadcast(x, y, *_):
    """The shape of what is computed element by element."""
    if x is None or y is None:
        return None
    rank = max(len(x), len(y))
    out = []
    for m, n in zip((1,) * (rank - len(x)) + x, (1,) * (rank - len(y)) + y, strict=True):
        if m == 1 or n == 1:
            out.append(n if m == 1 else m)
        elif m is None or n is None:
            out.append(n if m is None else m)
        else:
            out.append(equal(m, n))
    return tuple(out)


def _matmul(x, y, turn_x=False, turn_y=False):
    a, b = ranked(x, 2), ranked(y, 2)
    a, b = a[::-1] if turn_x else a, b[::-1] if turn_y else b
    equal(a[1], b[0])
    return a[0], b[1]


def _conv(x, w, first=False):
    """Channels fit; the probe finds the sizes of images."""
    if x is not None and w is not None:
        rank = len(w)
        channels, inner = ranked(x, rank)[1 if first else -1], ranked(w, rank)[-2]
        if None not in (channels, inner) and channels % inner:
            equal(channels, inner)


def _bias(x, b, first=False):
    (n,) = ranked(b, 1)
    if x is None:
        return None
    at = 1 if first else len(x) - 1
    if at < 0:
        raise _Misfit("Shape must be at least rank 2 but is rank 0")
    return (*x[:at], equal(x[at], n), *x[at + 1 :])


def same(x, y, *_):
    both = merged(x, y)
    if both is False:
        assert x is not None and y is not None
        ranked(x, len(y))
        for m, n in zip(x, y, strict=True):
            equal(m, n)
    return both


def _joined(*given):
    """The shape of shapes behind each other; the axis is the last."""
    *shapes, at = given
    known = [s for s in shapes if s is not None]
    if not known or not at:
        return None
    (axis,), rank = at, len(known[0])
    if not -rank <= axis < rank:
        raise _Misfit(f"Axis {axis} is not in [{-rank}, {rank})")
    rest = (None,) * (rank - 1)
    axis %= rank
    total = 0
    for s in shapes:
        s = ranked(s, rank)
        total = None if total is None or s[axis] is None else total + s[axis]
        rest = same(rest, (*s[:axis], *s[axis + 1 :]))
    assert rest is not None
    return (*rest[:axis], total, *rest[axis:])


def _reshaped(x, to):
    """The shape that another, perhaps with a -1 in it, becomes."""
    if to is None:
        return None
    if x is None or None in x or None in to:
        return tuple([None if n == -1 else n for n in to])
    whole, known = math.prod(x), math.prod(n for n in to if n != -1)
    if -1 in to and (known == 0 or whole % known):
        raise _Misfit(f"Dimension size must be evenly divisible by {known} but is {whole}")
    if -1 not in to and known != whole:
        sizes = ",".join(map(str, to))
        raise _Misfit(
            f"Cannot reshape a tensor with {whole} elements to shape [{sizes}] ({known} elements)"
        )
    return tuple([whole // known if n == -1 else n for n in to])


def _along(x, axes):
    """Axes are axes of x; the probe finds the sizes that are left."""
    for axis in axes or () if x is not None else ():
        if axis is not None and not -len(x) <= axis < len(x):
            raise _Misfit(f"Invalid reduction dimension {axis} for input with {len(x)} dimensions")


def _ordered(x, order):
    """The shape with its axes in another order."""
    if x is None or order is None or None in order:
        return None
    if sorted(order) != list(range(len(x))):
        raise _Misfit(f"perm is {order}, wanted a permutation of {len(x)} axes")
    return tuple([x[i] for i in order])


def _gather(x, at, axis):
    return None if x is None or at is None or axis != [0] else (*at, *x[1:])


Rule = Callable[..., Any]
_PAIRS = (
    "Add AddV2 Sub Mul RealDiv Div FloorDiv FloorMod Pow Maximum Minimum SquaredDifference Equal "
    "NotEqual Less LessEqual Greater GreaterEqual LogicalAnd LogicalOr DivNoNan Atan2 Xlogy"
)
RULES = {name: broadcast for name in _PAIRS.split()}
RULES |= {name: _along for name in "Sum Mean Max Min Prod All Any".split()}
READS_NUMBERS = {_reshaped, _joined, _gather, _along, _ordered}  # the last input, not its shape
RULES |= {
    "MatMul": _matmul,
    "Conv2D": _conv,
    "Conv3D": _conv,
    "DepthwiseConv2dNative": _conv,
    "BiasAdd": _bias,
    "Reshape": _reshaped,
    "ConcatV2": _joined,
    "GatherV2": _gather,
    "Transpose": _ordered,
    "SoftmaxCrossEntropyWithLogits": lambda x, y: same(x, y) and None,
}
