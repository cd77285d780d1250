# SPDX-License-Identifier: Apache-2.0
"""Affine maps and convolutions whose weights are replaced by their signs.

The gradient of the signs is passed on to the weights unchanged, a straight-through estimate.
"""

from __future__ import annotations

import math

import numpy as np

from nnl.core.arrays.spec import ShapeError, check_axis
from nnl.core.ops.op import OPS, Cost, Sample, op
from nnl.functions.affine import affine
from nnl.functions.arithmetic import Unary, mul2
from nnl.functions.assign import store
from nnl.functions.convolution import Window, convolution, resolve_window
from nnl.functions.reduction import mean_op, reshape

CATEGORY = "Quantization"

__all__ = [
    "binary_connect_affine",
    "binary_connect_convolution",
    "binary_weight_affine",
    "binary_weight_convolution",
]


class WithWeights:
    """Common to functions that are `inner()` of x, other weights made from weight, and bias.

    The inputs between weight and bias are not differentiable.
    """

    def infer_inner(self, x, weight, bias):
        """Spec of the result; errors carry the name of this function."""
        inner = self.inner()
        try:
            return inner.infer(x, weight, bias)
        except ValueError as e:
            raise type(e)(self.op.name + str(e).removeprefix(inner.op.name)) from e

    def inner_gradients(self, gy, x, weight, need):
        """(gx, gweight, None for each of the inputs that are written, gbias)."""
        gx, gw, gb = self.inner().vjp(gy, x=x, weight=weight, need=(need[0], need[1], need[-1]))
        return (gx, gw, *(None,) * (len(need) - 3), gb)

    def cost(self, x, weight, *others):
        cost = self.inner().cost(x, weight)
        return Cost(cost.flops + 2 * weight.size, cost.bytes + 2 * weight.nbytes)


class WithAffine(WithWeights):
    base_axis: int = 1
    outputs_last = True

    def resolve(self, x, *weights):
        return {"base_axis": check_axis(self.op.name, self.base_axis, x)}

    def inner(self):
        return affine.attrs(base_axis=self.base_axis)

    def arrays(rng):
        """x, weight, bias and attributes of samples."""
        x, w = rng.normal(size=(2, 3, 4)), rng.normal(size=(12, 5))
        w[0, :3] = 0.0, -0.0, 1.5
        yield x, w, rng.normal(size=5), {}
        yield x, rng.normal(size=(4, 2, 3)), rng.normal(size=(2, 3)), {"base_axis": 2}
        yield x, w, None, {"base_axis": -2}


class WithConvolution(WithWeights, Window):
    group: int = 1
    outputs_last = False

    def resolve(self, x, *weights):
        return resolve_window(self, x)

    def inner(self):
        return convolution.attrs(
            base_axis=self.base_axis,
            pad=self.pad,
            stride=self.stride,
            dilation=self.dilation,
            group=self.group,
        )

    def arrays(rng):
        """x, weight, bias and attributes of samples."""
        x, w, b = rng.normal(size=(2, 4, 7, 6)), rng.normal(size=(6, 4, 3, 3)), rng.normal(size=6)
        w[0, 0, 0] = 0.0, -0.0, 1.5
        yield x, w, b, {}
        yield x, w, None, {"stride": (2, 1), "pad": (1, 2), "dilation": (2, 1)}
        yield x, rng.normal(size=(6, 2, 3, 2)), b, {"pad": (1, 1), "group": 2}
        x = rng.normal(size=(2, 2, 3, 8))
        yield x, rng.normal(size=(4, 3, 3)), rng.normal(size=4), {"base_axis": 2}


def signs(xp, weight, zero):
    """1 or -1, and `zero` for 0."""
    y = xp.sign(weight)
    xp.copyto(y, zero, where=weight == 0)
    return y


def sizes_shape(a, weight):
    """(axes of one output's weights, shape of one value for each output that stretches)."""
    shape, n = weight.shape, len(weight.shape)
    if a.outputs_last:
        return (0,), (1, *shape[1:])
    return tuple(range(1, n)), (shape[0], *(1,) * (n - 1))


class Signs(Unary):
    """Common to what replaces weights; the gradient passes straight through."""

    quantize_zero_to: float = 1.0

    def vjp(self, gy):
        return gy


