# SPDX-License-Identifier: Apache-2.0
"""tf.nn: convolutions, pooling, normalization, cross entropies, embeddings."""

from __future__ import annotations

import numpy as np

import nnl.functions as F
import nnl.workspace as ws
from nnl.converters.onnx.values.values import var
from nnl.dialects.tensorflow.initializers import random_uniform
from nnl.dialects.tensorflow.operation import convert, handled, made
from nnl.dialects.tensorflow.table import N, cast, defined, pair, tensor, whole


def _sizes(value, spatial, first):
    """A window or strides for all axes."""
    given = np.reshape(1 if value is None else value, -1).tolist()
    if len(given) == spatial + 2:
        return [int(n) for n in given]
    given = given * spatial if len(given) == 1 else given
    return [1, 1, *given] if first else [1, *given, 1]


def _sliding(op, x, strides, padding, data_format, name, *more, dilations=None, **attributes):
    x = tensor(x)
    spatial = (x.ndim or (5 if "3D" in op else 4)) - 2
    form = data_format or ("NHWC" if spatial == 2 else "NDHWC")
    if not isinstance(padding, str):
        attributes["explicit_paddings"] = np.reshape(padding, -1).tolist()
        padding = "EXPLICIT"
    if padding.upper() not in ("SAME", "VALID", "EXPLICIT"):
        raise ValueError(f"{op}: padding is {padding!r}, wanted 'SAME' or 'VALID'")
    first = form.startswith("NC")
    attributes |= {"padding": padding.upper(), "data_format": form}
    windows = {"strides": strides, "dilations": dilations}
    if "ksize" in attributes:
        windows["ksize"] = attributes["ksize"]
    attributes |= {k: _sizes(v, spatial, first) for k, v in windows.items()}
    return handled(op, x, *[tensor(w, x.dtype) for w in more], name=name, **attributes)


def _conv(op, form):
    def f(input, filters, strides=None, padding=None, use_cudnn_on_gpu=True, data_format=form,
          dilations=None, name=None):  # fmt: skip
        return _sliding(
            op, input, strides, padding, data_format, name, filters, dilations=dilations
        )

    return f


def _pool(op):
    def f(value, ksize, strides, padding, data_format=None, name=None):
        return _sliding(op, value, strides, padding, data_format, name, ksize=ksize)

    return f


def _conv1d(value, filters, stride=None, padding=None, use_cudnn_on_gpu=True, data_format="NWC",
            name=None):  # fmt: skip
    x, w = (N.expand_dims(tensor(v), at) for v, at in ((value, 1), (filters, 0)))
    step = int(np.reshape(stride, -1)[-1])
    return N.squeeze(_sliding("Conv2D", x, [1, step], padding, "NHWC", name, w), [1])


def _separable(input, depthwise_filter, pointwise_filter, strides, padding, rate=None, name=None,
               data_format="NHWC"):  # fmt: skip
    x = NN.depthwise_conv2d(
        input, depthwise_filter, strides, padding, rate, data_format=data_format
    )
    return NN.conv2d(x, pointwise_filter, 1, "VALID", data_format=data_format, name=name)


def _transposed(value, filters, output_shape, strides, padding="SAME", data_format="NHWC",
                name=None):  # fmt: skip
    x, w, sizes = tensor(value), tensor(filters), whole(output_shape)
    first = data_format.startswith("NC")
    if None not in (x.sizes, w.sizes) and x.sizes[1 if first else -1] != w.sizes[3]:
        raise ValueError(
            f"input channels does not match filter's input channels, {x.shape[-1]} != {w.sizes[3]}"
        )
    how = {"padding": padding.upper(), "data_format": data_format, "dilations": [1, 1, 1, 1]}
    how["strides"] = _sizes(strides, 2, first)
    y = handled("Conv2DBackpropInput", sizes, w, x, name=name or "conv2d_transpose", **how)
    y.dtype = x.dtype
    if isinstance(output_shape, (list, tuple)):
        y.set_shape([None if isinstance(n, ws.Tensor) else n for n in output_shape])
    return y


