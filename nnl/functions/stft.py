# SPDX-License-Identifier: Apache-2.0
"""The short-time Fourier transform and its inverse.

Both are linear maps, made of padding and of two functions that are each other's transpose:
cut_spectra and add_spectra, each with the weights of the transform or of its inverse.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from nnl.core.arrays.spec import ShapeError, check_same_shape
from nnl.core.ops.op import Cost, Sample, op
from nnl.functions.padding import pad, pad_backward
from nnl.functions.slicing import slice_op

CATEGORY = "Signal processing"

__all__ = ["stft", "istft"]

# Coefficients a_0, a_1 of the windows a_0 - a_1 cos(2 pi n / size).
WINDOWS = {"hanning": (0.5, 0.5), "hamming": (0.54, 0.46), "rectangular": (1.0, 0.0)}
SMALLEST_WEIGHT = 1e-11  # sum of squared windows over a sample below which no value is defined


@lru_cache(maxsize=64)
def window(kind: str, size: int, fft_size: int) -> Any:
    """A periodic window in the middle of fft_size values, zeros around it, float64."""
    a, b = WINDOWS[kind]
    y = np.zeros(fft_size)
    start = (fft_size - size) // 2
    y[start : start + size] = a - b * np.cos(2 * np.pi * np.arange(size) / size)
    y.flags.writeable = False
    return y


def overlap_add(xp: Any, frames: Any, stride: int) -> Any:
    """Sum of frames (batch, T, n), `stride` after each other: (batch, (T - 1) stride + n)."""
    batch, count, n = frames.shape
    if count == 1:
        return frames[:, 0]
    parts = -(-n // stride)
    if parts * stride != n:
        rest = xp.zeros((batch, count, parts * stride - n), frames.dtype)
        frames = xp.concatenate((frames, rest), 2)
    frames = frames.reshape(batch, count, parts, stride)
    y = xp.zeros((batch, count + parts - 1, stride), frames.dtype)
    for j in range(parts):
        y[:, j : j + count] += frames[:, :, j]
    return y.reshape(batch, (count + parts - 1) * stride)[:, : (count - 1) * stride + n]


@lru_cache(maxsize=64)
def window_sum(kind: str, size: int, fft_size: int, stride: int, count: int) -> Any:
    """Sum of the squared windows of `count` frames over every sample, float64."""
    squares = np.broadcast_to(window(kind, size, fft_size) ** 2, (1, count, fft_size))
    y = overlap_add(np, squares, stride)[0]
    y.flags.writeable = False
    return y


class Spectrogram:
    """What all functions here share: the frames and their window."""

    window_size: int
    stride: int
    fft_size: int
    window_type: str | None = "hanning"

    def covered(self, count):
        """Number of samples of which `count` frames are made."""
        return (count - 1) * self.stride + self.fft_size

    def frame_count(self, size):
        """Number of frames in `size` samples."""
        return (size - self.fft_size) // self.stride + 1

    def frequencies(self):
        """Number of frequencies of a spectrum, of both ends and what lies between."""
        return self.fft_size // 2 + 1

    def total(self, count):
        """Sum of the squared windows over every sample."""
        at = self.window_type, self.window_size, self.fft_size, self.stride
        return window_sum(*at, count)

    def framing(self):
        """The attributes above by name."""
        names = ("window_size", "stride", "fft_size", "window_type")
        return {name: getattr(self, name) for name in names}

    def transform_cost(self, y_r, x):
        """Between a signal x and spectra: a window and 2.5 n log2 n operations for each frame."""
        n = self.fft_size
        frames = y_r.size // self.frequencies()
        flops = frames * n * (2 + 2.5 * math.log2(max(2, n)))
        return Cost(flops, 2 * y_r.nbytes + x.nbytes)


class Unpadded(Spectrogram):
    """Attributes of the two functions without padding.

    With `inverse` the weights are those of the inverse transform: the sum over frequencies is
    divided by their number and the sum over frames by that of the squared windows.
    """

    inverse: bool = False

    def window(self, xp, dtype):
        return xp.asarray(window(self.window_type, self.window_size, self.fft_size), dtype)

    def sample_weight(self, xp, count, dtype):
        """1 / sum of the squared windows; 0 where it is 0, as in samples that are cut off."""
        total = self.total(count)
        defined = total >= SMALLEST_WEIGHT
        return xp.asarray(defined / np.where(defined, total, 1), dtype)

    def frequency_weight(self, xp, inner, ends, dtype):
        """(F, 1): `inner` for the frequencies that stand for a pair, `ends` for the others."""
        m = np.full((self.frequencies(), 1), inner)
        m[0] = ends
        if self.fft_size % 2 == 0:
            m[-1] = ends
        return xp.asarray(m, dtype)


@op("cut_spectra", outputs=("y_r", "y_i"))
class cut_spectra(Unpadded):
    """Spectra of the windowed frames of a signal: stft without padding.

    Args:
        x: (batch, L).
        inverse: Be the transpose of add_spectra with the same flag.
    Returns:
        Real and imaginary parts, (batch, F, T).
    """

    def infer(self, x):
        y = x.with_shape((x.shape[0], self.frequencies(), self.frame_count(x.shape[1])))
        return y, y

    def forward(self, xp, x):
        count = self.frame_count(x.shape[1])
        if not x.size:  # which CuPy refuses to transform
            shape = len(x), self.frequencies(), count
            return xp.zeros(shape, x.dtype), xp.zeros(shape, x.dtype)
        if self.inverse:
            x = x[:, : self.covered(count)] * self.sample_weight(xp, count, x.dtype)
        # (batch, T, fft_size), a view
        frames = xp.lib.stride_tricks.sliding_window_view(x, self.fft_size, axis=1)
        frames = frames[:, :: self.stride] * self.window(xp, x.dtype)
        spectra = xp.fft.rfft(frames, axis=2).transpose(0, 2, 1)
        y_r = xp.ascontiguousarray(spectra.real, x.dtype)
        y_i = xp.ascontiguousarray(spectra.imag, x.dtype)
        if self.inverse:
            n = self.fft_size
            m = self.frequency_weight(xp, 2 / n, 1 / n, x.dtype)
            y_r *= m
            y_i *= m
        return y_r, y_i

    def vjp(self, gy_r, gy_i, *, x_spec):
        return add_spectra(gy_r, gy_i, size=x_spec.shape[1], inverse=self.inverse, **self.framing())

    def cost(self, x):
        return self.transform_cost(self.infer(x)[0], x)

    def samples(rng):
        for inverse in (False, True):
            at = {"inverse": inverse, "stride": 3}
            yield Sample(rng.normal(size=(2, 16)), window_size=5, fft_size=6, **at)
            yield Sample(rng.normal(size=(1, 7)), window_size=7, fft_size=7, **at)


@op("add_spectra", outputs=("x",))
class add_spectra(Unpadded):
    """The signal that frames with the given spectra add up to: istft without cutting off.

    Args:
        y_r, y_i: (batch, F, T).
        size: Length L of the signal; what the frames do not reach is zero.
        inverse: Be the inverse of cut_spectra; else its transpose.
    Returns:
        (batch, L).
    """

    size: int = 0

    def infer(self, y_r, y_i):
        return y_r.with_shape((y_r.shape[0], self.size))

    def forward(self, xp, y_r, y_i):
        n, dtype, count = self.fft_size, y_r.dtype, y_r.shape[2]
        if not y_r.size:
            return xp.zeros((len(y_r), self.size), dtype)
        spectra = (y_r + 1j * y_i).astype(np.result_type(dtype, np.complex64), copy=False)
        if not self.inverse:
            spectra *= self.frequency_weight(xp, n / 2, float(n), dtype)
        frames = xp.fft.irfft(spectra.transpose(0, 2, 1), n, axis=2).astype(dtype, copy=False)
        frames *= self.window(xp, dtype)
        x = overlap_add(xp, frames, self.stride)
        if self.inverse:
            x = x * self.sample_weight(xp, count, dtype)
        if x.shape[1] == self.size:
            return xp.ascontiguousarray(x)
        y = xp.zeros((len(x), self.size), dtype)
        y[:, : x.shape[1]] = x
        return y

    def vjp(self, gx):
        return cut_spectra(gx, inverse=self.inverse, **self.framing())

    def cost(self, y_r, y_i):
        return self.transform_cost(y_r, self.infer(y_r, y_i))

    def samples(rng):
        for inverse in (False, True):
            at = {"inverse": inverse, "stride": 3}
            y = rng.normal(size=(2, 2, 4, 3))
            yield Sample(y[0], y[1], window_size=5, fft_size=6, size=14, **at)
            yield Sample(y[0], y[1], window_size=7, fft_size=7, size=13, **at)


class Padded(Spectrogram):
    """Attributes of the transform and of its inverse."""

    center: bool = True
    pad_mode: str = "reflect"

    def resolve(self, *_):
        # as NNabla has it
        return {"window_type": "rectangular" if self.window_type is None else self.window_type}

    def margin(self):
        """Number of samples padded at each end."""
        return self.fft_size // 2 if self.center else 0

    def pad(self, x, mode):
        """A signal with its margins."""
        margin = self.margin()
        return pad(x, pad_width=(margin, margin), mode=mode) if margin else x

    def padding_transposed(self, x, size, mode):
        """The transpose: margins cut off or, if they are mirror images, added to `size` samples."""
        margin, batch = self.margin(), x.shape[0]
        if not margin:
            return x
        if mode == "constant":
            stop = (batch, margin + size)
            return slice_op(x, start=(0, margin), stop=stop, step=(1, 1))
        return pad_backward(x, shape=(batch, size), pad_width=(margin, margin), mode=mode)

    def check_attributes(self):
        name = self.op.name
        if self.window_type not in WINDOWS:
            raise ValueError(
                f"{name}: window_type is {self.window_type!r}, wanted 'hanning', 'hamming' or "
                "'rectangular'"
            )
        if self.pad_mode not in ("constant", "reflect"):
            raise ValueError(
                f"{name}: pad_mode is {self.pad_mode!r}, wanted 'constant' or 'reflect'"
            )
        if self.stride < 1:
            raise ValueError(f"{name}: stride is {self.stride}, wanted >= 1")
        if not 1 <= self.window_size <= self.fft_size:
            raise ValueError(
                f"{name}: window_size is {self.window_size}, wanted between 1 and fft_size "
                f"{self.fft_size}"
            )

    def check_weights(self, count):
        """Raise unless every sample that `count` frames give is under some window."""
        if self.stride > self.fft_size and count > 1:
            raise ValueError(
                f"{self.op.name}: stride is {self.stride}, wanted at most fft_size "
                f"{self.fft_size}, so that every sample lies under a window"
            )
        margin = self.margin()
        total = self.total(count)[margin : self.covered(count) - margin]
        if (total < SMALLEST_WEIGHT).any():
            raise ValueError(
                f"{self.op.name}: sample {int((total < SMALLEST_WEIGHT).argmax())} of "
                f"{len(total)} lies under no {self.window_type} window of size "
                f"{self.window_size} with stride {self.stride} and center {self.center}, so that "
                "its value is undefined"
            )


@op("stft", outputs=("y_r", "y_i"), nnp="STFT")
class stft(Padded):
    r"""Short-time Fourier transform: the spectra of windowed pieces of a signal.

    $$y_{k,t} = \sum_{n=0}^{N-1} w_n\, x_{t s + n}\, e^{-2 \pi i k n / N}$$ with N = fft_size,
    s = stride, 0 <= k <= N/2. The window w is periodic, of window_size values in the middle of N.

    Args:
        x: (batch, L), a signal of L samples.
        window_size: Size of the window in samples.
        stride: Distance of two windows in samples.
        fft_size: Length of the Fourier transform in samples.
        window_type: "hanning": $w_n = 0.5 - 0.5 \cos(2 \pi n / W)$; "hamming":
            $0.54 - 0.46 \cos(2 \pi n / W)$; "rectangular" or None: 1.
        center: Pad x by N/2, rounded down, at both ends, so that window t is centred at t s.
        pad_mode: With what: "reflect": the mirror image of x; "constant": zeros.
        as_istft_backward: Compute the gradient of istft by its spectra instead, for the
            gradient x of its result.
    Returns:
        Real and imaginary parts, (batch, N/2 + 1, T), T = (L + padding - N) / s + 1, both divisions
        rounded down.
    Raises:
        ShapeError: x is not of rank 2, or shorter than one frame.
        ValueError: window_type or pad_mode is unknown, stride < 1, window_size > fft_size;
            as_istft_backward is set and pad_mode not "constant", or a sample is under no window.
    Source: Allen, Short term spectral analysis, synthesis, and modification by discrete Fourier
        transform, IEEE Trans. ASSP 25(3), 1977.
    """

    as_istft_backward: bool = False

    def infer(self, x):
        self.check_attributes()
        if self.as_istft_backward and self.pad_mode != "constant":
            raise ValueError(
                f"stft: pad_mode is {self.pad_mode!r}, wanted 'constant' with as_istft_backward, "
                "as istft cuts off and does not reflect"
            )
        if x.ndim != 2:
            raise ShapeError(f"stft: x {x} has rank {x.ndim}, wanted (batch, samples)")
        size = x.shape[1] + 2 * self.margin()
        if x.shape[1] < 1 or size < self.fft_size:
            raise ShapeError(
                f"stft: x {x} has {x.shape[1]} samples, {size} with padding, wanted at least "
                f"{max(1, self.fft_size - 2 * self.margin())} for one frame of fft_size "
                f"{self.fft_size}"
            )
        count = self.frame_count(size)
        if self.as_istft_backward:
            self.check_weights(count)
        y = x.with_shape((x.shape[0], self.frequencies(), count))
        return y, y

    def decompose(self, x):
        x = self.pad(x, self.pad_mode)
        return cut_spectra(x, inverse=self.as_istft_backward, **self.framing())

    def vjp(self, gy_r, gy_i, *, x_spec):
        size = x_spec.shape[1]
        at = {"size": size + 2 * self.margin(), "inverse": self.as_istft_backward}
        gx = add_spectra(gy_r, gy_i, **at, **self.framing())
        return self.padding_transposed(gx, size, self.pad_mode)

    def cost(self, x):
        return self.transform_cost(self.infer(x)[0], x)

    def samples(rng):
        x = rng.normal(size=(2, 16))
        for kind in (*WINDOWS, None):
            yield Sample(x, window_size=8, stride=4, fft_size=8, window_type=kind)
        for mode in ("reflect", "constant"):
            yield Sample(x, window_size=5, stride=2, fft_size=8, pad_mode=mode)
            yield Sample(x[:, :9], window_size=6, stride=4, fft_size=7, pad_mode=mode)  # a rest
            yield Sample(x[:, :3], window_size=4, stride=2, fft_size=8, pad_mode=mode)
        yield Sample(x, window_size=7, stride=3, fft_size=7, center=False)
        at = {"window_size": 6, "stride": 2, "fft_size": 8, "as_istft_backward": True}
        yield Sample(x, **at, pad_mode="constant")
        at["window_size"] = 8
        yield Sample(x, **at, pad_mode="constant", window_type="hamming", center=False)
        yield Sample(x[:0], window_size=8, stride=4, fft_size=8)


@op("istft", outputs=("x",), nnp="ISTFT")
class istft(Padded):
    r"""Inverse short-time Fourier transform: a signal from the spectra of its windowed pieces.

    $$x_m = \frac{\sum_t w_{m - t s}\, f_{t, m - t s}}{\sum_t w_{m - t s}^2}$$ with the inverse
    Fourier transforms f of the spectra. `istft(*stft(x, ...), ...)` is x without the samples left
    over after the last stride. If the spectra are those of no signal, it is the signal whose
    spectra are the closest to them.

    Args:
        y_r, y_i: (batch, fft_size/2 + 1, T), real and imaginary parts.
        window_size, stride, fft_size, window_type: See stft.
        center: Cut off fft_size/2 samples, rounded down, at both ends.
        pad_mode: Only with as_stft_backward: that of the transform.
        as_stft_backward: Compute the gradient of stft by its signal instead, for the gradients y_r
            and y_i of its results.
    Returns:
        (batch, L), L = (T - 1) stride + fft_size - what is cut off.
    Raises:
        ShapeError: y_r and y_i differ in shape, are not of rank 3, have not fft_size/2 + 1
            frequencies, or give no sample.
        ValueError: An attribute is out of range, see stft; a sample is under no window.
    Source: Griffin and Lim, Signal estimation from modified short-time Fourier transform, IEEE
        Trans. ASSP 32(2), 1984, eq. 6.
    """

    as_stft_backward: bool = False

    def infer(self, y_r, y_i):
        self.check_attributes()
        check_same_shape("istft", "y_r", y_r, "y_i", y_i)
        if y_r.ndim != 3 or y_r.shape[1] != self.frequencies():
            raise ShapeError(
                f"istft: y_r {y_r} must have the shape (batch, {self.frequencies()}, frames) for "
                f"fft_size {self.fft_size}"
            )
        count = y_r.shape[2]
        size = self.covered(count) - 2 * self.margin()
        if count < 1 or size < 1:
            raise ShapeError(
                f"istft: y_r {y_r} has {count} frames, of which no sample is left with stride "
                f"{self.stride}, fft_size {self.fft_size} and center {self.center}"
            )
        if not self.as_stft_backward:
            self.check_weights(count)
        return y_r.with_shape((y_r.shape[0], size))

    def effective_pad_mode(self):
        """How a signal is padded by the transpose of this function."""
        return self.pad_mode if self.as_stft_backward else "constant"

    def decompose(self, y_r, y_i):
        size = self.covered(y_r.shape[2])
        at = {"size": size, "inverse": not self.as_stft_backward}
        x = add_spectra(y_r, y_i, **at, **self.framing())
        return self.padding_transposed(x, size - 2 * self.margin(), self.effective_pad_mode())

    def vjp(self, gx):
        gx = self.pad(gx, self.effective_pad_mode())
        return cut_spectra(gx, inverse=not self.as_stft_backward, **self.framing())

    def cost(self, y_r, y_i):
        return self.transform_cost(y_r, self.infer(y_r, y_i))

    def samples(rng):
        y = rng.normal(size=(2, 2, 5, 6))
        for kind in (*WINDOWS, None):
            at = {"window_size": 8, "stride": 2, "fft_size": 8, "window_type": kind}
            yield Sample(y[0], y[1], **at, pad_mode="constant")
            yield Sample(y[0], y[1], **at, as_stft_backward=True)
        at = {"window_size": 7, "stride": 4, "fft_size": 8}
        yield Sample(y[0], y[1], **at, pad_mode="constant")
        at = {"window_size": 7, "stride": 3, "fft_size": 9}
        yield Sample(y[0], y[1], **at, as_stft_backward=True, pad_mode="constant")
        yield Sample(y[0], y[1], **at, as_stft_backward=True, center=False)
        at = {"window_size": 8, "stride": 4, "fft_size": 8, "pad_mode": "constant"}
        yield Sample(y[0], y[1], **at, window_type="hamming", center=False)
        yield Sample(y[0, :0], y[1, :0], **at)
