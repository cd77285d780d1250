# SPDX-License-Identifier: Apache-2.0
"""Shifting the bits of unsigned integers."""

from __future__ import annotations

import numpy as np

from nnl.core.arrays.spec import broadcast_shape
from nnl.core.ops.op import Cost, Sample, op
from nnl.functions.on_device import on_host

CATEGORY = "Special"

__all__ = ["bit_shift"]


@op("bit_shift", nnp="BitShift", keep=("x", "shift"))
class bit_shift:
    r"""$y = \lfloor x\,2^{\pm s} \rfloor$; zeros come in, and bits that leave the integer are lost.

    Args:
        x: Unsigned integers of any size.
        shift: Numbers of bits >= 0, of the rank of x; sizes of 1 stretch. Any integers, or floats,
            which are truncated.
        direction: "LEFT", to higher bits, or "RIGHT".
    Returns:
        The two shapes broadcast, with the dtype of x. No gradient.
    Raises:
        TypeError: x does not hold unsigned integers.
        ShapeError: Ranks or sizes do not fit.
        ValueError: direction is unknown; or, in forward, a number of bits is negative.
    Source: ONNX, operator BitShift.
    """

    direction: str = "LEFT"

    def infer(self, x, shift):
        if self.direction not in ("LEFT", "RIGHT"):
            raise ValueError(
                f"bit_shift: direction is {self.direction!r}, wanted 'LEFT' or 'RIGHT'"
            )
        if x.dtype.kind != "u":
            raise TypeError(f"bit_shift: x {x} does not hold unsigned integers")
        return x.with_shape(broadcast_shape("bit_shift", x, shift))

    def forward(self, xp, x, shift, out=None):
        if on_host(shift) and shift.size and shift.min() < 0:
            raise ValueError(f"bit_shift: shift has the value {shift.min()}, wanted >= 0")
        # from 64 on, where every bit is lost, all numbers of bits are alike
        bits = xp.minimum(shift, 64).astype(x.dtype)
        return (xp.left_shift if self.direction == "LEFT" else xp.right_shift)(x, bits, out=out)

    def cost(self, x, shift):
        return Cost(0, 2 * x.nbytes + shift.nbytes)

    def samples(rng):
        for dtype in (np.uint8, np.uint16, np.uint32, np.uint64):
            x = rng.integers(0, 255, (2, 3)).astype(dtype)
            for direction in ("LEFT", "RIGHT"):
                yield Sample(x, rng.integers(0, 7, (2, 3)).astype(dtype), direction=direction)
        yield Sample(x, np.array([[3], [1]], np.uint64))
        yield Sample(x[:0], x[:0])
