# SPDX-License-Identifier: Apache-2.0
"""Evenly spaced values between two numbers, and integers by scale and zero point.

Gradients by x are straight-through estimates: they pass as if y were x (times the scale).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nnl.core.arguments.annotations import checked, numpy_type
from nnl.core.arrays.spec import ShapeError
from nnl.core.ops.op import OPS, Cost, Sample, op
from nnl.functions.arithmetic import (
    add2,
    add_scalar,
    div2,
    memory_for,
    mul2,
    mul_scalar,
    sub2,
)
from nnl.functions.assign import store
from nnl.functions.comparison import greater, greater_equal, less, less_equal
from nnl.functions.quantization import rounded
from nnl.functions.reduction import sum_to

CATEGORY = "Quantization"

__all__ = ["dequantize_linear", "min_max_quantize", "quantize_linear"]


def check_parameter(name, x, arg, p):
    """Raise unless p has the rank of x and stretches to its shape."""
    if len(p.shape) != len(x.shape) or any(
        n not in (1, m) for n, m in zip(p.shape, x.shape, strict=True)
    ):
        raise ShapeError(
            f"{name}: {arg} {p} must have the shape of x {x}, or 1 in some of its axes"
        )


def overwritten(attributes):
    return ("qr_min", "qr_max") if attributes.x_min_max else ("qr_max",)


@op(
    "min_max_quantize",
    nnp="MinMaxQuantize",
    outputs=("y", "lowest", "highest"),
    hidden=2,
    writes=overwritten,
)
class min_max_quantize_op:
    """See min_max_quantize. Hidden outputs: the smallest and largest value that y can have."""

    decay: float = 0.999
    x_min_max: bool = False
    ema: bool = False
    ste_fine_grained: bool = True
    eps: float = 0.01

    def infer(self, x, qr_min, qr_max, ql_min, ql_max):
        name = "min_max_quantize"
        check_parameter(name, x, "qr_min", qr_min)
        for arg, p in (("qr_max", qr_max), ("ql_min", ql_min), ("ql_max", ql_max)):
            if p.shape != qr_min.shape:
                raise ShapeError(f"{name}: {arg} {p} must have the shape of qr_min {qr_min}")
        return x, qr_min, qr_min

    def forward(self, xp, x, qr_min, qr_max, ql_min, ql_max):
        if self.x_min_max and x.size:
            axes = tuple(i for i, n in enumerate(qr_min.shape) if n == 1)
            decay = self.decay if self.ema else 0.0
            for q, reduce in ((qr_min, xp.min), (qr_max, xp.max)):
                q *= decay
                q += (1.0 - decay) * reduce(x, axis=axes, keepdims=True)
        xp.maximum(qr_max, qr_min + self.eps, out=qr_max)
        scale = xp.asarray((qr_max - qr_min) / (ql_max - ql_min))
        # 0 is to be one of the values
        zero = xp.clip(rounded(xp, xp.asarray(ql_min - qr_min / scale)), ql_min, ql_max)
        lowest, highest = (xp.asarray((q - zero) * scale) for q in (ql_min, ql_max))
        y = xp.empty(x.shape, x.dtype)
        xp.clip(x, lowest, highest, out=y)
        y -= lowest
        y /= scale
        rounded(xp, y.copy(), y)
        y *= scale
        y += lowest
        return y, lowest, highest

    def portable(self, x, qr_min, qr_max, ql_min, ql_max):
        if self.x_min_max and x.size:
            axes = tuple(i for i, n in enumerate(qr_min.shape) if n == 1)
            decay = self.decay if self.ema else 0.0
            lowest, highest = (
                add2(
                    mul_scalar(q, decay),
                    mul_scalar(OPS[reduce](x, axes=axes, keep_dims=True), 1.0 - decay),
                )
                for q, reduce in ((qr_min, "min"), (qr_max, "max"))
            )
            qr_min = store(qr_min, lowest)
        else:
            highest = qr_max
            if self.x_min_max:  # nothing is there to move it
                qr_min = store(qr_min, mul_scalar(qr_min, 1.0))
        qr_max = store(qr_max, OPS["maximum2"](highest, add_scalar(qr_min, self.eps)))
        scale = div2(sub2(qr_max, qr_min), sub2(ql_max, ql_min))
        zero = OPS["round"](sub2(ql_min, div2(qr_min, scale)))
        zero = OPS["minimum2"](OPS["maximum2"](zero, ql_min), ql_max)
        lowest, highest = (mul2(sub2(q, zero), scale) for q in (ql_min, ql_max))
        y = OPS["minimum2"](OPS["maximum2"](x, lowest), highest)
        y = mul2(OPS["round"](div2(sub2(y, lowest), scale)), scale)
        return add2(y, lowest), lowest, highest

    def vjp(self, gy, glowest, ghighest, *, x, lowest, highest, need):
        gx = gmin = gmax = None
        if need[0]:
            gx = gy
            if self.ste_fine_grained:
                gx = mul2(gy, mul2(greater_equal(x, lowest), less_equal(x, highest)))
        if not (self.x_min_max or self.ema):
            gmin = sum_to(mul2(gy, less(x, lowest)), lowest.shape) if need[1] else None
            gmax = sum_to(mul2(gy, greater(x, highest)), lowest.shape) if need[2] else None
        return gx, gmin, gmax, None, None

    def cost(self, x, qr_min, qr_max, ql_min, ql_max):
        return Cost(flops=8 * x.size, bytes=2 * x.nbytes)

    def samples(rng):
        x, grad = 2 * rng.normal(size=(3, 8)), (True, True, True, False, False)

        def ranges(*shape):
            low, high = -rng.uniform(0.5, 2, shape), rng.uniform(0.5, 2, shape)
            return low, high, np.zeros(shape), np.full(shape, 15.0)

        for modes in ({}, {"ste_fine_grained": False}, {"ema": True}, {"eps": 5.0}):
            yield Sample(x, *ranges(1, 1), **modes, grad=grad, order=0)
            yield Sample(x, *ranges(3, 1), **modes, grad=grad, order=0)
        for ema in (False, True):
            yield Sample(x, *ranges(1, 1), x_min_max=True, ema=ema, decay=0.5, grad=grad, order=0)
            yield Sample(x, *ranges(1, 8), x_min_max=True, ema=ema, grad=grad, order=0)
        low, high, ql_min, ql_max = ranges(1, 1)
        yield Sample(x, low, high, ql_min - 8, ql_max - 8, grad=grad, order=0)
        yield Sample(x, high, 2 * high, ql_min, ql_max, grad=grad, order=0)
        yield Sample(np.zeros((0, 2)), *ranges(1, 1), x_min_max=True, grad=grad, order=0)


@checked
def min_max_quantize(
    x,
    qr_min,
    qr_max,
    ql_min,
    ql_max,
    decay: float = 0.999,
    x_min_max: bool = False,
    ema: bool = False,
    ste_fine_grained: bool = True,
    eps: float = 0.01,
    quantize: bool = True,
    outputs: Any = None,
):
    r"""The nearest of evenly spaced values between two numbers, of which one is 0.

    $$y = s\,\mathrm{round}((\mathrm{clip}(x, a, b) - a) / s) + a,
    \quad s = (q^r_{max} - q^r_{min}) / (q^l_{max} - q^l_{min})$$

    where a and b are qr_min and qr_max, moved by at most half a step so that 0 is among the values
    (by more if both have one sign).

    Without x_min_max and ema, qr_min and qr_max get gradients: the sums of the gradient over the
    values of x below a and above b.

    Args:
        x: Any shape.
        qr_min, qr_max: Smallest and largest real value: arrays of one shape, that of x or 1 in some
            axes. qr_max becomes at least qr_min + eps; with x_min_max both are overwritten.
        ql_min, ql_max: Smallest and largest level, of the same shape: 0 and 255 for 8 bits.
        decay: With ema, how much of qr_min and qr_max stays.
        x_min_max: Whether qr_min and qr_max become the smallest and largest value of x, over the
            axes in which their size is 1.
        ema: With x_min_max, they become decay times themselves plus the rest times those of x.
        ste_fine_grained: Whether no gradient passes where x is outside [a, b].
        eps: Least difference of qr_max and qr_min, in units of x.
        quantize: False returns x itself.
        outputs: Array whose memory the result takes.
    Raises:
        ShapeError: The shapes do not fit.
    Source: Jacob et al., Quantization and Training of Neural Networks for Efficient
        Integer-Arithmetic-Only Inference, arXiv:1712.05877, section 3.
    Example:
        >>> low, high, first, last = array([[0]]), array([[3]]), array([[0]]), array([[3]])
        >>> F.min_max_quantize(array([[0.4, 1.6, 5]]), low, high, first, last).d  # 4 levels, 0 to 3
        array([[0., 2., 3.]], dtype=float32)
    """
    if not quantize:
        return x
    return min_max_quantize_op(
        x, qr_min, qr_max, ql_min, ql_max, decay=decay, x_min_max=x_min_max, ema=ema,
        ste_fine_grained=ste_fine_grained, eps=eps, outputs=outputs,
    )  # fmt: skip


INTEGERS = {1: (-128.0, 127.0), 2: (0.0, 255.0)}  # numpy's numbers of int8 and uint8 -> range
ROUND_MODES = ("HALF_AWAY_FROM_ZERO", "HALF_TO_EVEN")


@op("quantize_linear", nnp="QuantizeLinear")
class quantize_linear_op:
    """See quantize_linear; dtype is numpy's number of the integer type."""

    round_mode: str = "HALF_AWAY_FROM_ZERO"
    narrow_range: bool = False
    dtype: int = 1

    def infer(self, x, scale, zero_point):
        if self.round_mode not in ROUND_MODES:
            raise ValueError(
                f"quantize_linear: round_mode is {self.round_mode!r}, "
                f"wanted one of {', '.join(ROUND_MODES)}"
            )
        if self.dtype not in INTEGERS:
            raise ValueError(
                f"quantize_linear: dtype is {self.dtype}, wanted 1 for int8 or 2 for uint8"
            )
        check_parameter("quantize_linear", x, "scale", scale)
        check_parameter("quantize_linear", x, "zero_point", zero_point)
        return x

    def elementwise(self, w):
        """Bounds first: then all numbers are small enough for any way to round."""
        low, high = INTEGERS[self.dtype]
        zero = self.round_in(w, 2)
        bounds = (w.number(n) for n in (low + self.narrow_range, high))
        y = w("clip", w("divide", 0, 1), *[w("subtract", n, zero) for n in bounds])
        w("add", self.round_in(w, y), zero)

    def round_in(self, w, x):
        if self.round_mode != "HALF_TO_EVEN":
            return w("round", x)
        # from 2^23 on float32 has whole numbers only, and adding rounds halves to even
        much = w.number(1.5 * 2**23)
        return w("subtract", w("add", x, much), much)

    def forward(self, xp, x, scale, zero_point, out=None):
        y = memory_for(xp, x, out)
        to_whole = xp.rint if self.round_mode == "HALF_TO_EVEN" else rounded_by(xp)
        low, high = INTEGERS[self.dtype]
        to_whole(xp.divide(x, scale), y)
        xp.add(y, to_whole(zero_point, xp.empty_like(zero_point)), out=y)
        return xp.clip(y, low + self.narrow_range, high, out=y)

    def portable(self, x, scale, zero_point):
        low, high = INTEGERS[self.dtype]
        y, zero = (self.whole(v) for v in (div2(x, scale), zero_point))
        y = OPS["maximum_scalar"](add2(y, zero), low + self.narrow_range)
        return OPS["minimum_scalar"](y, high)

    def whole(self, x):
        """The nearest whole number of every element, halves as round_mode says."""
        if self.round_mode != "HALF_TO_EVEN":
            return OPS["round"](x)
        low = OPS["floor"](x)
        part = sub2(x, low)
        half_low = mul_scalar(low, 0.5)
        odd = greater(half_low, OPS["floor"](half_low))
        up = OPS["logical_or"](
            OPS["greater_scalar"](part, 0.5), mul2(OPS["equal_scalar"](part, 0.5), odd)
        )
        return add2(low, up)

    def vjp(self, gy, *, scale):
        return div2(gy, scale), None, None

    def cost(self, x, scale, zero_point):
        return Cost(flops=4 * x.size, bytes=2 * x.nbytes)

    def samples(rng):
        x, grad = 40 * rng.normal(size=(3, 6)), (True, False, False)
        one, zero = np.array([[0.5]]), np.array([[3.0]])
        halves = np.array([[-300.0, -2.5, -1.5, -0.5, 0, 0.5, 1.5, 2.5, 300.0]])
        for dtype in (1, 2):
            for narrow_range in (False, True):
                yield Sample(
                    x, one, zero, dtype=dtype, narrow_range=narrow_range, grad=grad, order=0
                )
        for mode in ROUND_MODES:
            yield Sample(halves, 2 * one, zero, round_mode=mode, grad=grad, order=0)
        scale = rng.uniform(0.5, 2, (1, 6))
        yield Sample(x, scale, np.full((1, 6), -5.0), grad=grad, order=0)
        yield Sample(x, rng.uniform(0.5, 2, (3, 1)), zero, grad=grad, order=0)
        yield Sample(np.array(3.2), np.array(0.5), np.array(1.0), grad=grad, order=0)