def _dropout(x, keep_prob=None, noise_shape=None, seed=None, name=None, rate=None):
    x = tensor(x)
    keep = convert(1 - rate if keep_prob is None else keep_prob, x.dtype)
    if isinstance(keep, ws.Tensor) or noise_shape is not None:
        shape = N.shape(x) if noise_shape is None else noise_shape
        return N.multiply(x / keep, N.floor(keep + random_uniform(shape, seed=seed)), name=name)
    if not 0 < keep <= 1:
        raise ValueError(
            f"keep_prob must be a scalar tensor or a float in the range (0, 1], got {keep}"
        )
    p, start = 1 - float(keep), -1 if seed is None else seed
    if not p:
        return x
    return made("dropout", lambda v: F.dropout(var(v), p, start), x, name=name, constant=False)


def _moments(x, axes, shift=None, name=None, keep_dims=False, keepdims=None):
    x, keep = tensor(x), bool(keep_dims if keepdims is None else keepdims)
    mean = N.reduce_mean(x, axes, True)
    variance = N.reduce_mean(N.squared_difference(x, N.stop_gradient(mean)), axes, True)
    both = mean, variance
    return both if keep else tuple([N.squeeze(v, axes) for v in both])


def _batch_normalization(x, mean, variance, offset, scale, variance_epsilon, name=None):
    factor = N.rsqrt(tensor(variance) + variance_epsilon)
    factor = factor if scale is None else factor * scale
    shift = -tensor(mean) * factor
    return N.add(tensor(x) * factor, shift if offset is None else shift + offset, name=name)


def _fused(x, scale, offset, mean=None, variance=None, epsilon=0.001, data_format="NHWC",
           is_training=True, name=None):  # fmt: skip
    how = {"epsilon": epsilon, "data_format": data_format, "is_training": is_training}
    empty = np.zeros(0, np.float32)
    given = [tensor(x), tensor(scale), tensor(offset)]
    given += [empty if v is None else tensor(v) for v in (mean, variance)]
    y, *found = handled("FusedBatchNorm", *given, name=name, count=3, **how)
    return y, *map(N.stop_gradient, found)


def _with_names(function, sentinel, labels, logits):
    if sentinel is not None or labels is None or logits is None:
        raise ValueError(
            f"Only call `{function}` with named arguments (labels=..., logits=..., ...)"
        )


def _softmax_loss(_sentinel=None, labels=None, logits=None, axis=-1, name=None):
    _with_names("softmax_cross_entropy_with_logits", _sentinel, labels, logits)
    x = tensor(logits)
    t = cast(tensor(labels, None if isinstance(labels, ws.Tensor) else x.dtype), x.dtype)

    def compute(x, t):
        x, t = (F.broadcast(v, np.broadcast_shapes(x.shape, t.shape)) for v in (var(x), var(t)))
        at = axis % x.ndim
        return F.mul_scalar(F.sum(F.mul2(t, F.log_softmax(x, axis=at)), axis=at), -1.0)

    return made("SoftmaxCrossEntropyWithLogits", compute, x, t, name=name)


def _softmax_loss_of_fixed(_sentinel=None, labels=None, logits=None, dim=-1, name=None, axis=None):
    _with_names("softmax_cross_entropy_with_logits", _sentinel, labels, logits)
    at = dim if axis is None else axis
    return _softmax_loss(labels=N.stop_gradient(labels), logits=logits, axis=at, name=name)


