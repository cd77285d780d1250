# SPDX-License-Identifier: Apache-2.0
"""Convolutions and transposed convolutions whose weights are parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nnl import functions as F
from nnl.core.arguments.annotations import Input
from nnl.core.arrays.spec import ShapeError
from nnl.core.parameters.parameter import get_parameter_or_create
from nnl.parametric_functions.api import parametric_function_api
from nnl.parametric_functions.initializer import ZERO, glorot

__all__ = [
    "convolution",
    "deformable_convolution",
    "deconvolution",
    "depthwise_convolution",
    "depthwise_deconvolution",
]

Apply = Callable[[Any], Any] | None
Rng = np.random.RandomState | None


def _inmaps(name: str, inp: Any, kernel: Sequence[int], base_axis: int, channel_last: bool) -> int:
    """Number of channels of inp."""
    if not np.iterable(kernel):
        raise TypeError(f"{name}: kernel is {kernel!r}, wanted a sequence of ints")
    if inp.ndim != base_axis + 1 + len(kernel):
        raise ShapeError(
            f"{name}: inp has the shape {inp.shape}, wanted {base_axis + 1 + len(kernel)} axes for "
            f"base_axis {base_axis} and kernel {tuple(kernel)}"
        )
    return int(inp.shape[-1 if channel_last else base_axis])


def _divided(name: str, what: str, n: int, by: str, parts: int) -> int:
    if parts < 1 or n % parts:
        raise ShapeError(f"{name}: {n} {what} do not divide into {by} {parts}")
    return n // parts


def _weight(
    shape: Sequence[int],
    w_init: Any,
    default: Callable[[Any], Any],
    fix: bool,
    apply_w: Apply,
) -> Any:
    init = default if w_init is None else w_init
    w = get_parameter_or_create("W", tuple(shape), init, True, not fix)
    return w if apply_w is None else apply_w(w)


def _bias(n: int, b_init: Any, with_bias: bool, fix: bool, apply_b: Apply = None) -> Any:
    if not with_bias:
        return None
    init = ZERO if b_init is None else b_init
    b = get_parameter_or_create("b", (n,), init, True, not fix)
    return b if apply_b is None else apply_b(b)


@parametric_function_api(
    "conv",
    [
        (
            "W",
            "Weight",
            "(outmaps, channels / group, *kernel), channels last if channel_last",
            True,
        ),
        ("b", "Bias", "(outmaps,)", True),
    ],
)
def convolution(
    inp: Input,
    outmaps: int,
    kernel: Sequence[int],
    pad: Sequence[int] | None = None,
    stride: Sequence[int] | None = None,
    dilation: Sequence[int] | None = None,
    group: int = 1,
    channel_last: bool = False,
    w_init: Any = None,
    b_init: Any = None,
    base_axis: int = 1,
    fix_parameters: bool = False,
    rng: Rng = None,
    with_bias: bool = True,
    apply_w: Apply = None,
    apply_b: Apply = None,
) -> Any:
    r"""Convolution over the axes after the channels, see `nnl.functions.convolution`.

    $$y_{n,o,p} = b_o + \sum_{c,k} x_{n,\,c,\,s p + d k - \mathrm{pad}}\; W_{o,c,k}$$ with stride s
    and dilation d.

    Args:
        inp: (samples..., C, spatial...), or (samples..., spatial..., C) with channel_last.
        outmaps: Number of output channels.
        kernel: Size of the kernel along each spatial axis.
        pad, stride, dilation: Per spatial axis; 0, 1 and 1 if left out.
        group: Number of groups of channels that are convolved independently.
        channel_last: Where the channels are.
        w_init, b_init: Initializer or array. Uniform with Glorot's limits for all C channels,
            whatever group is, and 0, if left out.
        base_axis: Number of axes of samples.
        fix_parameters: Compute no gradients for the parameters in this call.
        rng: Generator of the default w_init; the framework's if left out.
        with_bias: Whether there is a b.
        apply_w, apply_b: Called with the parameter; what it returns is used instead.
    Raises:
        ShapeError: inp has another rank, or group does not divide the channels.
    Example:
        >>> x = array(np.ones((1, 2, 6, 6)))
        >>> PF.convolution(x, 5, (3, 3), pad=(1, 1), name="ex").shape
        (1, 5, 6, 6)
    """
    inmaps = _inmaps("convolution", inp, kernel, base_axis, channel_last)
    channels = _divided("convolution", "input channels", inmaps, "group", group)
    shape = (outmaps, *kernel, channels) if channel_last else (outmaps, channels, *kernel)
    default = glorot(inmaps, outmaps, kernel, rng)
    w = _weight(shape, w_init, default, fix_parameters, apply_w)
    b = _bias(outmaps, b_init, with_bias, fix_parameters, apply_b)
    return F.convolution(
        inp,
        w,
        b,
        base_axis=base_axis,
        pad=pad,
        stride=stride,
        dilation=dilation,
        group=group,
        channel_last=channel_last,
    )


@parametric_function_api(
    "deformable_conv",
    [
        (
            "W",
            "Weight",
            "(outmaps, channels / group, *kernel), channels last if channel_last",
            True,
        ),
        ("b", "Bias", "(outmaps,)", True),
    ],
)
def deformable_convolution(
    inp: Input,
    outmaps: int,
    kernel: Sequence[int],
    offset: Input,
    mask: Input | None = None,
    pad: Sequence[int] | None = None,
    stride: Sequence[int] | None = None,
    dilation: Sequence[int] | None = None,
    group: int = 1,
    deformable_group: int = 1,
    channel_last: bool = False,
    w_init: Any = None,
    b_init: Any = None,
    base_axis: int = 1,
    fix_parameters: bool = False,
    rng: Rng = None,
    with_bias: bool = True,
    apply_w: Apply = None,
    apply_b: Apply = None,
) -> Any:
    r"""Convolution at positions moved by `offset`, see `nnl.functions.deformable_convolution`.

    $$y_{n,o,p} = b_o + \sum_{c,k} m_{n,k,p}\;
      x_{n,\,c,\,s p + d k - \mathrm{pad} + \Delta_{n,k,p}}\; W_{o,c,k}$$ with mask m and
    offset $\Delta$.

    Args:
        offset: Moves of every tap of the kernel at every output position.
        mask: Factors of every tap at every output position.
        deformable_group: Number of groups of channels with offsets of their own.

    The other arguments are those of `convolution`.

    Source: Dai et al., Deformable Convolutional Networks, arXiv:1703.06211; the mask: Zhu et al.,
        arXiv:1811.11168.
    Example:
        >>> x, offset = array(np.ones((1, 2, 6, 6))), array(np.zeros((1, 18, 4, 4)))
        >>> PF.deformable_convolution(x, 5, (3, 3), offset, name="ex").shape
        (1, 5, 4, 4)
    """
    name = "deformable_convolution"
    inmaps = _inmaps(name, inp, kernel, base_axis, channel_last)
    channels = _divided(name, "input channels", inmaps, "group", group)
    shape = (outmaps, *kernel, channels) if channel_last else (outmaps, channels, *kernel)
    default = glorot(inmaps, outmaps, kernel, rng)
    w = _weight(shape, w_init, default, fix_parameters, apply_w)
    b = _bias(outmaps, b_init, with_bias, fix_parameters, apply_b)
    return F.deformable_convolution(
        inp,
        w,
        offset,
        mask,
        b,
        base_axis=base_axis,
        pad=pad,
        stride=stride,
        dilation=dilation,
        group=group,
        deformable_group=deformable_group,
        channel_last=channel_last,
    )


@parametric_function_api(
    "depthwise_conv",
    [
        ("W", "Weight", "(channels multiplier, *kernel)", True),
        ("b", "Bias", "(channels multiplier,)", True),
    ],
)
def depthwise_convolution(
    inp: Input,
    kernel: Sequence[int],
    pad: Sequence[int] | None = None,
    stride: Sequence[int] | None = None,
    dilation: Sequence[int] | None = None,
    multiplier: int = 1,
    w_init: Any = None,
    b_init: Any = None,
    base_axis: int = 1,
    fix_parameters: bool = False,
    rng: Rng = None,
    with_bias: bool = True,
) -> Any:
    r"""Convolution of each channel with kernels of its own.

    $$y_{n o i} = b_o + \sum_k W_{o k}\, x_{n, \lfloor o / m \rfloor, s i + d k - p}$$ with
    multiplier m, stride s, dilation d and padding p.

    Args:
        multiplier: Number of output channels made from each input channel.

    The other arguments are those of `convolution`.

    Source: Howard et al., MobileNets, arXiv:1704.04861.
    Example:
        >>> x = array(np.ones((1, 2, 6, 6)))
        >>> PF.depthwise_convolution(x, (3, 3), name="ex").shape
        (1, 2, 4, 4)
    """
    inmaps = _inmaps("depthwise_convolution", inp, kernel, base_axis, False)
    outmaps = inmaps * multiplier
    default = glorot(inmaps, outmaps, kernel, rng)
    w = _weight((outmaps, *kernel), w_init, default, fix_parameters, None)
    b = _bias(outmaps, b_init, with_bias, fix_parameters)
    return F.depthwise_convolution(
        inp,
        w,
        b,
        base_axis=base_axis,
        pad=pad,
        stride=stride,
        dilation=dilation,
        multiplier=multiplier,
    )


@parametric_function_api(
    "deconv",
    [
        (
            "W",
            "Weight",
            "(channels, outmaps / group, *kernel), channels last if channel_last",
            True,
        ),
        ("b", "Bias", "(outmaps,)", True),
    ],
)
def deconvolution(
    inp: Input,
    outmaps: int,
    kernel: Sequence[int],
    pad: Sequence[int] | None = None,
    stride: Sequence[int] | None = None,
    dilation: Sequence[int] | None = None,
    group: int = 1,
    channel_last: bool = False,
    output_padding: Sequence[int] | None = None,
    w_init: Any = None,
    b_init: Any = None,
    base_axis: int = 1,
    fix_parameters: bool = False,
    rng: Rng = None,
    with_bias: bool = True,
    apply_w: Apply = None,
    apply_b: Apply = None,
) -> Any:
    r"""Transposed convolution, see `nnl.functions.deconvolution`.

    $$y_{n o j} = b_o + \sum_c \sum_{i, k:\ s i + d k - p = j} W_{c o k}\, x_{n c i}$$ with
    stride s, dilation d and padding p.

    Args:
        output_padding: Elements added to one end of every spatial axis; 0 if left out.

    The other arguments are those of `convolution`.

    Source: Zeiler et al., Deconvolutional Networks, CVPR 2010.
    Example:
        >>> x = array(np.ones((1, 2, 6, 6)))
        >>> PF.deconvolution(x, 5, (2, 2), stride=(2, 2), name="ex").shape
        (1, 5, 12, 12)
    """
    inmaps = _inmaps("deconvolution", inp, kernel, base_axis, channel_last)
    channels = _divided("deconvolution", "output channels", outmaps, "group", group)
    shape = (inmaps, *kernel, channels) if channel_last else (inmaps, channels, *kernel)
    default = glorot(inmaps, outmaps, kernel, rng)
    w = _weight(shape, w_init, default, fix_parameters, apply_w)
    b = _bias(outmaps, b_init, with_bias, fix_parameters, apply_b)
    return F.deconvolution(
        inp,
        w,
        b,
        base_axis=base_axis,
        pad=pad,
        stride=stride,
        dilation=dilation,
        group=group,
        channel_last=channel_last,
        output_padding=output_padding,
    )


@parametric_function_api(
    "depthwise_deconv",
    [
        ("W", "Weight", "(channels, *kernel)", True),
        ("b", "Bias", "(channels / divisor,)", True),
    ],
)
def depthwise_deconvolution(
    inp: Input,
    kernel: Sequence[int],
    pad: Sequence[int] | None = None,
    stride: Sequence[int] | None = None,
    dilation: Sequence[int] | None = None,
    divisor: int = 1,
    w_init: Any = None,
    b_init: Any = None,
    base_axis: int = 1,
    fix_parameters: bool = False,
    rng: Rng = None,
    with_bias: bool = True,
) -> Any:
    r"""Transposed convolution of each channel with a kernel of its own.

    $$y_{n o j} = b_o + \sum_{c:\ \lfloor c / q \rfloor = o}\ \sum_{i, k:\ s i + d k - p = j}
    W_{c k}\, x_{n c i}$$ with divisor q, stride s, dilation d and padding p.

    Args:
        divisor: Number of input channels that are summed into one output channel.

    The other arguments are those of `convolution`.

    Example:
        >>> x = array(np.ones((1, 2, 6, 6)))
        >>> PF.depthwise_deconvolution(x, (3, 3), name="ex").shape
        (1, 2, 8, 8)
    """
    name = "depthwise_deconvolution"
    inmaps = _inmaps(name, inp, kernel, base_axis, False)
    outmaps = _divided(name, "input channels", inmaps, "divisor", divisor)
    default = glorot(inmaps, inmaps, kernel, rng)
    w = _weight((inmaps, *kernel), w_init, default, fix_parameters, None)
    b = _bias(outmaps, b_init, with_bias, fix_parameters)
    return F.depthwise_deconvolution(
        inp,
        w,
        b,
        base_axis=base_axis,
        pad=pad,
        stride=stride,
        dilation=dilation,
        divisor=divisor,
    )
