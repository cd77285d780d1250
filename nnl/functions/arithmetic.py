# SPDX-License-Identifier: Apache-2.0
"""Element-wise arithmetic with two arrays, or with an array and a number.

Two arrays have the same rank; sizes of 1 stretch. There is no broadcasting between ranks.
"""

from __future__ import annotations

import math
from functools import reduce

import numpy as np

from nnl.core.arrays.spec import Spec, broadcast_shape, check_same_shape
from nnl.core.ops.op import OPS, Cost, Onnx, Sample, op
from nnl.functions.reduction import sum_to

CATEGORY = "Arithmetic"

__all__ = [
    "add2",
    "add_n",
    "add_scalar",
    "bc_add2",
    "div2",
    "mul2",
    "mul_n",
    "mul_scalar",
    "pow2",
    "pow_scalar",
    "r_div_scalar",
    "r_pow_scalar",
    "r_sub_scalar",
    "sub2",
]


def memory_for(xp, x, out):
    """`out`, or new memory of x's shape and dtype where there is none.

    A kernel of several passes needs it, because numpy gives scalars for arrays of rank 0.
    """
    return xp.empty(x.shape, x.dtype) if out is None else out


class Binary:
    """Common to functions of two arrays: the shape rule, the cost and samples."""

    def infer(self, x0, x1):
        if x0 is x1:
            return x0
        return Spec.of(broadcast_shape(self.op.name, x0, x1), x0.dtype)

    def cost(self, x0, x1):
        y = self.infer(x0, x1)
        return Cost(flops=y.size, bytes=x0.nbytes + x1.nbytes + y.nbytes)

    def samples(rng):
        shapes = [((2, 3), (2, 3)), ((2, 3), (1, 3)), ((2, 1), (1, 3)), ((), ()), ((0, 3), (0, 3))]
        for s0, s1 in shapes:
            yield Sample(rng.uniform(0.5, 2, s0), rng.uniform(0.5, 2, s1))


class Unary:
    """Common to functions of one array that keep its shape."""

    def infer(self, x):
        return x

    def cost(self, x):
        return Cost(flops=x.size, bytes=2 * x.nbytes)

    def samples(rng):
        for shape in ((2, 3), (), (0, 2)):
            yield Sample(rng.uniform(0.5, 2, shape))


@op("add2", nnp="Add2", onnx=Onnx("Add"))
class add2(Binary):
    """$y = x_0 + x_1$, element by element; sizes of 1 stretch.

    Args:
        x0, x1: Arrays of one rank.
        inplace: Ignored, as in NNabla.
    Raises:
        ShapeError: The ranks differ, or two sizes differ and neither is 1.
    """

    inplace: bool = False
    ufunc = "add"
    elementwise = "add"

    def vjp(self, gy, *, x0_spec, x1_spec):
        return sum_to(gy, x0_spec.shape), sum_to(gy, x1_spec.shape)


@op("sub2", nnp="Sub2", onnx=Onnx("Sub"))
class sub2(Binary):
    """$y = x_0 - x_1$, element by element; sizes of 1 stretch."""

    inplace: bool = False
    ufunc = "subtract"
    elementwise = "subtract"

    def vjp(self, gy, *, x0_spec, x1_spec, need):
        return (
            sum_to(gy, x0_spec.shape) if need[0] else None,
            sum_to(mul_scalar(gy, -1.0), x1_spec.shape) if need[1] else None,
        )


@op("mul2", nnp="Mul2", onnx=Onnx("Mul"))
class mul2(Binary):
    """$y = x_0 x_1$, element by element; sizes of 1 stretch."""

    inplace: bool = False
    ufunc = "multiply"
    elementwise = "multiply"

    def vjp(self, gy, *, x0, x1, need):
        return (
            sum_to(mul2(gy, x1), x0.shape) if need[0] else None,
            sum_to(mul2(gy, x0), x1.shape) if need[1] else None,
        )


@op("div2", nnp="Div2", onnx=Onnx("Div"))
class div2(Binary):
    """$y = x_0 / x_1$, element by element; sizes of 1 stretch."""

    inplace: bool = False
    ufunc = "divide"
    elementwise = "divide"

    def vjp(self, gy, *, x0_spec, x1, y, need):
        g0 = div2(gy, x1)
        return (
            sum_to(g0, x0_spec.shape) if need[0] else None,
            sum_to(mul_scalar(mul2(g0, y), -1.0), x1.shape) if need[1] else None,
        )


@op("bc_add2", nnp="BcAdd2")
class bc_add2(Binary):
    """$y = x_0 + x_1$, element by element; sizes of 1 stretch. An older name of `add2`."""

    inplace: bool = False
    ufunc = "add"
    elementwise = "add"

    def vjp(self, gy, *, x0_spec, x1_spec):
        return sum_to(gy, x0_spec.shape), sum_to(gy, x1_spec.shape)