def _sparse_loss(_sentinel=None, labels=None, logits=None, name=None):
    _with_names("sparse_softmax_cross_entropy_with_logits", _sentinel, labels, logits)
    x, t = tensor(logits), tensor(labels)
    if None not in (x.ndim, t.ndim) and x.ndim != t.ndim + 1:
        raise ValueError(
            f"Rank mismatch: Rank of labels (received {t.ndim}) should equal rank of logits minus "
            f"1 (received {x.ndim})."
        )

    def compute(x, t):
        x, t = var(x), F.reshape(var(t), (*t.shape, 1))
        return F.reshape(F.softmax_cross_entropy(x, t, axis=x.ndim - 1), t.shape[:-1])

    return made("SparseSoftmaxCrossEntropyWithLogits", compute, x, t, name=name)


def _sigmoid_loss(_sentinel=None, labels=None, logits=None, name=None):
    _with_names("sigmoid_cross_entropy_with_logits", _sentinel, labels, logits)
    x = tensor(logits)
    t = tensor(labels, x.dtype)
    if not x.shape.is_compatible_with(t.sizes):
        raise ValueError(
            f"logits and labels must have the same shape, received {x.shape} vs {t.shape}"
        )
    return N.add(N.relu(x) - x * t, N.softplus(-N.abs(x)), name=name or "logistic_loss")


def _weighted_loss(targets=None, logits=None, pos_weight=None, name=None, labels=None):
    x = tensor(logits)
    t = tensor(targets if labels is None else labels, x.dtype)
    weight, tail = 1.0 + (pos_weight - 1.0) * t, N.softplus(-N.abs(x)) + N.relu(-x)
    return N.add((1.0 - t) * x, weight * tail, name=name)


def _sampled(weights, biases, labels, inputs, num_sampled, num_classes, num_true, values, what):
    """(scores of the true class, those of classes drawn log-uniformly, these classes, the labels);
    from each score goes the logarithm of how often its class is drawn."""
    if num_true != 1 or values is not None:
        raise NotImplementedError(f"{what}: num_true is 1 and sampled_values are drawn here")
    target, scale = N.reshape(cast(labels, np.int32), [-1]), float(np.log(num_classes + 1.0))
    drawn = cast(N.exp(random_uniform([num_sampled]) * scale) - 1.0, np.int32)
    drawn = N.minimum(N.stop_gradient(drawn), num_classes - 1)

    def expected(ids):
        c = cast(ids, np.float32)
        return N.log(N.log((c + 2.0) / (c + 1.0)) / scale * float(num_sampled))

    true = N.reduce_sum(inputs * N.gather(weights, target), 1)
    true = true + N.gather(biases, target) - expected(target)
    noise = N.matmul(inputs, N.gather(weights, drawn), transpose_b=True)
    return true, noise + N.gather(biases, drawn) - expected(drawn), drawn, target


def _nce_loss(weights, biases, labels, inputs, num_sampled, num_classes, num_true=1,
              sampled_values=None, remove_accidental_hits=False, partition_strategy="mod",
              name="nce_loss"):  # fmt: skip
    """Noise-contrastive estimation: the true class against classes drawn log-uniformly.

    Source: Gutmann and Hyvarinen, Noise-contrastive estimation, AISTATS 2010.
    """
    true, noise, *_ = _sampled(weights, biases, labels, inputs, num_sampled, num_classes, num_true,
                               sampled_values, "nce_loss")  # fmt: skip
    found = _sigmoid_loss(labels=N.zeros_like(noise), logits=noise)
    positive = _sigmoid_loss(labels=N.ones_like(true), logits=true)
    return N.add(positive, N.reduce_sum(found, 1), name=name)


def _sampled_softmax_loss(weights, biases, labels, inputs, num_sampled, num_classes, num_true=1,
                          sampled_values=None, remove_accidental_hits=True,
                          partition_strategy="mod", name="sampled_softmax_loss",
                          seed=None):  # fmt: skip
    """The loss of softmax over the true class and classes drawn log-uniformly.

    Source: Jean et al., On Using Very Large Target Vocabulary, ACL 2015.
    """
    true, noise, drawn, target = _sampled(
        weights, biases, labels, inputs, num_sampled, num_classes, num_true, sampled_values, name
    )
    if remove_accidental_hits:
        hits = N.equal(N.expand_dims(drawn, 0), N.expand_dims(target, 1))
        noise = noise - 1e9 * cast(hits, np.float32)
    whole = N.concat([N.expand_dims(true, 1), noise], 1)
    return N.subtract(N.reduce_logsumexp(whole, 1), true, name=name)


