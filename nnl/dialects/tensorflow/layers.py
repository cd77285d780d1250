# SPDX-License-Identifier: Apache-2.0
"""tf.layers: functions that make their variables."""

from __future__ import annotations

import numpy as np

from nnl.dialects.tensorflow import nn
from nnl.dialects.tensorflow.control import smart_cond
from nnl.dialects.tensorflow.graph import GraphKeys, add_to_collection, get_collection
from nnl.dialects.tensorflow.initializers import INITIALIZERS
from nnl.dialects.tensorflow.table import N, cast, tensor
from nnl.dialects.tensorflow.variables import get_variable, variable_scope


def _layer(default):
    """Decorator: f(x, ...) in a scope of its own, in which it makes or finds its variables."""

    def decorate(f):
        def call(inputs, *args, name=None, reuse=None,
                 trainable=True, _reuse=None, **options):  # fmt: skip
            again = reuse if reuse is not None else _reuse
            with variable_scope(name, default_name=default, reuse=again):
                return f(tensor(inputs), *args, trainable=trainable, **options)

        call.__name__, call.__doc__, call.__wrapped__ = f.__name__, f.__doc__, f
        return call

    return decorate


def _weights(name, shape, initializer, regularizer, trainable):
    return get_variable(name, shape, None, initializer, regularizer, trainable)


def _finished(y, bias, activation, regularizer=None):
    y = y if bias is None else nn.bias_add(y, bias)
    y = y if activation is None else activation(y)
    if regularizer is not None:
        add_to_collection(GraphKeys.REGULARIZATION_LOSSES, regularizer(y))
    return y


@_layer("dense")
def dense(x, units, activation=None, use_bias=True,
          kernel_initializer=None, bias_initializer=None,
          kernel_regularizer=None, bias_regularizer=None,
          activity_regularizer=None, kernel_constraint=None,
          bias_constraint=None, trainable=True):  # fmt: skip
    """$f(x w + b)$ of the last axis."""
    if x.sizes is None or x.sizes[-1] is None:
        raise ValueError(
            "The last dimension of the inputs to `Dense` should be defined. Found `None`."
        )
    w = _weights("kernel", [x.sizes[-1], units], kernel_initializer, kernel_regularizer, trainable)
    b = None
    if use_bias:
        start = bias_initializer or INITIALIZERS["zeros"]()
        b = _weights("bias", [units], start, bias_regularizer, trainable)
    y = N.matmul(x, w) if x.ndim == 2 else N.tensordot(x, w, [[x.ndim - 1], [0]])
    return _finished(y, b, activation, activity_regularizer)


def _convolution(rank, default, turned=False, depthwise=False):
    def f(x, filters, kernel_size, strides=1, padding="valid",
          data_format="channels_last", dilation_rate=1, activation=None,
          use_bias=True, kernel_initializer=None, bias_initializer=None,
          kernel_regularizer=None, bias_regularizer=None,
          activity_regularizer=None, trainable=True, depth_multiplier=1,
          depthwise_initializer=None, pointwise_initializer=None,
          **_):  # fmt: skip
        first = data_format == "channels_first"
        form = {1: "NWC", 2: "NHWC", 3: "NDHWC"}[rank]
        form = "NC" + form[1:-1] if first else form
        if x.sizes is None or x.sizes[1 if first else -1] is None:
            raise ValueError("The channel dimension of the inputs should be defined. Found `None`.")
        channels = x.sizes[1 if first else -1]
        window = kernel_size if isinstance(kernel_size, (list, tuple)) else (kernel_size,) * rank
        step = strides if isinstance(strides, (list, tuple)) else (strides,) * rank
        shape = [*window, filters, channels] if turned else [*window, channels, filters]
        if depthwise:
            w1 = _weights("depthwise_kernel", [*window, channels, depth_multiplier],
                          depthwise_initializer, None, trainable)  # fmt: skip
            w2 = _weights("pointwise_kernel", [1, 1, channels * depth_multiplier, filters],
                          pointwise_initializer, None, trainable)  # fmt: skip
            y = nn.separable_conv2d(x, w1, w2, step, padding, dilation_rate, data_format=form)
        else:
            w = _weights("kernel", shape, kernel_initializer, kernel_regularizer, trainable)
            if turned:
                y = _larger(x, w, filters, window, step, padding, form)
            elif rank == 1:
                y = nn.conv1d(x, w, step, padding)
            else:
                conv = nn.conv2d if rank == 2 else nn.conv3d
                y = conv(x, w, step, padding, data_format=form, dilations=dilation_rate)
        b = None
        if use_bias:
            start = bias_initializer or INITIALIZERS["zeros"]()
            b = _weights("bias", [filters], start, bias_regularizer, trainable)
        y = y if b is None else nn.bias_add(y, b, form)
        return _finished(y, None, activation, activity_regularizer)

    f.__name__, f.__doc__ = default, "A convolution with its weights, a bias and an activation."
    return _layer(default)(f)


