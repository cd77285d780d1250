# SPDX-License-Identifier: Apache-2.0
"""tf.metrics: means over all batches so far, in local variables."""

from __future__ import annotations

import numpy as np

from nnl.dialects.tensorflow.graph import GraphKeys, add_to_collection
from nnl.dialects.tensorflow.table import N, cast, tensor
from nnl.dialects.tensorflow.variables import Variable, variable_scope


def _total(name):
    return Variable(0.0, False, [GraphKeys.LOCAL_VARIABLES], name=name)


def mean(values, weights=None, metrics_collections=None, updates_collections=None, name=None):
    """(the mean of all values so far, what adds those of this batch)."""
    with variable_scope(name, default_name="mean"):
        total, count = _total("total"), _total("count")
        x = cast(values, np.float32)
        w = N.ones_like(x) if weights is None else cast(weights, np.float32) + 0.0 * x
        added = total.assign_add(N.reduce_sum(x * w)), count.assign_add(N.reduce_sum(w))
        value, update = N.div_no_nan(total, count), N.div_no_nan(*added)
    for keys, t in ((metrics_collections, value), (updates_collections, update)):
        for key in [keys] if isinstance(keys, str) else keys or ():
            add_to_collection(key, t)
    return value, update


def _of_pairs(name, f, text):
    def metric(labels, predictions, weights=None, metrics_collections=None,
               updates_collections=None, name=name):  # fmt: skip
        found = f(tensor(labels), tensor(predictions))
        return mean(found, weights, metrics_collections, updates_collections, name)

    metric.__name__, metric.__doc__ = name, f"{text}: (of all so far, what adds this batch)."
    return metric


def _same(t, x):
    return N.equal(cast(t, x.dtype), x)


def _apart(t, x):
    return cast(x, np.float32) - cast(t, np.float32)


accuracy = _of_pairs("accuracy", _same, "How often labels and predictions are equal")
mean_squared_error = _of_pairs(
    "mean_squared_error", lambda t, x: N.square(_apart(t, x)), "The mean of squared differences"
)
mean_absolute_error = _of_pairs(
    "mean_absolute_error", lambda t, x: N.abs(_apart(t, x)), "The mean of differences"
)


def _among(name, which, text):
    def metric(labels, predictions, weights=None, metrics_collections=None,
               updates_collections=None, name=name):  # fmt: skip
        t, x = (cast(cast(v, np.bool_), np.float32) for v in (labels, predictions))
        own = which(t, x) if weights is None else which(t, x) * cast(weights, np.float32)
        return mean(t * x, own, metrics_collections, updates_collections, name)

    metric.__name__, metric.__doc__ = name, f"{text}: (of all so far, what adds this batch)."
    return metric


precision = _among("precision", lambda t, x: x, "How many of those found are right")
recall = _among("recall", lambda t, x: t, "How many of those that are right are found")