# fmt: off
NN = defined({
    "conv1d": _conv1d,
    "conv2d": _conv("Conv2D", "NHWC"),
    "conv3d": _conv("Conv3D", "NDHWC"),
    "depthwise_conv2d": lambda input, filters, strides, padding, rate=None, name=None,
        data_format="NHWC": _sliding("DepthwiseConv2dNative", input, strides, padding, data_format,
                                     name, filters, dilations=rate),
    "separable_conv2d": _separable,
    "atrous_conv2d": lambda value, filters, rate, padding, name=None: NN.conv2d(
        value, filters, 1, padding, dilations=rate, name=name),
    "conv2d_transpose": _transposed,
    "max_pool": _pool("MaxPool"),
    "avg_pool": _pool("AvgPool"),
    "max_pool3d": _pool("MaxPool"),
    "avg_pool3d": _pool("AvgPool"),
    "bias_add": lambda value, bias, data_format=None, name=None: handled(
        "BiasAdd", *map(tensor, pair(value, bias)), name=name, data_format=data_format or "NHWC"),
    "xw_plus_b": lambda x, weights, biases, name=None: NN.bias_add(
        N.matmul(x, weights), biases, name=name),
    "relu_layer": lambda x, weights, biases, name=None: N.relu(
        NN.xw_plus_b(x, weights, biases), name=name),
    "leaky_relu": lambda features, alpha=0.2, name=None: handled(
        "LeakyRelu", tensor(features), name=name, alpha=alpha),
    "crelu": lambda features, name=None, axis=-1: N.relu(
        N.concat([x := tensor(features), -x], axis), name=name),
    "dropout": _dropout,
    "moments": _moments,
    "batch_normalization": _batch_normalization,
    "batch_norm_with_global_normalization":
        lambda t, m, v, beta, gamma, variance_epsilon, scale_after_normalization, name=None:
        _batch_normalization(t, m, v, beta, gamma if scale_after_normalization else None,
                             variance_epsilon, name),
    "fused_batch_norm": _fused,
    "l2_normalize": lambda x, axis=None, epsilon=1e-12, name=None: N.multiply(
        x, N.rsqrt(N.maximum(N.reduce_sum(N.square(x), axis, True), epsilon)), name=name),
    "softmax_cross_entropy_with_logits": _softmax_loss_of_fixed,
    "softmax_cross_entropy_with_logits_v2": _softmax_loss,
    "sparse_softmax_cross_entropy_with_logits": _sparse_loss,
    "sigmoid_cross_entropy_with_logits": _sigmoid_loss,
    "weighted_cross_entropy_with_logits": _weighted_loss,
    "nce_loss": _nce_loss,
    "sampled_softmax_loss": _sampled_softmax_loss,
    "embedding_lookup": lambda params, ids, partition_strategy="mod", name=None, **_: N.gather(
        params[0] if isinstance(params, list) else params, ids, name=name),
    "zero_fraction": lambda value, name=None: N.reduce_mean(
        cast(N.equal(tensor(value), 0), np.float32), name=name),
    "local_response_normalization": N.lrn,
    "swish": lambda features: N.multiply(x := tensor(features), N.sigmoid(x)),
    **{name: N[name] for name in (
        "sigmoid tanh relu relu6 elu selu softplus softsign softmax log_softmax l2_loss lrn top_k "
        "in_top_k space_to_depth depth_to_space").split()},
})
# fmt: on
globals().update(NN)
