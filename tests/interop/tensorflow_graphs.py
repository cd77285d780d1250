# SPDX-License-Identifier: Apache-2.0
"""Frozen graphs that TensorFlow writes: a program for a Python that has it.

    python tensorflow_graphs.py FOLDER

For every case it writes NAME.pb and NAME.npz, the inputs by name and the output `result`; for
networks of Keras also NAME, a SavedModel. Cases of control flow are written in both versions.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", TF_ENABLE_ONEDNN_OPTS="0", CUDA_VISIBLE_DEVICES="")

import numpy as np
import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

rng = np.random.default_rng(0)
raw, layers = tf.raw_ops, tf.keras.layers


def n(*shape: int) -> Any:
    """Random numbers."""
    return rng.normal(size=shape).astype(np.float32)


def positive(*shape: int) -> Any:
    """Random numbers above 0."""
    return np.abs(n(*shape)) + np.float32(0.1)


IMAGE, VOLUME, MATRIX = n(2, 7, 9, 4), n(1, 5, 6, 4, 2), n(3, 4)
CASES: dict[str, tuple[Any, ...]] = {}  # function, its inputs


def windows() -> None:
    """Convolutions and pooling."""
    w, wide = n(3, 2, 4, 5), n(3, 3, 6, 4)
    for pad in ("SAME", "VALID"):
        for s in (1, 2):
            key = f"{pad} {s}"
            CASES[f"conv {key}"] = lambda x, p=pad, s=s: tf.nn.conv2d(x, w, s, p) + n(5), IMAGE
            CASES[f"depthwise {key}"] = (
                lambda x, p=pad, s=s: tf.nn.depthwise_conv2d(x, w, [1, s, s, 1], p),
                IMAGE,
            )
            CASES[f"max {key}"] = lambda x, p=pad, s=s: tf.nn.max_pool2d(x, 3, s, p), IMAGE
            CASES[f"mean {key}"] = lambda x, p=pad, s=s: tf.nn.avg_pool2d(x, 3, s, p), IMAGE
            size = [7 * s, 9 * s] if pad == "SAME" else [6 * s + 3, 8 * s + 3]
            CASES[f"deconv {key}"] = (
                lambda x, p=pad, s=s, m=size: tf.nn.conv2d_transpose(x, wide, [2, *m, 6], s, p),
                IMAGE,
            )
    rows = [[0, 0], [1, 2], [0, 3], [0, 0]]
    CASES["conv dilated"] = lambda x: tf.nn.conv2d(x, w, 1, "SAME", dilations=2), IMAGE
    CASES["conv groups"] = lambda x: tf.nn.conv2d(x, n(3, 3, 2, 6), 1, "SAME"), IMAGE
    CASES["conv explicit"] = lambda x: tf.nn.conv2d(x, w, 2, rows), IMAGE
    CASES["conv bias"] = lambda x: tf.nn.bias_add(tf.nn.conv2d(x, w, 1, "SAME"), n(5)), IMAGE
    CASES["conv3d"] = (
        lambda x: tf.nn.conv3d(x, n(2, 3, 2, 2, 3), [1, 1, 2, 1, 1], "SAME"),
        VOLUME,
    )
    CASES["max3d"] = lambda x: tf.nn.max_pool3d(x, 2, 2, "SAME"), VOLUME
    CASES["conv1d"] = lambda x: tf.nn.conv1d(x, n(3, 4, 5), 2, "SAME"), n(2, 9, 4)
    CASES["lrn"] = lambda x: tf.nn.lrn(x, 2, 1.5, 0.3, 0.7), IMAGE
    for training in (False, True):
        given = [] if training else [n(4), positive(4)]
        CASES[f"norm {training}"] = (
            lambda x, v=given, t=training: raw.FusedBatchNormV3(
                x=x, scale=n(4), offset=n(4), mean=v[:1] and v[0], variance=v[1:] and v[1],
                is_training=t,
            ).y,
            IMAGE,
        )  # fmt: skip
    for mode in ("Bilinear", "NearestNeighbor", "Bicubic"):
        resize = getattr(raw, f"Resize{mode}")
        for flags in ({}, {"align_corners": True}, {"half_pixel_centers": True}):
            CASES[f"{mode} {flags}"] = (
                lambda x, f=resize, k=flags: f(images=x, size=[11, 5], **k),
                IMAGE,
            )


def elements() -> None:
    """Functions of every element."""
    for name in (
        "abs asinh atan ceil cos cosh erf erfc exp expm1 floor is_finite is_nan is_inf negative "
        "rint round sigmoid sign sin sinh softplus square tan tanh reciprocal"
    ).split():
        CASES[name] = lambda x, f=name: getattr(tf.math, f, getattr(tf, f, None))(x), 2 * MATRIX
    for name in "elu relu relu6 selu softsign leaky_relu gelu silu softmax log_softmax".split():
        CASES[name] = lambda x, f=name: getattr(tf.nn, f)(x), MATRIX
    for name in "log log1p rsqrt sqrt".split():
        CASES[name] = lambda x, f=name: getattr(tf.math, f)(x), positive(3, 4)
    for name in "acos asin atanh".split():
        CASES[name] = lambda x, f=name: getattr(tf, f)(x), np.clip(MATRIX, -0.9, 0.9)
    CASES["acosh"] = lambda x: tf.acosh(x), 1 + positive(3, 4)
    x, y = np.round(n(3, 4) * 3) / 2, np.round(n(2, 3, 4) * 3) / 2 + np.float32(0.25)
    for name in (
        "add subtract multiply divide maximum minimum squared_difference atan2 floordiv floormod "
        "divide_no_nan equal not_equal greater less greater_equal less_equal"
    ).split():
        f = getattr(tf.math, name, None) or getattr(tf, name)
        CASES[name] = lambda x, y, f=f: f(x, y), x, y
        CASES[f"{name} constant"] = lambda x, f=f: f(x, np.float32([1.5, 2, 0.5, 3])), y
    CASES["xlogy"] = tf.math.xlogy, x, positive(2, 3, 4)
    CASES["pow"] = tf.pow, positive(3, 4), MATRIX
    CASES["logic"] = lambda x: tf.logical_or(tf.logical_and(x > 0, x < 1), x < -1), MATRIX
    CASES["where"] = lambda x, y: tf.where(x > 0, x, y), MATRIX, n(3, 4)
    CASES["where rows"] = lambda x: raw.Select(condition=x[:, 0] > 0, x=x, y=-x), MATRIX
    CASES["add_n"] = lambda x: tf.add_n([x, 2 * x, x]), MATRIX
    CASES["clip"] = lambda x: tf.clip_by_value(x, -0.5, 0.5), MATRIX
    CASES["cast"] = lambda x: tf.cast(tf.cast(x * 3, tf.int32), tf.float32), MATRIX


def reductions() -> None:
    """Reductions and products."""
    for name in "sum mean max min prod".split():
        f = getattr(tf, f"reduce_{name}")
        CASES[name] = lambda x, f=f: f(x, [1, 2]), IMAGE
        CASES[f"{name} kept"] = lambda x, f=f: f(x, -1, keepdims=True), IMAGE
        CASES[f"{name} all"] = lambda x, f=f: f(x), MATRIX
    CASES["all"] = lambda x: tf.reduce_all(x > -1, 1), MATRIX
    CASES["any"] = lambda x: tf.reduce_any(x > 1, 1), MATRIX
    CASES["logsumexp"] = lambda x: tf.reduce_logsumexp(x, 1), MATRIX
    CASES["argmax"] = lambda x: tf.argmax(x, 1), MATRIX
    CASES["argmin"] = lambda x: tf.argmin(x, 0, output_type=tf.int32), MATRIX
    for flags in ((False, False), (True, False), (False, True), (True, True)):
        a, b = flags
        CASES[f"cumsum {flags}"] = lambda x, a=a, b=b: tf.cumsum(x, 1, a, b), MATRIX
        w = n(*((5, 4) if b else (4, 5)))
        CASES[f"matmul {flags}"] = (
            lambda x, w=w, a=a, b=b: tf.matmul(x, w, transpose_a=a, transpose_b=b),
            n(*((4, 3) if a else (3, 4))),
        )
        CASES[f"matmul batch {flags}"] = (
            lambda x, y, a=a, b=b: tf.matmul(x, y, transpose_a=a, transpose_b=b),
            n(2, 1, 4, 4),
            n(3, 4, 4),
        )
    CASES["cumprod"] = lambda x: tf.math.cumprod(x, 1), MATRIX
    CASES["einsum"] = lambda x, y: tf.einsum("bij,bjk->bik", x, y), n(2, 3, 4), n(2, 4, 5)
    CASES["einsum dots"] = lambda x: tf.einsum("...i,io->...o", x, n(4, 5)), n(2, 3, 4)
    CASES["tensordot"] = lambda x: tf.tensordot(x, n(4, 3, 2), [[2], [0]]), n(2, 3, 4)


def shapes() -> None:
    """What moves elements."""
    cube, half = n(3, 5, 4), [[1, 1], [3, 2]]
    CASES["reshape"] = lambda x: tf.reshape(x, [tf.shape(x)[0], -1]), IMAGE
    CASES["transpose"] = lambda x: tf.transpose(x, [0, 3, 1, 2]), IMAGE
    CASES["squeeze"] = lambda x: tf.squeeze(x) + tf.squeeze(x, [1])[..., 0], n(2, 1, 3, 1)
    CASES["broadcast"] = lambda x: tf.broadcast_to(x, [4, 3, 4]) + tf.fill([3, 4], 2.0), MATRIX
    CASES["tile"] = lambda x: tf.tile(x, [2, 3]), MATRIX
    CASES["concat"] = lambda x, y: tf.concat([x, y], 1), n(2, 3), n(2, 5)
    CASES["stack"] = lambda x: tf.stack(tf.unstack(x, axis=1)[::-1], 1), MATRIX
    CASES["split"] = lambda x: tf.split(x, 2, 1)[1] + tf.split(x, [1, -1, 2], 1)[2], MATRIX
    CASES["slice"] = lambda x: tf.slice(x, [0, 1], [2, -1]), MATRIX
    CASES["slice 1"] = lambda x: x[1:, ::-1, ..., None], cube
    CASES["slice 2"] = lambda x: x[tf.newaxis, 2, ..., ::2] + x[tf.newaxis, 0, :, -2:], cube
    CASES["slice 3"] = lambda x: x[::-2, 4:1:-1, -20:3], cube
    CASES["gather"] = lambda x: tf.gather(x, [2, 0, 1], axis=1), MATRIX
    CASES["gather rows"] = lambda i: tf.gather(n(10, 4), i), np.int32([[1, 2], [9, 0]])
    CASES["gather batch"] = (
        lambda x, i: tf.gather(x, i, axis=1, batch_dims=1),
        cube,
        np.int32([[1, 2], [4, 0], [3, 3]]),
    )
    CASES["gather_nd"] = lambda x: tf.gather_nd(x, [[0, 1], [2, 2]]), MATRIX
    CASES["scatter_nd"] = lambda x: tf.scatter_nd([[1], [3], [1]], x, [5, 4]), MATRIX
    CASES["one_hot"] = lambda i: tf.one_hot(i, 5, 2.0, -1.0, axis=0), np.int32([[1, 7], [-1, 0]])
    CASES["top_k"] = lambda x: tf.math.top_k(x, 2).values, cube
    CASES["top_k indices"] = lambda x: tf.math.top_k(x, 2).indices, cube
    CASES["reverse"] = lambda x: tf.reverse(x, [1]), cube
    CASES["reverse_sequence"] = lambda x: tf.reverse_sequence(x, [1, 3, 4], 1, 0), cube
    CASES["pad"] = lambda x: tf.pad(x, [[0, 0], [1, 2], [3, 0], [0, 0]]), IMAGE
    CASES["pad value"] = lambda x: tf.pad(x, half, constant_values=3.0), MATRIX
    CASES["reflect"] = lambda x: tf.pad(x, half, "REFLECT"), MATRIX
    CASES["symmetric"] = lambda x: tf.pad(x, half, "SYMMETRIC"), MATRIX
    CASES["band"] = lambda x: tf.linalg.band_part(x, 1, 0), cube
    CASES["depth_to_space"] = lambda x: tf.nn.depth_to_space(x, 2), IMAGE
    CASES["space_to_depth"] = lambda x: tf.nn.space_to_depth(x, 2), n(2, 4, 6, 3)
    CASES["space_to_batch"] = lambda x: tf.space_to_batch(x, [2, 3], [[0, 1], [0, 0]]), IMAGE
    CASES["batch_to_space"] = (
        lambda x: tf.batch_to_space(x, [2, 2], [[0, 1], [1, 0]]),
        n(8, 3, 4, 2),
    )
    CASES["patches"] = (
        lambda x: tf.image.extract_patches(x, [1, 3, 2, 1], [1, 2, 1, 1], [1] * 4, "SAME"),
        IMAGE,
    )
    CASES["range"] = lambda x: x + tf.range(4.0) + tf.linspace(0.0, 1.0, 4), MATRIX


def flow() -> None:
    """Conditions and loops."""

    def inner(i: Any, a: Any) -> Any:
        return tf.while_loop(lambda j, b: j < i, lambda j, b: (j + 1, tf.sin(b) + 0.5), [0, a])[1]

    def nested(x: Any) -> Any:
        return tf.while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, inner(i, a)), [0, x])[1]

    def scan(x: Any) -> Any:
        found, state = tf.TensorArray(tf.float32, 4), tf.zeros([3])
        for t in tf.range(4):
            state = tf.tanh(state + x[:, t])
            found = found.write(t, state)
        return found.stack()

    CASES["flow if"] = lambda x: tf.cond(tf.shape(x)[0] > 2, lambda: x * 2, lambda: x - 1), MATRIX
    CASES["flow loops"] = nested, MATRIX
    CASES["flow array"] = tf.function(scan), MATRIX


def keras(name: str) -> Any:
    """A network and the shape of an input."""
    image = layers.Input((16, 16, 2))
    steps = layers.Input((7, 5))
    if name == "keras image":
        h = layers.Conv2D(6, 5, activation="relu")(image)
        h = layers.BatchNormalization()(layers.SeparableConv2D(8, 3, 2, padding="same")(h))
        h = layers.AveragePooling2D(2)(layers.Activation("hard_swish")(h))
        return tf.keras.Model(image, layers.Dense(4, "softmax")(layers.Flatten()(h)))
    if name == "keras decoder":
        h = layers.Conv2DTranspose(3, 3, 2, padding="same")(image)
        return tf.keras.Model(image, layers.UpSampling2D(2, interpolation="bilinear")(h))
    if name == "keras attention":
        h = layers.LayerNormalization()(steps + layers.MultiHeadAttention(2, 4)(steps, steps))
        return tf.keras.Model(steps, layers.Dense(4, "gelu")(h))
    h = layers.LSTM(6, return_sequences=True)(steps)
    return tf.keras.Model(steps, layers.Bidirectional(layers.GRU(4))(h))


def write(folder: Path, name: str, f: Any, inputs: tuple[Any, ...], model: Any = None) -> None:
    """Write a graph, and what TensorFlow computes."""
    specs = [tf.TensorSpec(x.shape, x.dtype, name=f"in{i}") for i, x in enumerate(inputs)]
    traced = tf.function(lambda *xs: tf.identity(f(*xs), name="result"))
    concrete = traced.get_concrete_function(*specs)
    result = np.asarray(concrete(*map(tf.constant, inputs)))
    for low in (True, False) if name.startswith(("flow", "keras")) else (False,):
        frozen = convert_variables_to_constants_v2(concrete, lower_control_flow=low)
        path = folder / (f"{name} v1" if low else name)
        path.with_suffix(".pb").write_bytes(frozen.graph.as_graph_def().SerializeToString())
        given = {f"in{i}": x for i, x in enumerate(inputs)}
        np.savez(path.with_suffix(".npz"), result=result, **given)
    if model is not None:
        model.export(str(folder / name), verbose=False)


if __name__ == "__main__":
    for family in (windows, elements, reductions, shapes, flow):
        family()
    for name, (f, *inputs) in CASES.items():
        write(Path(sys.argv[1]), name, f, tuple(np.asarray(x) for x in inputs))
    for name in ("keras image", "keras decoder", "keras attention", "keras recurrent"):
        model = keras(name)
        for v in model.weights:
            v.assign(positive(*v.shape) * 0.3 if "variance" in v.path else n(*v.shape) * 0.3)
        x = n(2, *model.input_shape[1:])
        write(Path(sys.argv[1]), name, lambda x, m=model: m(x, training=False), (x,), model)
