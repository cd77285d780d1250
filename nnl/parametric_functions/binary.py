# SPDX-License-Identifier: Apache-2.0
"""Affine maps and convolutions with binary weights, or weights that become powers of two."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from nnl import functions as F
from nnl.core.annotations import Input
from nnl.core.parameter import get_parameter_or_create
from nnl.parametric_functions.affine import _sizes
from nnl.parametric_functions.api import parametric_function_api
from nnl.parametric_functions.convolution import _bias, _divided, _inmaps
from nnl.parametric_functions.initializer import ZERO, glorot

__all__ = [
    "binary_connect_affine",
    "binary_connect_convolution",
    "binary_weight_affine",
    "binary_weight_convolution",
    "inq_affine",
    "inq_convolution",
]

Rng = np.random.RandomState | None

AFFINE_SHAPE = "(elements of a sample, *n_outmaps)"
CONVOLUTION_SHAPE = "(outmaps, channels / group, *kernel)"
AFFINE_BIAS = ("b", "Bias", "n_outmaps", True)
CONVOLUTION_BIAS = ("b", "Bias", "(outmaps,)", True)


def _affine(
    name: str, inp: Any, n_outmaps: int | Sequence[int], base_axis: int, rng: Rng
) -> tuple[Any, ...]:
    """(shape of W, shape of the outputs, base_axis from the front, default initializer of W)."""
    inmaps, outmaps, base_axis = _sizes(inp.shape, n_outmaps, base_axis, name)
    default = glorot(inmaps, prod(outmaps), rng=rng)
    return (inmaps, *outmaps), outmaps, base_axis, default


def _convolution(
    name: str,
    inp: Input,
    outmaps: int,
    kernel: Sequence[int],
    base_axis: int,
    group: int,
    rng: Rng,
) -> tuple[Any, ...]:
    """(shape of W, default initializer of W)."""
    inmaps = _inmaps(name, inp, kernel, base_axis, False)
    channels = _divided(name, "input channels", inmaps, "group", group)
    default = glorot(inmaps, outmaps, kernel, rng)
    return (outmaps, channels, *kernel), default


def _first(*initializers: Any) -> Any:
    """The first initializer that is given."""
    return next(i for i in initializers if i is not None)


def _binary(shape: Any, w_init: Any, wb_init: Any, default: Any, fix: bool) -> tuple[Any, Any]:
    """W and Wb."""
    w = get_parameter_or_create("W", shape, _first(w_init, default), True, not fix)
    return w, get_parameter_or_create("Wb", shape, _first(wb_init, default), False)


def _outputs_bias(outmaps: Any, b_init: Any, with_bias: bool, fix: bool) -> Any:
    if not with_bias:
        return None
    init = _first(b_init, ZERO)
    return get_parameter_or_create("b", outmaps, init, True, not fix)


@parametric_function_api(
    "bicon_affine",
    [("W", "Weight", AFFINE_SHAPE, True), ("Wb", "Its signs", AFFINE_SHAPE, False), AFFINE_BIAS],
)
def binary_connect_affine(
    inp: Input,
    n_outmaps: int | Sequence[int],
    base_axis: int = 1,
    quantize_zero_to: float = 1.0,
    w_init: Any = None,
    wb_init: Any = None,
    b_init: Any = None,
    fix_parameters: bool = False,
    rng: Rng = None,
    with_bias: bool = True,
) -> Any:
    r"""Affine map with the signs of the weights, see `nnl.functions.binary_connect_affine`.

    $$y = x\,\mathrm{sign}(W) + b$$

    Args:
        quantize_zero_to: Sign of a weight of 0.
        wb_init: Initializer or array of Wb, which every execution overwrites with the signs of W.

    The other arguments are those of `affine`.

    Source: Courbariaux, Bengio and David, BinaryConnect, arXiv:1511.00363.
    Example:
        >>> x = array(np.ones((2, 4)))
        >>> PF.binary_connect_affine(x, 3, name="ex").shape
        (2, 3)
    """
    shape, outmaps, base, default = _affine("binary_connect_affine", inp, n_outmaps, base_axis, rng)
    w, wb = _binary(shape, w_init, wb_init, default, fix_parameters)
    b = _outputs_bias(outmaps, b_init, with_bias, fix_parameters)
    return F.binary_connect_affine(inp, w, wb, b, base_axis=base, quantize_zero_to=quantize_zero_to)


@parametric_function_api(
    "bwn_affine",
    [
        ("W", "Weight", AFFINE_SHAPE, True),
        ("Wb", "Its signs", AFFINE_SHAPE, False),
        ("alpha", "Scales of the signs", "n_outmaps", False),
        AFFINE_BIAS,
    ],
)
def binary_weight_affine(
    inp: Input,
    n_outmaps: int | Sequence[int],
    base_axis: int = 1,
    quantize_zero_to: float = 1.0,
    w_init: Any = None,
    wb_init: Any = None,
    b_init: Any = None,
    fix_parameters: bool = False,
    rng: Rng = None,
    with_bias: bool = True,
) -> Any:
    r"""Affine map with scaled signs of the weights, see `nnl.functions.binary_weight_affine`.

    $$y = \alpha\, x\,\mathrm{sign}(W) + b$$ with the mean $\alpha$ of |W| for each output.

    Args:
        quantize_zero_to: Sign of a weight of 0.
        wb_init: Initializer or array of Wb, which every execution overwrites with the signs of W.

    The other arguments are those of `affine`.

    Source: Rastegari et al., XNOR-Net, arXiv:1603.05279, section 3.1.
    Example:
        >>> x = array(np.ones((2, 4)))
        >>> PF.binary_weight_affine(x, 3, name="ex").shape
        (2, 3)
    """
    shape, outmaps, base, default = _affine("binary_weight_affine", inp, n_outmaps, base_axis, rng)
    w, wb = _binary(shape, w_init, wb_init, default, fix_parameters)
    alpha = get_parameter_or_create("alpha", outmaps, ZERO, False)
    b = _outputs_bias(outmaps, b_init, with_bias, fix_parameters)
    return F.binary_weight_affine(
        inp, w, wb, alpha, b, base_axis=base, quantize_zero_to=quantize_zero_to
    )


@parametric_function_api(
    "inq_affine",
    [
        ("W", "Weight", AFFINE_SHAPE, True),
        ("I", "1 where a weight is fixed", AFFINE_SHAPE, False),
        AFFINE_BIAS,
    ],
)
def inq_affine(
    inp: Input,
    n_outmaps: int | Sequence[int],
    base_axis: int = 1,
    num_bits: int = 4,
    inq_iterations: Sequence[int] = (),
    selection_algorithm: str = "random",
    seed: int = -1,
    w_init: Any = None,
    i_init: Any = None,
    b_init: Any = None,
    fix_parameters: bool = False,
    rng: Rng = None,
    with_bias: bool = True,
) -> Any:
    r"""Affine map whose weights become powers of two, see `nnl.functions.inq_affine`.

    $$y = x W + b$$ where more and more elements of W are fixed to 0 and $\pm 2^k$.

    Args:
        num_bits, inq_iterations, selection_algorithm, seed: As there.
        i_init: Initializer or array of I; 0 if left out.

    The other arguments are those of `affine`.

    Source: Zhou et al., Incremental Network Quantization, arXiv:1702.03044.
    Example:
        >>> x = array(np.ones((2, 4)))
        >>> PF.inq_affine(x, 3, name="ex").shape
        (2, 3)
    """
    shape, outmaps, base, default = _affine("inq_affine", inp, n_outmaps, base_axis, rng)
    w = get_parameter_or_create("W", shape, _first(w_init, default), True, not fix_parameters)
    i = get_parameter_or_create("I", shape, _first(i_init, ZERO), False)
    b = _outputs_bias(outmaps, b_init, with_bias, fix_parameters)
    return F.inq_affine(inp, w, i, b, base, num_bits, inq_iterations, selection_algorithm, seed)


@parametric_function_api(
    "bicon_conv",
    [
        ("W", "Weight", CONVOLUTION_SHAPE, True),
        ("Wb", "Its signs", CONVOLUTION_SHAPE, False),
        CONVOLUTION_BIAS,
    ],
)
def binary_connect_convolution(
    inp: Input,
    outmaps: int,
    kernel: Sequence[int],
    pad: Sequence[int] | None = None,
    stride: Sequence[int] | None = None,
    dilation: Sequence[int] | None = None,
    group: int = 1,
    quantize_zero_to: float = 1.0,
    w_init: Any = None,
    wb_init: Any = None,
    b_init: Any = None,
    base_axis: int = 1,
    fix_parameters: bool = False,
    rng: Rng = None,
    with_bias: bool = True,
) -> Any:
    r"""Convolution with the signs of the weights, see `nnl.functions.binary_connect_convolution`.

    $$y = \mathrm{sign}(W) * x + b$$

    Args:
        quantize_zero_to: Sign of a weight of 0.
        wb_init: Initializer or array of Wb, which every execution overwrites with the signs of W.

    The other arguments are those of `convolution`.

    Source: Courbariaux, Bengio and David, BinaryConnect, arXiv:1511.00363.
    Example:
        >>> x = array(np.ones((1, 2, 6, 6)))
        >>> PF.binary_connect_convolution(x, 5, (3, 3), name="ex").shape
        (1, 5, 4, 4)
    """
    name = "binary_connect_convolution"
    shape, default = _convolution(name, inp, outmaps, kernel, base_axis, group, rng)
    w, wb = _binary(shape, w_init, wb_init, default, fix_parameters)
    b = _bias(outmaps, b_init, with_bias, fix_parameters)
    return F.binary_connect_convolution(
        inp, w, wb, b, base_axis, pad, stride, dilation, group, quantize_zero_to
    )


@parametric_function_api(
    "bwn_conv",
    [
        ("W", "Weight", CONVOLUTION_SHAPE, True),
        ("Wb", "Its signs", CONVOLUTION_SHAPE, False),
        ("alpha", "Scales of the signs", "(outmaps,)", False),
        CONVOLUTION_BIAS,
    ],
)
def binary_weight_convolution(
    inp: Input,
    outmaps: int,
    kernel: Sequence[int],
    pad: Sequence[int] | None = None,
    stride: Sequence[int] | None = None,
    dilation: Sequence[int] | None = None,
    group: int = 1,
    quantize_zero_to: float = 1.0,
    w_init: Any = None,
    wb_init: Any = None,
    b_init: Any = None,
    base_axis: int = 1,
    fix_parameters: bool = False,
    rng: Rng = None,
    with_bias: bool = True,
) -> Any:
    r"""Convolution with scaled signs, see `nnl.functions.binary_weight_convolution`.

    $$y = \alpha\,\mathrm{sign}(W) * x + b$$ with the mean $\alpha$ of |W| for each output channel.

    Args:
        quantize_zero_to: Sign of a weight of 0.
        wb_init: Initializer or array of Wb, which every execution overwrites with the signs of W.

    The other arguments are those of `convolution`.

    Source: Rastegari et al., XNOR-Net, arXiv:1603.05279, section 3.1.
    Example:
        >>> x = array(np.ones((1, 2, 6, 6)))
        >>> PF.binary_weight_convolution(x, 5, (3, 3), name="ex").shape
        (1, 5, 4, 4)
    """
    name = "binary_weight_convolution"
    shape, default = _convolution(name, inp, outmaps, kernel, base_axis, group, rng)
    w, wb = _binary(shape, w_init, wb_init, default, fix_parameters)
    alpha = get_parameter_or_create("alpha", (outmaps,), ZERO, False)
    b = _bias(outmaps, b_init, with_bias, fix_parameters)
    return F.binary_weight_convolution(
        inp, w, wb, alpha, b, base_axis, pad, stride, dilation, group, quantize_zero_to
    )


@parametric_function_api(
    "inq_conv",
    [
        ("W", "Weight", CONVOLUTION_SHAPE, True),
        ("I", "1 where a weight is fixed", CONVOLUTION_SHAPE, False),
        CONVOLUTION_BIAS,
    ],
)
def inq_convolution(
    inp: Input,
    outmaps: int,
    kernel: Sequence[int],
    pad: Sequence[int] | None = None,
    stride: Sequence[int] | None = None,
    dilation: Sequence[int] | None = None,
    group: int = 1,
    num_bits: int = 4,
    inq_iterations: Sequence[int] = (),
    selection_algorithm: str = "random",
    seed: int = -1,
    w_init: Any = None,
    i_init: Any = None,
    b_init: Any = None,
    base_axis: int = 1,
    fix_parameters: bool = False,
    rng: Rng = None,
    with_bias: bool = True,
) -> Any:
    r"""Convolution whose weights become powers of two, see `nnl.functions.inq_convolution`.

    $$y = W * x + b$$ where more and more elements of W are fixed to 0 and $\pm 2^k$.

    Args:
        num_bits, inq_iterations, selection_algorithm, seed: As there.
        i_init: Initializer or array of I; 0 if left out.

    The other arguments are those of `convolution`.

    Source: Zhou et al., Incremental Network Quantization, arXiv:1702.03044.
    Example:
        >>> x = array(np.ones((1, 2, 6, 6)))
        >>> PF.inq_convolution(x, 5, (3, 3), name="ex").shape
        (1, 5, 4, 4)
    """
    shape, default = _convolution("inq_convolution", inp, outmaps, kernel, base_axis, group, rng)
    w = get_parameter_or_create("W", shape, _first(w_init, default), True, not fix_parameters)
    i = get_parameter_or_create("I", shape, _first(i_init, ZERO), False)
    b = _bias(outmaps, b_init, with_bias, fix_parameters)
    return F.inq_convolution(
        inp, w, i, b, base_axis, pad, stride, dilation, group, num_bits, inq_iterations,
        selection_algorithm, seed,
    )  # fmt: skip
