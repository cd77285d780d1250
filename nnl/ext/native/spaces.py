# SPDX-License-Identifier: Apache-2.0
"""Host memory in orders that kernels like; what plans leave behind until somebody looks."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from nnl.core.context import REORDERED, SPACES, HostSpace

HOST, CHANNELS_LAST, TILED = "host", "channels_last", "tiled"
# The numbers of the C++ enumeration nnl::Layout.
LAYOUTS = {HOST: 0, CHANNELS_LAST: 1, TILED: 2}
TILE = 16
Host = np.ndarray[Any, Any]


class ChannelsLast:
    """Images in the order (N, spatial..., C)."""

    def to_host(self, buf: Any) -> Host:
        return np.ascontiguousarray(np.moveaxis(buf, -1, 1))

    def from_host(self, array: Host) -> Any:
        return np.ascontiguousarray(np.moveaxis(array, 1, -1))


class Tiled:
    """Weights (O, I, K...) in the order (O / 16, I / 16, K..., 16 of I, 16 of O)."""

    def to_host(self, buf: Any) -> Host:
        o, i, *kernel = buf.shape[:-2]
        shape = (o * TILE, i * TILE, *kernel)
        plain = HostSpace.empty(shape, buf.dtype)
        _reorder(shape, buf.dtype, TILED, HOST)(buf, out=plain)
        return plain

    def from_host(self, array: Host) -> Any:
        tiles = HostSpace.empty(tiled_shape(array.shape), array.dtype)
        _reorder(array.shape, array.dtype, HOST, TILED)(array, out=tiles)
        return tiles

    def move(self, array: Host) -> Any:
        """The tiles in the memory of the array, which is not one any more."""
        tiles = np.empty(tiled_shape(array.shape), array.dtype)
        _reorder(array.shape, array.dtype, HOST, TILED)(array, out=tiles)
        moved = array.reshape(tiles.shape)
        np.copyto(moved, tiles)
        return moved


TILES = Tiled()
SPACES.update({CHANNELS_LAST: ChannelsLast(), TILED: TILES})
REORDERED.update((CHANNELS_LAST, TILED))


def tiled_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The axes of tiled weights as they lie in memory."""
    o, i, *kernel = shape
    return o // TILE, i // TILE, *kernel, TILE, TILE


@cache
def _reorder(shape: tuple[int, ...], dtype: Any, source: str, target: str) -> Callable[..., Any]:
    from nnl.ext.native import _DTYPES, library

    lib = library()
    assert lib is not None  # without it nothing is tiled
    specs = [[(shape, _DTYPES[dtype.name], LAYOUTS[s])] for s in (source, target)]
    kernel: Callable[..., Any] = lib.array_kernel("to_layout", {}, *specs, [dtype])
    return kernel
