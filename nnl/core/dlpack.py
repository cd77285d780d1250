# SPDX-License-Identifier: Apache-2.0
"""Exchange arrays with other frameworks without a copy, through DLPack."""

from __future__ import annotations

from typing import Any

import numpy as np

from nnl.core.array import NdArray
from nnl.core.array_views import cast
from nnl.core.context import Context
from nnl.core.spec import Spec


class _Capsule:
    """What numpy wants to see around a bare DLPack capsule: the protocol's two methods."""

    def __init__(self, capsule: Any) -> None:
        self.capsule = capsule

    def __dlpack__(self, **kw: Any) -> Any:
        return self.capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0  # host memory


def to_dlpack(a: NdArray, dtype: Any = None, ctx: Context | None = None) -> Any:
    """A DLPack capsule of the array's host memory, which both sides then share.

    Args:
        dtype: Convert the array to this type first.
    """
    host = a.data if dtype is None else cast(a, dtype, ctx)
    return host.__dlpack__()


def from_dlpack(dlp: Any, arr: NdArray | None = None) -> NdArray:
    """An NdArray on the memory of a DLPack capsule, or of an object with `__dlpack__`.

    Args:
        arr: An array that takes over the memory, instead of a new one.
    """
    source = dlp if hasattr(dlp, "__dlpack__") else _Capsule(dlp)
    host = np.from_dlpack(source)
    nd = NdArray() if arr is None else arr
    nd.set_spec(Spec.of(host.shape, host.dtype))
    nd.write("host", host)
    return nd
