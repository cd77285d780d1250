# SPDX-License-Identifier: Apache-2.0
"""Runs a native kernel on arrays of chosen element types and orders in memory."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from nnl.core.arrays.spec import Spec
from nnl.core.ops.op import Op
from nnl.core.settings.context import Context, using
from nnl.ext import native
from nnl.ext.library import kernel_names, native_spec, request
from nnl.ext.numpy import bind as bind_numpy
from nnl.graph.passes.layout.prepared_weights import PACK

BF16 = np.dtype(ml_dtypes.bfloat16)
F16 = np.dtype(np.float16)
F32 = np.dtype(np.float32)

# Largest error of an element, relative to the largest magnitude of its array.
TOLERANCE = {F32: 2e-5, F16: 4e-3, BF16: 3e-2}


def require_library() -> Any:
    """The extension module; skips the test where it was not built."""
    lib = native.library()
    if lib is None:
        pytest.skip("the native engine is not built")
    return lib


def require_onednn() -> Any:
    """The extension module; skips the test where it was built without oneDNN."""
    lib = require_library()
    if PACK not in kernel_names(lib):
        pytest.skip("the native engine is built without oneDNN")
    return lib


def is_float(x: Any) -> bool:
    return x is not None and x.dtype.kind in "fV"


def to_channels_last(x: np.ndarray) -> np.ndarray:
    """Same shape, memory in the order (N, spatial..., C), as one contiguous run of elements."""
    return np.ascontiguousarray(np.moveaxis(x, 1, -1)).reshape(x.shape)


def from_channels_last(x: np.ndarray) -> np.ndarray:
    n, c, *space = x.shape
    return np.ascontiguousarray(np.moveaxis(x.reshape(n, *space, c), -1, 1))


def array_kernel(op: str, attrs: Any, ins: Any, outs: Any, types: Any, writes: Any = ()) -> Any:
    """A native kernel as a call on arrays, asked for as the engine does; None when it declines."""
    lib = require_library()
    asked = request(lib, op, attrs, ins, outs)
    return asked and lib.array_kernel(*asked, ins, outs, types, list(writes))


def run_native(
    op: Op,
    attrs: Any,
    inputs: list[Any],
    out_specs: list[Spec],
    channels_last: tuple[set[int], set[int]] = (set(), set()),
) -> list[np.ndarray] | None:
    """Outputs of the native kernel, in the plain order; None when it declines.

    Args:
        channels_last: Positions of inputs, and of outputs, that lie channels-last in memory.
    """
    ins, outs = channels_last
    specs = [None if x is None else Spec.of(x.shape, x.dtype) for x in inputs]
    kernel = array_kernel(
        op.name,
        attrs.as_dict(),
        [native_spec(s, i in ins) for i, s in enumerate(specs)],
        [native_spec(s, o in outs) for o, s in enumerate(out_specs)],
        [s.dtype for s in out_specs],
        list(op.written(attrs)),
    )
    if kernel is None:
        return None
    given = [to_channels_last(x) if i in ins else x for i, x in enumerate(inputs)]
    result = kernel(*given)
    for i in op.written(attrs):  # state written in place
        if i in ins:
            inputs[i][...] = from_channels_last(given[i])
    ys = result if isinstance(result, tuple) else (result,)
    return [from_channels_last(y) if o in outs else y for o, y in enumerate(ys)]


def run_numpy(op: Op, attrs: Any, inputs: list[Any]) -> tuple[list[Spec], list[np.ndarray]]:
    """(specs, outputs) of the definition itself, computed in float32 by numpy."""
    with using(target=Context(["numpy:float"]).target):
        specs = tuple(None if x is None else Spec.of(x.shape, x.dtype) for x in inputs)
        cast = op.attrs_class.infer(attrs, *specs)
        cast = cast if isinstance(cast, tuple) else (cast,)
        made = bind_numpy(op, attrs, specs, cast)
    assert made is not None
    y = made[0](*inputs)
    return list(cast), list(y) if isinstance(y, tuple) else [y]


def assert_close(got: np.ndarray, want: np.ndarray, dtype: np.dtype, what: str) -> None:
    """Equal within the rounding of `dtype`; NaN and infinities in the same places."""
    got, want = got.astype(np.float64), want.astype(np.float64)
    assert got.shape == want.shape, what
    finite = np.isfinite(want)
    assert np.array_equal(np.isfinite(got), finite), f"{what}: infinities or NaN differ"
    assert np.array_equal(got[~finite], want[~finite], equal_nan=True), what
    scale = max(1.0, float(np.abs(want[finite]).max(initial=0)))
    error = float(np.abs(got[finite] - want[finite]).max(initial=0)) / scale
    assert error <= TOLERANCE[dtype], f"{what}: error {error:.2g}"
