# SPDX-License-Identifier: Apache-2.0
"""min_max_quantize with its ranges as parameters, and layers whose W and b it quantizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nnl import functions as F
from nnl.core.annotations import Input
from nnl.core.parameter import get_parameter_or_create, parameter_scope
from nnl.core.variable import Variable
from nnl.parametric_functions.api import parametric_function_api
from nnl.parametric_functions.initializer import ConstantInitializer
from nnl.parametric_functions.quantization import (
    AFFINE,
    CONVOLUTION,
    Quantize,
    Rng,
    _affine,
    _convolution,
)

__all__ = ["min_max_quantize", "min_max_quantized_affine", "min_max_quantized_convolution"]


def _level(name: str, value: Any, rank: int) -> Any:
    """A parameter for a number; a Variable is taken as it is."""
    if isinstance(value, Variable):
        return value
    if np.ndim(value):
        raise TypeError(
            f"min_max_quantize: {name} is {type(value).__name__}, wanted a number or nnl.Variable"
        )
    shape = (1,) * rank
    return get_parameter_or_create(name, shape, np.full(shape, value), False, False)


@parametric_function_api(
    "min_max_quantize",
    [
        ("qr_min", "Smallest value", "ql_min.shape", True),
        ("qr_max", "Largest value", "ql_max.shape", True),
        ("ql_min", "Smallest level, if it is given as a number", "(1, ..., 1)", False),
        ("ql_max", "Largest level, if it is given as a number", "(1, ..., 1)", False),
    ],
)
def min_max_quantize(
    x: Input,
    ql_min: Any = 0,
    ql_max: Any = 255,
    decay: float = 0.999,
    x_min_max: bool = False,
    ema: bool = False,
    ste_fine_grained: bool = True,
    eps: float = 0.01,
    qr_min_init: Any = None,
    qr_max_init: Any = None,
    fix_parameters: bool = False,
    outputs: Any = None,
) -> Any:
    r"""Round to evenly spaced values in a range that is learnt or measured.

    $$y = s\,\mathrm{round}((\mathrm{clip}(x, a, b) - a) / s) + a,
      \quad s = (b - a) / (q^l_{max} - q^l_{min})$$
    with the range a to b: qr_min and qr_max, moved by at most half a step so that 0 is among the
    values.

    Args:
        x: Any shape.
        ql_min, ql_max: Smallest and largest level: numbers, or Variables of the rank of x and size
            1 in some of its axes.
        decay, x_min_max, ema, ste_fine_grained, eps, outputs: As for
            `nnl.functions.min_max_quantize`. With x_min_max and ema, qr_min and qr_max are made
            without gradient.
        qr_min_init, qr_max_init: Initializer or array; -6 and 6 if left out.
        fix_parameters: Compute no gradients for the parameters in this call.
    Raises:
        TypeError: ql_min or ql_max is neither a number nor a Variable.
        ShapeError: The shapes do not fit.
    Source: Jacob et al., Quantization and Training of Neural Networks for Efficient
        Integer-Arithmetic-Only Inference, arXiv:1712.05877.
    Example:
        >>> y = PF.min_max_quantize(array([0.4, 1.6]), ql_max=3, x_min_max=True, name="ex")
        >>> y.shape
        (2,)
    """
    ql_min, ql_max = (
        _level(name, q, x.ndim) for name, q in (("ql_min", ql_min), ("ql_max", ql_max))
    )
    ends = []
    for name, q, init, default in (
        ("qr_min", ql_min, qr_min_init, -6.0),
        ("qr_max", ql_max, qr_max_init, 6.0),
    ):
        init = ConstantInitializer(default) if init is None else init
        need_grad = not (x_min_max and ema)
        ends.append(get_parameter_or_create(name, q.shape, init, need_grad, not fix_parameters))
    return F.min_max_quantize(
        x, *ends, ql_min, ql_max, decay, x_min_max, ema, ste_fine_grained, eps, outputs=outputs
    )


def _quantizer(scope: str, ends: tuple[Any, Any], **kw: Any) -> Quantize:
    """What quantizes W or b, with its own parameters in a scope.

    Args:
        ends: qr_min_init and qr_max_init.
    """

    def quantize(p: Any, outputs: Any) -> Any:
        with parameter_scope(scope):
            return min_max_quantize(
                p, qr_min_init=ends[0], qr_max_init=ends[1], outputs=outputs, **kw
            )

    return quantize


@parametric_function_api("min_max_quantized_affine", AFFINE)
def min_max_quantized_affine(
    inp: Input,
    n_outmaps: int | Sequence[int],
    base_axis: int = 1,
    w_init: Any = None,
    b_init: Any = None,
    fix_parameters: bool = False,
    rng: Rng = None,
    with_bias: bool = True,
    quantize_w: bool = True,
    ql_min_w: Any = 0,
    ql_max_w: Any = 255,
    w_min_max: bool = False,
    qr_min_w_init: Any = None,
    qr_max_w_init: Any = None,
    ste_fine_grained_w: bool = True,
    quantize_b: bool = True,
    ql_min_b: Any = 0,
    ql_max_b: Any = 255,
    b_min_max: bool = False,
    qr_min_b_init: Any = None,
    qr_max_b_init: Any = None,
    ste_fine_grained_b: bool = True,
    eps: float = 0.01,
) -> Any:
    r"""affine with W and b rounded to evenly spaced values.

    $$y = x\,q(W) + q(b)$$ with q from `min_max_quantize`.

    The ranges are parameters in the scopes min_max_quantize_w and min_max_quantize_b.

    Args:
        quantize_w, quantize_b: Whether W and b are replaced.
        ql_min_w, ql_max_w, qr_min_w_init, qr_max_w_init, ste_fine_grained_w, ql_min_b, ql_max_b,
            qr_min_b_init, qr_max_b_init, ste_fine_grained_b, eps: The arguments of
            `min_max_quantize` for W and b; the range of W starts as -2 to 2 and that of b as -6 to
            6 unless initializers are given.
        w_min_max, b_min_max: Its x_min_max for W and b.

    The other arguments are those of `affine`; W_q and b_q have the initializers of W and b.

    Source: Jacob et al., Quantization and Training of Neural Networks for Efficient
        Integer-Arithmetic-Only Inference, arXiv:1712.05877.
    Example:
        >>> x = array(np.ones((2, 4)))
        >>> PF.min_max_quantized_affine(x, 3, name="ex").shape
        (2, 3)
    """
    for_w, for_b = _quantizers(
        (ql_min_w, ql_max_w, w_min_max, qr_min_w_init, qr_max_w_init, ste_fine_grained_w),
        (ql_min_b, ql_max_b, b_min_max, qr_min_b_init, qr_max_b_init, ste_fine_grained_b),
        eps,
        fix_parameters,
    )
    return _affine(
        "min_max_quantized_affine", inp, n_outmaps, base_axis, w_init, b_init, fix_parameters, rng,
        with_bias, for_w if quantize_w else None, for_b if quantize_b else None,
    )  # fmt: skip


@parametric_function_api("min_max_quantized_conv", CONVOLUTION)
def min_max_quantized_convolution(
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
    ql_min_w: Any = 0,
    ql_max_w: Any = 255,
    w_min_max: bool = False,
    qr_min_w_init: Any = None,
    qr_max_w_init: Any = None,
    ste_fine_grained_w: bool = True,
    quantize_b: bool = True,
    ql_min_b: Any = 0,
    ql_max_b: Any = 255,
    b_min_max: bool = False,
    qr_min_b_init: Any = None,
    qr_max_b_init: Any = None,
    ste_fine_grained_b: bool = True,
    eps: float = 0.01,
) -> Any:
    """convolution with W and b rounded to evenly spaced values, see min_max_quantized_affine.

    $$y = q(W) * x + q(b)$$ with q from `min_max_quantize`.

    The arguments up to with_bias are those of `convolution`, the others of
    `min_max_quantized_affine`.

    Source: Jacob et al., Quantization and Training of Neural Networks for Efficient
        Integer-Arithmetic-Only Inference, arXiv:1712.05877.
    Example:
        >>> x = array(np.ones((1, 2, 6, 6)))
        >>> PF.min_max_quantized_convolution(x, 5, (3, 3), name="ex").shape
        (1, 5, 4, 4)
    """
    for_w, for_b = _quantizers(
        (ql_min_w, ql_max_w, w_min_max, qr_min_w_init, qr_max_w_init, ste_fine_grained_w),
        (ql_min_b, ql_max_b, b_min_max, qr_min_b_init, qr_max_b_init, ste_fine_grained_b),
        eps,
        fix_parameters,
    )
    window = {
        "base_axis": base_axis, "pad": pad, "stride": stride, "dilation": dilation, "group": group,
        "channel_last": channel_last,
    }  # fmt: skip
    return _convolution(
        "min_max_quantized_convolution", inp, outmaps, kernel, window, w_init, b_init,
        fix_parameters, rng, with_bias, for_w if quantize_w else None,
        for_b if quantize_b else None,
    )  # fmt: skip


def _quantizers(
    for_w: tuple[Any, ...], for_b: tuple[Any, ...], eps: float, fix_parameters: bool
) -> list[Quantize]:
    made = []
    for which, end, at in (("w", 2.0, for_w), ("b", 6.0, for_b)):
        ql_min, ql_max, x_min_max, qr_min, qr_max, fine = at
        made.append(
            _quantizer(
                f"min_max_quantize_{which}",
                (
                    ConstantInitializer(-end) if qr_min is None else qr_min,
                    ConstantInitializer(end) if qr_max is None else qr_max,
                ),
                ql_min=ql_min,
                ql_max=ql_max,
                x_min_max=x_min_max,
                ste_fine_grained=fine,
                eps=eps,
                fix_parameters=fix_parameters,
            )
        )
    return made
