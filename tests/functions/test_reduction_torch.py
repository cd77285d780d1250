# SPDX-License-Identifier: Apache-2.0
"""Reductions and cumulative functions against PyTorch, to second order."""

import warnings
from functools import partial

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
from tests.functions.against_torch import compare

torch = pytest.importorskip("torch")
X = np.random.default_rng(0).normal(size=(3, 4, 5))


@pytest.mark.parametrize("axis", [0, 1, -1, (0, 2), None])
def test_mean_max_min(axis):
    compare(lambda x: F.mean(x, axis=axis), lambda x: x.mean(dim=axis), X)
    every = (0, 1, 2) if axis is None else axis
    compare(lambda x: F.max(x, axis=axis), lambda x: x.amax(dim=every), X)
    compare(lambda x: F.min(x, axis=axis, keepdims=True), lambda x: x.amin(every, True), X)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_prod_with_zeros(axis):
    x = X.copy()
    x[0, 0, 0] = x[1, 2, 3] = x[1, 1, 3] = 0
    compare(lambda v: F.prod(v, axis=axis), lambda v: v.prod(axis), x)


def test_prod_of_everything():
    compare(lambda v: F.prod(v), lambda v: v.prod(), X[0, :2])


@pytest.mark.parametrize("p", [1.0, 1.5, 2.0, 3.0])
def test_norm(p):
    for axis in (0, (1, 2)):
        compare(
            lambda x, a=axis: F.norm(x, p=p, axis=a),
            lambda x, a=axis: torch.linalg.vector_norm(x, p, dim=a),
            X,
        )


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("axis", [0, -1, (0, 2), None])
def test_variance_and_the_logarithm_of_a_sum_of_exponentials(axis, keep):
    every = (0, 1, 2) if axis is None else axis
    for name in ("var", "std"):
        for d in (0, 1, 1.5):
            theirs = partial(getattr(torch, name), dim=every, correction=d, keepdim=keep)
            compare(partial(getattr(F, name), axis=axis, keepdims=keep, ddof=d), theirs, X)
    big = 1e4 * X  # overflows without care
    compare(lambda x: F.logsumexp(x, axis, keep), lambda x: torch.logsumexp(x, every, keep), X)
    compare(lambda x: F.logsumexp(x, axis, keep), lambda x: torch.logsumexp(x, every, keep), big)


def test_the_edges_of_variance_and_of_sums_of_exponentials():
    i = np.inf
    rows = np.array([[1, 1], [-i, -i], [i, 0], [-i, 5], [np.nan, 0], [-1e30, -1e30]], "f")
    with nn.auto_forward(), warnings.catch_warnings(action="ignore"):
        got = F.logsumexp(nn.Variable.from_numpy_array(rows), 1).d
        np.testing.assert_allclose(got, torch.logsumexp(torch.tensor(rows), 1))
        for n, d in [(n, d) for n in range(4) for d in range(4)]:
            x = np.arange(n, dtype=np.float32)
            of = torch.tensor(x).var(correction=d)  # nothing is left to divide by
            np.testing.assert_array_equal(F.var(nn.Variable.from_numpy_array(x), ddof=d).d, of)
        x = nn.Variable.from_numpy_array(np.array([[3, 3, 3], [1, 2, 3]], "f"), need_grad=True)
        t = torch.tensor(x.d, requires_grad=True)
        F.sum(F.std(x, 1)).backward()
    t.std(1, correction=0).sum().backward()
    np.testing.assert_allclose(x.g, t.grad, rtol=1e-6)


@pytest.mark.parametrize("ddof", [0, 1])
def test_variance_of_any_size_in_a_program(tmp_path, ddof):
    x = nn.Variable.from_numpy_array(X[0].astype("f"))
    path = tmp_path / "p.nnlp"

    def network(x):
        return {"y": F.std(x, 1, ddof=ddof) + F.logsumexp(x, 1)}

    nn.save_program(path, network, {"x": x}, open={"x": ("n", None if ddof else "m")})
    wide = np.random.default_rng(3).normal(size=(7, 5 if ddof else 9)).astype("f")
    t = torch.tensor(wide)
    want = t.std(1, correction=ddof) + t.logsumexp(1)
    np.testing.assert_allclose(nn.load_program(path).run(x=wide)["y"], want, rtol=1e-5)


@pytest.mark.parametrize("reverse", [False, True])
def test_cumulative(reverse):
    def turned(f):
        return lambda x: f(x.flip(1), 1).flip(1) if reverse else f(x, 1)

    x = X.copy()
    x[0, 1, 1] = x[2, 0, 0] = x[2, 2, 0] = 0
    compare(lambda v: F.cumsum(v, axis=1, reverse=reverse), turned(torch.cumsum), x)
    compare(lambda v: F.cumprod(v, axis=1, reverse=reverse), turned(torch.cumprod), x)


@pytest.mark.parametrize("context", ("numpy:float", "cpu:float"))
@pytest.mark.parametrize(
    "name, shape, axis",
    [
        ("sum", (300_000, 3), 0),
        ("sum", (100_000, 2, 3), (0, 2)),
        ("mean", (300_000, 3), 0),
        ("norm", (300_000, 3), 0),
        ("cumsum", (300_000,), 0),
        ("cumsum", (2, 300_000), 1),
    ],
)
def test_many_numbers_are_added_with_more_digits_than_the_sum_has(context, name, shape, axis):
    x = np.full(shape, 0.1, np.float32)
    wide = x.astype(np.float64)
    wanted = {
        "sum": lambda: wide.sum(axis),
        "mean": lambda: wide.mean(axis),
        "norm": lambda: np.sqrt((wide**2).sum(axis)),
        "cumsum": lambda: wide.cumsum(axis),
    }[name]()
    with nn.context_scope(nn.Context([context])):
        for auto in (True, False):
            with nn.auto_forward(auto):
                y = getattr(F, name)(nn.Variable.from_numpy_array(x), axis=axis)
                y.forward()
                np.testing.assert_allclose(y.d, wanted, rtol=1e-6)