@op("binarize")
class binarize(Signs):
    """The signs of weights, with quantize_zero_to for 0."""

    elementwise = "signs", "quantize_zero_to"

    def forward(self, xp, x):
        return signs(xp, x, self.quantize_zero_to)

    def samples(rng):
        for q in (1.0, -1.0, 0.5):
            yield Sample(np.array([[1.5, -0.2], [0, 3]]), quantize_zero_to=q, order=0)


@op("binarize_scaled")
class binarize_scaled(Signs):
    """The signs of weights times the mean absolute value of the weights of each output.

    Args:
        outputs_last: Outputs are all axes but the first, as in affine; else they are the first.
    """

    outputs_last: bool = False

    def forward(self, xp, x):
        y = signs(xp, x, self.quantize_zero_to)
        y *= xp.mean(xp.abs(x), axis=sizes_shape(self, x)[0], keepdims=True)
        return y

    def portable(self, x):
        size = mean_op(OPS["abs"](x), axes=sizes_shape(self, x)[0], keep_dims=True)
        return mul2(binarize(x, quantize_zero_to=self.quantize_zero_to), size)

    def samples(rng):
        for last in (True, False):
            yield Sample(np.array([[1.5, -0.2], [0, 3]]), outputs_last=last, order=0)


def check_signs(a, weight, binary_weight):
    if binary_weight.shape != weight.shape:
        raise ShapeError(
            f"{a.op.name}: binary_weight {binary_weight} must have the shape of weight {weight}"
        )


class BinaryConnect:
    """What binary_connect_affine and binary_connect_convolution have in common."""

    def infer(self, x, weight, binary_weight, bias=None):
        y = self.infer_inner(x, weight, bias)
        check_signs(self, weight, binary_weight)
        return y

    def forward(self, xp, x, weight, binary_weight, bias=None):
        binary_weight[...] = signs(xp, weight, self.quantize_zero_to)
        return self.inner().forward(xp, x, binary_weight, bias)

    def portable(self, x, weight, binary_weight, bias=None):
        w = binarize(weight, quantize_zero_to=self.quantize_zero_to)
        inner = self.inner()
        return inner.op(x, store(binary_weight, w), bias, **inner.as_dict())

    def vjp(self, gy, *, x, weight, need):
        w = binarize(weight, quantize_zero_to=self.quantize_zero_to)
        return self.inner_gradients(gy, x, w, need)

    @classmethod
    def samples(cls, rng):
        for q, (x, w, b, attrs) in zip((1.0, -1.0, 0.5, 1.0), cls.arrays(rng), strict=False):
            grad = (True, True, False, b is not None)
            yield Sample(x, w, np.zeros(w.shape), b, quantize_zero_to=q, grad=grad, **attrs)


class BinaryWeight:
    """What binary_weight_affine and binary_weight_convolution have in common."""

    def infer(self, x, weight, binary_weight, alpha, bias=None):
        y = self.infer_inner(x, weight, bias)
        check_signs(self, weight, binary_weight)
        outputs = math.prod(sizes_shape(self, weight)[1])
        if alpha.size != outputs:
            raise ShapeError(
                f"{self.op.name}: alpha {alpha} has {alpha.size} values, weight {weight} has "
                f"{outputs} outputs"
            )
        return y

    def forward(self, xp, x, weight, binary_weight, alpha, bias=None):
        axes, shape = sizes_shape(self, weight)
        binary_weight[...] = signs(xp, weight, self.quantize_zero_to)
        alpha[...] = xp.mean(xp.abs(weight), axis=axes).reshape(alpha.shape)
        return self.inner().forward(xp, x, binary_weight * alpha.reshape(shape), bias)

    def portable(self, x, weight, binary_weight, alpha, bias=None):
        axes, shape = sizes_shape(self, weight)
        w = store(binary_weight, binarize(weight, quantize_zero_to=self.quantize_zero_to))
        size = mean_op(OPS["abs"](weight), axes=axes, keep_dims=False)
        size = reshape(store(alpha, reshape(size, alpha.shape)), shape)
        inner = self.inner()
        return inner.op(x, mul2(w, size), bias, **inner.as_dict())

    def vjp(self, gy, *, x, weight, need):
        w = binarize_scaled(
            weight, quantize_zero_to=self.quantize_zero_to, outputs_last=self.outputs_last
        )
        return self.inner_gradients(gy, x, w, need)

    @classmethod
    def samples(cls, rng):
        for q, (x, w, b, attrs) in zip((1.0, -1.0, 0.5, 1.0), cls.arrays(rng), strict=False):
            alpha = np.zeros(w.shape[1:] if cls.outputs_last else w.shape[0])
            grad = (True, True, False, False, b is not None)
            yield Sample(x, w, np.zeros(w.shape), alpha, b, quantize_zero_to=q, grad=grad, **attrs)


