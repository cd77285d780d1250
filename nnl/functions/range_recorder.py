# SPDX-License-Identifier: Apache-2.0
"""The range of the values that pass by, for the scales of quantization-aware training."""

from __future__ import annotations

import numpy as np

from nnl.core.arrays.spec import ShapeError
from nnl.core.ops.op import Cost, Sample, op

CATEGORY = "Quantization"

__all__: list[str] = []


@op("record_range", writes=lambda a: ("low", "high") if a.training else ())
class record_range:
    """A copy of x; low and high follow its smallest and largest value.

    Args:
        x: Any shape.
        low, high: One element, of the rank of x; None for what is not wanted.
        recorder: The type name of the function, by which it can be found in a graph.
        moving: low and high become `decay` times themselves and the rest times the new value;
            else the smallest and largest value so far.
        absolute: Take absolute values of x.
        training: False: write nothing.
    Raises:
        ShapeError: low or high has another shape.
    """

    recorder: str = "Recorder"
    moving: bool = False
    absolute: bool = False
    decay: float = 0.99
    training: bool = True

    @property
    def type_name(self):
        return self.recorder

    def infer(self, x, low=None, high=None):
        for name, p in (("low", low), ("high", high)):
            if p is not None and p.shape != (1,) * len(x.shape):
                raise ShapeError(
                    f"record_range: {name} {p} must have one element and the rank of {x}"
                )
        return x

    def forward(self, xp, x, low, high):
        if self.training and x.size:
            values = xp.abs(x) if self.absolute else x
            for p, find, keep in ((low, xp.min, xp.minimum), (high, xp.max, xp.maximum)):
                if p is None:
                    continue
                if self.moving:
                    p *= self.decay
                    p += (1 - self.decay) * find(values)
                else:
                    keep(p, find(values), out=p)
        return x.copy()

    def vjp(self, gy):
        return gy, None, None

    def cost(self, x, low=None, high=None):
        return Cost(flops=2 * x.size, bytes=3 * x.nbytes)

    def samples(rng):
        grad = (True, False, False)
        for moving in (False, True):
            for absolute in (False, True):
                x, low, high = rng.normal(size=(2, 3)), np.array([[-0.3]]), np.array([[0.4]])
                yield Sample(x, low, high, moving=moving, absolute=absolute, grad=grad)
        yield Sample(x, None, high, grad=grad)
        yield Sample(x, low, high, training=False, grad=grad)
        yield Sample(np.zeros((0, 2)), low, high, grad=grad)
