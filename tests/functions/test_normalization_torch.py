# SPDX-License-Identifier: Apache-2.0
"""Normalizations against PyTorch: values, gradients, gradients of gradients, statistics."""

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
from tests.functions.against_torch import compare

torch = pytest.importorskip("torch")
tf = torch.nn.functional
RNG = np.random.default_rng(0)
X = RNG.normal(1, 2, (3, 4, 2, 3))
BETA, GAMMA = RNG.normal(size=(2, 1, 4, 1, 1))
EPS = 1e-3


def normalized(x, axes, eps=EPS):
    mean = x.mean(axes, True)
    variance = x.var(axes, unbiased=False, keepdim=True)
    return (x - mean) / (variance + eps) ** 0.5, mean, variance


@pytest.mark.parametrize(
    "shape,axes", [((5, 4), (1,)), ((3, 4, 2, 3), (1,)), ((3, 2, 4), (2,)), ((3, 2, 4), (2, 0))]
)
def test_batch_normalization(shape, axes):
    rng = np.random.default_rng(1)
    x = rng.normal(3, 2, shape)
    kept = [n if i in axes else 1 for i, n in enumerate(shape)]
    beta, gamma, mean = rng.normal(size=(3, *kept))
    variance = rng.uniform(0.5, 2, kept)
    reduced = tuple(i for i in range(len(shape)) if i not in axes)

    def with_statistics(x, b, g, m, v):
        return F.batch_normalization(x, b, g, m, v, axes, eps=EPS, output_stat=True)

    def reference(x, b, g, m, v):
        y, mean, variance = normalized(x, reduced)
        return y * g + b, mean, variance

    compare(with_statistics, reference, x, beta, gamma, fixed=[mean, variance], rtol=1e-8)
    compare(
        lambda x, b, g, m, v: F.batch_normalization(x, b, g, m, v, axes, eps=EPS),
        lambda *a: reference(*a)[0], x, beta, gamma, fixed=[mean, variance], rtol=1e-8,
    )  # fmt: skip
    compare(
        lambda x, b, g, m, v: F.batch_normalization(x, b, g, m, v, axes, eps=EPS, batch_stat=False),
        lambda x, b, g, m, v: (x - m) / (v + EPS) ** 0.5 * g + b,
        x, beta, gamma, fixed=[mean, variance],
    )  # fmt: skip


