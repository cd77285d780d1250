# SPDX-License-Identifier: Apache-2.0
"""Native convolutions: odd sizes, every direction, fused and packed, against the definition."""

from __future__ import annotations

import os
import subprocess
import sys
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

# (x, weights, attributes) of convolutions that differ in what kernels care about
CASES = {
    "stem": ((2, 3, 33, 31), (16, 3, 7, 7), {"stride": (2, 2), "pad": (3, 3)}),
    "plain 3x3": ((2, 32, 14, 13), (48, 32, 3, 3), {"pad": (1, 1)}),
    "odd channels": ((1, 7, 9, 10), (5, 7, 3, 2), {"pad": (1, 0)}),
    "rows of zeros only": ((1, 4, 3, 5), (6, 4, 3, 3), {"pad": (4, 4), "stride": (3, 3)}),
    "dilated": ((2, 16, 17, 19), (32, 16, 3, 3), {"dilation": (2, 3), "pad": (2, 3)}),
    "rest of the stride unseen": ((2, 16, 12, 11), (16, 16, 3, 3), {"stride": (4, 3)}),
    "pointwise": ((2, 64, 7, 7), (128, 64, 1, 1), {}),
    "pointwise, stride": ((2, 64, 8, 8), (32, 64, 1, 1), {"stride": (2, 2)}),
    "pointwise, stride, odd channels": ((2, 6, 12, 12), (5, 6, 1, 1), {"stride": (2, 2)}),
    "pointwise, stride, few channels": ((2, 3, 7, 8), (16, 3, 1, 1), {"stride": (3, 2)}),
    "groups": ((2, 24, 10, 9), (36, 8, 3, 3), {"group": 3, "pad": (1, 1)}),
    "depthwise": ((2, 33, 12, 11), (33, 1, 3, 3), {"group": 33, "pad": (1, 1)}),
    "depthwise, stride": (
        (2, 64, 12, 11), (64, 1, 3, 3), {"group": 64, "pad": (1, 1), "stride": (2, 2)},
    ),
    "depthwise 5x5": ((2, 37, 12, 11), (37, 1, 5, 5), {"group": 37, "pad": (2, 2)}),
    "depthwise 5x5, stride": (
        (3, 32, 13, 8), (32, 1, 5, 5), {"group": 32, "pad": (1, 2), "stride": (2, 2)},
    ),
    "depthwise 5x5, all padding": (
        (1, 16, 2, 1), (16, 1, 5, 5), {"group": 16, "pad": (3, 7), "stride": (3, 6)},
    ),
    "depthwise 7x7": ((2, 48, 9, 14), (48, 1, 7, 7), {"group": 48, "pad": (3, 3)}),
    "depthwise, two maps": ((2, 16, 6, 5), (32, 1, 3, 3), {"group": 16}),
    "one axis": ((3, 16, 40), (24, 16, 5), {"pad": (2,), "stride": (2,)}),
    "sound as a picture": ((2, 16, 40, 1), (24, 16, 5, 1), {"pad": (2, 0), "stride": (2, 1)}),
    "sound as a wide picture": ((2, 16, 1, 40), (24, 16, 1, 5), {"pad": (0, 3)}),
    "three axes": ((1, 16, 5, 6, 7), (16, 16, 2, 3, 3), {"pad": (0, 1, 1), "stride": (1, 2, 1)}),
    "four axes": ((1, 2, 3, 4, 3, 4), (3, 2, 2, 2, 2, 2), {"pad": (1, 0, 1, 0)}),
    "two batch axes": ((2, 3, 8, 9, 9), (8, 8, 3, 3), {"base_axis": 2}),
    "pointwise, from one channel": ((2, 1, 6, 10), (5, 1, 1, 1), {}),
    "pointwise, to one channel": ((2, 5, 6, 10), (1, 5, 1, 1), {}),
    "one channel": ((9, 1, 20, 37), (1, 1, 4, 4), {"pad": (2, 1)}),
    "one channel, halved": ((3, 1, 33, 130), (1, 1, 4, 4), {"pad": (1, 2), "stride": (2, 2)}),
    "one channel, stride over the kernel": (
        (2, 1, 9, 40), (1, 1, 2, 2), {"pad": (1, 3), "stride": (3, 3)},
    ),
    "one channel, dilated": (
        (2, 1, 19, 50), (1, 1, 3, 5), {"pad": (3, 9), "stride": (2, 3), "dilation": (2, 4)},
    ),
    "one channel of sound": ((2, 1, 90), (1, 1, 7), {"pad": (3,), "stride": (2,)}),
    "one pixel": ((4, 32, 1, 1), (16, 32, 1, 1), {}),
    "wide kernel": ((1, 4, 20, 20), (4, 4, 19, 17), {}),
    "empty batch": ((0, 8, 6, 6), (8, 8, 3, 3), {}),
}  # fmt: skip