@op("pow2", nnp="Pow2", onnx=Onnx("Pow"))
class pow2(Binary):
    r"""$y = x_0^{x_1}$, element by element; sizes of 1 stretch.

    $\partial y / \partial x_1 = y \ln x_0$ is taken as 0 at $x_0 = 0$, and is NaN for negative
    $x_0$. $\partial y / \partial x_0 = x_1 x_0^{x_1 - 1}$ is 0 at $x_0 = x_1 = 0$.

    Args:
        x0, x1: Arrays of one rank. The result is NaN where x0 is negative and x1 no whole number.
        inplace: Ignored, as in NNabla.
    Raises:
        ShapeError: The ranks differ, or two sizes differ and neither is 1.
    """

    inplace: bool = False
    ufunc = "power"
    elementwise = "power"

    def vjp(self, gy, *, x0, x1, y, need):
        g0 = g1 = None
        if need[0]:
            less = add2(add_scalar(x1, -1.0), OPS["equal_scalar"](x1, 0.0))  # 0 x0^0 is 0 at 0, too
            g0 = sum_to(mul2(gy, mul2(x1, pow2(x0, less))), x0.shape)
        if need[1]:
            base = add2(x0, OPS["equal_scalar"](x0, 0.0))  # 1 in place of 0, so that the log is 0
            g1 = sum_to(mul2(gy, mul2(y, OPS["log"](base))), x1.shape)
        return g0, g1


class Variadic:
    """Common to functions of any number of arrays of one shape."""

    skips_inputs = True  # Function.set_active_input_mask can leave some out

    def infer(self, *x):
        name = self.op.name
        if not x:
            raise ValueError(f"{name}: got no array, wanted at least one")
        for i, other in enumerate(x[1:], start=1):
            check_same_shape(name, "x[0]", x[0], f"x[{i}]", other)
        return x[0]

    def cost(self, *x):
        return Cost(flops=(len(x) - 1) * x[0].size, bytes=(len(x) + 1) * x[0].nbytes)

    def samples(rng):
        for n, shape in ((1, (2, 3)), (2, (2, 3)), (4, (3,)), (3, ()), (2, (0, 2))):
            yield Sample(*(rng.uniform(0.5, 2, shape) for _ in range(n)))


@op("add_n", nnp="AddN", onnx=Onnx("Sum"))
class add_n(Variadic):
    r"""$y = \sum_k x_k$, the sum of any number of arrays, element by element.

    Args:
        x: One or more arrays of one shape.
    Raises:
        ShapeError: The shapes differ.
        ValueError: No array is given.
    """

    def forward(self, xp, *x, out=None):
        if len(x) == 1:
            return xp.positive(x[0], out=out)
        y = xp.add(x[0], x[1], out=out)
        for other in x[2:]:
            y += other
        return y

    def elementwise(self, w):
        w.over_all("add")

    def vjp(self, gy, *, need):
        return tuple([gy for _ in need])


@op("mul_n", nnp="MulN")
class mul_n(Variadic):
    r"""$y = \prod_k x_k$, the product of any number of arrays, element by element.

    The gradient is the product of the other arrays, so it holds where some of them are 0.

    Args:
        x: One or more arrays of one shape.
    Raises:
        ShapeError: The shapes differ.
        ValueError: No array is given.
    """

    def forward(self, xp, *x, out=None):
        if len(x) == 1:
            return xp.positive(x[0], out=out)
        y = xp.multiply(x[0], x[1], out=out)
        for other in x[2:]:
            y *= other
        return y

    def elementwise(self, w):
        w.over_all("multiply")

    def vjp(self, gy, *, x, need):
        if len(x) == 1:
            return gy
        if len(x) <= 3:  # a product of two others has no zero once it has overflowed
            others = [[gy, *x[:i], *x[i + 1 :]] for i in range(len(x))]
        else:
            others = [[gy, reduce(absorbing_mul, x[:i] + x[i + 1 :])] for i in range(len(x))]
        return tuple(
            [mul_n(*o) if needed else None for o, needed in zip(others, need, strict=True)]
        )


def absorbed(xp, a, b):
    """a b, and 0 where one is 0, whatever the other has overflowed to. NaN stays NaN."""
    with np.errstate(invalid="ignore", over="ignore"):
        y = xp.multiply(a, b)
        return xp.where(xp.isnan(y) & ~xp.isnan(xp.add(a, b)), xp.zeros_like(y), y)


@op("absorbing_mul")
class absorbing_mul(Binary):
    """$y = x_0 x_1$ of two products, in which a factor 0 makes 0 of what overflows.

    So a product of many finite numbers with a 0 among them is 0 in whatever parts it is taken.
    """

    def forward(self, xp, x0, x1):
        return absorbed(xp, x0, x1)

    def elementwise(self, w):
        y = w("multiply", 0, 1)
        both = w("add", 0, 1)  # NaN where one of them is, or y is infinite
        w("where", w("is_nan", y), w("where", w("is_nan", both), both, w.number(0)), y)

    def vjp(self, gy, *, x0, x1, need):
        return (
            sum_to(absorbing_mul(gy, x1), x0.shape) if need[0] else None,
            sum_to(absorbing_mul(gy, x0), x1.shape) if need[1] else None,
        )


