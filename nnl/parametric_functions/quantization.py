# SPDX-License-Identifier: Apache-2.0
"""Affine maps and convolutions with quantized or pruned parameters.

W and b are the parameters that learn. What is used instead of them is kept in W_q and b_q: after
every execution they hold the quantized values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

from nnl import functions as F
from nnl.core.annotations import Input
from nnl.core.parameter import get_parameter_or_create
from nnl.parametric_functions.affine import _sizes
from nnl.parametric_functions.api import parametric_function_api
from nnl.parametric_functions.convolution import _divided, _inmaps
from nnl.parametric_functions.initializer import ZERO, glorot

__all__ = [
    "fixed_point_quantized_affine",
    "fixed_point_quantized_convolution",
    "pow2_quantized_affine",
    "pow2_quantized_convolution",
    "pruned_affine",
    "pruned_convolution",
]

Rng = np.random.RandomState | None
Quantize = Callable[..., Any] | None  # called with a parameter and outputs=[array]

AFFINE = [
    ("W", "Weight", "(elements of a sample, *n_outmaps)", True),
    ("b", "Bias", "n_outmaps", True),
    ("W_q", "Quantized weight", "(elements of a sample, *n_outmaps)", False),
    ("b_q", "Quantized bias", "n_outmaps", False),
]
WEIGHT_SHAPE = "(outmaps, channels / group, *kernel), channels last if channel_last"
CONVOLUTION = [
    ("W", "Weight", WEIGHT_SHAPE, True),
    ("b", "Bias", "(outmaps,)", True),
    ("W_q", "Quantized weight", WEIGHT_SHAPE, False),
    ("b_q", "Quantized bias", "(outmaps,)", False),
]


def _parameter(name: str, shape: Sequence[int], init: Any, fix: bool, quantize: Quantize) -> Any:
    """The parameter, or what `quantize` makes of it, kept in another one."""
    p = get_parameter_or_create(name, tuple(shape), init, True, not fix)
    if quantize is None:
        return p
    kept = get_parameter_or_create(f"{name}_q", tuple(shape), init, False)
    q = quantize(p, outputs=[kept.data])
    q.persistent = True
    return q


def _affine(
    name: str,
    inp: Input,
    n_outmaps: int | Sequence[int],
    base_axis: int,
    w_init: Any,
    b_init: Any,
    fix: bool,
    rng: Rng,
    with_bias: bool,
    quantize_w: Quantize,
    quantize_b: Quantize,
) -> Any:
    inmaps, outmaps, base_axis = _sizes(inp.shape, n_outmaps, base_axis, name)
    if w_init is None:
        w_init = glorot(inmaps, prod(outmaps), rng=rng)
    w = _parameter("W", (inmaps, *outmaps), w_init, fix, quantize_w)
    b = None
    if with_bias:
        b_init = ZERO if b_init is None else b_init
        b = _parameter("b", outmaps, b_init, fix, quantize_b)
    return F.affine(inp, w, b, base_axis=base_axis)


def _convolution(
    name: str,
    inp: Input,
    outmaps: int,
    kernel: Sequence[int],
    window: dict[str, Any],
    w_init: Any,
    b_init: Any,
    fix: bool,
    rng: Rng,
    with_bias: bool,
    quantize_w: Quantize,
    quantize_b: Quantize,
) -> Any:
    last, group = window.get("channel_last", False), window["group"]
    inmaps = _inmaps(name, inp, kernel, window["base_axis"], last)
    channels = _divided(name, "input channels", inmaps, "group", group)
    shape = (outmaps, *kernel, channels) if last else (outmaps, channels, *kernel)
    if w_init is None:
        w_init = glorot(inmaps, outmaps, kernel, rng)
    w = _parameter("W", shape, w_init, fix, quantize_w)
    b = None
    if with_bias:
        b_init = ZERO if b_init is None else b_init
        b = _parameter("b", (outmaps,), b_init, fix, quantize_b)
    return F.convolution(inp, w, b, **window)


@parametric_function_api("fp_quantized_affine", AFFINE)
def fixed_point_quantized_affine(
    inp: Input,
    n_outmaps: int | Sequence[int],
    base_axis: int = 1,
    w_init: Any = None,
    b_init: Any = None,
    fix_parameters: bool = False,
    rng: Rng = None,
    with_bias: bool = True,
    quantize_w: bool = True,
    sign_w: bool = True,
    n_w: int = 8,
    delta_w: float = 2**-4,
    ste_fine_grained_w: bool = True,
    quantize_b: bool = True,
    sign_b: bool = True,
    n_b: int = 8,
    delta_b: float = 2**-4,
    ste_fine_grained_b: bool = True,
) -> Any:
    r"""affine with W and b replaced by fixed-point numbers.

    $$y = x\,q(W) + q(b)$$ with q from `nnl.functions.fixed_point_quantize`.

    Args:
        quantize_w, quantize_b: Whether W and b are replaced.
        sign_w, n_w, delta_w, ste_fine_grained_w, sign_b, n_b, delta_b, ste_fine_grained_b: The
            arguments of `nnl.functions.fixed_point_quantize` for W and b.

    The other arguments are those of `affine`; W_q and b_q have the initializers of W and b.

    Source: Gupta et al., arXiv:1502.02551.
    Example:
        >>> x = array(np.ones((2, 4)))
        >>> PF.fixed_point_quantized_affine(x, 3, name="ex").shape
        (2, 3)
    """
    kind, at = F.fixed_point_quantize, {"sign": sign_w, "n": n_w, "delta": delta_w}
    for_w = partial(kind, **at, ste_fine_grained=ste_fine_grained_w)
    for_b = partial(kind, sign=sign_b, n=n_b, delta=delta_b, ste_fine_grained=ste_fine_grained_b)
    return _affine(
        "fixed_point_quantized_affine", inp, n_outmaps, base_axis, w_init, b_init, fix_parameters,
        rng, with_bias, for_w if quantize_w else None, for_b if quantize_b else None,
    )  # fmt: skip


@parametric_function_api("fp_quantized_conv", CONVOLUTION)
def fixed_point_quantized_convolution(
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
    quantize_w: bool = True,
    sign_w: bool = True,
    n_w: int = 8,
    delta_w: float = 2**-4,
    ste_fine_grained_w: bool = True,
    quantize_b: bool = True,
    sign_b: bool = True,
    n_b: int = 8,
    delta_b: float = 2**-4,
    ste_fine_grained_b: bool = True,
) -> Any:
    """convolution with W and b replaced by fixed-point numbers.

    $$y = q(W) * x + q(b)$$ with q from `nnl.functions.fixed_point_quantize`.

    Args:
        quantize_w, quantize_b: Whether W and b are replaced.
        sign_w, n_w, delta_w, ste_fine_grained_w, sign_b, n_b, delta_b, ste_fine_grained_b: The
            arguments of `nnl.functions.fixed_point_quantize` for W and b.

    The other arguments are those of `convolution`; W_q and b_q have the initializers of W and b.

    Source: Gupta et al., arXiv:1502.02551.
    Example:
        >>> x = array(np.ones((1, 2, 6, 6)))
        >>> PF.fixed_point_quantized_convolution(x, 5, (3, 3), name="ex").shape
        (1, 5, 4, 4)
    """
    kind, at = F.fixed_point_quantize, {"sign": sign_w, "n": n_w, "delta": delta_w}
    for_w = partial(kind, **at, ste_fine_grained=ste_fine_grained_w)
    for_b = partial(kind, sign=sign_b, n=n_b, delta=delta_b, ste_fine_grained=ste_fine_grained_b)
    window = {
        "base_axis": base_axis, "pad": pad, "stride": stride, "dilation": dilation, "group": group,
        "channel_last": channel_last,
    }  # fmt: skip
    return _convolution(
        "fixed_point_quantized_convolution", inp, outmaps, kernel, window, w_init, b_init,
        fix_parameters, rng, with_bias, for_w if quantize_w else None,
        for_b if quantize_b else None,
    )  # fmt: skip


@parametric_function_api("pow2_quantized_affine", AFFINE)
def pow2_quantized_affine(
    inp: Input,
    n_outmaps: int | Sequence[int],
    base_axis: int = 1,
    w_init: Any = None,
    b_init: Any = None,
    fix_parameters: bool = False,
    rng: Rng = None,
    with_bias: bool = True,
    quantize_w: bool = True,
    sign_w: bool = True,
    with_zero_w: bool = False,
    n_w: int = 8,
    m_w: int = 2,
    ste_fine_grained_w: bool = True,
    quantize_b: bool = True,
    sign_b: bool = True,
    with_zero_b: bool = False,
    n_b: int = 8,
    m_b: int = 2,
    ste_fine_grained_b: bool = True,
) -> Any:
    r"""affine with W and b replaced by powers of two.

    $$y = x\,q(W) + q(b)$$ with q from `nnl.functions.pow2_quantize`.

    Args:
        quantize_w, quantize_b: Whether W and b are replaced.
        sign_w, with_zero_w, n_w, m_w, ste_fine_grained_w, sign_b, with_zero_b, n_b, m_b,
            ste_fine_grained_b: The arguments of `nnl.functions.pow2_quantize` for W and b.

    The other arguments are those of `affine`; W_q and b_q have the initializers of W and b.

    Source: Miyashita, Lee and Murmann, arXiv:1603.01025.
    Example:
        >>> x = array(np.ones((2, 4)))
        >>> PF.pow2_quantized_affine(x, 3, name="ex").shape
        (2, 3)
    """
    kind = F.pow2_quantize
    at_w = {"sign": sign_w, "with_zero": with_zero_w, "n": n_w, "m": m_w}
    at_b = {"sign": sign_b, "with_zero": with_zero_b, "n": n_b, "m": m_b}
    for_w = partial(kind, **at_w, ste_fine_grained=ste_fine_grained_w)
    for_b = partial(kind, **at_b, ste_fine_grained=ste_fine_grained_b)
    return _affine(
        "pow2_quantized_affine", inp, n_outmaps, base_axis, w_init, b_init, fix_parameters, rng,
        with_bias, for_w if quantize_w else None, for_b if quantize_b else None,
    )  # fmt: skip


@parametric_function_api("pow2_quantized_conv", CONVOLUTION)
def pow2_quantized_convolution(
    inp: Input,
    outmaps: int,
    kernel: Sequence[int],
    pad: Sequence[int] | None = None,
    stride: Sequence[int] | None = None,
    dilation: Sequence[int] | None = None,
    group: int = 1,
    w_init: Any = None,
    b_init: Any = None,
    base_axis: int = 1,
    fix_parameters: bool = False,
    rng: Rng = None,
    with_bias: bool = True,
    quantize_w: bool = True,
    with_zero_w: bool = False,
    sign_w: bool = True,
    n_w: int = 8,
    m_w: int = 2,
    ste_fine_grained_w: bool = True,
    quantize_b: bool = True,
    with_zero_b: bool = False,
    sign_b: bool = True,
    n_b: int = 8,
    m_b: int = 2,
    ste_fine_grained_b: bool = True,
) -> Any:
    """convolution with W and b replaced by powers of two.

    $$y = q(W) * x + q(b)$$ with q from `nnl.functions.pow2_quantize`.

    Args:
        quantize_w, quantize_b: Whether W and b are replaced.
        with_zero_w, sign_w, n_w, m_w, ste_fine_grained_w, with_zero_b, sign_b, n_b, m_b,
            ste_fine_grained_b: The arguments of `nnl.functions.pow2_quantize` for W and b.

    The other arguments are those of `convolution`; W_q and b_q have the initializers of W and b.

    Source: Miyashita, Lee and Murmann, arXiv:1603.01025.
    Example:
        >>> x = array(np.ones((1, 2, 6, 6)))
        >>> PF.pow2_quantized_convolution(x, 5, (3, 3), name="ex").shape
        (1, 5, 4, 4)
    """
    kind = F.pow2_quantize
    at_w = {"sign": sign_w, "with_zero": with_zero_w, "n": n_w, "m": m_w}
    at_b = {"sign": sign_b, "with_zero": with_zero_b, "n": n_b, "m": m_b}
    for_w = partial(kind, **at_w, ste_fine_grained=ste_fine_grained_w)
    for_b = partial(kind, **at_b, ste_fine_grained=ste_fine_grained_b)
    window = {
        "base_axis": base_axis, "pad": pad, "stride": stride, "dilation": dilation, "group": group,
    }  # fmt: skip
    return _convolution(
        "pow2_quantized_convolution", inp, outmaps, kernel, window, w_init, b_init, fix_parameters,
        rng, with_bias, for_w if quantize_w else None, for_b if quantize_b else None,
    )  # fmt: skip


@parametric_function_api("pruned_affine", AFFINE)
def pruned_affine(
    inp: Input,
    n_outmaps: int | Sequence[int],
    base_axis: int = 1,
    w_init: Any = None,
    b_init: Any = None,
    fix_parameters: bool = False,
    rng: Rng = None,
    with_bias: bool = True,
    prune_w: bool = True,
    rate_w: float = 0.9,
    prune_b: bool = True,
    rate_b: float = 0.9,
) -> Any:
    r"""affine with the smallest values of W and b replaced by 0.

    $$y = x\,q(W) + q(b)$$ with q from `nnl.functions.prune`.

    Args:
        prune_w, prune_b: Whether W and b are pruned.
        rate_w, rate_b: The argument of `nnl.functions.prune` for W and b.

    The other arguments are those of `affine`; W_q and b_q have the initializers of W and b.

    Source: Han et al., Learning both Weights and Connections for Efficient Neural Networks,
        arXiv:1506.02626.
    Example:
        >>> x = array(np.ones((2, 4)))
        >>> PF.pruned_affine(x, 3, name="ex").shape
        (2, 3)
    """
    return _affine(
        "pruned_affine", inp, n_outmaps, base_axis, w_init, b_init, fix_parameters, rng, with_bias,
        partial(F.prune, rate=rate_w) if prune_w else None,
        partial(F.prune, rate=rate_b) if prune_b else None,
    )  # fmt: skip


@parametric_function_api("pruned_conv", CONVOLUTION)
def pruned_convolution(
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
    prune_w: bool = True,
    rate_w: float = 0.9,
    prune_b: bool = True,
    rate_b: float = 0.9,
) -> Any:
    """convolution with the smallest values of W and b replaced by 0.

    $$y = q(W) * x + q(b)$$ with q from `nnl.functions.prune`.

    Args:
        prune_w, prune_b: Whether W and b are pruned.
        rate_w, rate_b: The argument of `nnl.functions.prune` for W and b.

    The other arguments are those of `convolution`; W_q and b_q have the initializers of W and b.

    Source: Han et al., Learning both Weights and Connections for Efficient Neural Networks,
        arXiv:1506.02626.
    Example:
        >>> x = array(np.ones((1, 2, 6, 6)))
        >>> PF.pruned_convolution(x, 5, (3, 3), name="ex").shape
        (1, 5, 4, 4)
    """
    window = {
        "base_axis": base_axis, "pad": pad, "stride": stride, "dilation": dilation, "group": group,
        "channel_last": channel_last,
    }  # fmt: skip
    return _convolution(
        "pruned_convolution", inp, outmaps, kernel, window, w_init, b_init, fix_parameters, rng,
        with_bias, partial(F.prune, rate=rate_w) if prune_w else None,
        partial(F.prune, rate=rate_b) if prune_b else None,
    )  # fmt: skip
