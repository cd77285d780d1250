# SPDX-License-Identifier: Apache-2.0
"""Normalizations: running statistics, shapes, and what the messages say."""

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
from nnl.core.arrays.spec import ShapeError

X = np.random.default_rng(0).normal(1, 2, (2, 4, 3, 5)).astype(np.float32)


def v(a, need_grad=False):
    return nn.Variable.from_numpy_array(np.asarray(a, np.float32), need_grad=need_grad)


def full(shape, *values):
    return [v(np.full(shape, value)) for value in values]


def statistics():
    return full((1, 4, 1, 1), 0.5, 2)


def test_running_statistics_take_the_unbiased_variance_under_no_grad_too():
    mean, variance = statistics()
    with nn.auto_forward(), nn.no_grad():
        F.batch_normalization(v(X), None, None, mean, variance)
    np.testing.assert_allclose(mean.d.ravel(), 0.9 * 0.5 + 0.1 * X.mean((0, 2, 3)), rtol=1e-5)
    unbiased = X.var((0, 2, 3), ddof=1)
    np.testing.assert_allclose(variance.d.ravel(), 0.9 * 2 + 0.1 * unbiased, rtol=1e-5)


def test_every_forward_of_a_static_graph_updates_the_running_statistics():
    mean, variance = statistics()
    y = F.batch_normalization(v(X), None, None, mean, variance, decay_rate=0)
    assert (mean.d == 0.5).all()
    y.forward()
    np.testing.assert_allclose(mean.d.ravel(), X.mean((0, 2, 3)), rtol=1e-5)
    mean.d[...] = 7
    y.forward()
    np.testing.assert_allclose(mean.d.ravel(), X.mean((0, 2, 3)), rtol=1e-5)


def test_without_batch_stat_the_running_statistics_stay():
    mean, variance = statistics()
    with nn.auto_forward():
        y = F.batch_normalization(v(X), None, None, mean, variance, batch_stat=False)
    assert (mean.d == 0.5).all() and (variance.d == 2).all()
    np.testing.assert_allclose(y.d, (X - 0.5) / np.sqrt(2 + 1e-5), rtol=1e-5, atol=1e-6)


def test_no_gradient_reaches_the_running_statistics():
    for batch_stat in (True, False):
        mean, variance = statistics()
        mean.need_grad = variance.need_grad = True
        with nn.auto_forward():
            y = F.batch_normalization(v(X, True), None, None, mean, variance, batch_stat=batch_stat)
            F.sum(y * y).backward()
        assert not mean.g.any() and not variance.g.any()


def test_one_element_has_no_unbiased_variance():
    mean, variance = full((1, 1), 0, 1)
    with nn.auto_forward():
        y = F.batch_normalization(v([[3.0]]), *full((1, 1), 0.25, 1), mean, variance)
    assert y.d == 0.25 and np.isnan(variance.d).all()


def test_variance_of_data_far_from_zero_is_exact():
    x = 1e4 + np.random.default_rng(1).integers(-8, 8, (64, 3, 8, 8)) / 8
    with nn.auto_forward():
        _, _, variance = F.batch_normalization(v(x), None, None, None, None, output_stat=True)
        _, _, per_row = F.layer_normalization(v(x), None, None, output_stat=True)
    np.testing.assert_allclose(variance.d.ravel(), x.var((0, 2, 3)), rtol=1e-4)
    np.testing.assert_allclose(per_row.d.ravel(), x.var((1, 2, 3)), rtol=1e-4)


def test_an_empty_batch_leaves_the_running_statistics():
    mean, variance = statistics()
    with nn.auto_forward():
        y = F.batch_normalization(v(X[:0]), None, None, mean, variance)
    assert y.shape == (0, 4, 3, 5) and (mean.d == 0.5).all() and (variance.d == 2).all()


