# SPDX-License-Identifier: Apache-2.0
"""Losses in terms of simpler functions."""

from __future__ import annotations

import math
from typing import Any

import nnl.functions as F
from nnl.core.ops.op import OPS
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


def _pick(a: Any, x: Any, index: Any) -> Any:
    """One element of those along some axes."""
    kept = [i for i in range(x.ndim) if i not in a.axes]
    rows = F.transpose(x, (*kept, *sorted(a.axes)))
    rows = F.reshape(rows, (*rows.shape[: len(kept)], x.size // max(index.size, 1)))
    at = F.reshape(F.maximum_scalar(index, 0.0), (*rows.shape[:-1], 1))
    y = F.reshape(OPS["take_along"](rows, at, axis=len(kept)), index.shape)
    return _loss(y, index)


def _labelled(a: Any, x: Any, target: Any) -> Any:
    """Elements of x at labels."""
    return OPS["take_along"](x, F.maximum_scalar(target, 0.0), axis=a.axis)


def _loss(y: Any, target: Any) -> Any:
    """0 where there is no label."""
    return F.where(F.greater_equal_scalar(target, 0.0), y, y * 0.0)


def _cross_entropy(a: Any, x: Any, target: Any) -> Any:
    chosen = F.identity(_labelled(a, F.log_softmax(x, a.axis), target))
    return _loss(chosen * -1.0, target)


def _categorical(a: Any, x: Any, target: Any) -> Any:
    return _loss(F.log(F.maximum_scalar(_labelled(a, x, target), TINY)) * -1.0, target)


def _confusion(a: Any, x: Any, target: Any) -> Any:
    """One-hot labels times one-hot guesses; a negative label is a row of zeros."""
    n, count, cast = x.shape[a.axis], target.size, OPS["cast"]
    label, guess = (
        F.reshape(cast(v, dtype="float32"), (count, 1))
        for v in (target, F.max(x, a.axis, only_index=True))
    )
    known = F.greater_equal_scalar(label, 0.0)
    rows = F.one_hot(F.maximum_scalar(label, 0.0), (n,)) * known
    pairs = F.batch_matmul(rows, F.one_hot(guess, (n,)), transpose_a=True)
    return cast(pairs, dtype="int32")


RULES = {
    "sigmoid_cross_entropy": _sigmoid_cross_entropy,
    "binary_cross_entropy": _binary_cross_entropy,
    "huber_loss": _huber,
    "epsilon_insensitive_loss": lambda a, x, y: F.maximum_scalar(F.abs(x - y) - a.epsilon, 0.0),
    "kl_multinomial": _kl,
    "softmax_cross_entropy": _cross_entropy,
    "categorical_cross_entropy": _categorical,
    "confusion_matrix": _confusion,
    "pick": _pick,
}
