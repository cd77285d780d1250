# SPDX-License-Identifier: Apache-2.0
"""Fused normalizations, softmax and cross entropies, which only plans use, against float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nnl.ext.device.kernels  # noqa: F401  registers the setups
from nnl.core.ops.op import OPS
from tests.cuda import kernels
from tests.cuda.test_kernels_ops import Case
from tests.native.kernels import BF16, F16, F32, assert_close
from tests.native.test_norm import Reference

pytestmark = pytest.mark.usefixtures("machine")
EPS = 1e-3


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def check(name: str, attrs: dict[str, Any], ins: list[Any], **how: Any) -> list[np.ndarray]:
    """What a kernel computes of float32, which is what the definition does."""
    case = Case(OPS[name], OPS[name].attrs(**attrs), ins, F32)
    got, state = case.cuda(**how)
    assert got is not None
    case.check(got, state, name)
    return got


SHAPES = [(4, 16, 7, 9), (3, 5, 11, 6), pytest.param((64, 32, 3, 3), marks=pytest.mark.long)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [F32, BF16, pytest.param(F16, marks=pytest.mark.long)], ids=str)
@pytest.mark.parametrize("last", [False, True])
def test_normalization_with_addition_and_relu(shape: Any, dtype: Any, last: bool) -> None:
    c = (1, shape[1], 1, 1)
    x = (normal(*shape) * 2 + 5 * normal(*c, seed=7)).astype(dtype)
    z, gy = normal(*shape, seed=1).astype(dtype), normal(*shape, seed=2).astype(dtype)
    beta, gamma = normal(*c, seed=3), normal(*c, seed=4)
    running = [normal(*c, seed=5), np.abs(normal(*c, seed=6))]
    want = Reference(x, beta, gamma, z, EPS, True)
    attrs = {"axes": (1,), "decay_rate": 0.9, "eps": EPS, "batch_stat": True, "activation": "relu"}
    forward = ({0, 5}, {0}) if last else (set(), set())
    backward = ({0, 2, 3}, {0, 3}) if last else (set(), set())
    old = [r.copy() for r in running]
    y, mean, variance = kernels.run(
        "fused_batch_normalization", {**attrs, "nonlinearity": "relu"},
        [x, beta, gamma, *running, z], [(shape, dtype), (c, F32), (c, F32)], forward,
        written=(3, 4),
    )  # fmt: skip
    assert_close(y, want.y, dtype, "y")
    assert_close(mean, want.mean, F32, "mean")
    assert_close(variance, want.variance, F32, "variance")
    assert_close(running[0], 0.9 * old[0] + 0.1 * want.mean, F32, "running mean")
    spread = want.variance * want.n / (want.n - 1)
    assert_close(running[1], 0.9 * old[1] + 0.1 * spread, F32, "running variance")
    ins = [gy, None, x, y, mean, variance, gamma, beta]
    outs = [(shape, dtype), (c, F32), (c, F32), (shape, dtype)]
    grads = kernels.run("batch_normalization_backward_fused", attrs, ins, outs, backward)
    for got, expected in zip(grads, want.gradients(gy, y.astype(F32)), strict=True):
        assert_close(got, expected, dtype, "gradient")


def test_the_mask_is_computed_again_without_y() -> None:
    shape, c = (4, 8, 6, 5), (1, 8, 1, 1)
    x, gy, gy2 = (normal(*shape, seed=s) for s in range(3))
    beta, gamma = normal(*c, seed=3), normal(*c, seed=4)
    want = Reference(x, beta, gamma, None, EPS, True)
    attrs = {"axes": (1,), "eps": EPS, "batch_stat": True, "activation": "relu"}
    mean, variance = want.mean.astype(np.float32), want.variance.astype(np.float32)
    ins = [gy, gy2, x, None, mean, variance, gamma, beta]
    outs = [(shape, F32), (c, F32), (c, F32)]
    for overwrite in ({}, {0: 0}, {0: 2}):
        got = kernels.run(
            "batch_normalization_backward_fused", attrs, ins, outs, overwrite=overwrite
        )
        for g, w in zip(got, want.gradients(gy + gy2, want.y), strict=False):
            assert_close(g, w, F32, "gradient")


def test_statistics_are_exact_far_from_zero() -> None:
    """A mean of a thousand standard deviations: sums of squares would lose the variance."""
    x = normal(64, 4, 5, 5) + 1000.0
    attrs = {"axes": (1,), "decay_rate": 0.9, "eps": 1e-5, "batch_stat": True}
    c = (1, 4, 1, 1)
    ins = [x, None, None, None, None]
    _, mean, variance = kernels.run(
        "batch_normalization", attrs, ins, [(x.shape, F32), (c, F32), (c, F32)]
    )
    wide = x.astype(np.float64)
    np.testing.assert_allclose(mean, wide.mean((0, 2, 3), keepdims=True), rtol=1e-6)
    np.testing.assert_allclose(variance, wide.var((0, 2, 3), keepdims=True), rtol=1e-4)


@pytest.mark.parametrize("last", [False, True])
def test_groups_of_channels_in_either_order(last: bool) -> None:
    beta, gamma = normal(1, 12, 1, 1, seed=1), normal(1, 12, 1, 1, seed=2)
    attrs = {"num_groups": 4, "channel_axis": 1, "batch_axis": (0,), "eps": EPS}
    order = ({0}, {0}) if last else (set(), set())
    check("group_normalization", attrs, [normal(3, 12, 5, 4), beta, gamma], last=order)


@pytest.mark.parametrize("rows,features", [(37, 768), (5, 30), (3, 5000)])
def test_layer_normalization_of_rows_and_its_gradient(rows: int, features: int) -> None:
    x, gy = normal(rows, features), normal(rows, features, seed=1)
    beta, gamma = normal(1, features, seed=2), normal(1, features, seed=3)
    attrs: dict[str, Any] = {"batch_axis": (0,), "eps": EPS}
    _, mean, variance = check("layer_normalization", attrs, [x, beta, gamma])
    attrs = {"axes": (1,), "eps": EPS, "parameter": (1, features)}
    zeros = np.zeros((rows, 1), np.float32)
    found = check("normalization_backward", attrs, [gy, zeros, zeros, x, mean, variance, gamma])
    outs = [(a.shape, F32) for a in found]
    ins = [gy, None, None, x, mean, variance, gamma]  # of which nothing depends on the statistics
    for a, b in zip(found, kernels.run("normalization_backward", attrs, ins, outs), strict=True):
        np.testing.assert_array_equal(a, b)


def softmax(x: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


LENGTHS = [1, 7, 64, 200, 1000, 4104, 9000]


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("dtype", [F32, pytest.param(BF16, marks=pytest.mark.long)], ids=str)
def test_softmax_of_short_and_long_rows(n: int, dtype: Any) -> None:
    x, gy = (3 * normal(3, n)).astype(dtype), normal(3, n, seed=1).astype(dtype)

    outs, attrs = [((3, n), dtype)], {"axis": 1}
    (y,) = kernels.run("softmax", attrs, [x], outs, overwrite={0: 0})
    (other,) = kernels.run("softmax", attrs, [x], outs, offset=1)
    (gx,) = kernels.run("softmax_fused_backward", {"scale": 0.5}, [gy, y], outs)
    (log,) = kernels.run("log_softmax", attrs, [x], outs)
    want = softmax(x.astype(np.float64))
    assert_close(y, want, dtype, "")
    assert_close(other, want, dtype, "not aligned")
    seen, g = y.astype(np.float64), gy.astype(np.float64)
    assert_close(gx, 0.5 * seen * (g - (g * seen).sum(-1, keepdims=True)), dtype, "gx")
    top = 1e-3 if dtype == F32 else 0.1
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose(log.astype(np.float64), np.log(want), rtol=0.02, atol=top)


@pytest.mark.parametrize("mask", ["float", "row", "bool", "uint8", "none"])
def test_softmax_with_scale_and_mask(mask: str) -> None:
    x = normal(2, 3, 4, 40)
    rng = np.random.default_rng(1)
    keep = rng.random((2, 1, 4, 40)) < 0.7
    keep[1, 0, 2] = False  # a row without any weight
    masks: dict[str, Any] = {
        "float": np.where(keep, 0.5, -np.inf).astype(np.float32),
        "row": normal(40, seed=2).astype(BF16),
        "bool": keep,
        "uint8": keep.astype(np.uint8) * 3,
        "none": None,
    }
    m = masks[mask]
    wide = x.astype(np.float64) * 0.25
    if m is not None and m.dtype.kind in "fV":
        wide = wide + m.astype(np.float64)
    elif m is not None:
        wide = np.where(m, wide, -np.inf)
    (got,) = kernels.run("softmax_fused", {"scale": 0.25}, [x, m], [(x.shape, F32)])
    assert_close(got, softmax(wide), F32, mask)


@pytest.mark.parametrize("shape,axis", [((40, 1000), 1), ((300, 10), 1), ((3, 21, 7, 5), 1)])
@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_cross_entropy_and_its_gradient(shape: Any, axis: int, index: Any) -> None:
    kept = (*shape[:axis], 1, *shape[axis + 1 :])
    x, gy = normal(*shape), normal(*kept, seed=3)
    label = np.random.default_rng(1).integers(-1, shape[axis], kept).astype(index)
    check("softmax_cross_entropy", {"axis": axis}, [x, label], offset=1)
    _, top, total = check("softmax_cross_entropy", {"axis": axis}, [x, label])
    check("softmax_cross_entropy_backward", {"axis": axis}, [gy, x, label, top, total])


@pytest.mark.parametrize("n", [3, 1003, 4999])
def test_losses_of_rows_that_begin_anywhere(n: int) -> None:
    """Rows of an odd length are read 16 bytes at a time in the middle only."""
    x = (4 * normal(9, n)).astype(BF16)
    x[1, :] = -np.inf
    x[2, n // 2] = np.nan
    x[3, 1:] = -np.inf
    x[4, 0] = np.inf
    label, gy = np.zeros((9, 1), np.int32), normal(9, 1, seed=1)
    label[:, 0] = np.arange(9) * (n - 1) // 8
    label[3] = 0
    wide = x.astype(np.float64)
    with np.errstate(invalid="ignore"):
        top = wide.max(1, keepdims=True)
        total = np.exp(wide - top).sum(1, keepdims=True)
        want = np.log(total) - (np.take_along_axis(wide, label.astype(np.int64), 1) - top)
        slope = np.exp(wide - top) / total
    np.put_along_axis(slope, label, np.take_along_axis(slope, label, 1) - 1, 1)

    attrs, outs = {"axis": 1}, [((9, 1), F32)] * 3
    y, top, total = kernels.run("softmax_cross_entropy", attrs, [x, label], outs)
    ins, outs = [gy, x, label, top, total], [(x.shape, BF16)]
    (gx,) = kernels.run("softmax_cross_entropy_backward", attrs, ins, outs, overwrite={0: 1})
    np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-5)
    assert_close(gx, slope * gy, BF16, "gx")


def test_a_label_that_is_too_large_gives_nan() -> None:
    x, label = normal(3, 4), np.array([[1], [4], [0]])
    outs = [((3, 1), F32)] * 3
    y, _, _ = kernels.run("softmax_cross_entropy", {"axis": 1}, [x, label], outs)
    np.testing.assert_array_equal(np.isnan(y[:, 0]), [False, True, False])
