# SPDX-License-Identifier: Apache-2.0
"""Losses in terms of simpler functions."""

from __future__ import annotations

import math
from typing import Any

import nnl.functions as F
from nnl.functions.loss import KL_EPSILON, TINY


def _sigmoid_cross_entropy(a: Any, x: Any, t: Any) -> Any:
    return F.relu(x) - x * t + F.log(F.exp(F.abs(x) * -1.0) + 1.0)


def _binary_cross_entropy(a: Any, x: Any, t: Any) -> Any:
    p, q = F.maximum_scalar(x, TINY), F.maximum_scalar(1.0 - x, TINY)
    return (t * F.log(p) + (1.0 - t) * F.log(q)) * -1.0


def _huber(a: Any, x: Any, y: Any) -> Any:
    d = F.abs(x - y)
    near = F.minimum_scalar(d, a.delta)
    return near * near + (d - near) * (2.0 * a.delta)


def _kl(a: Any, p: Any, q: Any) -> Any:
    y = (F.log(p + KL_EPSILON) - F.log(q + KL_EPSILON)) * p
    rows = p.shape[: a.base_axis]
    return F.sum(F.reshape(y, (*rows, y.size // math.prod(rows))), axis=len(rows), keepdims=True)


RULES = {
    "sigmoid_cross_entropy": _sigmoid_cross_entropy,
    "binary_cross_entropy": _binary_cross_entropy,
    "huber_loss": _huber,
    "epsilon_insensitive_loss": lambda a, x, y: F.maximum_scalar(F.abs(x - y) - a.epsilon, 0.0),
    "kl_multinomial": _kl,
}
