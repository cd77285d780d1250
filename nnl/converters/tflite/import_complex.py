# SPDX-License-Identifier: Apache-2.0
"""Importers of Fourier transforms and of complex numbers, which are pairs of real values."""

from __future__ import annotations

from typing import Any

import numpy as np

import nnl.functions as F
from nnl.converters.tflite.building import Builder, Complex, Value, computed, reads
from nnl.converters.tflite.flatbuffer import Damaged

MAX_LENGTH = 2**20


@reads("RFFT2D")
def _rfft(b: Builder, v: Value, lengths: Value) -> Complex:
    """The half of the transform over the last two axes that is not known from the other one."""
    sizes = b.ints(lengths, "the lengths")
    if len(sizes) != 2 or v.rank < 2 or not 0 < min(sizes) <= max(sizes) <= MAX_LENGTH:
        raise Damaged(f"its lengths are {sizes}, with {v.rank} axes")
    x = b.held(v)
    for axis, n in zip((-2, -1), sizes, strict=True):
        if x.shape[axis] > n:
            stop = [*x.shape]
            stop[axis] = n
            x = F.slice(x, [0] * x.ndim, stop, [1] * x.ndim)
    rest = [n - m for n, m in zip(sizes, x.shape[-2:], strict=True)]
    if any(rest):
        x = F.pad(x, [0, rest[0], 0, rest[1]], "constant", 0.0)
    zeros = F.constant(0.0, (*x.shape, 1))
    pairs = F.concatenate(F.reshape(x, (*x.shape, 1)), zeros, axis=x.ndim)
    y = F.fft(pairs, 1 if sizes[0] == 1 else 2)
    half = (*x.shape[:-1], sizes[1] // 2 + 1)
    parts = [
        F.slice(y, [0] * len(half) + [k], [*half, k + 1], [1] * (len(half) + 1)) for k in (0, 1)
    ]
    return Complex(*[computed(F.reshape(p, half)) for p in parts])


@reads("REAL", takes=Complex)
def _real(b: Builder, v: Any) -> Value:
    return v.real if isinstance(v, Complex) else v


@reads("IMAG", takes=Complex)
def _imag(b: Builder, v: Any) -> Value:
    if isinstance(v, Complex):
        return v.imag
    return Value(np.zeros(v.x.shape, np.float32), v.order)


@reads("COMPLEX_ABS", takes=Complex)
def _abs(b: Builder, v: Any) -> Value:
    if not isinstance(v, Complex):
        raise Damaged("its input is not complex")
    x, y = b.held(v.real), b.held(v.imag)
    return computed((x * x + y * y) ** 0.5)