def _larger(x, w, filters, window, step, padding, form):
    sizes, at = N.shape(x), (2, 3) if form.startswith("NC") else (1, 2)
    out = [sizes[0], filters, filters, filters]
    for a, k, s in zip(at, window, step, strict=True):
        n = x.sizes[a] if x.sizes[a] is not None else sizes[a]
        out[a] = n * s + (max(k - s, 0) if padding.lower() == "valid" else 0)
    return nn.conv2d_transpose(x, w, out, step, padding, data_format=form)


conv1d, conv2d, conv3d = (_convolution(n, f"conv{n}d") for n in (1, 2, 3))
conv2d_transpose = _convolution(2, "conv2d_transpose", turned=True)
separable_conv2d = _convolution(2, "separable_conv2d", depthwise=True)


def _pooling(rank, function):
    def f(inputs, pool_size, strides, padding="valid",
          data_format="channels_last", name=None):  # fmt: skip
        pool, x = getattr(nn, function), tensor(inputs)
        form = {1: "NHWC", 2: "NHWC", 3: "NDHWC"}[rank]
        form = "NC" + form[1:-1] if data_format == "channels_first" else form
        if rank > 1:
            return pool(x, pool_size, strides, padding, form, name)
        one, by = (int(np.reshape(v, -1)[0]) for v in (pool_size, strides))
        return N.squeeze(pool(N.expand_dims(x, 1), [1, one], [1, by], padding, form), [1])

    f.__name__, f.__doc__ = f"{function}{rank}d", "Windows of so many pixels become one."
    return f


max_pooling1d, max_pooling2d, max_pooling3d = (_pooling(n, "max_pool") for n in (1, 2, 3))
average_pooling1d, average_pooling2d, average_pooling3d = (
    _pooling(n, "avg_pool") for n in (1, 2, 3)
)


def dropout(inputs, rate=0.5, noise_shape=None, seed=None,
            training=False, name=None):  # fmt: skip
    """nn.dropout while it trains."""
    x = tensor(inputs)
    return smart_cond(training, lambda: nn.dropout(x, 1 - rate, noise_shape, seed, name), lambda: x)


def flatten(inputs, name=None, data_format="channels_last"):
    """Samples as rows."""
    x = tensor(inputs)
    rest = x.sizes[1:] if x.sizes is not None else (None,)
    if None in rest:
        return N.reshape(x, [N.shape(x)[0], -1], name=name)
    return N.reshape(x, [-1, int(np.prod(rest))], name=name)