def test_shapes_of_statistics_are_those_of_nnabla():
    def shapes(ys):
        return [y.shape for y in ys[1:]]

    x = v(X)
    assert (
        shapes(F.batch_normalization(x, None, None, None, None, output_stat=True))
        == [(1, 4, 1, 1)] * 2
    )
    assert (
        shapes(F.layer_normalization(x, None, None, [0, 1], output_stat=True)) == [(2, 4, 1, 1)] * 2
    )
    assert shapes(F.layer_normalization(x, None, None, -1, output_stat=True)) == [(1, 1, 1, 5)] * 2
    assert (
        shapes(F.instance_normalization(x, None, None, 3, output_stat=True)) == [(2, 1, 1, 5)] * 2
    )
    assert (
        shapes(F.group_normalization(x, None, None, 2, output_stat=True)) == [(2, 2, 1, 1, 1)] * 2
    )
    assert shapes(F.tensor_normalization(x, [0, 2], output_stat=True)) == [(2, 1, 3, 1)] * 2
    assert shapes(F.weight_standardization(x, -1, output_stat=True)) == [(1, 1, 1, 5)] * 2


def test_sync_batch_normalization_of_one_process_is_batch_normalization():
    class Comm:
        size, find_group = 1, None

    with nn.auto_forward():
        want = F.batch_normalization(v(X), None, None, *statistics())
        for comm in (None, Comm()):
            got = F.sync_batch_normalization(v(X), None, None, *statistics(), comm)
            np.testing.assert_array_equal(got.d, want.d)


def test_sync_batch_normalization_of_two_alike_has_their_statistics_but_counts_all():
    class Alike:
        """Two processes with the same batch."""

        size, find_group = 2, None

        def sum(self, arrays, group, of=""):
            for a in arrays:
                a *= 2

    with nn.auto_forward():
        x, twice = v(X), v(np.concatenate([X, X]))
        alone, both = statistics(), statistics()
        want = F.batch_normalization(twice, None, None, *alone)
        got = F.sync_batch_normalization(x, None, None, *both, Alike())
    np.testing.assert_allclose(got.d, want.d[: len(X)], rtol=1e-5, atol=1e-6)
    for a, b in zip(alone, both, strict=True):
        np.testing.assert_allclose(b.d, a.d, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="sync_batch_normalization: output_stat is True and batch"):
        F.sync_batch_normalization(
            x, None, None, *both, Alike(), batch_stat=False, output_stat=True
        )


def test_spectral_norm_writes_u_unless_test():
    w = np.random.default_rng(2).normal(size=(3, 8))
    u0 = np.array([1, 2, 3], np.float32)
    u, kept = v(u0), v(u0)
    with nn.auto_forward():
        y, before = F.spectral_norm(v(w), u, itr=50, output_u=True)
        F.spectral_norm(v(w), kept, itr=50, test=True)
    left, s, _ = np.linalg.svd(w)
    np.testing.assert_allclose(y.d, w / s[0], rtol=1e-5)
    np.testing.assert_allclose(np.abs(u.d), np.abs(left[:, 0]), rtol=1e-4)
    np.testing.assert_array_equal(before.d, u0)
    np.testing.assert_array_equal(kept.d, u0)


