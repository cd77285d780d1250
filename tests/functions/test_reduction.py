# SPDX-License-Identifier: Apache-2.0
"""Reductions and cumulative functions: what NNabla does, and what the messages say."""

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
from nnl.core.arrays.spec import ShapeError


def variable(a, need_grad=True):
    return nn.Variable.from_numpy_array(np.asarray(a), need_grad=need_grad)


def gradient(f, x):
    """Gradient of the sum of f(x)."""
    v = variable(np.asarray(x, np.float32))
    with nn.auto_forward():
        F.sum(f(v)).backward()
    return v.g


def value(f, x):
    with nn.auto_forward():
        y = f(variable(np.asarray(x, np.float32), need_grad=False))
    return tuple(v.d for v in y) if isinstance(y, tuple) else y.d


TIES = [[1, 3, 3], [2, 2, -1]]


def test_gradient_of_max_goes_to_the_first_of_equal_elements():
    np.testing.assert_array_equal(
        gradient(lambda x: F.max(x, axis=1), TIES), [[0, 1, 0], [1, 0, 0]]
    )
    np.testing.assert_array_equal(gradient(F.max, TIES), [[0, 1, 0], [0, 0, 0]])


def test_positions_are_uint64_and_count_through_the_reduced_axes_in_order():
    x = np.random.default_rng(0).permutation(24).reshape(2, 3, 4)
    rows = x.transpose(1, 0, 2).reshape(3, 8)
    for axis in ((0, 2), (2, 0)):
        y, i = value(lambda v, a=axis: F.max(v, axis=a, with_index=True), x)
        np.testing.assert_array_equal(y, rows.max(1))
        np.testing.assert_array_equal(i, rows.argmax(1))
        assert i.dtype == np.uint64
    i = value(lambda v: F.min(v, axis=(0, 2), keepdims=True, only_index=True), x)
    np.testing.assert_array_equal(i, rows.argmin(1).reshape(1, 3, 1))


def test_no_axes_leave_the_array_as_it_is():
    for f in (F.sum, F.mean, F.max, F.min, F.prod):
        np.testing.assert_array_equal(value(lambda v, f=f: f(v, axis=()), TIES), TIES)


def test_gradient_of_prod_is_exact_at_zeros():
    got = gradient(lambda x: F.prod(x, axis=1), [[1, 2, 3], [0, 2, 3], [0, 0, 3]])
    np.testing.assert_array_equal(got, [[6, 3, 2], [6, 0, 0], [0, 0, 0]])
    got = gradient(F.prod, [[0.5, 2], [0, 3]])
    np.testing.assert_array_equal(got, [[0, 0], [3, 0]])


def test_gradient_of_a_norm_that_is_zero_is_zero():
    for p in (1.5, 2, 3):
        got = gradient(lambda x, p=p: F.norm(x, p=p, axis=1), [[3, 4], [0, 0]])
        assert np.isfinite(got).all()
        np.testing.assert_array_equal(got[1], 0)
    np.testing.assert_allclose(gradient(F.norm, [3, 4]), [0.6, 0.8], rtol=1e-6)


def test_mean_of_nothing_is_not_a_number():
    assert np.isnan(value(F.mean, np.zeros((0, 3))))
    assert value(lambda v: F.mean(v, axis=1), np.zeros((0, 3))).shape == (0,)


def test_cumprod_gradient_at_zeros_is_that_of_nnabla():
    x = [[1, 2, 3], [2, 0, 3], [0, 0, 3]]  # the expected values were computed by NNabla
    got = gradient(lambda v: F.cumprod(v, axis=1), x)
    np.testing.assert_array_equal(got, [[9, 4, 2], [1, 8, 0], [1, 0, 0]])
    got = gradient(lambda v: F.cumprod(v, axis=1, exclusive=True, reverse=True), x)
    np.testing.assert_array_equal(got, [[0, 3, 3], [0, 3, 1], [0, 3, 1]])


def test_cumulative_functions_run_along_axis_0_unless_told():
    np.testing.assert_array_equal(value(F.cumsum, TIES), np.cumsum(TIES, 0))
    np.testing.assert_array_equal(value(F.cumprod, TIES), np.cumprod(TIES, 0))


def test_reduce_takes_sum_or_mean():
    assert value(F.reduce, TIES) == 10
    assert value(lambda v: F.reduce(v, "mean"), TIES) == pytest.approx(10 / 6)
    with pytest.raises(ValueError, match='reduce: op is \'max\', wanted "sum" or "mean"'):
        F.reduce(variable(TIES), "max")


def test_messages():
    x = variable(np.zeros((2, 3), np.float32))
    with pytest.raises(
        ShapeError, match=r"mean: axis 2 is outside \[-2, 2\) for x float32\[2, 3\]"
    ):
        F.mean(x, axis=2)
    with pytest.raises(ShapeError, match=r"prod: axes \(0, -2\) name an axis of x .* twice"):
        F.prod(x, axis=(0, -2))
    with pytest.raises(ShapeError, match=r"cumsum: axis 2 is outside"):
        F.cumsum(x, axis=2)
    with pytest.raises(
        ShapeError, match=r"max: x float32\[0, 3\] has no element along the axes \(0,\)"
    ):
        F.max(variable(np.zeros((0, 3), np.float32)), axis=0)
    for p in (0.5, float("inf")):
        with pytest.raises(ValueError, match=f"norm: p is {p}, wanted a finite number >= 1"):
            F.norm(x, p=p)
    with pytest.raises(ShapeError, match=r"pick: index .* does not choose from the axes \(1,\)"):
        nn.core.ops.op.OPS["pick"](x, variable(np.zeros(3, np.int64)), axes=(1,))
    with pytest.raises(ShapeError, match="recurrence: g .* and x .* must have the same shape"):
        nn.core.ops.op.OPS["recurrence"](x, variable(np.zeros((2, 2), np.float32)), axis=1)