def test_running_statistics_are_those_of_torch():
    x = X.astype(np.float32)
    mean, variance = (
        nn.Variable.from_numpy_array(np.full((1, 4, 1, 1), v, np.float32)) for v in (0.5, 2)
    )
    tm, tv = torch.full((4,), 0.5), torch.full((4,), 2.0)
    with nn.auto_forward(), nn.no_grad():
        for _ in range(3):
            y = F.batch_normalization(
                nn.Variable.from_numpy_array(x), None, None, mean, variance, decay_rate=0.8
            )
            ty = tf.batch_norm(torch.tensor(x), tm, tv, training=True, momentum=0.2)
    np.testing.assert_allclose(y.d, ty.numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(mean.d.ravel(), tm.numpy(), rtol=1e-5)
    np.testing.assert_allclose(variance.d.ravel(), tv.numpy(), rtol=1e-5)


def test_fused_batch_normalization():
    z = np.random.default_rng(2).normal(size=X.shape)

    def f(x, b, g, z):
        return F.fused_batch_normalization(x, b, g, None, None, z, eps=EPS)

    def reference(x, b, g, z):
        return (normalized(x, (0, 2, 3))[0] * g + b + z).relu()

    compare(f, reference, X, BETA, GAMMA, z, rtol=1e-8)


@pytest.mark.parametrize("stat", [False, True])
def test_layer_instance_group_tensor_and_weight(stat):
    def first(f):
        return f if stat else lambda *a: f(*a)[0]

    rng = np.random.default_rng(3)
    lb, lg = rng.normal(size=(2, 1, 4, 2, 3))
    compare(
        lambda x, b, g: F.layer_normalization(x, b, g, eps=EPS, output_stat=stat),
        first(lambda x, b, g: scaled(normalized(x, (1, 2, 3)), b, g)), X, lb, lg, rtol=1e-8,
    )  # fmt: skip
    compare(
        lambda x, b, g: F.layer_normalization(x, b, g, [0, 1], EPS, stat),
        first(lambda x, b, g: scaled(normalized(x, (2, 3)), b, g)),
        X, lb[:, :1], lg[:, :1], rtol=1e-8,
    )  # fmt: skip
    compare(
        lambda x, b, g: F.instance_normalization(x, b, g, eps=EPS, output_stat=stat),
        first(lambda x, b, g: scaled(normalized(x, (2, 3)), b, g)), X, BETA, GAMMA, rtol=1e-8,
    )  # fmt: skip
    compare(
        lambda x, b, g: F.tensor_normalization(x, [1], b, g, EPS, stat),
        first(lambda x, b, g: scaled(normalized(x, (0, 2, 3)), b, g)), X, BETA, GAMMA, rtol=1e-8,
    )  # fmt: skip
    compare(
        lambda w: F.weight_standardization(w, 1, EPS, stat),
        first(lambda w: normalized(w, (0, 2, 3))), X, rtol=1e-8,
    )  # fmt: skip

    def group(x, b, g):
        y, m, v = normalized(x.reshape(3, 2, 2, 2, 3), (2, 3, 4))
        return y.reshape(x.shape) * g + b, m, v

    compare(
        lambda x, b, g: F.group_normalization(x, b, g, 2, eps=EPS, output_stat=stat),
        first(group), X, BETA, GAMMA, rtol=1e-8,
    )  # fmt: skip


def scaled(triple, b, g):
    y, mean, variance = triple
    return y * g + b, mean, variance


@pytest.mark.parametrize("give_beta", [False, True])
def test_beta_or_gamma_left_out(give_beta):
    def f(x, p):
        return F.layer_normalization(x, *((p, None) if give_beta else (None, p)), eps=EPS)

    def reference(x, p):
        y = normalized(x, (1, 2, 3))[0]
        return y + p if give_beta else y * p

    compare(f, reference, X, np.random.default_rng(4).normal(size=(1, 4, 2, 3)), rtol=1e-8)
    compare(
        lambda x: F.instance_normalization(x, None, None, eps=EPS),
        lambda x: normalized(x, (2, 3))[0], X, rtol=1e-8,
    )  # fmt: skip


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0])
def test_norm_normalization(p):
    compare(
        lambda x: F.norm_normalization(x, p, [1, 2]),
        lambda x: x / torch.linalg.vector_norm(x, p, (1, 2), True), X,
    )  # fmt: skip


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_weight_normalization(dim):
    g = np.random.default_rng(5).normal(size=X.shape[dim])

    def reference(w, g):
        rows = w.movedim(dim, 0)
        norm = torch.linalg.vector_norm(rows, dim=(1, 2, 3), keepdim=True)
        return (rows / norm * g.reshape(-1, 1, 1, 1)).movedim(0, dim)

    compare(lambda w, g: F.weight_normalization(w, g, dim), reference, X, g)


@pytest.mark.parametrize("dim", [0, 1, 3])
@pytest.mark.parametrize("itr", [1, 3])
def test_spectral_norm_takes_its_vectors_as_constants(dim, itr):
    u = np.random.default_rng(6).normal(size=X.shape[dim])

    def reference(w, u):
        m = w.movedim(dim, 0).flatten(1)
        with torch.no_grad():
            for _ in range(itr):
                v = tf.normalize(m.T @ u, dim=0)
                u = tf.normalize(m @ v, dim=0)
        return w / (u @ m @ v)

    compare(lambda w, u: F.spectral_norm(w, u, dim, itr), reference, X, fixed=[u])


@pytest.mark.parametrize("shape", [(9, 4, 64, 80), (150, 4, 20, 15)])
def test_arrays_of_several_blocks(shape):
    rng = np.random.default_rng(7)
    x = rng.normal(1, 2, shape)
    lb, lg = rng.normal(size=(2, 1, *shape[1:]))

    def group(x, b, g):
        groups = x.reshape(shape[0], 2, 2, *shape[2:])
        return normalized(groups, (2, 3, 4))[0].reshape(shape) * g + b

    for f, reference, b, g in (
        (
            lambda x, b, g: F.batch_normalization(x, b, g, None, None, eps=EPS),
            lambda x, b, g: normalized(x, (0, 2, 3))[0] * g + b, BETA, GAMMA,
        ),
        (
            lambda x, b, g: F.layer_normalization(x, b, g, eps=EPS),
            lambda x, b, g: normalized(x, (1, 2, 3))[0] * g + b, lb, lg,
        ),
        (
            lambda x, b, g: F.instance_normalization(x, b, g, eps=EPS),
            lambda x, b, g: normalized(x, (2, 3))[0] * g + b, BETA, GAMMA,
        ),
        (lambda x, b, g: F.group_normalization(x, b, g, 2, eps=EPS), group, BETA, GAMMA),
    ):  # fmt: skip
        compare(f, reference, x, b, g, rtol=1e-8, order=1)