def test_mean_subtraction_keeps_the_mean_of_all_batches():
    mean, t = full((4, 3, 5), 9)[0], full((1,), 0)[0]
    with nn.auto_forward():
        for i in (1, 2, 3):
            y = F.mean_subtraction(v(X * i), mean, t)
        np.testing.assert_allclose(mean.d, 2 * X.mean(0), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(y.d, X * 3 - 2 * X.mean(0), rtol=1e-4, atol=1e-5)
        assert t.d == 3
        F.mean_subtraction(v(X), mean, t, update_running_mean=False)
        assert t.d == 3


def test_gradient_of_mean_subtraction_counts_the_mean():
    x, u = v(X, True), np.random.default_rng(3).normal(size=X.shape).astype(np.float32)
    with nn.auto_forward():
        y = F.mean_subtraction(x, *full((4, 3, 5), 0), full((1,), 1)[0])
        F.sum(y * v(u)).backward()
    np.testing.assert_allclose(x.g, u - u.mean(0) / 2, rtol=1e-5, atol=1e-6)


def test_norm_normalization_of_zeros_is_zero():
    x = v(np.zeros((2, 3)), True)
    with nn.auto_forward():
        y = F.norm_normalization(x, axes=1)
        F.sum(y).backward()
    assert not y.d.any() and np.isfinite(x.g).all()


def test_messages_about_shapes():
    x = v(X)
    wrong = v(np.zeros((4,)))
    for i, name in enumerate(("beta", "gamma", "mean", "variance")):
        args = [wrong if k == i else None for k in range(4)]
        match = (
            rf"batch_normalization: {name} float32\[4\] must have the shape \(1, 4, 1, 1\) for x"
        )
        with pytest.raises(ShapeError, match=match):
            F.batch_normalization(x, *args)
    with pytest.raises(ShapeError, match=r"layer_normalization: beta .* shape \(1, 4, 3, 5\)"):
        F.layer_normalization(x, wrong, None)
    with pytest.raises(ShapeError, match=r"instance_normalization: gamma .* shape \(1, 4, 1, 1\)"):
        F.instance_normalization(x, None, wrong)
    with pytest.raises(
        ShapeError, match=r"instance_normalization: channel_axis 0 is in batch_axis"
    ):
        F.instance_normalization(x, None, None, 0)
    with pytest.raises(ShapeError, match="num_groups is 3, wanted a divisor of the 4 channels"):
        F.group_normalization(x, None, None, 3)
    with pytest.raises(ShapeError, match=r"tensor_normalization: axes \(1, -3\) name an axis"):
        F.tensor_normalization(x, [1, -3])
    with pytest.raises(ShapeError, match=r"weight_standardization: axis 4 is outside .* for w"):
        F.weight_standardization(x, 4)
    with pytest.raises(ShapeError, match=r"weight_normalization: g .* shape \(2,\) for w .* dim 0"):
        F.weight_normalization(x, wrong)
    with pytest.raises(ShapeError, match=r"spectral_norm: u float32\[4\] must have 2 elements"):
        F.spectral_norm(x, wrong)
    with pytest.raises(
        ShapeError, match=r"mean_subtraction: mean .* must have the shape \(4, 3, 5\)"
    ):
        F.mean_subtraction(x, wrong, v([0]))
    with pytest.raises(ShapeError, match=r"mean_subtraction: t float32\[4\] must have one element"):
        F.mean_subtraction(x, v(X[0]), wrong)
    with pytest.raises(
        ShapeError, match="fused_batch_normalization: z .* must have the shape of x"
    ):
        F.fused_batch_normalization(x, None, None, None, None, wrong)


def test_messages_about_values():
    x = v(X)
    with pytest.raises(
        ValueError, match="mean or variance is None, wanted both when batch_stat is F"
    ):
        F.batch_normalization(x, None, None, None, None, batch_stat=False)
    match = "output_stat is True and batch_stat False, but there are no batch statistics"
    for f in (F.batch_normalization, F.fused_batch_normalization):
        with pytest.raises(ValueError, match=match):
            f(x, None, None, *statistics(), batch_stat=False, output_stat=True)
    with pytest.raises(ValueError, match="nonlinearity is 'sigmoid', wanted \"relu\""):
        F.fused_batch_normalization(x, None, None, *statistics(), nonlinearity="sigmoid")
    with pytest.raises(ValueError, match="spectral_norm: itr is 0, wanted at least 1"):
        F.spectral_norm(x, v([1, 2]), itr=0)
    with pytest.raises(
        ValueError, match="norm_normalization: p is 0.5, wanted a finite number >= 1"
    ):
        F.norm_normalization(x, 0.5)