def rounded_by(xp):
    return lambda x, out: rounded(xp, xp.asarray(x), out)


def quantize_linear(
    x,
    scale,
    zero_point,
    round_mode: str = "HALF_AWAY_FROM_ZERO",
    narrow_range: bool = False,
    dtype: Any = np.int8,
):
    r"""Round to integers: $y = \mathrm{clip}(\mathrm{round}(x / s) + z)$.

    The gradient is that of x / s everywhere; scale and zero_point get none.

    Args:
        x: Any shape.
        scale: Distance of two values, in units of x: of the rank of x, sizes of 1 stretch.
        zero_point: The integer that stands for 0, rounded; as scale.
        round_mode: "HALF_AWAY_FROM_ZERO" or "HALF_TO_EVEN".
        narrow_range: Leave out the smallest integer.
        dtype: np.int8 or np.uint8: whose range the result is clipped to.
    Returns:
        Integers, in the floating-point type of x.
    Raises:
        ShapeError: scale or zero_point has another rank, or does not stretch to the shape of x.
        ValueError: Another round_mode or dtype.
    Source: ONNX, operator QuantizeLinear.
    Example:
        >>> F.quantize_linear(array([-1, 0.24, 100]), array([0.1]), array([0], np.int8)).d
        array([-10.,   2., 127.], dtype=float32)
    """
    return quantize_linear_op(
        x, scale, zero_point, round_mode=round_mode, narrow_range=narrow_range,
        dtype=numpy_type("quantize_linear", dtype).num,
    )  # fmt: skip


