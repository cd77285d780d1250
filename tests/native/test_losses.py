# SPDX-License-Identifier: Apache-2.0
"""Softmax, cross entropies, losses and look-ups at larger sizes, and their fused kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nnl.core.arrays.spec import Spec
from nnl.core.ops.op import OPS
from nnl.ext.library import native_spec
from tests.native.kernels import (
    BF16,
    F16,
    F32,
    array_kernel,
    assert_close,
    run_native,
    run_numpy,
)


def compare(name: str, inputs: list[Any], last: bool = False, **attrs: Any) -> list[np.ndarray]:
    """Asserts that the native kernel equals the definition; returns its outputs."""
    op = OPS[name]
    values = op.attrs(**attrs)
    specs, want = run_numpy(op, values, [None if x is None else x.copy() for x in inputs])
    lasts = (
        {i for i, x in enumerate(inputs) if last and x is not None and x.ndim > 2},
        {o for o, s in enumerate(specs) if last and s.ndim > 2},
    )
    got = run_native(op, values, inputs, specs, lasts)
    assert got is not None, name
    for g, w in zip(got, want, strict=True):
        assert_close(g, w, F32, f"{name} {attrs}")
    return got


def call(name: str, attrs: dict[str, Any], inputs: list[Any], outs: list[Any]) -> Any:
    specs = [None if x is None else Spec.of(x.shape, x.dtype) for x in inputs]
    kernel = array_kernel(
        name,
        attrs,
        [native_spec(s) for s in specs],
        [native_spec(Spec.of(s, np.dtype(d))) for s, d in outs],
        [np.dtype(d) for _, d in outs],
    )
    assert kernel is not None
    return kernel(*inputs)


SHAPES = [((300, 1000), 1), ((300, 1000), 0), ((4, 21, 17, 19), 1), ((3, 5, 70), 2), ((1000,), 0),
          ((40, 3), 1), ((5, 1), 1)]  # fmt: skip


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("shape, axis", SHAPES)
def test_softmax_and_its_logarithm(shape: Any, axis: int, last: bool) -> None:
    if last and len(shape) < 3:
        return
    rng = np.random.default_rng(0)
    x = (rng.normal(size=shape) * 5).astype(F32)
    gy = rng.normal(size=shape).astype(F32)
    for name in ("softmax", "log_softmax"):
        y = compare(name, [x], last, axis=axis)[0]
        compare(f"{name}_backward", [gy, y], last, axis=axis)


@pytest.mark.parametrize("axis", [0, 1])
def test_softmax_of_infinities_and_nan(axis: int) -> None:
    x = np.random.default_rng(0).normal(size=(33, 37)).astype(F32)
    x[3, 3], x[5, 5], x[7, 7] = -np.inf, np.inf, np.nan
    x[9, 9], x[11, 11] = 1e38, -1e38
    with np.errstate(invalid="ignore"):
        compare("softmax", [x], axis=axis)
        compare("log_softmax", [x], axis=axis)


@pytest.mark.parametrize("dtype", [F32, BF16, F16], ids=str)
@pytest.mark.parametrize(
    "mask_shape", [(6, 1, 1, 37), (1, 1, 29, 37), (29, 37), (37,), (29, 1), ()]
)
@pytest.mark.parametrize("boolean", [False, True])
def test_softmax_with_scale_and_mask(dtype: Any, mask_shape: Any, boolean: bool) -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(6, 3, 29, 37)).astype(dtype)
    mask = rng.random(mask_shape) < 0.7 if boolean else rng.normal(size=mask_shape).astype(F32)
    if boolean and mask_shape in ((29, 1), ()):
        mask = np.ones(mask_shape, bool)  # a row without weight is NaN
    y = call("softmax_fused", {"scale": 0.125}, [x, mask], [(x.shape, dtype)])
    z = x.astype(np.float64) / 8 + (np.where(mask, 0, -np.inf) if boolean else mask)
    e = np.exp(z - z.max(-1, keepdims=True))
    want = e / e.sum(-1, keepdims=True)
    assert_close(y, want, dtype, "y")
    gy = rng.normal(size=x.shape).astype(dtype)
    gx = call("softmax_fused_backward", {"scale": 0.125}, [gy, y], [(x.shape, dtype)])
    g = gy.astype(np.float64)
    assert_close(gx, want * (g - (g * want).sum(-1, keepdims=True)) / 8, dtype, "gx")


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("shape, axis", SHAPES)
@pytest.mark.parametrize("kind", [np.int32, np.int64, np.int8])
def test_softmax_cross_entropy_and_its_gradient(
    shape: Any, axis: int, last: bool, kind: Any
) -> None:
    if last and len(shape) < 3:
        return
    rng = np.random.default_rng(2)
    x = (rng.normal(size=shape) * 5).astype(F32)
    wanted = tuple(1 if i == axis else n for i, n in enumerate(shape))
    target = rng.integers(-1, min(shape[axis], 100), wanted).astype(kind)
    _, top, total = compare("softmax_cross_entropy", [x, target], last, axis=axis)
    gy = rng.normal(size=wanted).astype(F32)
    compare("softmax_cross_entropy_backward", [gy, x, target, top, total], last, axis=axis)
    compare("categorical_cross_entropy", [np.abs(x), target], last, axis=axis)


@pytest.mark.parametrize("name", ["softmax_cross_entropy", "categorical_cross_entropy"])
def test_a_label_that_is_too_large_is_an_error(name: str) -> None:
    op = OPS[name]
    x, target = np.ones((4, 10), F32), np.array([[1], [12], [3], [10]])
    specs = [Spec.of((4, 1), F32)] * len(op.outputs)
    with pytest.raises(
        ValueError, match=rf"{name}: target has the label 12, wanted labels in \[0, 10\)"
    ):
        run_native(op, op.attrs(axis=1), [x, target], specs)


@pytest.mark.parametrize("n", [1, 15, 16, 17, 50_001])
def test_losses_of_pairs(n: int) -> None:
    rng = np.random.default_rng(3)
    a, b = (rng.normal(size=(2, n)) * 3).astype(F32)
    label = rng.integers(0, 2, n)
    for name, attrs in (
        ("squared_error", {}),
        ("absolute_error", {}),
        ("huber_loss", {"delta": 0.7}),
        ("epsilon_insensitive_loss", {"epsilon": 0.3}),
    ):
        compare(name, [a, b], **attrs)
        compare(name, [a, b[:1]], **attrs)
    compare("sigmoid_cross_entropy", [a * 20, label])
    compare("sigmoid_cross_entropy_backward", [b, a * 20, label])
    p, q = rng.uniform(0, 1, (2, n)).astype(F32)
    p[0], q[-1] = 0, 1
    compare("binary_cross_entropy", [p, q])
    compare("kl_multinomial", [p[None], q[None]], base_axis=1)


@pytest.mark.parametrize("shape", [(50, 33), (50, 3, 7), (50,), (2, 300)])
def test_embed_and_its_gradient(shape: Any) -> None:
    rng = np.random.default_rng(4)
    w = rng.normal(size=shape).astype(F32)
    x0 = rng.integers(0, shape[0], (41, 60))
    x0[x0 % 3 == 0] = 0  # one row is named often
    y = compare("embed", [x0, w])[0]
    compare("embed_backward", [x0.astype(np.int32), y * 0.1], shape=shape)
    compare("embed_backward", [x0.astype(np.int32), y * 0.1, w], shape=shape)


def test_gradient_of_embed_adds_in_float32() -> None:
    op = OPS["embed_backward"]
    gy = np.full((3000, 20), 1.0 / 3, BF16)
    got = run_native(
        op, op.attrs(shape=(4, 20)), [np.ones(3000, np.int64), gy], [Spec.of((4, 20), F32)]
    )
    assert got is not None
    np.testing.assert_allclose(got[0][1], 3000 * float(gy[0, 0]), rtol=1e-5)
    assert not got[0][[0, 2, 3]].any()


def test_an_index_out_of_range_is_an_error() -> None:
    w = np.ones((5, 3), F32)
    op = OPS["embed"]
    with pytest.raises(ValueError, match="embed: x0 holds the index 5, w has rows 0 to 4"):
        run_native(op, op.attrs(), [np.array([1, 5, 7]), w], [Spec.of((3, 3), F32)])
    op = OPS["gather"]
    with pytest.raises(ValueError, match="gather: Indices has the value -1, wanted 0 <= value < 5"):
        run_native(
            op, op.attrs(axis=0, batch_dims=0), [w, np.array([1, -1])], [Spec.of((2, 3), F32)]
        )
    op = OPS["one_hot"]
    with pytest.raises(ValueError, match=r"one_hot: x\[\.\.\., 0\] has the value 3, wanted -3 <= "):
        run_native(op, op.attrs(shape=(3,)), [np.array([[3]])], [Spec.of((1, 3), F32)])


@pytest.mark.parametrize(
    "axis, batch, size", [(0, 0, (70,)), (1, 0, (3, 4)), (2, 1, (6, 90)), (2, 2, (6, 9, 4))]
)
def test_gather_and_its_gradient(axis: int, batch: int, size: Any) -> None:
    rng = np.random.default_rng(5)
    shape = (6, 9, 31)
    x = rng.normal(size=shape).astype(F32)
    index = rng.integers(0, shape[axis], size)
    y = compare("gather", [x, index], axis=axis, batch_dims=batch)[0]
    compare("gather_backward", [y, index], shape=shape, axis=axis, batch_dims=batch)


def test_empty_arrays() -> None:
    x = np.zeros((0, 5), F32)
    compare("softmax", [x], axis=1)
    compare("softmax_cross_entropy", [x, np.zeros((0, 1), np.int64)], axis=1)
    compare("embed", [np.zeros((0, 2), np.int64), np.ones((3, 4), F32)])
    compare("embed_backward", [np.zeros((0,), np.int64), np.zeros((0, 4), F32)], shape=(3, 4))
    compare("squared_error", [x, x])
