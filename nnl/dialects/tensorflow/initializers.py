# SPDX-License-Identifier: Apache-2.0
"""Random numbers, and what variables begin with."""

from __future__ import annotations

import math

import numpy as np

import nnl.functions as F
from nnl.converters.onnx.values.values import dtype_of, ints, tagged, var
from nnl.dialects.tensorflow.graph import get_default_graph
from nnl.dialects.tensorflow.operation import as_dtype, convert, made
from nnl.dialects.tensorflow.table import N, tensor, whole

# ---- random numbers ----


def _seeded(seed):
    graph = get_default_graph()
    if seed is None and graph.seed is None:
        return {}
    own = seed if seed is not None else graph.next_seed()
    return {"seed": ((graph.seed or 0) * 1000003 + own) % 2**31}


def _random(type, shape, dtype, name, draw, *more):
    def compute(sizes, *values):
        return tagged(draw(ints(sizes, "the shape"), *values), dtype)

    inputs = whole(shape), *more
    return made(type, compute, *inputs, name=name, constant=False, dtypes=[as_dtype(dtype)])


def _moved(x, scale, shift):
    for f, v in ((F.mul2, var(scale)), (F.add2, var(shift))):
        x = f(x, F.broadcast(F.reshape(v, (1,) * (x.ndim - v.ndim) + v.shape), x.shape))
    return x


def random_normal(shape, mean=0.0, stddev=1.0, dtype=np.float32, seed=None, name="random_normal"):
    """Numbers of a normal distribution, others at every run."""
    given, values = _seeded(seed), (convert(stddev, np.float32), convert(mean, np.float32))
    draw = lambda sizes, *v: _moved(F.randn(shape=sizes, **given), *v)  # noqa: E731
    return _random("RandomStandardNormal", shape, dtype, name, draw, *values)


def random_uniform(shape, minval=0, maxval=None, dtype=np.float32, seed=None,
                   name="random_uniform"):  # fmt: skip
    """Numbers between two limits, others at every run; integers are below the upper one."""
    given, kind = _seeded(seed), as_dtype(dtype)
    if maxval is None and kind.kind != "f":
        raise ValueError(f"Must specify maxval for integer dtype {kind.name!r}")

    def draw(sizes, low, high):
        if kind.kind != "f":
            return F.randint(int(np.asarray(low)), int(np.asarray(high)), shape=sizes, **given)
        return _moved(F.rand(shape=sizes, **given), high - low, low)

    limits = convert(minval, kind), convert(1 if maxval is None else maxval, kind)
    return _random("RandomUniform", shape, dtype, name, draw, *limits)


ERF = 0.9544997361036416  # erf(sqrt(2)): the part that is at most two deviations from the mean
# Polynomial in w - 2.5, w = -log(1 - x^2) < 5, after Giles, Approximating the erfinv function.
_ERFINV = (
    2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503,
    -0.00417768164, 0.246640727, 1.50140941,
)  # fmt: skip


def truncated_normal(shape, mean=0.0, stddev=1.0, dtype=np.float32, seed=None,
                     name="truncated_normal"):  # fmt: skip
    """Numbers of a normal distribution, at most two deviations from the mean:
    $\\mu + \\sigma \\sqrt 2\\, \\mathrm{erf}^{-1}(u)$ for a uniform u."""
    given = _seeded(seed)

    def draw(sizes):
        x = F.rand(-ERF, ERF, shape=sizes, **given)
        w = F.add_scalar(F.mul_scalar(F.log(F.r_sub_scalar(x * x, 1.0)), -1.0), -2.5)
        y = F.mul_scalar(w, _ERFINV[0])
        for c in _ERFINV[1:-1]:
            y = F.add_scalar(y, c) * w
        y = F.add_scalar(y, _ERFINV[-1]) * x
        return F.add_scalar(F.mul_scalar(y, 2**0.5 * stddev), float(mean))

    return _random("TruncatedNormal", shape, dtype, name, draw)


def multinomial(logits, num_samples, seed=None, name=None, output_dtype=np.int64):
    """Classes drawn by unnormalized log-probabilities: the largest of these and Gumbel noise."""
    sizes = N.shape(logits)
    u = random_uniform([sizes[0], num_samples, sizes[1]], 1e-20, 1.0, seed=seed)
    noisy = N.expand_dims(logits, 1) - N.log(-N.log(u))
    return N.argmax(noisy, 2, name, output_type=output_dtype)


