# SPDX-License-Identifier: Apache-2.0
"""tf.losses: losses of samples, weighted and reduced to one number."""

from __future__ import annotations

from nnl.dialects.tensorflow import nn
from nnl.dialects.tensorflow.graph import GraphKeys, add_to_collection, get_collection
from nnl.dialects.tensorflow.table import N, cast, tensor


class Reduction:
    """What becomes of the losses of samples."""

    NONE, SUM, MEAN = "none", "weighted_sum", "weighted_mean"
    SUM_OVER_BATCH_SIZE = "weighted_sum_over_batch_size"
    SUM_BY_NONZERO_WEIGHTS = SUM_OVER_NONZERO_WEIGHTS = "weighted_sum_by_nonzero_weights"


def compute_weighted_loss(losses, weights=1.0, scope=None, loss_collection=GraphKeys.LOSSES,
                          reduction=Reduction.SUM_BY_NONZERO_WEIGHTS):  # fmt: skip
    """Losses times weights, reduced to one number, which is in a collection."""
    losses = tensor(losses)
    weights = tensor(weights, losses.dtype)
    loss = losses * weights
    if reduction != Reduction.NONE:
        every, loss = weights + losses * 0.0, N.reduce_sum(loss)
        if reduction == Reduction.MEAN:
            loss = N.div_no_nan(loss, N.reduce_sum(every))
        elif reduction == Reduction.SUM_OVER_BATCH_SIZE:
            loss = loss / cast(N.size(losses), losses.dtype)
        elif reduction == Reduction.SUM_BY_NONZERO_WEIGHTS:
            present = cast(N.not_equal(N.stop_gradient(every), 0.0), losses.dtype)
            loss = N.div_no_nan(loss, N.reduce_sum(present))
    if loss_collection:
        add_to_collection(loss_collection, loss)
    return loss


def _loss(name, f):
    def call(labels, predictions=None, weights=1.0, *args, logits=None, scope=None,
             loss_collection=GraphKeys.LOSSES, reduction=Reduction.SUM_BY_NONZERO_WEIGHTS,
             **options):  # fmt: skip
        x = tensor(predictions if logits is None else logits)
        if name != "sparse_softmax_cross_entropy":
            labels = cast(tensor(labels, None if hasattr(labels, "dtype") else x.dtype), x.dtype)
            x.shape.assert_is_compatible_with(labels.sizes)
        losses = f(labels, x, *args, **options)
        return compute_weighted_loss(losses, weights, scope, loss_collection, reduction)

    call.__name__, call.__doc__ = name, f"The loss {name}."
    return call


def _huber(t, x, delta=1.0):
    error = N.abs(x - t)
    part = N.minimum(error, delta)
    return 0.5 * part * part + delta * (error - part)


def _smooth(t, by, to):
    return t * (1.0 - by) + by * to if by else t


LOSSES = {
    "mean_squared_error": lambda t, x: N.squared_difference(x, t),
    "absolute_difference": lambda t, x: N.abs(x - t),
    "log_loss": lambda t, x, epsilon=1e-7: (
        -t * N.log(x + epsilon) - (1.0 - t) * N.log(1.0 - x + epsilon)
    ),
    "huber_loss": _huber,
    "hinge_loss": lambda t, x: N.relu(1.0 - (2.0 * t - 1.0) * x),
    "cosine_distance": lambda t, x, axis=None, dim=None: (
        1.0 - N.reduce_sum(t * x, dim if axis is None else axis, True)
    ),
    "sigmoid_cross_entropy": lambda t, x, label_smoothing=0: nn.sigmoid_cross_entropy_with_logits(
        labels=_smooth(t, label_smoothing, 0.5), logits=x
    ),
    "softmax_cross_entropy": lambda t, x, label_smoothing=0: nn.softmax_cross_entropy_with_logits(
        labels=_smooth(t, label_smoothing, 1 / (x.sizes[-1] or 1)), logits=x
    ),
    "sparse_softmax_cross_entropy": lambda t, x: nn.sparse_softmax_cross_entropy_with_logits(
        labels=t, logits=x
    ),
}
LOSSES = {name: _loss(name, f) for name, f in LOSSES.items()}


def add_loss(loss, loss_collection=GraphKeys.LOSSES):
    """Note a loss."""
    add_to_collection(loss_collection, loss)


def get_losses(scope=None, loss_collection=GraphKeys.LOSSES):
    """Losses that were noted."""
    return get_collection(loss_collection, scope)


def get_regularization_losses(scope=None):
    """Losses of regularizers."""
    return get_collection(GraphKeys.REGULARIZATION_LOSSES, scope)


def get_regularization_loss(scope=None, name=None):
    """The sum of the losses of regularizers."""
    return N.add_n(get_regularization_losses(scope) or [0.0], name=name)


def get_total_loss(add_regularization_losses=True, name=None):
    """The sum of all losses that were noted."""
    more = get_regularization_losses() if add_regularization_losses else []
    return N.add_n([*get_losses(), *more], name=name)
