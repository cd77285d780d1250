# SPDX-License-Identifier: Apache-2.0
"""Native reductions: every arrangement of axes, accuracy, ties, empty arrays."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from tests.native.kernels import BF16, F16, F32, require_library
from tests.native.programs import run

RNG = np.random.default_rng(5)
ALL_AXES = [a for n in range(5) for a in itertools.combinations(range(4), n)]


def reduce(
    op: str,
    x: np.ndarray,
    axes: tuple[int, ...],
    keep: bool = False,
    last: bool = False,
    **more: Any,
) -> np.ndarray:
    """Result of a native reduction, which may not decline."""
    shape = [1 if i in axes else n for i, n in enumerate(x.shape)]
    if not keep:
        shape = [n for i, n in enumerate(x.shape) if i not in axes]
    attrs = {"axes": axes, "keep_dims": keep, "with_index": False, "only_index": False, **more}
    dtype = np.uint64 if attrs["only_index"] else F32
    y = run(op, attrs, [x], [(tuple(shape), dtype)], ({0} if last else set(), set()))
    assert y is not None
    return y


@pytest.mark.parametrize("n", [3, 17, 48, 300, 1000])
def test_products_of_rows_pass_what_float32_holds(n: int) -> None:
    x = RNG.uniform(0.5, 1.5, (5, n)).astype(F32)
    x[:, :2] = 1e30
    x[:, 2] = 1e-38
    np.testing.assert_allclose(reduce("prod", x, (1,)), x.astype(np.float64).prod(1), rtol=1e-6)


@pytest.mark.parametrize("pair", [(1e-30, 1e30), (1e-42, 1e35), (1e30, 1e-30), (0.0, 1), (-1, -1)])
def test_products_on_the_way_may_be_no_normal_numbers(pair: tuple[float, float]) -> None:
    x = np.ones((3, 576), F32)  # elements 64 apart are multiplied first
    x[1, [0, 64, 128, 192]] = x[1, [256, 320, 384, 448]] = [pair[0], pair[0], pair[1], pair[1]]
    x[2, 100] = pair[0]
    np.testing.assert_allclose(reduce("prod", x, (1,)), x.astype(np.float64).prod(1), rtol=1e-6)


def test_products_with_infinities_and_nan() -> None:
    x = np.full((4, 300), 1.25, F32)
    x[0, 7], x[1, 9], x[2, [3, 67]] = np.inf, np.nan, (np.inf, 0)
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(reduce("prod", x, (1,)), x.astype(np.float64).prod(1), rtol=1e-6)


@pytest.mark.parametrize("axes", ALL_AXES, ids=str)
@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("last", [False, True])
def test_any_axes(axes: tuple[int, ...], keep: bool, last: bool) -> None:
    x = RNG.normal(size=(3, 5, 7, 33)).astype(F32)
    exact = x.astype(np.float64)
    for op, want in {
        "sum": exact.sum(axes, keepdims=keep),
        "mean": exact.mean(axes, keepdims=keep),
        "max": exact.max(axes, keepdims=keep),
        "min": exact.min(axes, keepdims=keep),
        "prod": exact.prod(axes, keepdims=keep),
    }.items():
        got = reduce(op, x, axes, keep, last)
        np.testing.assert_allclose(got, want, rtol=2e-6, atol=1e-5, err_msg=op)
    for p in (1.0, 2.0, 3.0, 2.5):
        want = (np.abs(exact) ** p).sum(axes, keepdims=keep) ** (1 / p)
        got = reduce("norm", x, axes, keep, last, p=p)
        np.testing.assert_allclose(got, want, rtol=2e-6, err_msg=f"norm {p}")


@pytest.mark.parametrize("dtype", [F32, BF16, F16], ids=str)
@pytest.mark.parametrize(
    "shape, axes",
    [
        ((100003,), (0,)),
        ((1000, 64), (0,)),
        ((1001, 3), (0,)),
        ((999, 17), (0,)),
        ((77, 1030), (0,)),
        ((2000, 8), (1,)),
        ((300, 700), (1,)),
        ((3, 40000), (1,)),
        ((4, 1000, 9), (1,)),
        ((4, 16, 500), (0, 2)),
        ((300, 300), (0, 1)),
    ],
    ids=str,
)
def test_large_arrays(shape: tuple[int, ...], axes: tuple[int, ...], dtype: np.dtype) -> None:
    x = RNG.normal(size=shape).astype(dtype)
    exact = x.astype(np.float64)
    size = np.abs(exact).sum(axes)
    assert (np.abs(reduce("sum", x, axes) - exact.sum(axes)) <= 1e-6 * size).all()
    assert np.array_equal(reduce("max", x, axes), exact.max(axes).astype(F32))


@pytest.mark.parametrize("shape, axes", [((1 << 21,), (0,)), ((1 << 18, 4), (0,))], ids=str)
def test_long_sums_of_equal_signs_keep_their_digits(
    shape: tuple[int, ...], axes: tuple[int, ...]
) -> None:
    """Adding up one after the other in float32 loses four digits here."""
    x = RNG.uniform(0.9, 1.1, shape).astype(F32)
    want = x.astype(np.float64).sum(axes)
    assert np.abs(reduce("sum", x, axes) / want - 1).max() < 2e-7


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    lib, x = require_library(), RNG.normal(size=(200001,)).astype(F32)
    before = lib.threads()
    got = []
    for n in (1, 2, 3):
        lib.set_threads(n)
        got.append((reduce("sum", x, (0,)), reduce("sum", x.reshape(-1, 3), (0,))))
    lib.set_threads(before)
    for one, many in got[1:]:
        assert np.array_equal(one, got[0][0])
        assert np.array_equal(many, got[0][1])


def test_nothing_to_reduce() -> None:
    x = np.zeros((0, 3), F32)
    assert np.array_equal(reduce("sum", x, (0,)), np.zeros(3))
    assert np.array_equal(reduce("prod", x, (0,)), np.ones(3))
    assert np.isnan(reduce("mean", x, (0,))).all()
    assert reduce("sum", x, (1,)).shape == (0,)
    assert reduce("sum", x, (0, 1)) == 0
    assert reduce("sum", np.array(2.5, F32), ()) == 2.5


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)])
def test_nan_counts_as_the_extreme(axes: tuple[int, ...]) -> None:
    x = RNG.normal(size=(40, 50)).astype(F32)
    x[7, 9] = np.nan
    for op in ("max", "min"):
        assert np.array_equal(reduce(op, x, axes), getattr(x, op)(axes), equal_nan=True)
    at = reduce("max", x, (0, 1), only_index=True)
    assert at == 7 * 50 + 9


@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (0, 2), (0, 1, 2)])
@pytest.mark.parametrize("op", ["max", "min"])
def test_positions_are_those_of_the_first_of_equal_elements(op: str, axes: tuple[int, ...]) -> None:
    x = RNG.integers(0, 4, (3, 40, 5)).astype(F32)
    kept = [a for a in range(3) if a not in axes]
    rows = x.transpose((*kept, *axes)).reshape(*(x.shape[a] for a in kept), -1)
    want = getattr(np, "arg" + op)(rows, axis=-1)
    assert np.array_equal(reduce(op, x, axes, only_index=True), want)


def test_products_do_not_overflow_on_the_way() -> None:
    x = np.array([1e30] * 4 + [1e-30] * 4, F32)
    assert abs(reduce("prod", x, (0,)) - 1) < 1e-5
    assert abs(reduce("prod", x.reshape(8, 1).repeat(3, 1), (0,)) - 1).max() < 1e-5