def random_shuffle(value, seed=None, name=None):
    """The parts along the first axis in another order at every run."""
    given = _seeded(seed)

    def compute(v):
        order = F.sort(F.rand(shape=(v.shape[0],), **given), only_index=True)
        return tagged(F.gather(var(v), order, axis=0), dtype_of(v))

    return made("RandomShuffle", compute, tensor(value), name=name, constant=False)


# ---- what variables begin with: functions of a shape and a type ----


def _initializer(name, draw, **defaults):
    def make(*values, dtype=None, **named):
        given = {**defaults, **dict(zip(defaults, values, strict=False)), **named}
        given.pop("verify_shape", None)
        return lambda shape, dtype=np.float32, partition_info=None: draw(
            whole(shape), dtype=as_dtype(dtype or np.float32), **given
        )

    make.__name__, make.__doc__ = name, f"A function that makes first values: {name}."
    return make


def _constant(shape, value, dtype):
    array = np.asarray(value, dtype)
    return N.fill(shape, array) if array.size == 1 else tensor(array.reshape(shape))


def _scaled(shape, dtype, scale, mode, distribution, seed):
    sizes = np.asarray(shape).tolist()
    area = math.prod(sizes[:-2])
    ins, outs = ([1] * (2 - len(sizes)) + [n * area for n in sizes[-2:]])[:2]
    ins = outs if len(sizes) == 1 else ins
    scale /= max(1.0, {"fan_in": ins, "fan_out": outs, "fan_avg": (ins + outs) / 2}[mode])
    if distribution == "uniform":
        limit = (3 * scale) ** 0.5
        return random_uniform(shape, -limit, limit, dtype, seed)
    if distribution == "untruncated_normal":
        return random_normal(shape, 0.0, scale**0.5, dtype, seed)
    return truncated_normal(shape, 0.0, scale**0.5 / 0.87962566103423978, dtype, seed)


def _orthogonal(shape, dtype, gain, seed):
    sizes = np.asarray(shape).tolist()
    if len(sizes) < 2:
        raise ValueError("The tensor to initialize must be at least two-dimensional")
    rows, columns = math.prod(sizes[:-1]), sizes[-1]
    drawn = np.random.default_rng(seed).normal(size=(max(rows, columns), min(rows, columns)))
    q, r = np.linalg.qr(drawn)
    q = q * np.sign(np.diag(r))
    return tensor((gain * (q.T if rows < columns else q).reshape(sizes)).astype(dtype))


def _variance(scale, mode, distribution):
    settings = {"scale": scale, "mode": mode, "distribution": distribution}
    return _scaled, {"seed": None, **settings}


INITIALIZERS = {
    name: _initializer(name, draw, **defaults)
    for name, (draw, defaults) in {
        "zeros": (_constant, {"value": 0}),
        "ones": (_constant, {"value": 1}),
        "constant": (_constant, {"value": 0}),
        "random_normal": (random_normal, {"mean": 0.0, "stddev": 1.0, "seed": None}),
        "random_uniform": (random_uniform, {"minval": 0, "maxval": None, "seed": None}),
        "truncated_normal": (truncated_normal, {"mean": 0.0, "stddev": 1.0, "seed": None}),
        "orthogonal": (_orthogonal, {"gain": 1.0, "seed": None}),
        "variance_scaling": (
            _scaled,
            {"scale": 1.0, "mode": "fan_in", "distribution": "truncated_normal", "seed": None},
        ),
        "glorot_uniform": _variance(1.0, "fan_avg", "uniform"),
        "glorot_normal": _variance(1.0, "fan_avg", "normal"),
        "he_normal": _variance(2.0, "fan_in", "normal"),
        "he_uniform": _variance(2.0, "fan_in", "uniform"),
        "lecun_normal": _variance(1.0, "fan_in", "normal"),
        "lecun_uniform": _variance(1.0, "fan_in", "uniform"),
    }.items()
}


def xavier_initializer(uniform=True, seed=None, dtype=None):
    """glorot_uniform_initializer, or the normal one."""
    return INITIALIZERS["glorot_uniform" if uniform else "glorot_normal"](seed)
