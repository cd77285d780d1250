# SPDX-License-Identifier: Apache-2.0
"""Native pooling, unpooling and interpolation at odd sizes, against their definitions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nnl.functions as F  # noqa: F401  (registers the ops)
from nnl.core.arrays.spec import Spec
from nnl.core.ops.op import OPS
from nnl.ext.library import native_spec, plain_attributes
from tests.native.kernels import (
    BF16,
    F16,
    F32,
    assert_close,
    from_channels_last,
    require_library,
    run_native,
    run_numpy,
    to_channels_last,
)

WINDOWS = {
    "resnet": ((2, 64, 15, 14), {"kernel": (3, 3), "stride": (2, 2), "pad": (1, 1)}),
    "disjoint": ((2, 37, 8, 9), {"kernel": (2, 3)}),
    "clipped": ((1, 17, 9, 8), {"kernel": (3, 2), "stride": (2, 2), "ignore_border": False}),
    "clipped and padded": (
        (2, 3, 7, 9),
        {"kernel": (3, 3), "stride": (2, 3), "pad": (1, 2), "ignore_border": False},
    ),
    "gaps": ((1, 80, 11, 11), {"kernel": (2, 2), "stride": (3, 4)}),
    "one axis": ((2, 5, 33), {"kernel": (4,), "stride": (3,), "pad": (2,)}),
    "three axes": ((2, 4, 6, 5, 7), {"kernel": (2, 3, 2), "pad": (1, 1, 0)}),
    "four axes": ((2, 3, 3, 4, 3, 4), {"kernel": (2, 2, 1, 3)}),
    "whole image": ((2, 70, 13, 12), {"kernel": (13, 12)}),
    "one value": ((1, 1, 1, 1), {"kernel": (1, 1)}),
    "no images": ((0, 3, 4, 4), {"kernel": (2, 2)}),
    "no channels": ((2, 0, 4, 4), {"kernel": (2, 2)}),
    "no batch axis": ((9, 10), {"kernel": (3, 2)}),
}
PADDED = {"average_pooling": [{"including_pad": True}, {"including_pad": False}]}


def resolved(name: str, *given: Any, **attrs: Any) -> Any:
    op = OPS[name]
    at = op.attrs(**attrs)
    if not op.has_resolve:
        return at
    return op.attrs(**{**at.as_dict(), **at.resolve(*given)})


def check(name: str, attrs: Any, inputs: list[Any], dtype: Any, last: Any = None) -> Any:
    op = OPS[name]
    low = [x.astype(dtype) for x in inputs]
    specs, want = run_numpy(op, attrs, [x.astype(F32) for x in low])
    out = [s.with_dtype(dtype) for s in specs]
    got = run_native(op, attrs, low, out, last or (set(), set()))
    assert got is not None, "declined"
    assert_close(got[0], want[0], dtype, f"{attrs}")
    return got[0]


def images_fit(shape: tuple[int, ...], attrs: dict[str, Any]) -> bool:
    return len(shape) == len(attrs["kernel"]) + 2


@pytest.mark.parametrize("dtype", [F32, BF16, F16], ids=str)
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("case", WINDOWS)
def test_pooling_and_its_gradient(case: str, channels_last: bool, dtype: Any) -> None:
    shape, attrs = WINDOWS[case]
    if channels_last and not images_fit(shape, attrs):
        pytest.skip("other axes than channels-last images have")
    rng = np.random.default_rng(0)
    # values that no rounding makes equal where float32 has them apart
    x = rng.integers(-100, 100, size=shape) * 1.0
    last = ({0}, {0}) if channels_last else (set(), set())
    for name in ("max_pooling", "sum_pooling", "average_pooling"):
        for more in PADDED.get(name, [{}]):
            at = resolved(name, None, **attrs, **more)
            y = check(name, at, [x], dtype, last)
            gy = rng.normal(size=y.shape)
            if name == "max_pooling":
                pair = ({0, 1}, {0}) if channels_last else last
                back = resolved("max_pooling_backward", None, None, **attrs)
                check("max_pooling_backward", back, [gy, x], dtype, pair)
            else:
                back = resolved(f"{name}_backward", None, shape=shape, **attrs, **more)
                check(f"{name}_backward", back, [gy], dtype, last)


@pytest.mark.parametrize("name", ["max_pooling", "sum_pooling"])
def test_channels_as_the_last_axis(name: str) -> None:
    x = np.random.default_rng(1).normal(size=(2, 3, 7, 8, 19))
    at = resolved(name, None, kernel=(3, 2), channel_last=True, pad=(1, 1))
    check(name, at, [x], F32)


def test_ties_send_the_gradient_to_the_first_maximum() -> None:
    x = np.zeros((1, 20, 4, 6))
    x[:, ::2] = -np.inf
    gy = np.random.default_rng(2).normal(size=(1, 20, 2, 3))
    at = resolved("max_pooling_backward", None, None, kernel=(2, 2))
    check("max_pooling_backward", at, [gy, x], F32)
    check("max_pooling_backward", at, [gy, x], F32, ({0, 1}, {0}))


def test_not_a_number_is_the_maximum_of_its_window() -> None:
    x = np.random.default_rng(3).normal(size=(1, 33, 6, 6))
    x[0, ::3, 2, 3], x[0, 1::3, 5, 5], x[0, 2::3, 0, 0] = np.nan, np.inf, -np.inf
    at = resolved("max_pooling", None, kernel=(3, 3), stride=(2, 2), pad=(1, 1))
    for last in (({0}, {0}), (set(), set())):
        check("max_pooling", at, [x], F32, last)
        check("max_pooling", at, [x], BF16, last)


def test_mixed_types_are_computed_in_float32() -> None:
    rng = np.random.default_rng(4)
    x, gy = rng.normal(size=(2, 8, 6, 6)).astype(BF16), rng.normal(size=(2, 8, 3, 3)).astype(F16)
    at = resolved("max_pooling_backward", None, None, kernel=(2, 2))
    op = OPS["max_pooling_backward"]
    want = run_numpy(op, at, [gy.astype(F32), x.astype(F32)])[1]
    got = run_native(op, at, [gy, x], [Spec.of(x.shape, F32)])
    assert got is not None
    assert_close(got[0], want[0], F16, "mixed")


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("dtype", [F32, BF16, F16], ids=str)
def test_remembered_places_of_maxima(channels_last: bool, dtype: Any) -> None:
    """max_pooling_arg and its gradient do what the two defined functions do."""
    lib = require_library()
    rng = np.random.default_rng(5)
    x = rng.normal(size=(2, 37, 9, 10)).astype(dtype)
    at = resolved("max_pooling", None, kernel=(3, 3), stride=(2, 2), pad=(1, 1))
    specs, want = run_numpy(OPS["max_pooling"], at, [x.astype(F32)])
    shape, i16 = specs[0].shape, np.dtype(np.int16)
    gy = rng.normal(size=shape).astype(dtype)
    plain = plain_attributes(at.as_dict())

    def spec(shape: Any, dtype: Any) -> Any:
        return native_spec(Spec.of(shape, dtype), channels_last)

    into, out = (to_channels_last, from_channels_last) if channels_last else (np.array, np.array)
    forward = lib.array_kernel(
        "max_pooling_arg", plain, [spec(x.shape, dtype)], [spec(shape, dtype), spec(shape, i16)],
        [dtype, i16],
    )  # fmt: skip
    y, arg = forward(into(x))
    assert_close(out(y), want[0], dtype, "forward")
    backward = lib.array_kernel(
        "max_pooling_arg_backward", plain, [spec(shape, dtype), spec(shape, i16)],
        [spec(x.shape, dtype)], [dtype],
    )  # fmt: skip
    both = [gy.astype(F32), x.astype(F32)]
    back = OPS["max_pooling_backward"].attrs(**at.as_dict())
    want = run_numpy(OPS["max_pooling_backward"], back, both)[1]
    assert_close(out(backward(into(gy), arg)), want[0], dtype, "backward")


@pytest.mark.parametrize("dtype", [F32, BF16, F16], ids=str)
@pytest.mark.parametrize("shape", [(2, 70, 7, 7), (3, 5, 1, 1), (2, 3, 4, 5, 6), (1, 2, 300, 300)])
def test_global_average(shape: tuple[int, ...], dtype: Any) -> None:
    x = np.random.default_rng(6).normal(size=shape)
    at = OPS["global_average_pooling"].attrs()
    op = OPS["global_average_pooling"]
    low = x.astype(dtype)
    want = low.astype(np.float64).mean(axis=tuple(range(2, x.ndim))).reshape(*shape[:2], 1, 1)
    for last in ((set(), set()), ({0}, {0}), ({0}, set())):
        got = run_native(op, at, [low], [Spec.of(want.shape, dtype)], last)
        assert got is not None
        assert_close(got[0], want, dtype, str(last))


@pytest.mark.parametrize("channels_last", [False, True])
def test_unpooling(channels_last: bool) -> None:
    x = np.random.default_rng(7).normal(size=(2, 19, 3, 4))
    last = ({0}, {0}) if channels_last else (set(), set())
    for dtype in (F32, BF16, F16):
        check("unpooling", OPS["unpooling"].attrs(kernel=(2, 3)), [x], dtype, last)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_interpolation_and_its_gradient(mode: str, channels_last: bool) -> None:
    rng = np.random.default_rng(8)
    x, last = rng.normal(size=(2, 21, 5, 7)), ({0}, {0}) if channels_last else (set(), set())
    for size in ((10, 14), (3, 20), (1, 1), (5, 9), (5, 7)):
        for align, half in ((True, False), (False, False), (False, True)):
            at = {"output_size": size, "mode": mode, "align_corners": align, "half_pixel": half}
            for dtype in (F32, BF16):
                check("interpolate", OPS["interpolate"].attrs(**at), [x], dtype, last)
                back = OPS["interpolate_backward"].attrs(**at, shape=x.shape)
                gy = rng.normal(size=(2, 21, *size))
                check("interpolate_backward", back, [gy], dtype, last)


def test_pooling_by_several_threads() -> None:
    lib = require_library()
    before = lib.threads()
    try:
        lib.set_threads(3)
        for case in ("resnet", "whole image", "three axes"):
            test_pooling_and_its_gradient(case, False, F32)
    finally:
        lib.set_threads(before)
