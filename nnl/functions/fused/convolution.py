# SPDX-License-Identifier: Apache-2.0
"""Convolution with what follows it, and its gradients by weights and bias in one."""

from __future__ import annotations

import numpy as np

from nnl.core.arrays.spec import ShapeError
from nnl.core.ops.op import Cost, Sample, op
from nnl.functions.arithmetic import add2, mul2
from nnl.functions.convolution import (
    Sliding,
    bias_gradient,
    check_bias,
    convolution,
    convolution_weight,
    gradient_attrs,
    resolve_window,
)
from nnl.functions.fused.activation import activate, check_activation
from nnl.functions.reduction import reshape

ACTIVATIONS = frozenset(
    ["identity", "relu", "relu6", "sigmoid", "tanh", "swish", "hard_sigmoid", "gelu", "leaky_relu",
     "elu"]
)  # fmt: skip
WITH_ALPHA = ("leaky_relu", "elu")


class Fused(Sliding):
    activation: str = "identity"
    alpha: float = 0.0

    def resolve(self, x, *rest):
        return resolve_window(self, x)


@op("convolution_fused", narrow=True)
class convolution_fused(Fused):
    r"""activation(scale convolution(x, weight) + bias + z).

    Args:
        x, weight, bias, base_axis, pad, stride, dilation, group, channel_last: As for
            `convolution`.
        z: What is added before the activation, of the shape of the result; optional.
        scale: (O,), factors of the maps before the bias is added; optional.
        activation: "identity", "relu", "relu6", "sigmoid", "tanh", "swish", "hard_sigmoid", "gelu",
            "leaky_relu" or "elu".
        alpha: The argument of the last two.
        packed: Whether weight is what `pack_convolution` has made, bytes that only the library that
            made them knows; bias and scale are then in them or given as well.
        w_shape: Shape of the weight before it was packed.
    """

    packed: bool = False
    w_shape: tuple[int, ...] = ()
    extends = "convolution"

    def infer(self, x, weight, bias=None, z=None, scale=None):
        check_activation(self.op, self.activation, ACTIVATIONS)
        w = x.with_shape(self.w_shape) if self.packed else weight
        y, maps = convolution.attrs(**gradient_attrs(self)).infer(x, w), w.shape[0]
        check_bias(self.op.name, bias, maps)
        if scale is not None and scale.shape != (maps,):
            raise ShapeError(f"convolution_fused: scale {scale} must have the shape ({maps},)")
        if z is not None and z.shape != y.shape:
            raise ShapeError(f"convolution_fused: z {z} must have the shape of the result {y}")
        return y

    def decompose(self, x, weight, bias=None, z=None, scale=None):
        if self.packed:
            raise NotImplementedError("convolution_fused: packed weights are known to kernels only")
        y = convolution(x, weight, **gradient_attrs(self))
        shape = [1] * len(y.shape)
        channel = len(shape) - 1 if self.channel_last else self.base_axis
        shape[channel] = y.shape[channel]
        if scale is not None:
            y = mul2(y, reshape(scale, shape))
        if bias is not None:
            y = add2(y, reshape(bias, shape))
        more = {"alpha": self.alpha} if self.activation in WITH_ALPHA else {}
        return activate(self.activation, y if z is None else add2(y, z), **more)

    def cost(self, x, weight, bias=None, z=None, scale=None):
        w = x.with_shape(self.w_shape) if self.packed else weight
        own = convolution.attrs(**gradient_attrs(self)).cost(x, w)
        return Cost(own.flops, own.bytes + (0 if z is None else z.nbytes))

    def samples(rng):
        x, w, b = rng.normal(size=(2, 4, 7, 6)), rng.normal(size=(6, 4, 3, 3)), rng.normal(size=6)
        z, scale = rng.normal(size=(2, 6, 5, 4)), rng.uniform(0.5, 1.5, 6)
        for activation in sorted(ACTIVATIONS):
            yield Sample(x, w, b, z, scale, activation=activation, alpha=0.3)
        yield Sample(x, w, None, z, None, activation="relu")
        yield Sample(x, w, b, None, None, activation="relu")
        yield Sample(x, w, b, None, scale, stride=(2, 1), pad=(1, 2), dilation=(2, 1))
        w = rng.normal(size=(6, 2, 3, 2))
        yield Sample(x, w, b, None, scale, pad=(1, 1), group=2, activation="tanh")
        x, w = rng.normal(size=(2, 3, 8, 2)), rng.normal(size=(4, 3, 3, 2))
        yield Sample(x, w, rng.normal(size=4), None, None, channel_last=True, activation="relu")


@op("convolution_weight_bias", wide=True, outputs=("gw", "gb"))
class convolution_weight_bias(Sliding):
    """Gradients of `convolution` by weights and bias.

    Args:
        x, gy, shape: As for `convolution_weight`.
    """

    shape: tuple[int, ...] = ()

    def resolve(self, x, gy):
        return resolve_window(self, x)

    def infer(self, x, gy):
        gw = self._weight().infer(x, gy)
        return gw, gw.with_shape(gw.shape[:1])

    def _weight(self):
        return convolution_weight.attrs(shape=self.shape, **gradient_attrs(self))

    def decompose(self, x, gy):
        gw = convolution_weight(x, gy, shape=self.shape, **gradient_attrs(self))
        return gw, bias_gradient(self, gy)

    def cost(self, x, gy):
        return self._weight().cost(x, gy)

    def samples(rng):
        yield from convolution_weight.attrs_class.samples(rng)


@op("pack_convolution", outputs=("packed",), keep=("x", "weight", "bias", "z", "scale", "y"))
class pack_convolution(Fused):
    """The weights of a `convolution_fused` in the order that its kernel wants.

    Args:
        weight, scale, and all attributes: Of the convolution.
        x, bias, z, y: Its other arrays, left out: the kernel is set up for their specs, and what it
            gives does not depend on their values.
        nbytes: How many bytes the library's kernel takes: the result is that many uint8. Which ones
            is its own affair, so there is no definition in numpy.
    """

    nbytes: int = 0

    def infer(self, x=None, weight=None, bias=None, z=None, scale=None, y=None):
        return weight.with_shape((self.nbytes,)).with_dtype(np.uint8)

    def cost(self, x=None, weight=None, bias=None, z=None, scale=None, y=None):
        return Cost(weight.size if scale is not None else 0, weight.nbytes + self.nbytes)
