# SPDX-License-Identifier: Apache-2.0
"""Values as TensorFlow has them, that functions computed with other axes.

Images have their channels last there and first here, so functions on images transpose what they
read and what they give. `Axes` remembers what was transposed: the next function reads what was
there before, and transpositions between two of them are read by nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import nnl.functions as F
from nnl.converters.networks.layout import channels_first, channels_last
from nnl.converters.onnx.values.values import dtype_of, is_var, shape_of, tagged, var


class Axes:
    """Attributes:
    held: By the key of a transposed Variable: it, what it was made from, and the axes.
    """

    def __init__(self) -> None:
        self.held: dict[Any, tuple[Any, Any, tuple[int, ...]]] = {}

    def of(self, x: Any) -> tuple[Any, tuple[int, ...]]:
        """What a value was transposed from, and how; itself if it was not."""
        found = self.held.get(x.edge.key) if is_var(x) else None
        return (x, tuple(range(len(shape_of(x))))) if found is None else found[1:]

    def transposed(self, x: Any, axes: Sequence[int]) -> Any:
        """A value with its axes in another order."""
        if not is_var(x):
            return np.transpose(x, axes)
        source, before = self.of(x)
        whole = tuple([before[a] for a in axes])
        if whole == tuple(range(len(whole))):
            return tagged(source, dtype_of(x))
        y = tagged(F.transpose(source, whole), dtype_of(x))
        self.held[y.edge.key] = y, source, whole
        return y

    def on_images(self, f: Callable[[Any], Any], x: Any, first: bool = False) -> Any:
        """f(x) for an f on images with channels first; `first` says that x is such."""
        if first:
            return f(var(x))
        rank = len(shape_of(x))
        y = f(var(self.transposed(x, channels_first(rank))))
        return self.transposed(y, channels_last(rank))

    def alike(self, f: Callable[..., Any], *xs: Any) -> Any:
        """f(*xs) for an f that treats all axes alike, computed as the first value that was
        transposed is held."""
        rank = max(len(shape_of(x)) for x in xs)
        whole = [x for x in xs if is_var(x) and len(shape_of(x)) == rank]
        order = next((self.of(x)[1] for x in whole if x.edge.key in self.held), None)
        if order is None or any(is_var(x) and len(shape_of(x)) not in (0, rank) for x in xs):
            return f(*xs)
        back = tuple(int(i) for i in np.argsort(order))

        def held(x: Any) -> Any:
            sizes = shape_of(x)
            if not is_var(x) and x.size == 1 or not sizes:
                return x
            if len(sizes) < rank:
                x = x.reshape((1,) * (rank - len(sizes)) + sizes)
            return self.transposed(x, back)

        return self.transposed(f(*map(held, xs)), order)