@op("dequantize_linear", nnp="DequantizeLinear", keep=("x",))
class dequantize_linear:
    r"""Undo quantize_linear: $y = (x - z)\,s$ with zero point z and scale s.

    Args:
        x: Any shape; floats or integers.
        scale, zero_point: As for quantize_linear.
    Raises:
        ShapeError: scale or zero_point has another rank, or does not stretch to the shape of x.
    Source: ONNX, operator DequantizeLinear.
    """

    def infer(self, x, scale, zero_point):
        check_parameter("dequantize_linear", x, "scale", scale)
        check_parameter("dequantize_linear", x, "zero_point", zero_point)
        return x if x.is_float else scale.with_shape(x.shape)

    def elementwise(self, w):
        w("multiply", w("subtract", 0, 2), 1)

    def decompose(self, x, scale, zero_point):
        return mul2(sub2(x, zero_point), scale)

    def cost(self, x, scale, zero_point):
        return Cost(flops=2 * x.size, bytes=2 * x.nbytes)

    def samples(rng):
        x = rng.integers(-20, 20, size=(3, 6)).astype(np.float64)
        yield Sample(x, np.array([[0.5]]), np.array([[3.0]]), grad=(True, False, False))
        yield Sample(
            x, rng.uniform(0.5, 2, (1, 6)), np.full((3, 1), 2.0), grad=(True, False, False)
        )
