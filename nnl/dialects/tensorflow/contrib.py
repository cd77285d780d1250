# SPDX-License-Identifier: Apache-2.0
"""tf.contrib.layers and slim: layers whose arguments a scope may give."""

from __future__ import annotations

import functools
from contextlib import contextmanager

from nnl.dialects.tensorflow import layers, losses, nn
from nnl.dialects.tensorflow.graph import (
    GraphKeys,
    control_dependencies,
    get_collection,
    get_default_graph,
)
from nnl.dialects.tensorflow.initializers import INITIALIZERS, xavier_initializer
from nnl.dialects.tensorflow.table import N, tensor
from nnl.dialects.tensorflow.variables import get_variable, variable_scope

_ZEROS, _ONES = INITIALIZERS["zeros"](), INITIALIZERS["ones"]()
_GIVEN = [{}]  # {function: {argument: value}}, the innermost scope last


def add_arg_scope(func):
    """Let arg_scope give arguments of a function."""

    @functools.wraps(func)
    def call(*args, **given):
        return func(*args, **{**_GIVEN[-1].get(call, {}), **given})

    call.scoped = True
    return call


@contextmanager
def arg_scope(list_ops_or_scope, **kwargs):
    """Arguments that functions have inside, where a call does not give them."""
    if isinstance(list_ops_or_scope, dict):
        if kwargs:
            raise ValueError("arg_scope: a scope that is used again takes no more arguments")
        inner = dict(list_ops_or_scope)
    else:
        inner = dict(_GIVEN[-1])
        for f in list_ops_or_scope:
            if not hasattr(f, "scoped"):
                raise ValueError(f"{f.__name__} is not decorated with @add_arg_scope")
            inner[f] = {**inner.get(f, {}), **kwargs}
    _GIVEN.append(inner)
    try:
        yield inner
    finally:
        _GIVEN.pop()


def _finished(y, n, activation_fn, normalizer_fn, normalizer_params, start, regularizer,
              trainable):  # fmt: skip
    if normalizer_fn is not None:
        y = normalizer_fn(y, **(normalizer_params or {}))
    elif start is not None:
        y = nn.bias_add(y, get_variable("biases", [n], None, start, regularizer, trainable))
    return y if activation_fn is None else activation_fn(y)


@add_arg_scope
def conv2d(inputs, num_outputs, kernel_size, stride=1, padding="SAME", data_format=None, rate=1,
           activation_fn=nn.relu, normalizer_fn=None, normalizer_params=None,
           weights_initializer=None, weights_regularizer=None,
           biases_initializer=_ZEROS, biases_regularizer=None, reuse=None,
           variables_collections=None, outputs_collections=None, trainable=True,
           scope=None):  # fmt: skip
    """A convolution with its weights, a bias or a normalization, and an activation."""
    x = tensor(inputs)
    window = kernel_size if isinstance(kernel_size, (list, tuple)) else (kernel_size,) * 2
    with variable_scope(scope, default_name="Conv", reuse=reuse):
        start = weights_initializer or xavier_initializer()
        shape = [*window, x.sizes[-1], num_outputs]
        w = get_variable("weights", shape, None, start, weights_regularizer, trainable)
        y = nn.conv2d(x, w, stride, padding, dilations=rate)
        return _finished(y, num_outputs, activation_fn, normalizer_fn, normalizer_params,
                         biases_initializer, biases_regularizer, trainable)  # fmt: skip


@add_arg_scope
def fully_connected(inputs, num_outputs, activation_fn=nn.relu, normalizer_fn=None,
                    normalizer_params=None, weights_initializer=None, weights_regularizer=None,
                    biases_initializer=_ZEROS, biases_regularizer=None, reuse=None,
                    variables_collections=None, outputs_collections=None, trainable=True,
                    scope=None):  # fmt: skip
    """A product of the last axis with weights, a bias or a normalization, and an activation."""
    x = tensor(inputs)
    with variable_scope(scope, default_name="fully_connected", reuse=reuse):
        start, shape = weights_initializer or xavier_initializer(), [x.sizes[-1], num_outputs]
        w = get_variable("weights", shape, None, start, weights_regularizer, trainable)
        y = N.matmul(x, w) if x.ndim == 2 else N.tensordot(x, w, [[x.ndim - 1], [0]])
        return _finished(y, num_outputs, activation_fn, normalizer_fn, normalizer_params,
                         biases_initializer, biases_regularizer, trainable)  # fmt: skip


@add_arg_scope
def max_pool2d(inputs, kernel_size, stride=2, padding="VALID", data_format=None,
               outputs_collections=None, scope=None):  # fmt: skip
    """The largest of each window."""
    return nn.max_pool(inputs, kernel_size, stride, padding, name=scope)


