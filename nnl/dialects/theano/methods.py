# SPDX-License-Identifier: Apache-2.0
"""What variables have as operators and methods."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nnl.dialects.theano import elements, indexing, reduction, shaping
from nnl.dialects.theano import elementwise as e
from nnl.dialects.theano.variable import Variable, of_results


def _turned(f: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, y: f(y, x)


class Operators(Variable):
    """A variable with Theano's operators and methods."""

    __hash__ = Variable.__hash__
    __add__, __sub__, __mul__, __truediv__ = e.add, e.sub, e.mul, e.true_div
    __floordiv__, __mod__, __pow__, __matmul__ = e.int_div, e.mod, e.pow, reduction.dot
    __and__, __or__, __xor__, __invert__ = e.and_, e.or_, e.xor, e.invert
    __radd__, __rsub__, __rmul__ = _turned(e.add), _turned(e.sub), _turned(e.mul)
    __rtruediv__, __rfloordiv__ = _turned(e.true_div), _turned(e.int_div)
    __rmod__, __rpow__, __rmatmul__ = _turned(e.mod), _turned(e.pow), _turned(reduction.dot)
    __rand__, __ror__, __rxor__ = _turned(e.and_), _turned(e.or_), _turned(e.xor)
    __lt__, __le__, __gt__, __ge__ = e.lt, e.le, e.gt, e.ge
    __neg__, __abs__, __getitem__ = e.neg, e.abs_, indexing.subtensor

    round, trunc, clip, astype = e.round, e.trunc, e.clip, e.cast
    sum, prod, mean, std, var = (
        reduction.sum, reduction.prod, reduction.mean, reduction.std, reduction.var_,
    )  # fmt: skip
    min, max, argmin, argmax = reduction.min, reduction.max, reduction.argmin, reduction.argmax
    all, any, ptp, norm = reduction.all, reduction.any, reduction.ptp, reduction.norm
    cumsum, cumprod, dot = reduction.cumsum, reduction.cumprod, reduction.dot
    reshape, flatten, dimshuffle = shaping.reshape, shaping.flatten, shaping.dimshuffle
    repeat, swapaxes, squeeze = shaping.repeat, shaping.swapaxes, shaping.squeeze
    nonzero, nonzero_values = elements.nonzero, elements.nonzero_values
    sort, argsort, take = elements.sort, elements.argsort, elements.take_
    choose, compress = elements.choose, elements.compress
    diagonal, trace = elements.diagonal, elements.trace
    fill, zeros_like, ones_like = elements.fill, elements.zeros_like, elements.ones_like

    def transpose(self, *axes: Any) -> Any:
        """Axes in another order, reversed if none is given."""
        order = axes[0] if len(axes) == 1 and isinstance(axes[0], (list, tuple)) else axes
        return shaping.transpose(self, order or None)

    def ravel(self) -> Any:
        """All elements in one row."""
        return shaping.flatten(self)

    def copy(self) -> Any:
        """Itself: nothing changes a variable."""
        return self

    @property
    def T(self) -> Any:
        """Its axes in reverse order."""
        return shaping.transpose(self)

    @property
    def size(self) -> Any:
        """How many elements it has."""
        return reduction.prod(self.shape)


@of_results
class TensorVariable(Operators):
    """What is given or computed, and not shared."""
