# SPDX-License-Identifier: Apache-2.0
"""Fillers: what parameters begin with."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from nnl.converters.caffe.messages import enum_name
from nnl.core.ops import random

Array = np.ndarray[Any, Any]
FLOAT = np.float32


def _fan(shape: tuple[int, ...], p: Any) -> float:
    count = math.prod(shape)
    fan_in = count / shape[0] if shape else 1
    fan_out = count / shape[1] if len(shape) > 1 else count
    norm = enum_name(p, "variance_norm")
    return {"FAN_IN": fan_in, "FAN_OUT": fan_out}.get(norm, (fan_in + fan_out) / 2)


def _generator() -> np.random.Generator:
    """Numbers that `nnl.seed` restarts."""
    return np.random.default_rng(random.prng.randint(0, 2**31, 4))


def _uniform(shape: tuple[int, ...], low: float, high: float) -> Array:
    x = _generator().random(shape, FLOAT)
    x *= high - low
    x += low
    return x


def _normal(shape: tuple[int, ...], mean: float, std: float) -> Array:
    x = _generator().standard_normal(shape, FLOAT)
    x *= std
    if mean:
        x += mean
    return x


def _gaussian(shape: tuple[int, ...], p: Any) -> Array:
    x = _normal(shape, p.mean, p.std)
    if p.sparse >= 0:
        # on average `sparse` inputs of every output, which the first axis counts
        chance = min(1.0, p.sparse / (math.prod(shape) / shape[0]))
        x *= _generator().random(shape, FLOAT) < chance
    return x


def _unit_ball(shape: tuple[int, ...], p: Any) -> Array:
    x = _uniform(shape, 0, 1)
    rows = x.reshape(shape[0], -1)
    rows /= rows.sum(axis=1, keepdims=True)
    return x


def _bilinear(shape: tuple[int, ...], p: Any) -> Array:
    if len(shape) != 4 or shape[2] != shape[3]:
        raise ValueError(f"the bilinear filler is for (.., .., k, k), got {shape}")
    k = shape[3]
    f = math.ceil(k / 2)
    centre = (k - 1) / (2.0 * f)
    line = 1 - np.abs(np.arange(k) / f - centre)
    return np.broadcast_to(np.outer(line, line), shape).astype(FLOAT)


FILLERS = {
    "constant": lambda shape, p: np.full(shape, p.value, FLOAT),
    "uniform": lambda shape, p: _uniform(shape, p.min, p.max),
    "gaussian": _gaussian,
    "positive_unitball": _unit_ball,
    "xavier": lambda shape, p: _uniform(
        shape, -math.sqrt(3 / _fan(shape, p)), math.sqrt(3 / _fan(shape, p))
    ),
    "msra": lambda shape, p: _normal(shape, 0, math.sqrt(2 / _fan(shape, p))),
    "bilinear": _bilinear,
}
ALIKE = ("constant", "uniform", "gaussian", "xavier", "msra")  # wherever an element is


def fill(shape: tuple[int, ...], p: Any, where: str) -> Array:
    """An array of values as a FillerParameter says.

    Raises:
        ValueError: There is no such filler, or it does not fit the shape.
    """
    if p.type not in FILLERS:
        raise ValueError(f"{where}: unknown filler {p.type!r}, wanted one of {', '.join(FILLERS)}")
    try:
        return FILLERS[p.type](shape, p)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
