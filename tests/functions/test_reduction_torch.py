# SPDX-License-Identifier: Apache-2.0
"""Reductions and cumulative functions against PyTorch, to second order."""

import numpy as np
import pytest

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


@pytest.mark.parametrize("reverse", [False, True])
def test_cumulative(reverse):
    def turned(f):
        return lambda x: f(x.flip(1), 1).flip(1) if reverse else f(x, 1)

    x = X.copy()
    x[0, 1, 1] = x[2, 0, 0] = x[2, 2, 0] = 0
    compare(lambda v: F.cumsum(v, axis=1, reverse=reverse), turned(torch.cumsum), x)
    compare(lambda v: F.cumprod(v, axis=1, reverse=reverse), turned(torch.cumprod), x)
