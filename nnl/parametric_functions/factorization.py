# SPDX-License-Identifier: Apache-2.0
"""Convolutions whose weights are products of smaller ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nnl import functions as F
from nnl.core.arguments.annotations import Input
from nnl.core.arrays.spec import ShapeError
from nnl.core.parameters.parameter import get_parameter, get_parameter_or_create
from nnl.parametric_functions.api import parametric_function_api
from nnl.parametric_functions.convolution import _bias, _inmaps
from nnl.parametric_functions.cpd import ALS
from nnl.parametric_functions.initializer import glorot

__all__ = ["cpd3_convolution", "svd_convolution"]

Rng = np.random.RandomState | None


def _whole(name: str, argument: str, shape: Sequence[int], init: Any, rng: Rng) -> Any:
    """Initial values (outmaps, inmaps, number of pixels) of the weight to be factorized."""
    outmaps, inmaps, *kernel = shape
    if init is None:
        init = glorot(inmaps, outmaps, kernel, rng)
    w = init(tuple(shape)) if callable(init) else np.asarray(init)
    if w.shape != tuple(shape):
        raise ShapeError(f"{name}: {argument} has the shape {w.shape}, wanted {tuple(shape)}")
    return w.reshape(outmaps, inmaps, -1)


@parametric_function_api(
    "svd_conv",
    [
        ("U", "Spatial factor of the weight", "(inmaps * r, *kernel)", True),
        ("V", "Factor across channels", "(outmaps, inmaps * r, 1, ...)", True),
        ("b", "Bias", "(outmaps,)", True),
    ],
)
def svd_convolution(
    inp: Input,
    outmaps: int,
    kernel: Sequence[int],
    r: int,
    pad: Sequence[int] | None = None,
    stride: Sequence[int] | None = None,
    dilation: Sequence[int] | None = None,
    uv_init: Any = None,
    b_init: Any = None,
    base_axis: int = 1,
    fix_parameters: bool = False,
    rng: Rng = None,
    with_bias: bool = True,
) -> Any:
    r"""Convolution whose weight for each input channel has rank r.

    $$y = b + W * x, \quad W_{o c k} = \sum_{i<r} V_{o, c r + i}\, U_{c r + i, k}$$

    A depthwise convolution with r kernels for each channel, then one with kernels of one pixel. For
    each channel they start as the best factors of rank r of one whole weight, a matrix of pixels by
    output channels: U holds its left singular vectors times the singular values, V its right ones.

    Args:
        inp: (samples..., C, spatial...).
        outmaps: Number of output channels.
        kernel: Size of the kernel along each spatial axis.
        r: Rank.
        pad, stride, dilation: Per spatial axis, of the first convolution; 0, 1 and 1 if left out.
        uv_init: Initializer or array of the whole weight (outmaps, C, *kernel). Uniform with
            Glorot's limits if left out.
        b_init: Initializer or array; 0 if left out.
        base_axis: Number of axes of samples.
        fix_parameters: Compute no gradients for the parameters in this call.
        rng: Generator of the default uv_init; the framework's if left out.
        with_bias: Whether there is a b.
    Raises:
        ValueError: r is not positive.
        ShapeError: inp has another rank, or r exceeds the rank of the weight.
    Source: Denton et al., Exploiting Linear Structure Within Convolutional Networks for Efficient
        Evaluation, arXiv:1404.0736.
    Example:
        >>> x = array(np.ones((1, 2, 6, 6)))
        >>> PF.svd_convolution(x, 5, (3, 3), r=2, name="ex").shape
        (1, 5, 4, 4)
    """
    if r < 1:
        raise ValueError(f"svd_convolution: r is {r}, wanted at least 1")
    inmaps = _inmaps("svd_convolution", inp, kernel, base_axis, False)
    most = min(int(np.prod(kernel)), outmaps)
    if r > most:
        raise ShapeError(
            f"svd_convolution: r is {r}, wanted at most {most} for kernel {tuple(kernel)} and "
            f"{outmaps} outmaps"
        )
    # drawn even if U and V exist: so does NNabla, and later draws are to be the same
    whole = _whole("svd_convolution", "uv_init", (outmaps, inmaps, *kernel), uv_init, rng)
    u_init = v_init = None
    if get_parameter("U") is None or get_parameter("V") is None:
        left, values, right = np.linalg.svd(whole.transpose(1, 2, 0), full_matrices=False)
        scaled = left[..., :r] * values[:, None, :r]  # (inmaps, pixels, r)
        # NNabla's are float64 too
        u_init = scaled.transpose(0, 2, 1).reshape(inmaps * r, *kernel).astype(np.float64)
        rows = right[:, :r].reshape(inmaps * r, outmaps)
        v_init = rows.T.reshape(outmaps, inmaps * r, *(1,) * len(kernel)).astype(np.float64)
    need = not fix_parameters
    u = get_parameter_or_create("U", (inmaps * r, *kernel), u_init, True, need)
    shape = (outmaps, inmaps * r, *(1,) * len(kernel))
    v = get_parameter_or_create("V", shape, v_init, True, need)
    b = _bias(outmaps, b_init, with_bias, fix_parameters)
    y = F.depthwise_convolution(
        inp, u, base_axis=base_axis, pad=pad, stride=stride, dilation=dilation, multiplier=r
    )
    return F.convolution(y, v, b, base_axis=base_axis)


@parametric_function_api(
    "cpd3_conv",
    [
        ("I", "Factor of the input channels", "(r, inmaps, 1, ...)", True),
        ("K", "Factor of the pixels", "(r, *kernel)", True),
        ("O", "Factor of the output channels", "(outmaps, r, 1, ...)", True),
        ("b", "Bias", "(outmaps,)", True),
    ],
)
def cpd3_convolution(
    inp: Input,
    outmaps: int,
    kernel: Sequence[int],
    r: int,
    pad: Sequence[int] | None = None,
    stride: Sequence[int] | None = None,
    dilation: Sequence[int] | None = None,
    oik_init: Any = None,
    b_init: Any = None,
    base_axis: int = 1,
    fix_parameters: bool = False,
    rng: Rng = None,
    with_bias: bool = True,
    max_iter: int = 500,
    stopping_criterion: float = 1e-5,
    lambda_reg: float = 0.0,
) -> Any:
    r"""Convolution whose weight is a sum of r products of an output, an input and a spatial factor.

    $$y = b + W * x, \quad W_{o c k} = \sum_{i<r} O_{o i}\, I_{i c}\, K_{i k}$$

    A convolution with kernels of one pixel to r channels, one of each channel with a kernel of its
    own, and one with kernels of one pixel to the output channels. They start as the decomposition
    of one whole weight, `nnl.utils.factorization.cpd.ALS`.

    Args:
        inp: (samples..., C, spatial...).
        outmaps: Number of output channels.
        kernel: Size of the kernel along each spatial axis.
        r: Number of products.
        pad, stride, dilation: Per spatial axis, of the second convolution; 0, 1 and 1 if left out.
        oik_init: Initializer or array of the whole weight (outmaps, C, *kernel). Uniform with
            Glorot's limits if left out.
        b_init: Initializer or array; 0 if left out.
        base_axis: Number of axes of samples.
        fix_parameters: Compute no gradients for the parameters in this call.
        rng: Generator of the default oik_init, and of what the decomposition starts from; the
            framework's, and one of seed 313, if left out.
        with_bias: Whether there is a b.
        max_iter, stopping_criterion, lambda_reg: Arguments of the decomposition.
    Raises:
        ValueError: r is not positive. ShapeError: inp has another rank.
    Source: Lebedev et al., Speeding-up Convolutional Neural Networks Using Fine-tuned
        CP-Decomposition, arXiv:1412.6553.
    Example:
        >>> x = array(np.ones((1, 2, 6, 6)))
        >>> PF.cpd3_convolution(x, 5, (3, 3), r=2, name="ex").shape
        (1, 5, 4, 4)
    """
    if r < 1:
        raise ValueError(f"cpd3_convolution: r is {r}, wanted at least 1")
    inmaps = _inmaps("cpd3_convolution", inp, kernel, base_axis, False)
    ones, need = (1,) * len(kernel), not fix_parameters
    # drawn even if the factors exist: so does NNabla, and later draws are to be the same
    whole = _whole("cpd3_convolution", "oik_init", (outmaps, inmaps, *kernel), oik_init, rng)
    inits: list[Any] = [None] * 3
    if any(get_parameter(name) is None for name in "IOK"):
        (outputs, inputs, pixels), weights = ALS().solve(
            whole, r, max_iter, stopping_criterion, lambda_reg, whole.dtype, rng
        )
        inits = [
            inputs.T.reshape(r, inmaps, *ones),
            (outputs * weights).reshape(outmaps, r, *ones),
            pixels.T.reshape(r, *kernel),
        ]
    shapes = ((r, inmaps, *ones), (outmaps, r, *ones), (r, *kernel))
    i, o, k = (
        get_parameter_or_create(name, shape, init, True, need)
        for name, shape, init in zip("IOK", shapes, inits, strict=True)
    )
    b = _bias(outmaps, b_init, with_bias, fix_parameters)
    y = F.convolution(inp, i, base_axis=base_axis)
    y = F.depthwise_convolution(
        y, k, base_axis=base_axis, pad=pad, stride=stride, dilation=dilation
    )
    return F.convolution(y, o, b, base_axis=base_axis)
