# SPDX-License-Identifier: Apache-2.0
"""dropout and the functions that draw arrays: distributions, seeds, gradients, errors."""

import math

import numpy as np
import pytest

import nnl as nn
from nnl import functions as F
from nnl.core.arrays.spec import ShapeError

N = 20000
# A Kolmogorov-Smirnov distance above this has a probability of 1e-6 under the right distribution.
KS_LIMIT = math.sqrt(-0.5 * math.log(1e-6 / 2) / N)


@pytest.fixture(autouse=True)
def _seeded():
    nn.seed(4)
    with nn.auto_forward():
        yield


def ks_distance(sample, cdf):
    """Largest distance of the empirical distribution function of a sample from cdf."""
    x = np.sort(sample.ravel())
    f = cdf(x)
    steps = np.arange(len(x) + 1) / len(x)
    return max((steps[1:] - f).max(), (f - steps[:-1]).max())


def normal_cdf(x):
    return np.array([0.5 * math.erfc(-v / math.sqrt(2)) for v in x])


def test_rand_is_uniform_between_its_limits():
    y = F.rand(-1, 3, (N,)).d
    assert y.dtype == np.float32 and y.min() >= -1 and y.max() < 3
    assert ks_distance(y, lambda x: (x + 1) / 4) < KS_LIMIT


def test_rand_stays_below_high_where_floats_are_coarse():
    y = F.rand(2.0**24, 2.0**24 + 2, (1000,)).d
    assert y.max() < 2.0**24 + 2


def test_randn_has_the_given_mean_and_deviation():
    y = F.randn(2, 0.5, (N,)).d
    assert ks_distance((y - 2) / 0.5, normal_cdf) < KS_LIMIT


def test_randint_draws_every_integer_equally_often():
    y = F.randint(-2, 5, (7 * 2000,)).d
    assert y.dtype == np.int32
    values, counts = np.unique(y, return_counts=True)
    np.testing.assert_array_equal(values, np.arange(-2, 5))
    assert ((counts - 2000) ** 2 / 2000).sum() < 40  # chi-squared with 6 degrees: p < 1e-6


def test_randint_covers_the_whole_of_int32():
    y = F.randint(-(2**31), 2**31, (1000,)).d
    assert y.min() < -(2**30) and y.max() > 2**30


def test_rand_binomial_has_binomial_moments():
    y = F.rand_binomial(10, 0.3, (N,)).d
    assert y.dtype == np.float32 and y.min() >= 0 and y.max() <= 10
    assert abs(y.mean() - 3) < 5 * math.sqrt(2.1 / N)
    assert abs(y.var() - 2.1) < 0.15


def test_rand_beta_of_half_and_half_is_the_arcsine_distribution():
    y = F.rand_beta(0.5, 0.5, (N,)).d
    assert ks_distance(y, lambda x: 2 / np.pi * np.arcsin(np.sqrt(x))) < KS_LIMIT


def test_rand_gamma_of_two_has_the_erlang_distribution():
    y = F.rand_gamma(2.0, 0.5, (N,)).d
    assert ks_distance(y, lambda x: 1 - np.exp(-2 * x) * (1 + 2 * x)) < KS_LIMIT


def test_draws_without_shape_are_scalars():
    assert F.rand().shape == F.randn().shape == F.randint(0, 5).shape == ()


def test_draws_are_float64_in_a_double_context():
    with nn.context_scope(nn.Context(["cpu:double"])):
        assert F.rand(shape=(2,)).d.dtype == F.rand_gamma(shape=(2,)).d.dtype == np.float64


def test_seed_restarts_the_shared_stream():
    nn.seed(9)
    first = [F.rand(shape=(3,)).d, F.randn(shape=(3,)).d]
    nn.seed(9)
    second = [F.rand(shape=(3,)).d, F.randn(shape=(3,)).d]
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(first[0], F.rand(shape=(3,)).d)


def test_seed_argument_starts_the_same_stream_in_every_call():
    np.testing.assert_array_equal(F.rand(shape=(3,), seed=5).d, F.rand(shape=(3,), seed=5).d)


def test_every_forward_of_a_static_graph_draws_anew():
    with nn.auto_forward(False):
        y = F.rand(shape=(3,), seed=5)
        y.forward()
        first = y.d.copy()
        y.forward()
        assert not np.array_equal(first, y.d)


def test_dropout_zeroes_a_share_of_p_and_scales_the_rest():
    x = nn.Variable.from_numpy_array(np.ones(N, np.float32))
    y = F.dropout(x, 0.3).d
    np.testing.assert_allclose(y[y != 0], 1 / 0.7, rtol=1e-6)
    assert abs((y == 0).mean() - 0.3) < 5 * math.sqrt(0.21 / N)


def test_dropout_of_zero_is_the_identity():
    x = nn.Variable.from_numpy_array(np.arange(5.0, dtype=np.float32))
    np.testing.assert_array_equal(F.dropout(x, 0).d, x.d)


def test_dropout_gradient_passes_where_the_output_passed():
    x = nn.Variable.from_numpy_array(np.ones((40, 5), np.float32), need_grad=True)
    y = F.dropout(x, 0.5)
    y.backward()
    np.testing.assert_array_equal(x.g, y.d)


