# SPDX-License-Identifier: Apache-2.0
"""Convolutions with factorized weights, and the decomposition that one of them starts from."""

import numpy as np
import pytest

import nnl as nn
from nnl import functions as F
from nnl import parametric_functions as PF
from nnl.core.arrays.spec import ShapeError
from nnl.core.ops import random as nnl_random
from nnl.utils.factorization.cpd import ALS


@pytest.fixture(autouse=True)
def _seeded():
    nn.seed(313)


def v(*shape):
    return nn.Variable.from_numpy_array(np.random.default_rng(0).normal(size=shape))


def outer(factors, weights):
    return np.einsum("r,ir,jr,kr->ijk", weights, *factors)


def test_full_rank_svd_is_the_whole_convolution():
    x, w = v(2, 4, 8, 7), np.random.default_rng(1).normal(size=(6, 4, 3, 2))
    window = {"pad": (1, 0), "stride": (1, 2), "dilation": (2, 1)}
    with nn.auto_forward():
        y = PF.svd_convolution(x, 6, (3, 2), 6, uv_init=w, **window)
        want = F.convolution(x, nn.Variable.from_numpy_array(w), **window)
    np.testing.assert_allclose(y.d, want.d, rtol=1e-3, atol=1e-4)


def test_svd_factors_are_the_best_of_their_rank():
    w = np.random.default_rng(1).normal(size=(6, 4, 3, 3))
    PF.svd_convolution(v(2, 4, 8, 8), 6, (3, 3), 2, uv_init=w)
    p = nn.get_parameters()
    u, right = p["svd_conv/U"].d.reshape(4, 2, 9), p["svd_conv/V"].d.reshape(6, 4, 2)
    for c in range(4):
        matrix = w.reshape(6, 4, 9)[:, c]
        error = np.linalg.norm(matrix - right[:, c] @ u[c])
        np.testing.assert_allclose(error, np.linalg.norm(np.linalg.svd(matrix)[1][2:]))


def test_a_weight_of_low_rank_is_found_again():
    rng = np.random.default_rng(2)
    w = outer([rng.normal(size=(n, 2)) for n in (6, 4, 9)], np.ones(2)).reshape(6, 4, 3, 3)
    x = v(2, 4, 6, 6)
    with nn.auto_forward():
        y = PF.cpd3_convolution(x, 6, (3, 3), 2, oik_init=w, pad=(1, 1), stopping_criterion=1e-14)
        want = F.convolution(x, nn.Variable.from_numpy_array(w), pad=(1, 1))
    np.testing.assert_allclose(y.d, want.d, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("layer", [PF.svd_convolution, PF.cpd3_convolution])
def test_factors_are_reused_and_the_weight_drawn_again(layer):
    layer(v(2, 4, 8, 8), 6, (3, 3), 2)
    before = {n: p.d.copy() for n, p in nn.get_parameters().items()}
    layer(v(2, 4, 8, 8), 6, (3, 3), 2, with_bias=False, fix_parameters=True)
    for n, p in nn.get_parameters().items():
        np.testing.assert_array_equal(p.d, before[n])
    assert nnl_random.prng.random_sample() == 0.5859895193911656  # as under NNabla


def test_parameters_have_the_names_and_types_of_nnabla():
    PF.svd_convolution(v(2, 2, 4, 8, 8), 6, (3, 3), 2, base_axis=2, name="a")
    PF.cpd3_convolution(v(2, 4, 8), 6, (3,), 5, name="b")
    got = {n: (p.shape, p.d.dtype.name) for n, p in nn.get_parameters(grad_only=False).items()}
    assert list(got.items()) == [
        ("a/svd_conv/U", ((8, 3, 3), "float64")),
        ("a/svd_conv/V", ((6, 8, 1, 1), "float64")),
        ("a/svd_conv/b", ((6,), "float32")),
        ("b/cpd3_conv/I", ((5, 4, 1), "float64")),
        ("b/cpd3_conv/O", ((6, 5, 1), "float64")),
        ("b/cpd3_conv/K", ((5, 3), "float64")),
        ("b/cpd3_conv/b", ((6,), "float32")),
    ]


def test_decomposition_of_any_number_of_axes():
    rng = np.random.default_rng(3)
    factors = [rng.uniform(0.5, 1, (n, 1)) for n in (2, 3, 2, 4)]
    x = np.einsum("ir,jr,kr,lr->ijkl", *factors)
    found, weights = ALS().solve(x, 1, dtype=np.float64)
    np.testing.assert_allclose(ALS().approximate_tensor(found, weights), x, rtol=1e-9)


def test_regularization_shrinks_the_approximation():
    x = np.random.default_rng(4).normal(size=(3, 4, 5))
    sizes = [
        np.linalg.norm(ALS().approximate_tensor(*ALS().solve(x, 2, lambda_reg=reg)))
        for reg in (0, 1, 10)
    ]
    assert sizes[0] > sizes[1] > sizes[2]


def test_wrong_ranks_are_named():
    x = v(2, 4, 8, 8)
    with pytest.raises(ValueError, match="svd_convolution: r is 0, wanted at least 1"):
        PF.svd_convolution(x, 6, (3, 3), 0)
    with pytest.raises(ShapeError, match="svd_convolution: r is 7, wanted at most 6 for kernel"):
        PF.svd_convolution(x, 6, (3, 3), 7)
    with pytest.raises(ValueError, match="cpd3_convolution: r is 0, wanted at least 1"):
        PF.cpd3_convolution(x, 6, (3, 3), 0)
    with pytest.raises(ShapeError, match=r"oik_init has the shape \(2, 2\), wanted \(6, 4"):
        PF.cpd3_convolution(x, 6, (3, 3), 2, oik_init=np.ones((2, 2)))
    with pytest.raises(ValueError, match="ALS.solve: max_iter is 0, wanted at least 1"):
        ALS().solve(np.ones((2, 2)), 1, max_iter=0)
    with pytest.raises(ValueError, match=r"ALS.solve: X has the shape \(2,\), wanted at least 2"):
        ALS().solve(np.ones(2), 1)
    assert not nn.get_parameters()
