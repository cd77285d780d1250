# SPDX-License-Identifier: Apache-2.0
"""Affine maps and convolutions with binary weights, or weights that become powers of two."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from nnl.core.parameters.parameter import get_parameter_or_create
from nnl.parametric_functions.initializer import ZERO
from nnl.parametric_functions.variants import Layer, variant

__all__ = [
    "binary_connect_affine",
    "binary_connect_convolution",
    "binary_weight_affine",
    "binary_weight_convolution",
    "inq_affine",
    "inq_convolution",
]


def _both(
    name: str, scope: str, kept: list[tuple[str, str, str]], definition: Callable[..., Any], w: str
) -> tuple[Any, ...]:
    """The affine layer and the convolution."""
    kinds = ("affine", "affine"), ("convolution", "conv")
    return tuple(
        variant(kind, f"{name}_{kind}", f"{scope}_{end}", kept, definition, w, before=True)
        for kind, end in kinds
    )


def _signs(layer: Layer, wb_init: Any) -> tuple[Any, Any]:
    """W and Wb."""
    init = layer.glorot if wb_init is None else wb_init
    return layer.w(), get_parameter_or_create("Wb", layer.shape, init, False)


def _binary_connect(layer: Layer, quantize_zero_to: float = 1.0, wb_init: Any = None) -> Any:
    r"""with the signs of the weights, see `nnl.functions.{name}`.

    1 and -1 for the signs.

    Args:
        quantize_zero_to: Sign of a weight of 0.
        wb_init: Initializer or array of Wb, which every execution overwrites with the signs of W.

    Source: Courbariaux, Bengio and David, BinaryConnect, arXiv:1511.00363.
    """
    w, wb = _signs(layer, wb_init)
    return layer.result(layer.name, w, wb, layer.b(), quantize_zero_to=quantize_zero_to)


def _binary_weight(layer: Layer, quantize_zero_to: float = 1.0, wb_init: Any = None) -> Any:
    r"""with scaled signs of the weights, see `nnl.functions.{name}`.

    the mean $\alpha$ of |W| for each output.

    Args:
        quantize_zero_to: Sign of a weight of 0.
        wb_init: Initializer or array of Wb, which every execution overwrites with the signs of W.

    Source: Rastegari et al., XNOR-Net, arXiv:1603.05279, section 3.1.
    """
    w, wb = _signs(layer, wb_init)
    alpha = get_parameter_or_create("alpha", layer.outmaps, ZERO, False)
    return layer.result(layer.name, w, wb, alpha, layer.b(), quantize_zero_to=quantize_zero_to)


def _inq(
    layer: Layer,
    num_bits: int = 4,
    inq_iterations: Sequence[int] = (),
    selection_algorithm: str = "random",
    seed: int = -1,
    i_init: Any = None,
) -> Any:
    r"""whose weights become powers of two, see `nnl.functions.{name}`.

    more and more elements of W fixed to 0 and $\pm 2^k$.

    Args:
        num_bits, inq_iterations, selection_algorithm, seed: As there.
        i_init: Initializer or array of I; 0 if left out.

    Source: Zhou et al., Incremental Network Quantization, arXiv:1702.03044.
    """
    w = layer.w()
    i = get_parameter_or_create("I", layer.shape, ZERO if i_init is None else i_init, False)
    return layer.result(
        layer.name,
        w,
        i,
        layer.b(),
        num_bits=num_bits,
        inq_iterations=inq_iterations,
        selection_algorithm=selection_algorithm,
        seed=seed,
    )


SIGNS, SCALES = ("Wb", "Its signs", "W"), ("alpha", "Scales of the signs", "b")
binary_connect_affine, binary_connect_convolution = _both(
    "binary_connect", "bicon", [SIGNS], _binary_connect, r"\mathrm{sign}(W)"
)
binary_weight_affine, binary_weight_convolution = _both(
    "binary_weight", "bwn", [SIGNS, SCALES], _binary_weight, r"\alpha\,\mathrm{sign}(W)"
)
inq_affine, inq_convolution = _both(
    "inq", "inq", [("I", "1 where a weight is fixed", "W")], _inq, "W"
)