def test_dropout_keeps_one_byte_per_element_for_its_gradient():
    x = nn.Variable.from_numpy_array(np.ones(1000, np.float32), need_grad=True)
    y = F.dropout(x, 0.5)
    assert [a.read("host").nbytes for a in y.edge.node.saved] == [1000]


@pytest.mark.parametrize("p", [-0.1, 1.0])
def test_dropout_wants_a_probability(p):
    with pytest.raises(ValueError, match=rf"dropout: p is {p}, wanted 0 <= p < 1"):
        F.dropout(nn.Variable((2,)), p)


@pytest.mark.parametrize(
    "call,text",
    [
        (lambda: F.rand(2, 1), r"rand: high is 1.0, wanted more than low 2.0"),
        (lambda: F.randint(5, 5), r"randint: high is 5, wanted more than low 5"),
        (lambda: F.randint(0, 2**40), r"randint: high is 1099511627776, wanted at most 2\*\*31"),
        (lambda: F.randint(-(2**40), 0), r"randint: low is -1099511627776, wanted an int32"),
        (lambda: F.randn(0, 0), r"randn: sigma is 0.0, wanted a number other than 0"),
        (lambda: F.rand_binomial(0), r"rand_binomial: n is 0, wanted at least 1"),
        (lambda: F.rand_binomial(3, 1.5), r"rand_binomial: p is 1.5, wanted 0 <= p < 1"),
        (lambda: F.rand_beta(-1), r"rand_beta: alpha is -1.0, wanted more than 0"),
        (lambda: F.rand_beta(1, 0), r"rand_beta: beta is 0.0, wanted more than 0"),
        (lambda: F.rand_gamma(0), r"rand_gamma: k is 0.0, wanted more than 0"),
        (lambda: F.rand_gamma(1, -2), r"rand_gamma: theta is -2.0, wanted more than 0"),
    ],
)
def test_parameters_of_distributions_are_checked(call, text):
    with pytest.raises(ValueError, match=text):
        call()


def choice(w, shape, replace=True, x=None):
    w = np.asarray(w, np.float32)
    x = np.broadcast_to(np.arange(w.shape[-1]), w.shape).astype(np.float32) if x is None else x
    v = nn.Variable.from_numpy_array(x, need_grad=True)
    u = nn.Variable.from_numpy_array(w, need_grad=True)
    return F.random_choice(v, u, shape, replace), v, u


def test_random_choice_follows_the_weights_of_each_row():
    w = [[1.0, 0, 3, 4], [0, 5, 5, 0]]
    y, _, _ = choice(w, (N,))
    for row, weights in zip(y.d, np.array(w), strict=True):
        share = np.bincount(row.astype(int), minlength=4) / N
        np.testing.assert_allclose(share, weights / weights.sum(), atol=5 * 0.5 / math.sqrt(N))
        assert not share[weights == 0].any()


def test_random_choice_without_replacement_takes_each_element_once():
    y, _, _ = choice(np.ones((50, 6)), (2, 3), replace=False)
    assert y.shape == (50, 2, 3)
    np.testing.assert_array_equal(np.sort(y.d.reshape(50, 6)), np.tile(np.arange(6), (50, 1)))


def test_random_choice_without_replacement_draws_first_by_weight():
    y, _, _ = choice(np.tile([1.0, 3.0], (N, 1)), (1,), replace=False)
    assert abs(y.d.mean() - 0.75) < 5 * 0.5 / math.sqrt(N)


def test_random_choice_gradient_goes_to_what_was_drawn_and_to_its_weight():
    y, x, w = choice([1.0, 2.0, 3.0], (10,))
    y.backward()
    counts = np.bincount(y.d.astype(int), minlength=3)
    np.testing.assert_array_equal(x.g, counts)
    np.testing.assert_array_equal(w.g, counts)


def test_random_choice_of_empty_shape_draws_one():
    assert choice([1.0, 2.0], ())[0].shape == (1,)


@pytest.mark.parametrize(
    "w,shape,replace,text",
    [
        ([1.0, -1.0], (1,), True, r"random_choice: w has the weight -1, wanted weights >= 0"),
        ([0.0, 0.0], (1,), True, r"w has no positive weight in a slice, wanted one"),
        ([1.0, 0.0], (2,), False, r"w has 1 positive weights in a slice, wanted 2"),
        ([1.0, 1.0], (3,), False, r"shape \(3,\) draws 3 elements without replacement"),
    ],
)
def test_random_choice_checks_its_weights(w, shape, replace, text):
    with pytest.raises(ValueError, match=text):
        choice(w, shape, replace)


def test_random_choice_wants_weights_of_the_shape_of_x():
    with pytest.raises(
        ShapeError, match=r"random_choice: x .*\[2\] and w .*\[3\] must have the same"
    ):
        F.random_choice(nn.Variable((2,)), nn.Variable((3,)))
    with pytest.raises(ShapeError, match=r"random_choice: x .* has rank 0"):
        F.random_choice(nn.Variable(()), nn.Variable(()))
