# SPDX-License-Identifier: Apache-2.0
"""The discrete Fourier transform of complex signals, stored as pairs of real numbers."""

from __future__ import annotations

import math

import numpy as np

from nnl.core.arrays.spec import ShapeError
from nnl.core.ops.op import Cost, Sample, op
from nnl.functions.arithmetic import mul_scalar

CATEGORY = "Signal processing"

__all__ = ["fft", "ifft"]


class Fourier:
    """What the transform and its inverse share."""

    signal_ndim: int
    normalized: bool = False

    def infer(self, x):
        name, n = self.op.name, self.signal_ndim
        if n < 1:
            raise ValueError(f"{name}: signal_ndim is {n}, wanted >= 1")
        if x.ndim < n + 1 or x.shape[-1] != 2:
            raise ShapeError(
                f"{name}: x {x} must have at least {n + 1} axes for signal_ndim {n}, the last of "
                "size 2"
            )
        if 0 in x.shape[-1 - n : -1]:
            raise ShapeError(f"{name}: x {x} has empty signals")
        return x

    def points(self, shape):
        """Number of values of one signal."""
        return math.prod(shape[-1 - self.signal_ndim : -1])

    def transform(self, xp, f, x, norm):
        if x.size == 0:  # which CuPy refuses
            return x.copy()
        values = xp.ascontiguousarray(x).view(np.result_type(x.dtype, np.complex64))[..., 0]
        y = f(values, axes=tuple(range(-self.signal_ndim, 0)), norm=norm)
        y = xp.ascontiguousarray(y, values.dtype)[..., None]
        return y.view(x.dtype)

    def cost(self, x):
        # 5 n log2 n for one transform of n values
        return Cost(2.5 * x.size * math.log2(max(2, self.points(x.shape))), 2 * x.nbytes)

    def samples(rng):
        x = rng.normal(size=(2, 3, 4, 2))
        for normalized in (False, True):
            for n in (1, 2, 3):
                yield Sample(x, signal_ndim=n, normalized=normalized)
        yield Sample(rng.normal(size=(5, 2)), signal_ndim=1)
        yield Sample(x[:0], signal_ndim=2)


@op("fft", nnp="FFT")
class fft(Fourier):
    r"""Fourier transform of complex signals of any number of axes.

    $$y_k = c \sum_n x_n\, e^{-2 \pi i\, (k_1 n_1 / N_1 + \ldots)}$$ with c = 1, or
    $c = 1 / \sqrt{N_1 N_2 \cdots}$ if normalized.

    Args:
        x: (*batch, N_1, ..., N_d, 2): real and imaginary part along the last axis.
        signal_ndim: Number d of axes of a signal.
        normalized: Keep the norm of the signal.
    Returns:
        The shape of x, zero frequency first.
    Raises:
        ShapeError: x has too few axes, a signal is empty, or the last axis is not of size 2.
        ValueError: signal_ndim < 1.
    Source: Cooley and Tukey, An Algorithm for the Machine Calculation of Complex Fourier Series,
        Mathematics of Computation 19, 1965.
    """

    def forward(self, xp, x):
        return self.transform(xp, xp.fft.fftn, x, "ortho" if self.normalized else "backward")

    def vjp(self, gy, *, x_spec):
        g = ifft(gy, signal_ndim=self.signal_ndim, normalized=self.normalized)
        return g if self.normalized else mul_scalar(g, float(self.points(x_spec.shape)))


@op("ifft", nnp="IFFT")
class ifft(Fourier):
    r"""Inverse Fourier transform: `ifft(fft(x))` is x, if both are normalized or both are not.

    $$y_n = c \sum_k x_k\, e^{2 \pi i\, (k_1 n_1 / N_1 + \ldots)}$$ with $c = 1 / (N_1 N_2 \cdots)$,
    or its square root if normalized.

    Args:
        x: (*batch, N_1, ..., N_d, 2): real and imaginary part along the last axis.
        signal_ndim: Number d of axes of a signal.
        normalized: Keep the norm of the signal.
    Returns:
        The shape of x.
    Raises:
        ShapeError: x has too few axes, a signal is empty, or the last axis is not of size 2.
        ValueError: signal_ndim < 1.
    """

    def forward(self, xp, x):
        return self.transform(xp, xp.fft.ifftn, x, "ortho" if self.normalized else "backward")

    def vjp(self, gy, *, x_spec):
        g = fft(gy, signal_ndim=self.signal_ndim, normalized=self.normalized)
        return g if self.normalized else mul_scalar(g, 1 / self.points(x_spec.shape))