class WithNumber(Unary):
    """Common to functions of one array and a number."""

    val: float = 1.0

    def samples(rng):
        for shape, val in (((2, 3), 1.0), ((2, 3), 2.5), ((), 0.5), ((4,), 2.0), ((0, 2), 3.0)):
            yield Sample(rng.uniform(0.5, 2, shape), val=val)


class WithNumberInplace(WithNumber):
    """The same, with the argument that NNabla's signature has and ignores."""

    inplace: bool = False


@op("add_scalar", nnp="AddScalar")
class add_scalar(WithNumberInplace):
    """$y = x + val$."""

    elementwise = "add", "val"

    def forward(self, xp, x, out=None):
        return xp.add(x, self.val, out=out)

    def vjp(self, gy):
        return gy


@op("mul_scalar", nnp="MulScalar")
class mul_scalar(WithNumberInplace):
    """$y = val \\cdot x$."""

    elementwise = "multiply", "val"

    def forward(self, xp, x, out=None):
        return xp.multiply(x, self.val, out=out)

    def vjp(self, gy):
        return mul_scalar(gy, self.val)


_AS_UFUNC = {2.0: "square", 1.0: "positive", 0.5: "sqrt", -1.0: "reciprocal"}
_AS_CODE = {
    2.0: "square", 1.0: "copy", 0.5: "root", -1.0: "inverse", -0.5: "inverse_root", 3.0: "cube",
}  # fmt: skip


@op("pow_scalar", nnp="PowScalar")
class pow_scalar(WithNumberInplace):
    """$y = x^{val}$. NaN where x is negative and val no whole number."""

    def forward(self, xp, x, out=None):
        # numpy's power takes up to 60 ns an element (for a negative base), these less than 1
        if self.val in _AS_UFUNC:
            return getattr(xp, _AS_UFUNC[self.val])(x, out=out)
        y = memory_for(xp, x, out)
        if self.val == -0.5:
            return xp.reciprocal(xp.sqrt(x, out=y), out=y)
        if self.val == 3.0:
            return xp.multiply(xp.multiply(x, x, out=y), x, out=y)
        return xp.power(x, xp.asarray(self.val, x.dtype), out=y)

    def elementwise(self, w):
        code = _AS_CODE.get(self.val)
        w(code) if code else w("power", 0, w.number(self.val))

    def vjp(self, gy, *, x):
        if self.val == 0.0:
            return mul_scalar(gy, 0.0)
        if self.val == 1.0:
            return gy
        return mul_scalar(mul2(gy, pow_scalar(x, self.val - 1.0)), self.val)

    def samples(rng):
        for val in (1.0, 2.0, 3.0, 0.5, -0.5, -1.0, 0.0, 1.7):
            yield Sample(rng.uniform(0.5, 2, (2, 3)), val=val)
        yield Sample(rng.normal(size=(2, 3)), val=3.0)
        yield Sample(rng.uniform(0.5, 2, ()), val=-0.5)
        yield Sample(rng.uniform(0.5, 2, (0, 2)), val=2.0)


@op("r_sub_scalar", nnp="RSubScalar")
class r_sub_scalar(WithNumber):
    """$y = val - x$."""

    def forward(self, xp, x, out=None):
        return xp.subtract(self.val, x, out=out)

    def elementwise(self, w):
        w("subtract", w.number(self.val), 0)

    def vjp(self, gy):
        return mul_scalar(gy, -1.0)


@op("r_div_scalar", nnp="RDivScalar")
class r_div_scalar(WithNumber):
    """$y = val / x$."""

    def forward(self, xp, x, out=None):
        return xp.divide(self.val, x, out=out)

    def elementwise(self, w):
        w("divide", w.number(self.val), 0)

    def vjp(self, gy, *, x, y):
        return mul_scalar(mul2(gy, div2(y, x)), -1.0)


@op("r_pow_scalar", nnp="RPowScalar")
class r_pow_scalar(WithNumber):
    r"""$y = val^x$, with the gradient $y \ln val$.

    For val = 0 the gradient is 0. For a negative val it is NaN, and so is y where x is no whole
    number.
    """

    def forward(self, xp, x, out=None):
        return xp.power(xp.asarray(self.val, x.dtype), x, out=out)

    def elementwise(self, w):
        w("power", w.number(self.val), 0)

    def vjp(self, gy, *, y):
        if self.val > 0.0:
            log = math.log(self.val)
        else:
            log = 0.0 if self.val == 0.0 else math.nan
        return mul_scalar(mul2(gy, y), log)