@add_arg_scope
def avg_pool2d(inputs, kernel_size, stride=2, padding="VALID", data_format=None,
               outputs_collections=None, scope=None):  # fmt: skip
    """The mean of each window."""
    return nn.avg_pool(inputs, kernel_size, stride, padding, name=scope)


@add_arg_scope
def dropout(inputs, keep_prob=0.5, noise_shape=None, is_training=True, outputs_collections=None,
            scope=None, seed=None):  # fmt: skip
    """nn.dropout while it trains."""
    return layers.dropout(inputs, 1 - keep_prob, noise_shape, seed, is_training)


@add_arg_scope
def flatten(inputs, outputs_collections=None, scope=None):
    """Samples as rows."""
    return layers.flatten(inputs)


def repeat(inputs, repetitions, layer, *args, **kwargs):
    """A layer several times, each with weights of its own: SCOPE/SCOPE_1, SCOPE/SCOPE_2, ..."""
    scope = kwargs.pop("scope", None) or getattr(layer, "__name__", "repeat")
    with variable_scope(scope):
        for i in range(repetitions):
            inputs = layer(inputs, *args, scope=f"{scope}_{i + 1}", **kwargs)
        return inputs


def stack(inputs, layer, stack_args, **kwargs):
    """A layer several times, with other arguments each time."""
    scope = kwargs.pop("scope", None) or layer.__name__
    with variable_scope(scope):
        for i, args in enumerate(stack_args):
            args = args if isinstance(args, (list, tuple)) else [args]
            inputs = layer(inputs, *args, scope=f"{scope}_{i + 1}", **kwargs)
        return inputs


@add_arg_scope
def batch_norm(inputs, decay=0.999, center=True, scale=False, epsilon=0.001,
               activation_fn=None, updates_collections=GraphKeys.UPDATE_OPS,
               is_training=True, reuse=None, trainable=True, scope=None, **_):  # fmt: skip
    """batch_normalization as tf.contrib.layers has it; without a collection the averages are
    updated whenever the result is computed."""
    before = len(get_collection(GraphKeys.UPDATE_OPS))
    with variable_scope(scope, default_name="BatchNorm", reuse=reuse):
        y = layers.batch_normalization.__wrapped__(
            tensor(inputs), momentum=decay, epsilon=epsilon, center=center, scale=scale,
            training=is_training, trainable=trainable,
            updates_collections=updates_collections or GraphKeys.UPDATE_OPS,
        )  # fmt: skip
    if updates_collections is None:
        every = get_default_graph().get_collection_ref(GraphKeys.UPDATE_OPS)
        mine = every[before:]
        del every[before:]
        with control_dependencies(mine):
            y = N.identity(y)
    return y if activation_fn is None else activation_fn(y)


@add_arg_scope
def layer_norm(inputs, center=True, scale=True,
               activation_fn=None, reuse=None, variables_collections=None,
                       outputs_collections=None, trainable=True,
                       begin_norm_axis=1, begin_params_axis=-1,
                       scope=None):  # fmt: skip
    """Samples normalized over the axes from one on, each on its own."""
    x = tensor(inputs)
    shape = list(x.sizes[begin_params_axis % x.ndim :])
    with variable_scope(scope, default_name="LayerNorm", reuse=reuse):
        b = get_variable("beta", shape, None, _ZEROS, None, trainable) if center else None
        g = get_variable("gamma", shape, None, _ONES, None, trainable) if scale else None
        axes = list(range(begin_norm_axis % x.ndim, x.ndim))
        mean, variance = nn.moments(x, axes, keep_dims=True)
        y = nn.batch_normalization(x, mean, variance, b, g, 1e-12)
    return y if activation_fn is None else activation_fn(y)


def l2_regularizer(scale, scope=None):
    """The loss $s \\sum w^2 / 2$ of weights."""
    return lambda w: nn.l2_loss(w) * scale


def l1_regularizer(scale, scope=None):
    """The loss $s \\sum |w|$ of weights."""
    return lambda w: N.reduce_sum(N.abs(w)) * scale


def _turned(f):
    def loss(predictions, labels, weights=1.0, **given):
        return f(labels, predictions, weights, **given)

    loss.__name__, loss.__doc__ = f.__name__, f"{f.__doc__[:-1]}, with predictions first."
    return loss


# tf.contrib.losses: as tf.losses, with predictions first
LOSSES = {name: _turned(f) for name, f in losses.LOSSES.items()}
for _name in "add_loss get_losses get_regularization_losses get_total_loss".split():
    LOSSES[_name] = getattr(losses, _name)
