# SPDX-License-Identifier: Apache-2.0
"""Convolution and deconvolution of every channel by itself, in terms of the grouped ones."""

from __future__ import annotations

from nnl.core.arrays.spec import ShapeError
from nnl.core.ops.op import Cost, Sample, op
from nnl.functions.convolution import (
    SLIDING_FIELDS,
    Window,
    check_bias,
    check_window,
    convolution,
    deconvolution,
    flops,
)
from nnl.functions.reduction import reshape

CATEGORY = "Layer"

__all__ = ["depthwise_convolution", "depthwise_deconvolution"]


@op("depthwise_convolution", narrow=True, nnp="DepthwiseConvolution")
class depthwise_convolution(Window):
    r"""Convolve every channel with its own `multiplier` kernels: a convolution with C groups.

    $$y_{n o i} = b_o + \sum_k w_{o k}\, x_{n, \lfloor o / m \rfloor, s i + d k - p}$$ with
    multiplier m, stride s, dilation d and padding p.

    Args:
        x: (*batch, C, *S).
        weight: (C multiplier, *K); maps c multiplier to (c + 1) multiplier - 1 see channel c.
        bias: (C multiplier,), optional.
        base_axis, pad, stride, dilation: As in `convolution`.
        multiplier: Maps per channel.
    Raises:
        ShapeError: As `convolution`, or weight does not have C multiplier maps.
    Source: Howard et al., MobileNets, arXiv:1704.04861.
    """

    multiplier: int = 1

    def infer(self, x, weight, bias=None):
        n = check_window(self, "x", x)
        channels = x.shape[self.base_axis]
        check_depthwise(
            self, x, weight, n, channels * self.multiplier, "multiplier", self.multiplier
        )
        check_bias("depthwise_convolution", bias, weight.shape[0])
        return convolution.attrs(**self.grouped(channels)).infer(x, as_grouped(weight))

    def grouped(self, channels):
        """Attributes of the convolution that this is."""
        return {f: getattr(self, f) for f in SLIDING_FIELDS[:4]} | {"group": channels}

    def decompose(self, x, weight, bias=None):
        w = reshape(weight, (weight.shape[0], 1, *weight.shape[1:]))
        return convolution(x, w, bias, **self.grouped(x.shape[self.base_axis]))

    def cost(self, x, weight, bias=None):
        y = self.infer(x, weight)
        return Cost(flops(self, y, weight), x.nbytes + weight.nbytes + y.nbytes)

    def samples(rng):
        x, b = rng.normal(size=(2, 3, 5, 6)), rng.normal(size=6)
        yield Sample(x, rng.normal(size=(3, 3, 3)), None, pad=(1, 1))
        yield Sample(x, rng.normal(size=(6, 3, 2)), b, multiplier=2, stride=(2, 1), dilation=(1, 2))
        yield Sample(rng.normal(size=(2, 3, 5)), rng.normal(size=(3, 3)), None, pad=(1,))


@op("depthwise_deconvolution", narrow=True, nnp="DepthwiseDeconvolution")
class depthwise_deconvolution(Window):
    r"""Transpose of `depthwise_convolution`: `divisor` channels are added up to one map.

    $$y_{n o j} = b_o + \sum_{c:\ \lfloor c / q \rfloor = o}\ \sum_{i, k:\ s i + d k - p = j}
    w_{c k}\, x_{n c i}$$ with divisor q, stride s, dilation d and padding p.

    Args:
        x: (*batch, C, *S).
        weight: (C, *K).
        bias: (C / divisor,), optional.
        base_axis, pad, stride, dilation: As in `deconvolution`.
        divisor: Channels per map.
    Raises:
        ShapeError: As `deconvolution`, or C is not a multiple of divisor.
    """

    divisor: int = 1

    def infer(self, x, weight, bias=None):
        n = check_window(self, "x", x)
        channels = x.shape[self.base_axis]
        if self.divisor < 1 or channels % self.divisor:
            raise ShapeError(
                f"depthwise_deconvolution: x {x} has {channels} channels, "
                f"not a multiple of divisor {self.divisor}"
            )
        if 0 in x.shape[self.base_axis + 1 :]:
            raise ShapeError(f"depthwise_deconvolution: x {x} has no pixels")
        check_depthwise(self, x, weight, n, channels, "divisor", self.divisor)
        check_bias("depthwise_deconvolution", bias, channels // self.divisor)
        attrs = {**self.grouped(channels), "output_padding": (0,) * n}
        return deconvolution.attrs(**attrs).infer(x, as_grouped(weight))

    def grouped(self, channels):
        """Attributes of the deconvolution that this is."""
        at = {f: getattr(self, f) for f in SLIDING_FIELDS[:4]}
        return at | {"group": channels // self.divisor}

    def decompose(self, x, weight, bias=None):
        w = reshape(weight, (weight.shape[0], 1, *weight.shape[1:]))
        return deconvolution(x, w, bias, **self.grouped(x.shape[self.base_axis]))

    def cost(self, x, weight, bias=None):
        y = self.infer(x, weight)
        return Cost(flops(self, x, weight), x.nbytes + weight.nbytes + y.nbytes)

    def samples(rng):
        x = rng.normal(size=(2, 4, 4, 3))
        yield Sample(x, rng.normal(size=(4, 3, 3)), rng.normal(size=4))
        yield Sample(x, rng.normal(size=(4, 2, 3)), rng.normal(size=2), divisor=2, stride=(2, 1))
        yield Sample(
            rng.normal(size=(2, 3, 5)), rng.normal(size=(3, 3)), None, dilation=(2,), pad=(1,)
        )


def as_grouped(weight):
    """Spec of depthwise weights (C, *K) as weights of a convolution: (C, 1, *K)."""
    return weight.with_shape((weight.shape[0], 1, *weight.shape[1:]))


def check_depthwise(a, x, weight, n, maps, field, value):
    """Raise unless weight is (maps, *K)."""
    if len(weight.shape) != n + 1 or weight.shape[0] != maps:
        raise ShapeError(
            f"{a.op.name}: weight {weight} must be ({maps}, then {n} kernel sizes) "
            f"for x {x} and {field} {value}"
        )