def full(op: Any, first: tuple[int, ...], **attrs: Any) -> Any:
    """Attributes with the defaults that depend on the rank."""
    given = op.attrs(**attrs)
    return op.attrs(**{**given.as_dict(), **given.resolve(Spec.of(first, F32), None)})


def arrays(case: str, seed: int = 0) -> tuple[Any, Any, Any, dict[str, Any]]:
    x_shape, w_shape, attrs = CASES[case]
    rng = np.random.default_rng(seed)
    x, w = rng.normal(size=x_shape), rng.normal(size=w_shape)
    y_shape = full(OPS["convolution"], x_shape, **attrs).infer(
        Spec.of(x_shape, F32), Spec.of(w_shape, F32)
    )
    return x, w, rng.normal(size=y_shape.shape), attrs


def check(name: str, attrs: Any, inputs: list[Any], dtypes: list[Any], out: Any, last: Any) -> None:
    op = OPS[name]
    low = [None if x is None else x.astype(d) for x, d in zip(inputs, dtypes, strict=True)]
    exact = [None if x is None else x.astype(F32) for x in low]
    specs, want = run_numpy(op, attrs, exact)
    got = run_native(op, attrs, low, [s.with_dtype(out) for s in specs], last)
    assert got is not None, "declined"
    # bfloat16 data makes float32 weights bfloat16
    coarse = BF16 if BF16 in dtypes else F16 if F16 in (*dtypes, out) else F32
    assert_close(got[0], want[0], BF16 if out == BF16 else coarse, f"{name} {attrs}")


MIXES = {
    "float32": (F32, F32, F32),
    "bfloat16": (BF16, BF16, BF16),
    "float16": (F16, F16, F16),
    "bfloat16 data, float32 weights": (BF16, F32, BF16),
    "float32 data, bfloat16 result": (F32, F32, BF16),
    "float16 data, bfloat16 weights": (F16, BF16, F32),
}


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_three_maps_of_a_convolution(case: str, channels_last: bool, mix: str) -> None:
    x, w, gy, attrs = arrays(case)
    if channels_last and attrs.get("base_axis", 1) != 1:
        pytest.skip("channels last means one batch axis")
    data, weights, result = MIXES[mix]
    b = np.random.default_rng(1).normal(size=w.shape[0])
    at = full(OPS["convolution"], x.shape, **attrs)
    both = ({0}, {0}) if channels_last else (set(), set())
    check("convolution", at, [x, w, b], [data, weights, F32], result, both)
    at = full(OPS["convolution_data"], gy.shape, shape=x.shape, **attrs)
    check("convolution_data", at, [gy, w], [data, weights], result, both)
    at = full(OPS["convolution_weight"], x.shape, shape=w.shape, **attrs)
    both = ({0, 1}, set()) if channels_last else (set(), set())
    check("convolution_weight", at, [x, gy], [data, data], weights, both)


def test_one_array_channels_last_and_the_other_plain() -> None:
    x, w, _, attrs = arrays("plain 3x3")
    at = full(OPS["convolution"], x.shape, **attrs)
    check("convolution", at, [x, w, None], [F32, F32, F32], F32, ({0}, set()))
    check("convolution", at, [x, w, None], [F32, F32, F32], F32, (set(), {0}))


