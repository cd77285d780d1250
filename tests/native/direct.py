# SPDX-License-Identifier: Apache-2.0
"""Calls native kernels by name: also those that have no definition in Python."""

from __future__ import annotations

from typing import Any

import numpy as np

from nnl.core.arrays.spec import Spec
from nnl.ext.library import native_spec
from tests.native.kernels import array_kernel


def make(name: str, attrs: dict[str, Any], inputs: list[Any], outs: list[Spec]) -> Any:
    """The kernel for these arrays, or None when it declines."""
    specs = [None if x is None else Spec.of(x.shape, x.dtype) for x in inputs]
    return array_kernel(
        name,
        attrs,
        [native_spec(s) for s in specs],
        [native_spec(s) for s in outs],
        [s.dtype for s in outs],
    )


def call(
    name: str, attrs: dict[str, Any], inputs: list[Any], *outs: tuple[tuple[int, ...], Any]
) -> Any:
    """Outputs of a kernel, a single one without its tuple; outs are their shapes and dtypes."""
    specs = [Spec.of(shape, np.dtype(dtype)) for shape, dtype in outs]
    kernel = make(name, attrs, inputs, specs)
    assert kernel is not None, f"{name} declines"
    return kernel(*inputs)
