# SPDX-License-Identifier: Apache-2.0
"""Fourier transforms of the native engine, of every kind of length, beside numpy's in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
from tests.native.kernels import require_library

# with factors 2 to 13, larger primes, several axes, more lines than go side by side
SHAPES = [((3, n), 1) for n in (*range(1, 41), 97, 210, 1009, 2048, 30030)]
SHAPES += (
    [((n, 8 * n - 9), 1) for n in (16, 17, 33)]
    + [((n, 512), 1) for n in (5, 16, 37)]
    + [((16, 15, 24), 2)]
)
SHAPES += [((2, 34, 6), 2), ((3, 5, 7, 9), 3), ((37, 64), 1), ((1, 2**15), 1)]


@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize("normalized", [False, True])
def test_transforms_of_all_lengths(inverse: bool, normalized: bool) -> None:
    require_library()
    rng = np.random.default_rng(0)
    exact: Any = np.fft.ifftn if inverse else np.fft.fftn
    for shape, d in SHAPES:
        x = nn.Variable.from_numpy_array(rng.normal(size=(*shape, 2)).astype(np.float32))
        y = (F.ifft if inverse else F.fft)(x, d, normalized)
        y.forward(clear_buffer=True)
        values = x.d.astype(np.float64)
        axes = tuple(range(-d, 0))
        want = exact(values[..., 0] + 1j * values[..., 1], axes=axes,
                     norm="ortho" if normalized else "backward")  # fmt: skip
        error = np.abs(y.d[..., 0] + 1j * y.d[..., 1] - want).max()
        assert error <= 1e-6 * np.abs(want).max(), (shape, d)


def test_the_middle_frequency_of_a_real_signal_is_real() -> None:
    require_library()
    for n in (2, 4, 6, 8, 10, 12, 14, 16, 24, 26, 30, 64, 90, 96, 128, 1000):
        real = np.random.default_rng(0).normal(size=(19, n)).astype(np.float32)
        x = nn.Variable.from_numpy_array(np.stack([real, np.zeros_like(real)], axis=-1))
        y = F.fft(x, 1)
        y.forward()
        assert not y.d[:, [0, n // 2], 1].any(), n
