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
    both = ({0}, {0}) if last else (set(), set())
    averaging = {**attrs, "including_pad": False}
    places = ({0}, {0, 1}) if last else (set(), set())
    from_places = ({0, 1}, {0}) if last else (set(), set())

    def run_all() -> dict[str, Any]:
        outs = [(y.shape, dtype)]
        found = {"max_pooling": kernels.run("max_pooling", attrs, [x], outs, both)}
        for more in (averaging, {**averaging, "including_pad": True}):
            name = f"average {more['including_pad']}"
            found[name] = kernels.run("average_pooling", more, [x], outs, both)
        outs = [(y.shape, dtype), (y.shape, np.int16)]
        y_, arg = kernels.run("max_pooling_arg", attrs, [x], outs, places)
        outs = [(x.shape, dtype)]
        found["arg"] = [y_]
        ins = [gy, arg]
        found["back"] = kernels.run("max_pooling_arg_backward", attrs, ins, outs, from_places)
        ins = [gy, x]
        found["back again"] = kernels.run(
            "max_pooling_backward", attrs, ins, outs, from_places, offset=1
        )
        spread = {**averaging, "shape": x.shape}
        found["average back"] = kernels.run("average_pooling_backward", spread, [gy], outs, both)
        return found

    found = {k: v[0] for k, v in run_all().items()}
    gx = reference("max_pooling_backward", attrs, gy, x)
    spread = {**averaging, "shape": x.shape}
    want = {
        "max_pooling": y,
        "arg": y,
        "average False": reference("average_pooling", averaging, x),
        "average True": reference("average_pooling", {**averaging, "including_pad": True}, x),
        "back": gx,
        "back again": gx,
        "average back": reference("average_pooling_backward", spread, gy),
    }
    for name, value in want.items():
        assert_close(found[name], value, dtype, name)


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
def test_pixels_are_repeated(last: bool) -> None:
    x = normal(2, 8, 3, 5).astype(F16)
    both = ({0}, {0}) if last else (set(), set())
    outs = [((2, 8, 6, 15), F16)]
    (got,) = kernels.run("unpooling", {"kernel": (2, 3)}, [x], outs, both)
    np.testing.assert_array_equal(got, x.repeat(2, 2).repeat(3, 3))


@pytest.mark.parametrize("last", [False, True])
def test_mean_of_all_pixels(last: bool) -> None:
    x = normal(3, 16, 7, 9).astype(BF16)
    outs = [((3, 16, 1, 1), BF16)]
    both = ({0}, set()) if last else (set(), set())
    (got,) = kernels.run("global_average_pooling", {}, [x], outs, both)
    assert_close(got, x.astype(np.float64).mean((2, 3), keepdims=True), BF16, "")


@pytest.mark.parametrize("features", [(64,), (3, 5), ()])
@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_rows_are_read_and_their_gradients_added_up(features: Any, index: Any) -> None:
    rows, count = 50, (30, 20)
    w, gy = normal(rows, *features), normal(*count, *features, seed=1)
    i = np.random.default_rng(2).zipf(1.5, count).clip(1, rows).astype(index) - index(1)
    results = []
    for reverse in (False, True):

        def run_all() -> Any:
            y = kernels.run("embed", {}, [i, w.astype(BF16)], [(gy.shape, BF16)])
            attrs = {"shape": w.shape}
            return y[0], kernels.run("embed_backward", attrs, [i, gy], [(w.shape, F32)])[0]

        if reverse:
            results.append(run_all())
        else:
            results.append(run_all())
    (y, gw), (_, again) = results
    np.testing.assert_array_equal(y, w.astype(BF16)[i])
    want = np.zeros(w.shape)
    np.add.at(want, i, gy.astype(np.float64))
    assert_close(gw, want, F32, "gw")
    np.testing.assert_array_equal(gw, again)


@pytest.mark.parametrize("rows", [1, 2, 9])
@pytest.mark.parametrize("count", [1, 31, 32, 33, 64, 700])
def test_gradients_of_a_few_rows_are_added_up_by_many_blocks(rows: int, count: int) -> None:
    """Among them indices that are out of range, at both ends of the order."""
    rng = np.random.default_rng(count)
    gy = normal(count, 40)
    i = np.sort(rng.integers(-1, rows + 1, count)) if count % 2 else rng.integers(0, rows, count)
    want = np.zeros((rows, 40))
    inside = (i >= 0) & (i < rows)
    np.add.at(want, i[inside], gy[inside].astype(np.float64))
    attrs, outs = {"shape": (rows, 40)}, [((rows, 40), F32)]

    def run_all() -> Any:
        return [
            kernels.run("embed_backward", attrs, [i, gy], outs, offset=offset)[0]
            for offset in (0, 1)
        ]

    first, second = run_all()
    for got in (first, second):
        assert_close(got, want, F32, "")
    again, _ = run_all()
    np.testing.assert_array_equal(first, again)


def test_an_index_that_is_out_of_range_gives_nan() -> None:
    w = normal(4, 8)
    i = np.array([3, 4, -1, 0])
    (y,) = kernels.run("embed", {}, [i, w], [((4, 8), F32)])
    np.testing.assert_array_equal(np.isnan(y).all(1), [False, True, True, False])
    (gw,) = kernels.run("embed_backward", {"shape": (4, 8)}, [i, w], [((4, 8), F32)])
    want = np.zeros_like(w)
    want[3], want[0] = w[0], w[3]
    np.testing.assert_array_equal(gw, want)
