# SPDX-License-Identifier: Apache-2.0
"""Affine maps and convolutions with quantized or pruned parameters.

W and b are the parameters that learn. What is used instead of them is kept in W_q and b_q: after
every execution they hold the quantized values.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from nnl import functions as F
from nnl.core.parameters.parameter import get_parameter_or_create
from nnl.parametric_functions.variants import Layer, variant

__all__ = [
    "fixed_point_quantized_affine",
    "fixed_point_quantized_convolution",
    "pow2_quantized_affine",
    "pow2_quantized_convolution",
    "pruned_affine",
    "pruned_convolution",
]

Quantize = Callable[..., Any]  # called with a parameter and outputs=[array]
KEPT = [("W_q", "Quantized weight", "W"), ("b_q", "Quantized bias", "b")]


def quantized(
    layer: Layer, for_w: Quantize, for_b: Quantize, quantize_w: bool, quantize_b: bool
) -> Any:
    """The result of a layer with W and b replaced, or not."""
    w = _replaced("W", layer.w(), layer.initial[0], for_w if quantize_w else None)
    b = layer.b()
    if b is not None:
        b = _replaced("b", b, layer.initial[1], for_b if quantize_b else None)
    return layer.result(layer.kind, w, b)


def _replaced(name: str, p: Any, init: Any, quantize: Quantize | None) -> Any:
    """The parameter, or what `quantize` makes of it, kept in another one."""
    if quantize is None:
        return p
    kept = get_parameter_or_create(f"{name}_q", p.shape, init, False)
    q = quantize(p, outputs=[kept.data])
    q.persistent = True
    return q


def quantizing(
    name: str, scope: str, definition: Callable[..., Any], for_convolution: Any = None
) -> tuple[Any, Any]:
    """The affine layer and the convolution of a way to replace parameters.

    Args:
        name, scope: Of the layers and their scopes, without "affine" and "conv".
        for_convolution: The definition of the convolution, where that has other arguments.
    """
    formula = {"w": "q(W)", "b": "q(b)"}
    affine = variant("affine", f"{name}_affine", f"{scope}_affine", KEPT, definition, **formula)
    last = for_convolution is None
    return affine, variant(
        "convolution",
        f"{name}_convolution",
        f"{scope}_conv",
        KEPT,
        for_convolution or definition,
        channel_last=last,
        **formula,
    )


def _fixed_point(
    layer: Layer,
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
    """with W and b replaced by fixed-point numbers.

    q from `nnl.functions.fixed_point_quantize`.

    Args:
        quantize_w, quantize_b: Whether W and b are replaced.
        sign_w, n_w, delta_w, ste_fine_grained_w, sign_b, n_b, delta_b, ste_fine_grained_b: The
            arguments of `nnl.functions.fixed_point_quantize` for W and b.

    W_q and b_q have the initializers of W and b.

    Source: Gupta et al., arXiv:1502.02551.
    """
    kind, at = F.fixed_point_quantize, {"sign": sign_w, "n": n_w, "delta": delta_w}
    for_w = partial(kind, **at, ste_fine_grained=ste_fine_grained_w)
    for_b = partial(kind, sign=sign_b, n=n_b, delta=delta_b, ste_fine_grained=ste_fine_grained_b)
    return quantized(layer, for_w, for_b, quantize_w, quantize_b)


def _pow2(
    layer: Layer,
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
    """with W and b replaced by powers of two.

    q from `nnl.functions.pow2_quantize`.

    Args:
        quantize_w, quantize_b: Whether W and b are replaced.
        sign_w, with_zero_w, n_w, m_w, ste_fine_grained_w, sign_b, with_zero_b, n_b, m_b,
            ste_fine_grained_b: The arguments of `nnl.functions.pow2_quantize` for W and b.

    W_q and b_q have the initializers of W and b.

    Source: Miyashita, Lee and Murmann, arXiv:1603.01025.
    """
    kind = F.pow2_quantize
    at_w = {"sign": sign_w, "with_zero": with_zero_w, "n": n_w, "m": m_w}
    at_b = {"sign": sign_b, "with_zero": with_zero_b, "n": n_b, "m": m_b}
    for_w = partial(kind, **at_w, ste_fine_grained=ste_fine_grained_w)
    for_b = partial(kind, **at_b, ste_fine_grained=ste_fine_grained_b)
    return quantized(layer, for_w, for_b, quantize_w, quantize_b)


def _pow2_convolution(
    layer: Layer,
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
    for_w = (quantize_w, sign_w, with_zero_w, n_w, m_w, ste_fine_grained_w)
    return _pow2(layer, *for_w, quantize_b, sign_b, with_zero_b, n_b, m_b, ste_fine_grained_b)


_pow2_convolution.__doc__ = _pow2.__doc__


def _pruned(
    layer: Layer,
    prune_w: bool = True,
    rate_w: float = 0.9,
    prune_b: bool = True,
    rate_b: float = 0.9,
) -> Any:
    """with the smallest values of W and b replaced by 0.

    q from `nnl.functions.prune`.

    Args:
        prune_w, prune_b: Whether W and b are pruned.
        rate_w, rate_b: The argument of `nnl.functions.prune` for W and b.

    W_q and b_q have the initializers of W and b.

    Source: Han et al., Learning both Weights and Connections for Efficient Neural Networks,
        arXiv:1506.02626.
    """
    for_w, for_b = (partial(F.prune, rate=rate) for rate in (rate_w, rate_b))
    return quantized(layer, for_w, for_b, prune_w, prune_b)


fixed_point_quantized_affine, fixed_point_quantized_convolution = quantizing(
    "fixed_point_quantized", "fp_quantized", _fixed_point
)
pow2_quantized_affine, pow2_quantized_convolution = quantizing(
    "pow2_quantized", "pow2_quantized", _pow2, _pow2_convolution
)
pruned_affine, pruned_convolution = quantizing("pruned", "pruned", _pruned)
