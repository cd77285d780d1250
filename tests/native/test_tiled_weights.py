# SPDX-License-Identifier: Apache-2.0
"""Weights in tiles of 16 by 16: kernels that take and make them, against the definition."""

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
    require_onednn,
    run_numpy,
    to_channels_last,
)
from tests.native.test_convolution import full

PLAIN, LAST, TILED = 0, 1, 2  # the numbers of the C++ enumeration Layout

# (x, weights, attributes); blocks of kernels are wider than 16, and then filled up with zeros
CASES = {
    "3x3": ((2, 32, 14, 13), (48, 32, 3, 3), {"pad": (1, 1)}),
    "3x3, many weights": ((1, 128, 7, 7), (112, 128, 3, 3), {"pad": (1, 1)}),
    "3x3, stride": ((2, 64, 9, 9), (64, 64, 3, 3), {"pad": (1, 1), "stride": (2, 2)}),
    "pointwise": ((2, 80, 7, 7), (144, 80, 1, 1), {}),
    "pointwise, many weights": ((1, 256, 3, 3), (192, 256, 1, 1), {}),
    "pointwise, stride": ((2, 64, 8, 8), (32, 64, 1, 1), {"stride": (2, 2)}),
    "groups": ((2, 96, 10, 9), (48, 32, 3, 3), {"group": 3, "pad": (1, 1)}),
    "one axis": ((3, 16, 40), (32, 16, 5), {"pad": (2,), "stride": (2,)}),
    "three axes": ((1, 16, 5, 6, 7), (16, 16, 2, 3, 3), {"pad": (0, 1, 1), "stride": (1, 2, 1)}),
    "two batch axes": ((2, 3, 32, 9, 9), (16, 32, 3, 3), {"base_axis": 2}),
}  # fmt: skip
MIXES = {
    "float32": (F32, F32, F32),
    "bfloat16": (BF16, F32, BF16),
    "bfloat16 weights": (BF16, BF16, BF16),
    "float16": (F16, F32, F16),
}


def to_tiles(w: np.ndarray) -> np.ndarray:
    """Same shape, memory in the order (O/16, I/16, K..., 16 of I, 16 of O)."""
    o, i, *taps = w.shape
    t = w.reshape(o // 16, 16, i // 16, 16, -1).transpose(0, 2, 4, 3, 1)
    return np.ascontiguousarray(t).reshape(w.shape)


def from_tiles(w: np.ndarray) -> np.ndarray:
    o, i, *taps = w.shape
    t = w.reshape(o // 16, i // 16, -1, 16, 16).transpose(0, 4, 1, 3, 2)
    return np.ascontiguousarray(t).reshape(w.shape)


INTO = {PLAIN: np.ascontiguousarray, LAST: to_channels_last, TILED: to_tiles}
BACK = {PLAIN: np.asarray, LAST: from_channels_last, TILED: from_tiles}


def run(name: str, attrs: Any, inputs: list[Any], ins: list[int], out: Any, to: int) -> Any:
    """The output of a native kernel on arrays in these orders; None where it declines."""
    specs = [Spec.of(x.shape, x.dtype) for x in inputs]
    kernel = require_onednn().array_kernel(
        name,
        plain_attributes(attrs.as_dict() if attrs else {}),
        [native_spec(s, layout) for s, layout in zip(specs, ins, strict=True)],
        [native_spec(out, to)],
        [out.dtype],
    )
    if kernel is None:
        return None
    return BACK[to](kernel(*[INTO[k](x) for x, k in zip(inputs, ins, strict=True)]))


@pytest.mark.parametrize("images", [PLAIN, LAST])
@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("case", CASES)
def test_convolution_and_its_gradients(case: str, mix: str, images: int) -> None:
    x_shape, w_shape, given = CASES[case]
    if images == LAST and given.get("base_axis", 1) != 1:
        pytest.skip("two batch axes are not channels-last")
    rng = np.random.default_rng(0)
    x_type, w_type, y_type = MIXES[mix]
    x, w = rng.normal(size=x_shape).astype(x_type), rng.normal(size=w_shape).astype(w_type)
    shape = full(OPS["convolution"], x_shape, **given).infer(
        Spec.of(x_shape, F32), Spec.of(w_shape, F32)
    )
    gy = rng.normal(size=shape.shape).astype(y_type)
    for name, inputs, orders, out, to, first in (
        ("convolution", [x, w], [images, TILED], y_type, images, x_shape),
        ("convolution_data", [gy, w], [images, TILED], x_type, images, x_shape),
        ("convolution_weight", [x, gy], [images, images], F32, TILED, x_shape),
    ):
        op = OPS[name]
        extra = {"convolution_data": {"shape": x_shape}, "convolution_weight": {"shape": w_shape}}
        attrs = full(op, first, **given, **extra.get(name, {}))
        (spec,), (want,) = run_numpy(op, attrs, [a.astype(F32) for a in inputs])
        got = run(name, attrs, inputs, orders, spec.with_dtype(out), to)
        assert got is not None, f"{name} declined"
        coarse = BF16 if BF16 in (x_type, y_type) else F16 if F16 in (x_type, y_type) else F32
        assert_close(got, want, coarse, f"{name} {case}")


@pytest.mark.parametrize(
    "x_shape,w_shape,given",
    [
        ((1, 3, 5, 5), (16, 3, 3, 3), {}),
        ((1, 16, 5, 5), (17, 16, 3, 3), {}),
        ((1, 32, 5, 5), (16, 16, 1, 1), {"group": 2}),
        ((1, 5, 5, 16), (16, 3, 3, 16), {"channel_last": True}),
    ],
)
def test_weights_that_do_not_fill_tiles_are_declined(x_shape, w_shape, given) -> None:
    op = OPS["convolution"]
    attrs = full(op, x_shape, **given)
    x, w = np.zeros(x_shape, F32), np.zeros(w_shape, F32)
    spec = attrs.infer(Spec.of(x_shape, F32), Spec.of(w_shape, F32))
    kernel = require_onednn().array_kernel(
        "convolution",
        plain_attributes(attrs.as_dict()),
        [native_spec(Spec.of(x.shape, F32)), native_spec(Spec.of(w.shape, F32), 2)],
        [native_spec(spec)],
        [spec.dtype],
    )
    assert kernel is None


@pytest.mark.parametrize("shape", [(16, 32), (48, 16, 5), (32, 48, 3, 2), (16, 16, 2, 1, 3)])
@pytest.mark.parametrize("dtype", [F32, F16, BF16])
def test_order_changes_both_ways(shape: tuple[int, ...], dtype: Any) -> None:
    w = np.random.default_rng(1).normal(size=shape).astype(dtype)
    spec = Spec.of(shape, dtype)
    assert np.array_equal(run("to_layout", None, [w], [PLAIN], spec, TILED), w)
    assert np.array_equal(run("to_layout", None, [w], [TILED], spec, PLAIN), w)
    assert run("to_layout", None, [w], [TILED], spec, LAST) is None
