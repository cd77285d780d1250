# SPDX-License-Identifier: Apache-2.0
"""Initial values of parameters that a file names without giving their values."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

MAX_ELEMENTS = 2**30  # of one parameter whose values the file does not hold


def initial_value(
    message: Any, shape: tuple[int, ...], rng: np.random.RandomState, where: str
) -> np.ndarray[Any, Any] | None:
    r"""The array that an Initializer message asks for; None for zeros.

    Normal and Uniform draw with the standard deviation or the limit `multiplier`. Their forms for
    layers take $\sigma$ or the limit from the weights' shape, times `multiplier`: He forward
    $\sqrt{2/n_{in}}$, He backward $\sqrt{2/n_{out}}$, Glorot $\sqrt{2/(n_{in}+n_{out})}$ and
    uniform Glorot $\sqrt{6/(n_{in}+n_{out})}$, where $n$ counts the connections of one unit. Affine
    weights have the inputs first; those of convolutions the outputs, CL ones with the inputs last.
    Weights of depthwise convolutions have no axis of inputs; they count as having as many inputs as
    outputs, which is what NNabla does.

    Raises:
        ValueError: The array would be too large, or its shape is not that of such weights.
    """
    kind, scale = message.type, message.multiplier
    if math.prod(shape) > MAX_ELEMENTS:
        raise ValueError(
            f"{where}: the file has no values for the shape {shape}, which is too large"
        )
    if kind == "Constant":
        return np.full(shape, scale, np.float32)
    if kind == "Range":
        values = np.arange(math.prod(shape), dtype=np.float32) * np.float32(scale or 1.0)
        return values.reshape(shape)
    if not kind.startswith(("Normal", "Uniform")):
        return None
    distribution = "Normal" if kind.startswith("Normal") else "Uniform"
    rule = kind.removeprefix(distribution)
    if rule:
        scale *= _spread(distribution, rule, shape, where)
    if distribution == "Normal":
        return rng.normal(0.0, scale, shape).astype(np.float32)
    return rng.uniform(-scale, scale, shape).astype(np.float32)


def _spread(distribution: str, rule: str, shape: tuple[int, ...], where: str) -> float:
    layer = next((n for n in ("Affine", "CLConv", "Convolution") if rule.startswith(n)), "")
    kind = rule.removeprefix(layer)
    known = ("Glorot",) if distribution == "Uniform" else _NORMAL
    if not layer or kind not in known:
        raise ValueError(f"{where}: the initialiser {distribution}{rule} is unknown")
    if len(shape) < (1 if layer == "Affine" else 3) or 0 in shape:
        raise ValueError(f"{where}: weights of an initialiser {rule} cannot have the shape {shape}")
    if layer == "Affine":
        n_in, n_out = shape[0], math.prod(shape[1:])
    else:
        axis = -1 if layer == "CLConv" else 0 if len(shape) == 3 else 1
        channels, kernel = shape[axis], shape[1:-1] if layer == "CLConv" else shape[axis + 1 :]
        n_in, n_out = channels * math.prod(kernel), shape[0] * math.prod(kernel)
    if distribution == "Uniform":
        return math.sqrt(6.0 / (n_in + n_out))
    if kind == "Glorot":
        return math.sqrt(2.0 / (n_in + n_out))
    return math.sqrt(2.0 / (n_out if kind == "HeBackward" else n_in))


_NORMAL = ("He", "HeForward", "HeBackward", "Glorot")
