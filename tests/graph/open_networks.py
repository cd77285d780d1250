# SPDX-License-Identifier: Apache-2.0
"""Random networks that compute with the sizes of what they are given."""

import numpy as np

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF


class Network:
    """A function of x (batch, 3, height, width) or (batch, time, 8), always the same for a seed."""

    def __init__(self, seed):
        rng = np.random.default_rng(seed)
        self.image = bool(rng.random() < 0.6)
        kinds = IMAGE if self.image else TOKENS
        self.layers = [
            (kinds[int(rng.integers(len(kinds)))], int(rng.integers(1000))) for _ in range(5)
        ]

    @property
    def axes(self):
        return ("batch", None, "height", "width") if self.image else ("batch", "time", None)

    def shape(self, rng):
        n = [int(n) for n in rng.integers(9, 26, 3)]
        return (n[0] // 4, 3, *n[1:]) if self.image else (n[0] // 4, n[1], 8)

    def __call__(self, x):
        for k, (layer, choice) in enumerate(self.layers):
            with nn.parameter_scope(f"layer{k}"):
                x = layer(x, choice)
        return x


def array(value):
    return nn.Variable.from_numpy_array(value.astype(np.float32))


def convolution(x, c):
    kernel, stride = 1 + 2 * (c % 2), 1 + c // 2 % 2
    return PF.convolution(x, 4, (kernel, kernel), pad=(c % 2, c // 3 % 2), stride=(stride, stride))


def pooling(x, c):
    f = F.max_pooling if c % 2 else F.average_pooling
    return f(x, (2, 2), ignore_border=bool(c % 3), pad=(c // 3 % 2,) * 2)


def activation(x, c):
    return (F.relu, F.tanh, F.swish, F.sigmoid)[c % 4](x)


def normalization(x, c):
    return (
        PF.batch_normalization(x, batch_stat=False)
        if c % 2
        else x / F.mean(x**2 + 1, keepdims=True)
    )


def crop(x, c):
    return x[:, :, 1:, ::2] if c % 2 else x[:, :, : x.shape[2] // 2 + 1, -(x.shape[3] // 2 + 1) :]


def pixels(x, c):
    """Attention between pixels, and back."""
    b, ch, h, w = x.shape
    t = F.transpose(F.reshape(x, (b, ch, h * w)), (0, 2, 1))
    t = F.batch_matmul(F.softmax(F.batch_matmul(t, t, transpose_b=True) * 0.1), t)
    return F.reshape(F.transpose(t, (0, 2, 1)), (b, ch, h, w))


def gate(x, c):
    axes = (2, 3) if c % 2 else (1,)
    return x * F.sigmoid(F.mean(x, axis=axes, keepdims=True))


def upsample(x, c):
    return F.interpolate(x, output_size=(x.shape[2] + 1, x.shape[3] * 5 // 4), mode="nearest")


def branches(x, c):
    y = F.concatenate(x, F.pad(x[:, :1, :-1], (0, 0, 0, 0, 1, 0, 0, 0)), axis=1)
    return F.concatenate(y, y * 2, axis=2 + c % 2)


def positions(x, c):
    """Numbers of rows or tokens, as an array of numpy's."""
    shape = [1] * x.ndim
    shape[-2] = x.shape[-2]
    return x + array(np.arange(x.shape[-2]).reshape(shape))


def shuffle(x, c):
    """Pixels of pairs of rows become channels."""
    b, ch, h, w = x.shape
    x = F.reshape(x[:, :, : h // 2 * 2], (b, ch, h // 2, 2, w))
    return F.reshape(F.transpose(x, (0, 1, 3, 2, 4)), (b, 2 * ch, h // 2, w))


def dense(x, c):
    return PF.affine(x, 8, base_axis=2)


def attention(x, c):
    b, t, d = x.shape
    heads = F.transpose(F.reshape(x, (b, t, 2, d // 2)), (0, 2, 1, 3))
    scores = F.batch_matmul(heads, heads, transpose_b=True)
    found = F.batch_matmul(F.softmax(scores * (d // 2) ** -0.5), heads)
    return F.reshape(F.transpose(found, (0, 2, 1, 3)), (b, t, d))


def along_time(x, c):
    if c % 2:
        return F.cumsum(x, axis=1) * (1.0 / x.shape[1])
    return F.concatenate(x[:, :1], x[:, :-1], axis=1)


def windows(x, c):
    """The mean of pairs of tokens."""
    b, t, d = x.shape
    pairs = F.reshape(x[:, : t - t % 2], (b * (t // 2), 2, d))
    return F.reshape(F.mean(pairs, axis=1), (b, t // 2, d))


def steps(x, c):
    """A loop inside the program."""
    return nn.while_loop(lambda h: F.less_scalar(F.sum(h * h), 1e4), lambda h: h * 1.5 + x, x)


def rows(x, c):
    """From token to token, as a recurrent layer."""

    def f(h, row):
        h = F.tanh(h * 0.5 + row)
        return h, h

    h, found = nn.scan(f, F.mean(x, axis=1), F.transpose(x, (1, 0, 2)), reverse=bool(c % 2))
    return F.transpose(found, (1, 0, 2)) if c % 3 else x + F.reshape(h, (x.shape[0], 1, 8))


IMAGE = [
    convolution, pooling, activation, normalization, crop, pixels, gate, upsample, branches,
    positions, shuffle,
]  # fmt: skip
TOKENS = [activation, positions, dense, attention, along_time, windows, steps, rows]
