# SPDX-License-Identifier: Apache-2.0
"""Random kernels draw the numbers of numpy's Philox, whatever the size and number of threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nnl.core.arrays.spec import Spec
from nnl.core.ops.op import OPS
from tests.native.kernels import (
    BF16,
    F16,
    F32,
    assert_close,
    require_library,
    run_native,
    run_numpy,
)


def state(key: int = 5, counter: int = 0) -> np.ndarray:
    return np.array([key, counter], np.uint64)


def both(
    name: str, inputs: list[Any], rng: np.ndarray, **attrs: Any
) -> tuple[list[Any], list[Any]]:
    """(native, numpy) outputs; checks that the state goes on alike."""
    op = OPS[name]
    other = rng.copy()
    values = op.attrs(**attrs)
    specs, want = run_numpy(op, values, [*inputs, rng])
    got = run_native(op, values, [*inputs, other], specs)
    assert got is not None
    assert np.array_equal(rng, other)
    return got, want


@pytest.mark.parametrize("n", [0, 1, 7, 8, 9, 513, 100_003])
@pytest.mark.parametrize("key", [0, 5, 2**64 - 1])
def test_uniform_numbers_are_those_of_numpy(n: int, key: int) -> None:
    for limits in ({}, {"low": -3.0, "high": 0.1}, {"low": 1e6, "high": 1e6 + 1}):
        got, want = both("rand", [], state(key, 3), shape=(n,), **limits)
        assert np.array_equal(got[0], want[0])


def test_the_counter_carries_beyond_64_bits() -> None:
    lib = require_library()
    for counter in (2**64 - 1, 2**64 - 2, 2**64 - 5):
        state_ = state(9, counter)
        kernel = lib.array_kernel(
            "rand", {"low": 0.0, "high": 1.0}, [((2,), 11, False)], [((64,), 0, False)], [F32]
        )
        got = kernel(state_)
        words = np.random.Philox(key=9, counter=counter).random_raw(32).view(np.uint32)
        assert np.array_equal(got, (words >> 8).astype(F32) * F32.type(2.0**-24))


@pytest.mark.parametrize("n", [0, 1, 5, 4097, 50_001])
def test_integers_are_those_of_numpy(n: int) -> None:
    for low, high in ((0, 2), (-7, 100), (-(2**31), 2**31)):
        got, want = both("randint", [], state(), low=low, high=high, shape=(n,))
        assert np.array_equal(got[0], want[0])
        assert got[0].dtype == np.int32


@pytest.mark.parametrize("n", [0, 1, 5, 50_001])
def test_normal_numbers_are_those_of_numpy_but_for_rounding(n: int) -> None:
    got, want = both("randn", [], state(), mu=2.0, sigma=-0.5, shape=(n,))
    np.testing.assert_allclose(got[0], want[0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
def test_low_precision_stays_below_high(dtype: Any) -> None:
    op = OPS["rand"]
    attrs = op.attrs(low=-1.0, high=1.0, shape=(20_000,))
    got = run_native(op, attrs, [state()], [Spec.of((20_000,), dtype)])
    assert got is not None
    y = got[0].astype(F32)
    assert y.max() < 1 and y.min() >= -1


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 0.999])
@pytest.mark.parametrize("shape", [(1,), (3, 5), (123, 457)])
def test_dropout_drops_what_numpy_drops(p: float, shape: Any) -> None:
    x = np.random.default_rng(0).normal(size=shape).astype(F32)
    got, want = both("dropout", [x], state(), p=p)
    assert np.array_equal(got[1], want[1])
    assert_close(got[0], want[0], F32, "y")


@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
def test_dropout_of_low_precision(dtype: Any) -> None:
    op = OPS["dropout"]
    x = np.random.default_rng(0).normal(size=(77, 33)).astype(dtype)
    y, mask = run_native(
        op, op.attrs(p=0.25), [x, state()], [Spec.of(x.shape, dtype), Spec.of(x.shape, np.bool_)]
    )
    assert_close(y, x.astype(F32) * mask / 0.75, dtype, "y")
    g = run_native(
        OPS["masked_scale"], OPS["masked_scale"].attrs(scale=3.0), [x, mask],
        [Spec.of(x.shape, dtype)],
    )[0]  # fmt: skip
    assert_close(g, x.astype(F32) * mask * 3, dtype, "gradient")


def test_numbers_do_not_depend_on_the_number_of_threads() -> None:
    lib = require_library()
    op, n = OPS["rand"], lib.threads()
    spec = [Spec.of((100_000,), F32)]
    try:
        ys = []
        for threads in (1, 2, 3):
            lib.set_threads(threads)
            ys.append(run_native(op, op.attrs(shape=(100_000,)), [state()], spec)[0])
    finally:
        lib.set_threads(n)
    assert np.array_equal(ys[0], ys[1]) and np.array_equal(ys[0], ys[2])
