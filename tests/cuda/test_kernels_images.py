# SPDX-License-Identifier: Apache-2.0
"""Pooling in every order of memory, rows at positions that are data."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nnl.ext.device.kernels  # noqa: F401  registers the setups
from nnl.core.ops.op import OPS
from tests.cuda import kernels
from tests.native.kernels import BF16, F16, F32, assert_close, run_numpy

pytestmark = pytest.mark.usefixtures("machine")


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def reference(op: str, attrs: dict[str, Any], *inputs: np.ndarray) -> np.ndarray:
    return run_numpy(OPS[op], OPS[op].attrs(**attrs), [x.astype(F32) for x in inputs])[1][0]


WINDOWS = [
    {"kernel": (3, 3), "stride": (2, 2), "pad": (1, 1)},
    {"kernel": (2, 3), "stride": (2, 3), "pad": (0, 0)},
    {"kernel": (3, 2), "stride": (1, 2), "pad": (2, 1), "ignore_border": False},
    {"kernel": (12, 11), "stride": (1, 1), "pad": (0, 0)},
]


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
@pytest.mark.parametrize("last", [False, True])
def test_pooling_and_its_gradients(window: dict[str, Any], dtype: Any, last: bool) -> None:
    attrs = {"ignore_border": True, "channel_last": False, **window}
    x = normal(3, 8, 12, 11).astype(dtype)
    y = reference("max_pooling", attrs, x)
    gy = normal(*y.shape, seed=1).astype(dtype)
    gx = reference("max_pooling_backward", attrs, gy, x)

    def run(
        op: str, ins: list[Any], like: Any, also: Any = (), offset: int = 0, **more: Any
    ) -> Any:
        outs = [(like.shape, dtype), *also]
        order = ({*range(len(ins))}, {*range(len(outs))}) if last else (set(), set())
        return kernels.run(op, attrs | more, ins, outs, order, offset)

    found, places = run("max_pooling_arg", [x], y, [(y.shape, np.int16)])
    assert_close(found, y, dtype, "with places")
    assert_close(*run("max_pooling", [x], y), y, dtype, "max")
    assert_close(*run("max_pooling_arg_backward", [gy, places], x), gx, dtype, "from places")
    assert_close(*run("max_pooling_backward", [gy, x], x, offset=1), gx, dtype, "max, gradient")
    for padded in (True, False):
        more: dict[str, Any] = {"including_pad": padded}
        want = reference("average_pooling", attrs | more, x)
        assert_close(*run("average_pooling", [x], y, **more), want, dtype, f"average {padded}")
    more["shape"] = x.shape
    want = reference("average_pooling_backward", attrs | more, gy)
    assert_close(*run("average_pooling_backward", [gy], x, **more), want, dtype, "average back")


def test_three_axes_with_channels_as_the_last() -> None:
    x = normal(2, 5, 6, 7, 4)
    attrs = {"kernel": (2, 3, 2), "stride": (2, 2, 1), "pad": (1, 1, 0), "ignore_border": True,
             "channel_last": True}  # fmt: skip
    want = reference("max_pooling", attrs, x)
    (got,) = kernels.run("max_pooling", attrs, [x], [(want.shape, F32)])
    np.testing.assert_array_equal(got, want)


def test_the_first_of_equal_maxima_gets_the_gradient() -> None:
    x, gy = np.zeros((1, 2, 4, 4), F32), normal(1, 2, 2, 2)
    attrs = {"kernel": (2, 2), "stride": (2, 2), "pad": (0, 0), "ignore_border": True}
    (got,) = kernels.run("max_pooling_backward", attrs, [gy, x], [(x.shape, F32)])
    want = np.zeros_like(x)
    want[:, :, ::2, ::2] = gy
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("last", [False, True])
def test_pixels_are_repeated_and_averaged(last: bool) -> None:
    both, one = (({0}, {0}), ({0}, set())) if last else ((set(), set()),) * 2
    x = normal(2, 8, 3, 5).astype(F16)
    (got,) = kernels.run("unpooling", {"kernel": (2, 3)}, [x], [((2, 8, 6, 15), F16)], both)
    np.testing.assert_array_equal(got, x.repeat(2, 2).repeat(3, 3))
    x = normal(3, 16, 7, 9).astype(BF16)
    (got,) = kernels.run("global_average_pooling", {}, [x], [((3, 16, 1, 1), BF16)], one)
    assert_close(got, x.astype(np.float64).mean((2, 3), keepdims=True), BF16, "")


def added(shape: tuple[int, ...], index: np.ndarray, gy: np.ndarray) -> np.ndarray:
    """The gradient of rows that were read at `index`, those that are there."""
    want, inside = np.zeros(shape), (index >= 0) & (index < shape[0])
    np.add.at(want, index[inside], gy[inside].astype(np.float64))
    return want


@pytest.mark.parametrize("features", [(64,), (3, 5), ()])
@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_rows_are_read_and_their_gradients_added_up(features: Any, index: Any) -> None:
    rows, count = 50, (30, 20)
    w, gy = normal(rows, *features), normal(*count, *features, seed=1)
    i = np.random.default_rng(2).zipf(1.5, count).clip(1, rows).astype(index) - index(1)
    (y,) = kernels.run("embed", {}, [i, w.astype(BF16)], [(gy.shape, BF16)])
    np.testing.assert_array_equal(y, w.astype(BF16)[i])
    (gw,) = kernels.run("embed_backward", {"shape": w.shape}, [i, gy], [(w.shape, F32)])
    assert_close(gw, added(w.shape, i, gy), F32, "gw")


@pytest.mark.parametrize("rows", [1, 2, 9])
@pytest.mark.parametrize("count", [1, 31, 32, 33, 64, 700])
def test_gradients_of_a_few_rows_are_added_up_by_many_blocks(rows: int, count: int) -> None:
    """Among them indices that are out of range, at both ends of the order."""
    rng = np.random.default_rng(count)
    gy, shape = normal(count, 40), (rows, 40)
    i = np.sort(rng.integers(-1, rows + 1, count)) if count % 2 else rng.integers(0, rows, count)
    first, other, again = (
        kernels.run("embed_backward", {"shape": shape}, [i, gy], [(shape, F32)], offset=offset)[0]
        for offset in (0, 1, 0)
    )
    for got in (first, other):
        assert_close(got, added(shape, i, gy), F32, "")
    np.testing.assert_array_equal(first, again)


def test_an_index_that_is_out_of_range_gives_nan() -> None:
    w = normal(4, 8)
    i = np.array([3, 4, -1, 0])
    (y,) = kernels.run("embed", {}, [i, w], [((4, 8), F32)])
    np.testing.assert_array_equal(np.isnan(y).all(1), [False, True, True, False])
