# SPDX-License-Identifier: Apache-2.0
"""Outputs of element-wise programs that are reduced on the way."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from tests.native.kernels import BF16, F32, from_channels_last, require_library
from tests.native.programs import Program, may_overwrite, run

RNG = np.random.default_rng(17)
SHAPE = (3, 6, 7, 50)
ALL_AXES = [a for n in range(1, 5) for a in itertools.combinations(range(4), n)]


def product(shape: tuple[int, ...]) -> tuple[Program, int, np.ndarray, np.ndarray]:
    """A program of one multiplication, its result, and arrays for it."""
    p = Program(shape, shape)
    a, b = (RNG.normal(size=shape).astype(F32) for _ in range(2))
    return p, p.add("mul2", 0, 1), a, b


def reductions(shape: tuple[int, ...], axes: tuple[int, ...], *kinds: int) -> dict[str, Any]:
    return {"shape": shape, "axes": axes, "reductions": kinds}


@pytest.mark.parametrize("axes", ALL_AXES, ids=str)
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("keep", [False, True])
def test_sum_largest_smallest_beside_the_whole(
    axes: tuple[int, ...], last: bool, keep: bool
) -> None:
    p, y, a, b = product(SHAPE)
    attrs = p.attributes(y, y, y, y) | reductions(SHAPE, axes, 0, 1, 2, 3)
    attrs["channels_last"] = last
    want = a.astype(np.float64) * b
    small = want.sum(axes, keepdims=keep).shape
    outs = [(SHAPE, F32)] + [(small, F32)] * 3
    order = ({0, 1}, {0}) if last else (set(), set())
    whole, total, largest, smallest = run("fused_elementwise", attrs, [a, b], outs, order)
    whole = from_channels_last(whole) if last else whole
    np.testing.assert_allclose(whole, want, rtol=1e-6)
    np.testing.assert_allclose(total, want.sum(axes, keepdims=keep), rtol=1e-6, atol=2e-5)
    assert np.array_equal(largest, (a * b).max(axes, keepdims=keep))
    assert np.array_equal(smallest, (a * b).min(axes, keepdims=keep))


@pytest.mark.parametrize(
    "shape, axes", [((70001,), (0,)), ((3000, 64), (0,)), ((512, 768), (1,)), ((40000, 3), (1,))]
)
def test_large_arrays_in_parts(shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    lib = require_library()
    p, y, a, b = product(shape)
    attrs = p.attributes(y) | reductions(shape, axes, 1) | {"scales": (0.5,)}
    want = (a.astype(np.float64) * b).sum(axes) / 2
    before = lib.threads()
    results = []
    for n in (1, 2):
        lib.set_threads(n)
        results.append(run("fused_elementwise", attrs, [a, b], [(want.shape, F32)]))
    lib.set_threads(before)
    np.testing.assert_allclose(results[0], want, rtol=1e-5, atol=1e-4)
    assert np.array_equal(*results)


def test_halves_are_added_in_double_precision() -> None:
    p, y, a, b = product((1000, 30))
    a, b = a.astype(BF16), b.astype(BF16)
    attrs = p.attributes(y) | reductions((1000, 30), (0,), 1)
    got = run("fused_elementwise", attrs, [a, b], [((30,), BF16)])
    want = (a.astype(np.float64) * b.astype(np.float64)).sum(0)
    np.testing.assert_allclose(got.astype(F32), want, rtol=8e-3, atol=1e-3)


def test_nothing_sums_to_zero() -> None:
    p, y, a, b = product((0, 3))
    attrs = p.attributes(y) | reductions((0, 3), (0,), 1)
    assert np.array_equal(run("fused_elementwise", attrs, [a, b], [((3,), F32)]), np.zeros(3))


def test_nothing_is_read_of_inputs_that_broadcast_to_nothing() -> None:
    """Sizes of 0 ended the process: gradients of a product of float32[2, 1] and float32[1, 0]."""
    p = Program((2, 0), (2, 1))
    y = p.add("mul2", 0, 1)
    attrs = p.attributes(y) | reductions((2, 0), (0,), 1)
    attrs["keep_dims"] = True
    arrays = [np.ones((2, 0), F32), np.ones((2, 1), F32)]
    total = run("fused_elementwise", attrs, arrays, [((1, 0), F32)])
    assert total.shape == (1, 0)


def test_a_number_may_be_reduced() -> None:
    p = Program((1,), (40, 50))
    y = p.add("mul_scalar", 0, val=2.0)
    attrs = p.attributes(y, 1) | reductions((40, 50), (0, 1), 1, 1)
    ins = [np.array([1.5], F32), np.ones((40, 50), F32)]
    assert run("fused_elementwise", attrs, ins, [((), F32), ((), F32)]) == (6000, 2000)


def test_a_reduced_output_takes_no_input_memory() -> None:
    p, y, *_ = product((5, 1))
    attrs = p.attributes(y) | reductions((5, 1), (1,), 1)
    full = ((5, 1), F32)
    assert may_overwrite("fused_elementwise", attrs, [full, full], [full]) == [False, False]


@pytest.mark.parametrize(
    "change, out, message",
    [
        ({"reductions": (4,)}, (3,), "unknown reduction 4"),
        ({"reductions": (1, 1)}, (3,), "reductions and scales need a number for every output"),
        ({}, (5,), r"a reduced output is float32\[5\], reduced from float32\[4, 3\]"),
        ({}, (), r"a reduced output is float32\[\], reduced from float32\[4, 3\]"),
    ],
)
def test_what_does_not_fit_is_refused(
    change: dict[str, Any], out: tuple[int, ...], message: str
) -> None:
    p, y, a, b = product((4, 3))
    attrs = p.attributes(y) | reductions((4, 3), (0,), 1) | change
    with pytest.raises(ValueError, match=f"fused_elementwise: {message}"):
        run("fused_elementwise", attrs, [a, b], [(out, F32)])