@_layer("batch_normalization")
def batch_normalization(x, axis=-1, momentum=0.99, epsilon=1e-3,
                        center=True, scale=True, beta_initializer=None,
                        gamma_initializer=None, moving_mean_initializer=None,
                        moving_variance_initializer=None, beta_regularizer=None,
                        gamma_regularizer=None, training=False,
                        trainable=True, updates_collections=GraphKeys.UPDATE_OPS,
                        **_):  # fmt: skip
    """Normalized by statistics of the batch while it trains, else by their moving averages.

    What updates those is in the collection "update_ops".
    """
    at = axis % x.ndim
    n = x.sizes[at]
    zeros, ones = INITIALIZERS["zeros"](), INITIALIZERS["ones"]()
    gamma = (
        _weights("gamma", [n], gamma_initializer or ones, gamma_regularizer, trainable)
        if scale
        else np.ones(n, np.float32)
    )
    beta = (
        _weights("beta", [n], beta_initializer or zeros, beta_regularizer, trainable)
        if center
        else np.zeros(n, np.float32)
    )
    mean = _weights("moving_mean", [n], moving_mean_initializer or zeros, None, False)
    variance = _weights("moving_variance", [n], moving_variance_initializer or ones, None, False)
    fused = x.ndim == 4 and at in (1, 3)
    axes = [i for i in range(x.ndim) if i != at]
    wide = [n if i == at else 1 for i in range(x.ndim)]
    form = "NCHW" if at == 1 else "NHWC"

    def of_batch():
        if fused:
            return nn.fused_batch_norm(x, gamma, beta, epsilon=epsilon, data_format=form)
        m, v = nn.moments(x, axes)
        return _normalized(m, v), m, v

    def _normalized(m, v):
        if at != x.ndim - 1:
            m, v, b, g = (N.reshape(p, wide) for p in (m, v, beta, gamma))
            return nn.batch_normalization(x, m, v, b, g, epsilon)
        return nn.batch_normalization(x, m, v, beta, gamma, epsilon)

    def kept():
        if fused:
            y = nn.fused_batch_norm(x, gamma, beta, mean, variance, epsilon, form, False)[0]
            return y, mean, variance
        return _normalized(mean, variance), mean, variance

    if training is False or training is None:
        return kept()[0]
    y, m, v = smart_cond(training, of_batch, kept)
    rate = 1 - momentum
    if training is not True:
        rate = N.multiply(cast(training, np.float32), np.float32(rate))
    for old, new in ((mean, m), (variance, v)):
        step = old.assign_sub((old - N.stop_gradient(new)) * rate)
        if updates_collections is not None:
            add_to_collection(updates_collections, step.operator)
    return y


def _class(name, function, default):
    class Layer:
        """A layer that has the same variables at every call."""

        def __init__(self, *args, name=None, trainable=True, **options):
            self._args, self._options = args, options
            self.name, self.trainable, self._scope = name, trainable, None

        def __call__(self, inputs, **more):
            """What it computes."""
            if default is None:
                return function(inputs, *self._args, **self._options, **more)
            again = self._scope is not None
            with variable_scope(self._scope if again else self.name, default, reuse=again) as scope:
                self._scope, self.name = scope, scope.name
                return function.__wrapped__(
                    tensor(inputs), *self._args, trainable=self.trainable, **self._options, **more
                )

        apply = __call__

        @property
        def variables(self):
            """Its variables, in the order that they were made in."""
            if self._scope is None:
                return []
            return get_collection(GraphKeys.GLOBAL_VARIABLES, f"{self._scope.name}/")

        @property
        def trainable_variables(self):
            """Those that are trained."""
            return [v for v in self.variables if v in get_collection("trainable_variables")]

        weights, trainable_weights = variables, trainable_variables

    Layer.__name__ = Layer.__qualname__ = name
    return Layer


Dense = _class("Dense", dense, "dense")
Conv1D, Conv2D, Conv3D = (
    _class(f"Conv{n}D", f, f"conv{n}d") for n, f in ((1, conv1d), (2, conv2d), (3, conv3d))
)
Conv2DTranspose = _class("Conv2DTranspose", conv2d_transpose, "conv2d_transpose")
BatchNormalization = _class("BatchNormalization", batch_normalization, "batch_normalization")
Flatten, Dropout = _class("Flatten", flatten, None), _class("Dropout", dropout, None)
MaxPooling2D = _class("MaxPooling2D", max_pooling2d, None)
AveragePooling2D = _class("AveragePooling2D", average_pooling2d, None)