@pytest.mark.parametrize("channels_last", [False, True])
def test_deconvolution_adds_its_bias(channels_last: bool) -> None:
    rng = np.random.default_rng(2)
    x, w, b = rng.normal(size=(2, 16, 5, 6)), rng.normal(size=(16, 12, 4, 4)), rng.normal(size=24)
    at = full(
        OPS["deconvolution"], x.shape, stride=(2, 3), pad=(1, 1), group=2, output_padding=(1, 2)
    )
    both = ({0}, {0}) if channels_last else (set(), set())
    for dtype in (F32, BF16, F16):
        check("deconvolution", at, [x, w, b], [dtype, F32, F32], dtype, both)


@pytest.mark.parametrize("instructions", ["AVX2", "SSE41"])
def test_kernels_for_older_processors(instructions: str) -> None:
    """oneDNN has other kernels there, with other faults."""
    require_library()
    here = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__]
    done = subprocess.run(
        [*here, "-k", "three_maps or fused or together"],
        env={**os.environ, "ONEDNN_MAX_CPU_ISA": instructions},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_result_does_not_depend_on_threads(threads: int) -> None:
    lib = require_library()
    before = lib.threads()
    try:
        lib.set_threads(threads)
        for case in ("plain 3x3", "four axes", "depthwise, two maps"):
            test_three_maps_of_a_convolution(case, False, "float32")
    finally:
        lib.set_threads(before)


def specs_of(arrays: list[Any], last: set[int]) -> list[Any]:
    return [
        None if a is None else native_spec(Spec.of(a.shape, a.dtype), i in last)
        for i, a in enumerate(arrays)
    ]


def run_fused(inputs: list[Any], attrs: dict[str, Any], y: Any, packed: bool = False) -> Any:
    """convolution_fused on channels-last arrays; with weights packed before, if asked."""
    lib = require_library()
    y_spec = native_spec(Spec.of(y.shape, y.dtype), True)
    lasts = [to_channels_last(a) if i in (0, 3) and a is not None else a
             for i, a in enumerate(inputs)]  # fmt: skip
    if packed:
        specs = specs_of(inputs, {0, 3})
        size = lib.packed_convolution_bytes(attrs, specs, [y_spec])
        if size == 0:  # oneDNN has no such product: bfloat16 wants AVX-512
            assert inputs[0].dtype == BF16 or "pack_convolution" not in lib.kernel_names()
            return run_fused(inputs, attrs, y)
        u8 = np.dtype(np.uint8)
        out = native_spec(Spec.of((size,), u8))
        pack = lib.array_kernel("pack_convolution", attrs, [*specs, y_spec], [out], [u8])
        attrs = {**attrs, "packed": True, "w_shape": inputs[1].shape}
        lasts[1], lasts[4], inputs = pack(*lasts, y), None, list(inputs)
        inputs[1], inputs[4] = lasts[1], None
    specs = specs_of(inputs, {0, 3})
    kernel = lib.array_kernel("convolution_fused", attrs, specs, [y_spec], [y.dtype])
    return from_channels_last(kernel(*lasts))


def composed(inputs: list[Any], attrs: dict[str, Any], activation: str, args: Any) -> Any:
    x, w, b, z, scale = [None if a is None else a.astype(F32) for a in inputs]
    at = OPS["convolution"].attrs(**attrs)
    y = run_numpy(OPS["convolution"], at, [x, w, None])[1][0]
    per_map = (1, -1, 1, 1)
    if scale is not None:
        y = y * scale.reshape(per_map)
    if b is not None:
        y = y + b.reshape(per_map)
    if z is not None:
        y = y + z
    if activation == "hard_swish":
        return y * np.clip(y / 6 + 0.5, 0, 1)
    if activation == "identity":
        return y
    return run_numpy(OPS[activation], OPS[activation].attrs(**args), [y])[1][0]


ACTIVATIONS = {
    "identity": {}, "relu": {}, "leaky_relu": {"alpha": 0.2}, "elu": {"alpha": 0.7}, "relu6": {},
    "sigmoid": {}, "tanh": {}, "swish": {}, "hard_swish": {}, "hard_sigmoid": {}, "gelu": {},
}  # fmt: skip


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("shape", ["odd", "even"])
def test_fused_convolution_equals_its_steps(activation: str, shape: str) -> None:
    rng = np.random.default_rng(3)
    c, o = (32, 48) if shape == "even" else (5, 7)
    group = 1
    attrs: dict[str, Any] = {
        "base_axis": 1, "pad": (1, 1), "stride": (2, 1), "dilation": (1, 1), "group": group,
        "channel_last": False,
    }  # fmt: skip
    x, w = rng.normal(size=(2, c, 9, 8)), rng.normal(size=(o, c, 3, 3)) / 8
    b, scale, z = rng.normal(size=o), rng.uniform(0.5, 2, o), rng.normal(size=(2, o, 5, 8))
    args = ACTIVATIONS[activation]
    for dtype in (F32, BF16, F16):
        x_, z_ = x.astype(dtype), z.astype(dtype)
        w_, b_, s_ = w.astype(F32), b.astype(F32), scale.astype(F32)
        for given in ([x_, w_, b_, z_, s_], [x_, w_, b_, None, None], [x_, w_, None, z_, None]):
            want = composed(given, attrs, activation, args)
            fused = {**attrs, "activation": activation, **args}
            got = run_fused(given, fused, np.empty(want.shape, dtype))
            assert_close(got, want, dtype, f"{activation} {dtype}")
            if dtype != F16 and shape == "even":
                again = run_fused(given, fused, np.empty(want.shape, dtype), packed=True)
                assert_close(again, want, dtype, f"{activation} {dtype} packed")


def test_result_may_overwrite_what_is_added() -> None:
    lib = require_library()
    at = {"base_axis": 1, "pad": (1, 1), "stride": (1, 1), "dilation": (1, 1), "group": 1}
    x, z = np.ones((1, 16, 8, 8), F32), np.ones((1, 16, 8, 8), F32)
    specs = specs_of([x, np.ones((16, 16, 3, 3), F32), None, z, None], {0, 3})
    kernel = lib.kernel("convolution_fused", at, specs, [specs[3]])
    assert kernel.may_overwrite(0, 3) and not kernel.may_overwrite(0, 0)


def test_padding_may_differ_at_both_ends() -> None:
    rng = np.random.default_rng(4)
    x, w = rng.normal(size=(2, 16, 9, 8)).astype(F32), rng.normal(size=(16, 16, 3, 3)).astype(F32)
    wide = np.pad(x, ((0, 0), (0, 0), (0, 2), (1, 3)))
    at = {"base_axis": 1, "stride": (2, 2), "dilation": (1, 1), "group": 1, "channel_last": False}
    want = composed([wide, w, None, None, None], {**at, "pad": (0, 0)}, "relu", {})
    fused = {**at, "pad": (0, 2, 1, 3), "activation": "relu"}
    got = run_fused([x, w, None, None, None], fused, np.empty(want.shape, F32))
    assert_close(got, want, F32, "asymmetric")


def test_weight_and_bias_gradient_come_together() -> None:
    lib = require_library()
    for case in ("plain 3x3", "four axes", "odd channels", "depthwise", "empty batch"):
        x, w, gy, attrs = arrays(case)
        at = full(OPS["convolution_weight"], x.shape, shape=w.shape, **attrs)
        for dtype in (F32, BF16):
            low, out = [x.astype(dtype), gy.astype(dtype)], [w.astype(F32), np.empty(len(w), F32)]
            kernel = lib.array_kernel(
                "convolution_weight_bias", plain_attributes(at.as_dict()),
                specs_of(low, set()), specs_of(out, set()), [F32, F32],
            )  # fmt: skip
            exact = [a.astype(F32) for a in low]
            want = run_numpy(OPS["convolution_weight"], at, exact)[1][0]
            gw, gb = kernel(*low)
            assert_close(gw, want, dtype, case)
            axes = (0, *range(2, x.ndim))
            assert_close(gb, exact[1].sum(axis=axes), dtype, f"{case} bias")
