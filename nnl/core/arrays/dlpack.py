# SPDX-License-Identifier: Apache-2.0
"""Exchange arrays with other frameworks without a copy, through DLPack."""

from __future__ import annotations

from typing import Any

import numpy as np

from nnl.core.arrays.array import NdArray
from nnl.core.arrays.nnabla_views import HOST
from nnl.core.arrays.spec import Spec
from nnl.core.settings.context import Context


class _Capsule:
    """What numpy wants to see around a bare DLPack capsule: the protocol's two methods."""

    def __init__(self, capsule: Any, device: tuple[int, int]) -> None:
        self.capsule, self.device = capsule, device

    def __dlpack__(self, **kw: Any) -> Any:
        return self.capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device


class _Writable:
    """Memory that its owner allows to write, though numpy marks what comes without a version."""

    def __init__(self, host: Any) -> None:
        self.owner, about = host, host.__array_interface__
        self.__array_interface__ = {**about, "data": (about["data"][0], False)}


def to_dlpack(a: NdArray, dtype: Any = None, ctx: Context | None = None) -> Any:
    """A DLPack capsule of the array's host memory, which both sides then share.

    Args:
        dtype: Convert the array to this type first.
    """
    host = a.data if dtype is None else a.cast(dtype, ctx)
    return host.__dlpack__()


def from_dlpack(dlp: Any, arr: NdArray | None = None) -> NdArray:
    """An NdArray on the memory of a DLPack capsule, or of an object with `__dlpack__`.

    Args:
        arr: An array that takes over the memory, instead of a new one.
    """
    if hasattr(dlp, "__dlpack__"):
        try:
            capsule = dlp.__dlpack__()  # without a version: one that can only be writable
        except BufferError:
            host = np.from_dlpack(dlp)
        else:
            host = _host(capsule, dlp.__dlpack_device__())
    else:
        host = _host(dlp, HOST)
    nd = NdArray() if arr is None else arr
    nd.set_spec(Spec.of(host.shape, host.dtype))
    nd.write("host", host)
    return nd


def _host(capsule: Any, device: tuple[int, int]) -> Any:
    """A numpy array, which may be written, on the memory of a capsule."""
    host = np.from_dlpack(_Capsule(capsule, device))
    return host if host.flags.writeable else np.asarray(_Writable(host))
