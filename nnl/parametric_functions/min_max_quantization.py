# SPDX-License-Identifier: Apache-2.0
"""min_max_quantize with its ranges as parameters, and layers whose W and b it quantizes."""

from __future__ import annotations

from typing import Any

import numpy as np

from nnl import functions as F
from nnl.core.arguments.annotations import Input
from nnl.core.graph.variable import Variable
from nnl.core.parameters.parameter import get_parameter_or_create, parameter_scope
from nnl.parametric_functions.api import parametric_function_api
from nnl.parametric_functions.initializer import ConstantInitializer
from nnl.parametric_functions.quantization import Quantize, quantized, quantizing
from nnl.parametric_functions.variants import Layer

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


def _quantizer(which: str, ends: tuple[Any, Any], limit: float, **kw: Any) -> Quantize:
    """What quantizes W or b, with its own parameters in a scope.

    Args:
        ends: qr_min_init and qr_max_init; None for minus limit and limit.
    """
    least, most = (
        ConstantInitializer(end) if given is None else given
        for given, end in zip(ends, (-limit, limit), strict=True)
    )

    def quantize(p: Any, outputs: Any) -> Any:
        with parameter_scope(f"min_max_quantize_{which}"):
            return min_max_quantize(p, qr_min_init=least, qr_max_init=most, outputs=outputs, **kw)

    return quantize


def _min_max(
    layer: Layer,
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
    """with W and b rounded to evenly spaced values.

    q from `min_max_quantize`.

    The ranges are parameters in the scopes min_max_quantize_w and min_max_quantize_b.

    Args:
        quantize_w, quantize_b: Whether W and b are replaced.
        ql_min_w, ql_max_w, qr_min_w_init, qr_max_w_init, ste_fine_grained_w, ql_min_b, ql_max_b,
            qr_min_b_init, qr_max_b_init, ste_fine_grained_b, eps: The arguments of
            `min_max_quantize` for W and b; the range of W starts as -2 to 2 and that of b as -6 to
            6 unless initializers are given.
        w_min_max, b_min_max: Its x_min_max for W and b.

    W_q and b_q have the initializers of W and b.

    Source: Jacob et al., Quantization and Training of Neural Networks for Efficient
        Integer-Arithmetic-Only Inference, arXiv:1712.05877.
    """
    same = {"eps": eps, "fix_parameters": not layer.learns}
    at_w = {"ql_min": ql_min_w, "ql_max": ql_max_w, "x_min_max": w_min_max}
    at_b = {"ql_min": ql_min_b, "ql_max": ql_max_b, "x_min_max": b_min_max}
    at_w["ste_fine_grained"], at_b["ste_fine_grained"] = ste_fine_grained_w, ste_fine_grained_b
    for_w = _quantizer("w", (qr_min_w_init, qr_max_w_init), 2.0, **at_w, **same)
    for_b = _quantizer("b", (qr_min_b_init, qr_max_b_init), 6.0, **at_b, **same)
    return quantized(layer, for_w, for_b, quantize_w, quantize_b)


min_max_quantized_affine, min_max_quantized_convolution = quantizing(
    "min_max_quantized", "min_max_quantized", _min_max
)
