# SPDX-License-Identifier: Apache-2.0
"""Host memory in orders that kernels like; what plans leave behind until somebody looks."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from nnl.core.settings.context import REORDERED, SPACES, half_type
from nnl.ext.library import BFLOAT16, CHANNELS_LAST, DTYPES, HOST, LAYOUTS, TILE, TILED

Host = np.ndarray[Any, Any]


class HostOrder:
    """What these spaces have in common: they lie in host memory."""

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        return SPACES[HOST].empty(self.lies_as(shape), dtype)

    def lies_as(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The axes of an array of this shape as they lie in memory."""
        return shape

    def library(self) -> Any:
        return SPACES[HOST].library()


class ChannelsLast(HostOrder):
    """Images in the order (N, spatial..., C)."""

    def to_host(self, buf: Any) -> Host:
        return np.ascontiguousarray(np.moveaxis(buf, -1, 1))

    def from_host(self, array: Host) -> Any:
        return np.ascontiguousarray(np.moveaxis(array, 1, -1))

    def lies_as(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return (shape[0], *shape[2:], shape[1])


class Tiled(HostOrder):
    """Weights (O, I, K...) in the order (O / 16, I / 16, K..., 16 of I, 16 of O)."""

    def to_host(self, buf: Any) -> Host:
        o, i, *kernel = buf.shape[:-2]
        shape = (o * TILE, i * TILE, *kernel)
        plain = SPACES[HOST].empty(shape, buf.dtype)
        _reorder(shape, buf.dtype, TILED, HOST)(buf, out=plain)
        return plain

    def from_host(self, array: Host) -> Any:
        tiles = SPACES[HOST].empty(tiled_shape(array.shape), array.dtype)
        _reorder(array.shape, array.dtype, HOST, TILED)(array, out=tiles)
        return tiles

    def move(self, array: Host) -> Any:
        """The tiles in the memory of the array, which is not one any more."""
        moved = array.reshape(tiled_shape(array.shape))
        # 16 output maps lie in the same part of the memory in both orders
        part = (TILE, *array.shape[1:])
        reorder = _reorder(part, array.dtype, HOST, TILED)
        tiles = np.empty(moved.shape[1:], array.dtype)
        for block in moved:
            reorder(block.reshape(part), out=tiles)
            np.copyto(block, tiles)
        return moved

    def lies_as(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return tiled_shape(shape)


class Copy16(HostOrder):
    """A copy of float32 values in 16 bits. The float32 values are always there as well."""

    def to_host(self, buf: Any) -> Host:
        host: Host = buf.astype(np.float32)
        return host

    def from_host(self, array: Host) -> Any:
        half = half_type(BFLOAT16)
        copy = SPACES[HOST].empty(array.shape, half)
        _cast(array.shape, half)(array, out=copy)
        return copy


SPACES.update({CHANNELS_LAST: ChannelsLast(), TILED: Tiled(), BFLOAT16: Copy16()})
REORDERED.update((CHANNELS_LAST, TILED))


def tiled_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The axes of tiled weights as they lie in memory."""
    o, i, *kernel = shape
    return o // TILE, i // TILE, *kernel, TILE, TILE


@lru_cache(256)
def _reorder(shape: tuple[int, ...], dtype: Any, source: str, target: str) -> Callable[..., Any]:
    return _kernel("to_layout", shape, (dtype, source), (dtype, target))


@lru_cache(256)
def _cast(shape: tuple[int, ...], dtype: Any) -> Callable[..., Any]:
    return _kernel("cast", shape, (np.dtype(np.float32), HOST), (dtype, HOST))


def _kernel(
    op: str, shape: tuple[int, ...], source: tuple[Any, str], target: tuple[Any, str]
) -> Callable[..., Any]:
    lib = SPACES[HOST].library()
    assert lib is not None  # without it there are no such arrays
    specs = [[(shape, DTYPES[dtype.name], LAYOUTS[s])] for dtype, s in (source, target)]
    kernel: Callable[..., Any] = lib.array_kernel(op, {}, *specs, [target[0]])
    return kernel
