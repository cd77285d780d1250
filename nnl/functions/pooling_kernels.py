# SPDX-License-Identifier: Apache-2.0
"""Maximum and sum over windows, and their transposes, one axis after the other.

Along one axis, kernel position k of output j sees pixel j * stride + k - pad. So for each k the
outputs that see a pixel are a range, and their pixels a slice: nothing is ever padded.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

__all__: list[str] = []

_TILE_BYTES = 256 << 10  # of the larger image, input or output; small enough for the cache


class Axis:
    """The windows along one axis.

    Attributes:
        out: Number of windows.
        full: Whether every window has a pixel at every kernel position.
        disjoint: Whether no pixel is in two windows.
        covering: Whether every pixel is in some window, if they are disjoint and full.
    """

    def __init__(
        self, size: int, kernel: int, stride: int, pad: int, ignore_border: bool, after: int
    ) -> None:
        self.size, self.position = size, -1 - after
        self.out = (
            (size + 2 * pad - kernel) // stride + 1 if ignore_border else -(-(size + pad) // stride)
        )
        self.disjoint = stride >= kernel
        self.covering = stride == kernel and self.out * stride == size and pad == 0
        # the first and the last kernel position are those that leave the image
        self.full = pad == 0 and (size - kernel) // stride >= self.out - 1
        self._kernel, self._stride, self._pad, self._after = kernel, stride, pad, after

    @cached_property
    def taps(self) -> list[tuple[Any, Any]]:
        """For every kernel position that sees a pixel, (index of the windows, index of their
        pixels), each an index for a whole array. Made when it is first used: shapes need none."""
        found: list[tuple[Any, Any]] = []
        stride, pad, rest = self._stride, self._pad, (slice(None),) * self._after
        for k in self._positions():
            first = max(0, -((k - pad) // stride))  # smallest j with j * stride + k - pad >= 0
            last = min(self.out - 1, (self.size - 1 - k + pad) // stride)
            if first > last:
                continue
            pixel = first * stride + k - pad
            seen = slice(pixel, pixel + (last - first) * stride + 1, stride)
            found.append(((..., slice(first, last + 1), *rest), (..., seen, *rest)))
        return found

    def _positions(self) -> Iterable[int]:
        """Kernel positions, without those of a kernel far larger than the image that see none."""
        if self._kernel <= self.out * self.size:
            return range(self._kernel)
        starts = (self._pad - j * self._stride for j in range(self.out))
        seen = {k for s in starts for k in range(max(s, 0), min(s + self.size, self._kernel))}
        return sorted(seen)

    def counts(self, including_pad: bool) -> np.ndarray[Any, Any]:
        """Pixels of every window, without or with those of the padding."""
        start, end = (-self._pad, self.size + self._pad) if including_pad else (0, self.size)
        begin = np.arange(self.out) * self._stride - self._pad
        n: np.ndarray[Any, Any] = np.minimum(begin + self._kernel, end) - np.maximum(begin, start)
        return n

    def shaped(self, shape: tuple[int, ...], n: int) -> tuple[int, ...]:
        """A shape with n entries along this axis."""
        at = len(shape) + self.position
        return (*shape[:at], n, *shape[at + 1 :])

    def reduce(self, xp: Any, x: Any, ufunc: Any, empty: float, out: Any) -> Any:
        """Combine the pixels of each window with `ufunc`, which has the neutral element `empty`."""
        if out is None:
            out = xp.empty(self.shaped(x.shape, self.out), x.dtype)
        if self.full:
            first = x[self.taps[0][1]]
            if len(self.taps) == 1:
                out[...] = first
            else:
                ufunc(first, x[self.taps[1][1]], out=out)
            rest = self.taps[2:]
        else:
            out[...] = empty
            rest = self.taps
        for windows, pixels in rest:
            ufunc(out[windows], x[pixels], out=out[windows])
        return out

    def spread(self, xp: Any, gy: Any, out: Any) -> Any:
        """Add every value to the pixels of its window."""
        if out is None:
            out = xp.empty(self.shaped(gy.shape, self.size), gy.dtype)
        if not (self.disjoint and self.covering):
            out[...] = 0
        for windows, pixels in self.taps:
            if self.disjoint:
                out[pixels] = gy[windows]
            else:
                out[pixels] += gy[windows]
        return out

    def scatter(self, xp: Any, x: Any, y: Any, gy: Any, out: Any) -> Any:
        """Put every gy at the first pixel of its window where x is the maximum y."""
        if len(self.taps) == 1 and self.full and self.size == self.out:
            return _result(gy, out)
        if out is None:
            out = xp.empty(x.shape, gy.dtype)
        if not (self.disjoint and self.covering):
            out[...] = 0
        bits = f"i{gy.dtype.itemsize}"
        last = self.taps[-1]
        rest = (gy if self.full else gy.copy()).view(bits)  # gradients still without a place
        for tap in self.taps:
            windows, pixels = tap
            if tap is last and self.full:
                part = rest
            else:
                part = all_ones(xp, x[pixels] == y[windows], bits)
                part &= rest[windows]
                if self.full:
                    rest = rest ^ part
                else:
                    rest[windows] ^= part
            if self.disjoint:
                out.view(bits)[pixels] = part
            else:
                out[pixels] += part.view(gy.dtype)
        return out

    def pick(self, xp: Any, x: Any, y: Any, v: Any, out: Any) -> Any:
        """Of every window, the v at the first pixel where x is the maximum y."""
        if out is None:
            out = xp.empty(y.shape, v.dtype)
        out[...] = 0
        bits = f"i{v.dtype.itemsize}"
        free = xp.ones(y.shape, bool)  # windows whose maximum is not yet found
        for windows, pixels in self.taps:
            here = x[pixels] == y[windows]
            here &= free[windows]
            free[windows] ^= here
            part = all_ones(xp, here, bits)
            part &= v[pixels].view(bits)
            out[windows] += part.view(v.dtype)
        return out


def all_ones(xp: Any, mask: Any, integer: str) -> Any:
    """Integers with all bits set where mask is true, else 0.

    Selecting floats by their bits is six times as fast as numpy's where, and unlike a product with
    the mask it does not turn infinities into nan.
    """
    return xp.negative(mask.view("i1")).astype(integer)


def _result(x: Any, out: Any) -> Any:
    if out is None:
        return x.copy()
    out[...] = x
    return out


class Windows:
    """The windows of a pooling over all spatial axes of data of one size.

    Attributes:
        size: Pixels along each axis.
        out: Number of windows along each axis.
    """

    def __init__(
        self,
        size: tuple[int, ...],
        kernel: tuple[int, ...],
        stride: tuple[int, ...],
        pad: tuple[int, ...],
        ignore_border: bool,
        channel_last: bool,
    ) -> None:
        n = len(size)
        self.axes = [
            Axis(size[i], kernel[i], stride[i], pad[i], ignore_border, n - 1 - i + channel_last)
            for i in range(n)
        ]
        self.size, self.out = size, tuple(a.out for a in self.axes)
        self.channel_last = channel_last

    def maximum(self, xp: Any, x: Any, out: Any = None) -> Any:
        """Largest pixel of each window."""
        return self._tiled(xp, self._reduce, (xp, xp.maximum, -float("inf")), (x,), self.out, out)

    def sum(self, xp: Any, x: Any, out: Any = None) -> Any:
        """Sum of each window."""
        return self._tiled(xp, self._reduce, (xp, xp.add, 0.0), (x,), self.out, out)

    def spread(self, xp: Any, gy: Any, out: Any = None) -> Any:
        """Transpose of `sum`."""
        return self._tiled(xp, self._spread, (xp,), (gy,), self.size, out)

    def scatter_maximum(self, xp: Any, gy: Any, x: Any, out: Any = None) -> Any:
        """Put every gy at the first maximum of its window."""
        return self._tiled(xp, self._scatter, (xp,), (gy, x), self.size, out)

    def pick_maximum(self, xp: Any, v: Any, x: Any, out: Any = None) -> Any:
        """Of every window, the v at its first maximum; the transpose of `scatter_maximum`."""
        return self._tiled(xp, self._pick, (xp,), (v, x), self.out, out)

    def _tiled(
        self, xp: Any, compute: Any, args: Any, arrays: Any, size: tuple[int, ...], out: Any
    ) -> Any:
        """Call compute on some images at a time, so that what it makes stays in the cache."""
        x = arrays[-1]
        spatial = len(self.axes) + self.channel_last
        lead, tail = x.shape[: x.ndim - spatial], x.shape[x.ndim - self.channel_last :]
        if out is None:
            out = xp.empty((*lead, *size, *tail), x.dtype)
        n = math.prod(lead)
        arrays = [a.reshape(n, *a.shape[a.ndim - spatial :]) for a in (*arrays, out)]
        image_bytes = max(a.nbytes for a in arrays) // max(n, 1)
        step = max(1, _TILE_BYTES // max(1, image_bytes)) if xp is np else max(n, 1)
        for i in range(0, n, step):
            compute(*args, *(a[i : i + step] for a in arrays))
        return out

    def _reduce(self, xp: Any, ufunc: Any, empty: float, x: Any, out: Any) -> None:
        for axis in self.axes:  # rows first: they are contiguous, and leave less for the last axis
            x = axis.reduce(xp, x, ufunc, empty, out if axis is self.axes[-1] else None)

    def _spread(self, xp: Any, gy: Any, out: Any) -> None:
        for axis in reversed(self.axes):
            gy = axis.spread(xp, gy, out if axis is self.axes[0] else None)

    def _stages(self, xp: Any, x: Any) -> list[Any]:
        """x, then its maxima after each axis, the last axis first.

        The first maximum along the last axis within the first row that has the maximum is the first
        one of the window.
        """
        stages = [x]
        for axis in reversed(self.axes):
            stages.append(axis.reduce(xp, stages[-1], xp.maximum, -float("inf"), None))
        return stages

    def _scatter(self, xp: Any, gy: Any, x: Any, out: Any) -> None:
        stages = self._stages(xp, x)
        for i, axis in enumerate(self.axes):
            into = out if axis is self.axes[-1] else None
            gy = axis.scatter(xp, stages[-2 - i], stages[-1 - i], gy, into)

    def _pick(self, xp: Any, v: Any, x: Any, out: Any) -> None:
        stages = self._stages(xp, x)
        for i, axis in enumerate(reversed(self.axes)):
            into = out if axis is self.axes[0] else None
            v = axis.pick(xp, stages[i], stages[i + 1], v, into)

    def weight(self, xp: Any, including_pad: bool, dtype: Any) -> Any:
        """1 / (pixels of each window), shaped to multiply sums."""
        total = None
        for axis in self.axes:
            n = xp.asarray(axis.counts(including_pad), dtype)
            shape = [1] * (len(self.axes) + self.channel_last)
            shape[axis.position] = axis.out
            n = n.reshape(shape)
            total = n if total is None else total * n
        return 1 / total


@lru_cache(maxsize=512)
def windows(
    size: tuple[int, ...],
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    pad: tuple[int, ...],
    ignore_border: bool,
    channel_last: bool,
) -> Windows:
    """The Windows of these settings; made once."""
    return Windows(size, kernel, stride, pad, ignore_border, channel_last)