@op("binary_connect_affine", nnp="BinaryConnectAffine", writes=("binary_weight",))
class binary_connect_affine(BinaryConnect, WithAffine):
    r"""Affine map with the signs of the weights: $y = x\,\mathrm{sign}(W) + b$.

    Args:
        x: (*batch, *in); the axes from `base_axis` on are flattened to K values.
        weight: (K, *out). Gets the gradient of the signs.
        binary_weight: Shape of weight. It is overwritten with the signs and gets no gradient.
        bias: Shape of *out, optional.
        base_axis: Number of batch axes; negative counts from the end.
        quantize_zero_to: Sign of a weight of 0.
    Raises:
        ShapeError: base_axis is out of range, or the sizes do not fit.
    Source: Courbariaux, Bengio and David, BinaryConnect, arXiv:1511.00363.
    """

    quantize_zero_to: float = 1.0


@op("binary_connect_convolution", nnp="BinaryConnectConvolution", writes=("binary_weight",))
class binary_connect_convolution(BinaryConnect, WithConvolution):
    r"""$y = \mathrm{sgn}(w) * x + b$, a convolution with the signs of the weights.

    Args:
        x: (*batch, C, *S).
        weight: (O, C/group, *K). Gets the gradient of the signs.
        binary_weight: Shape of weight. It is overwritten with the signs and gets no gradient.
        bias: (O,), optional.
        base_axis, pad, stride, dilation, group: As for `convolution`.
        quantize_zero_to: Sign of a weight of 0.
    Raises:
        ShapeError, ValueError: As `convolution`; or binary_weight has another shape.
    Source: Courbariaux, Bengio and David, BinaryConnect, arXiv:1511.00363.
    """

    quantize_zero_to: float = 1.0


@op("binary_weight_affine", nnp="BinaryWeightAffine", writes=("binary_weight", "alpha"))
class binary_weight_affine(BinaryWeight, WithAffine):
    r"""Affine map with the signs of the weights, scaled: $y = x\,\mathrm{sign}(W)\,\alpha + b$.

    Args:
        x: (*batch, *in); the axes from `base_axis` on are flattened to K values.
        weight: (K, *out). Gets the gradient of the weights in use, sign times alpha.
        binary_weight: Shape of weight. It is overwritten with the signs and gets no gradient.
        alpha: As many values as outputs. It is overwritten with the mean absolute values of the
            weights of each output and gets no gradient.
        bias: Shape of *out, optional.
        base_axis: Number of batch axes; negative counts from the end.
        quantize_zero_to: Sign of a weight of 0.
    Raises:
        ShapeError: base_axis is out of range, or the sizes do not fit.
    Source: Rastegari et al., XNOR-Net, arXiv:1603.05279, section 3.1.
    """

    quantize_zero_to: float = 1.0


@op("binary_weight_convolution", nnp="BinaryWeightConvolution", writes=("binary_weight", "alpha"))
class binary_weight_convolution(BinaryWeight, WithConvolution):
    r"""$y = \alpha\,\mathrm{sgn}(w) * x + b$, a convolution with the signs of the weights, scaled.

    Args:
        x: (*batch, C, *S).
        weight: (O, C/group, *K). Gets the gradient of the weights in use, sign times alpha.
        binary_weight: Shape of weight. It is overwritten with the signs and gets no gradient.
        alpha: O values. It is overwritten with the mean absolute values of the weights of each
            output and gets no gradient.
        bias: (O,), optional.
        base_axis, pad, stride, dilation, group: As for `convolution`.
        quantize_zero_to: Sign of a weight of 0.
    Raises:
        ShapeError, ValueError: As `convolution`; or binary_weight or alpha has another shape.
    Source: Rastegari et al., XNOR-Net, arXiv:1603.05279, section 3.1.
    """

    quantize_zero_to: float = 1.0
