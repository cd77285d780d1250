# SPDX-License-Identifier: Apache-2.0
"""Arrays made from nothing but arguments: constants and sequences of numbers."""

from __future__ import annotations

import math

from nnl.core.arguments.convert import as_int
from nnl.core.arrays.spec import Spec
from nnl.core.ops.op import Cost, Sample, op
from nnl.core.settings.context import STATE

CATEGORY = "Math"

__all__ = ["constant", "arange", "linspace"]


class Generator:
    """Common to functions without inputs: the dtype is the floating-point type of the context."""

    def infer(self):
        return Spec.of(self.output_shape(), STATE.target.float_dtype)

    def cost(self):
        return Cost(flops=0, bytes=self.infer().nbytes)

    def new(self, xp, out, dtype):
        return xp.empty(self.output_shape(), dtype) if out is None else out


@op("constant", nnp="Constant")
class constant(Generator):
    """$y_i = val$: an array with every element equal to val.

    Args:
        val: The value.
        shape: Sizes; a scalar if left out.
    """

    val: float = 0.0
    shape: tuple[int, ...] = ()

    def output_shape(self):
        return self.shape

    def forward(self, xp, out=None, dtype=None):
        y = self.new(xp, out, dtype)
        y.fill(self.val)
        return y

    def samples(rng):
        yield Sample(val=2.5, shape=(2, 3))
        yield Sample(val=-1.0)
        yield Sample(val=1.0, shape=(2, 0))


@op("arange", nnp="Arange")
class arange(Generator):
    r"""$y_i = start + i \cdot step$ for all i from 0 for which it has not reached stop.

    Args:
        start, stop: The interval [start, stop); (stop, start] if step is negative.
        step: Distance of neighbours, not 0.
    Returns:
        A vector of $\lceil (stop - start) / step \rceil$ numbers (none if that is negative),
        counted in float64. NNabla adds step up in float32 instead and so may give one number more
        or less where step is not a binary fraction.
    Raises:
        ValueError: step is 0, or an argument is not finite.
    """

    start: float
    stop: float
    step: float = 1.0

    def output_shape(self):
        if self.step == 0.0 or not all(map(math.isfinite, (self.start, self.stop, self.step))):
            raise ValueError(
                f"arange: start, stop, step are {self.start}, {self.stop}, {self.step}, "
                "wanted finite numbers and a step other than 0"
            )
        n = (self.stop - self.start) / self.step
        if n > 2**44:
            raise ValueError(
                f"arange: {n:.3g} numbers from {self.start} to {self.stop} are more than any "
                "memory holds"
            )
        return (max(0, math.ceil(n)),)

    def forward(self, xp, out=None, dtype=None):
        y = self.new(xp, out, dtype)
        y[...] = self.start + xp.arange(y.size) * self.step  # float64, rounded once
        return y

    def samples(rng):
        cases = ((0, 5, 1), (0, 5, 2), (5, 0, -2), (1, 1.5, 1), (0, 2, 0.25), (2, 2, 1))
        for start, stop, step in cases:
            yield Sample(start=start, stop=stop, step=step)


@op("linspace", nnp="Linspace")
class linspace_op(Generator):
    """Numbers at equal distances, both ends included."""

    start: float
    stop: float
    num: int

    def output_shape(self):
        return (self.num,)

    def forward(self, xp, out=None, dtype=None):
        y = self.new(xp, out, dtype)
        y[...] = xp.linspace(self.start, self.stop, self.num)
        return y

    def samples(rng):
        for start, stop, num in ((0, 5, 3), (0, 1, 1), (5, 0, 4), (0, 1, 0), (-1, 1, 9)):
            yield Sample(start=start, stop=stop, num=num)


def linspace(start, stop, num):
    r"""$y_i = start + i\,(stop - start) / (num - 1)$: from start to stop, both included.

    Args:
        start, stop: The ends; only start is returned if num is 1.
        num: How many, an int of at least 0.
    Raises:
        TypeError: num is not an int.
        ValueError: num is negative.
    Example:
        >>> F.linspace(0, 1, 5).d
        array([0.  , 0.25, 0.5 , 0.75, 1.  ], dtype=float32)
    """
    try:
        num = as_int(num)
    except TypeError:
        raise TypeError(f"linspace: num is {num!r}, wanted an int") from None
    except OverflowError as e:
        raise ValueError(f"linspace: num is {num!r}, {e}") from None
    if num < 0:
        raise ValueError(f"linspace: num is {num}, wanted at least 0")
    return linspace_op(start=start, stop=stop, num=num)
