# SPDX-License-Identifier: Apache-2.0
"""Stands in for cuBLAS's library: the same functions, on host memory by numpy."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from nnl.ext.cuda.cublas import SIGNATURES, TYPES, WORKSPACE
from tests.cuda.evaluate import numpy_type

NAMES = {number: name for name, number in TYPES.items()}


class FakeBlas:
    """The library.

    Attributes:
        calls: Stream and type of the sums, of every product.
        status: What every product gives.
    """

    def __init__(self, status: int = 0) -> None:
        self.status, self.handles, self.stream = status, 0, -1
        self.calls: list[tuple[int, int]] = []
        for name in SIGNATURES:  # argument types are set on functions, not on methods
            setattr(self, name, self._function(name))

    def _function(self, name: str) -> Any:
        method = getattr(self, "_" + name)

        def call(*args: Any) -> int:
            assert len(args) == len(SIGNATURES[name]), name
            return int(method(*args) or 0)

        return call

    def _cublasCreate_v2(self, handle: Any) -> None:
        self.handles += 1
        handle._obj.value = self.handles

    def _cublasSetStream_v2(self, handle: int, stream: int) -> None:
        self.stream = stream

    def _cublasSetWorkspace_v2(self, handle: int, workspace: int, size: int) -> None:
        assert workspace % 256 == 0 and size == WORKSPACE

    def _cublasGemmStridedBatchedEx(
        self, handle: int, ta: int, tb: int, m: int, n: int, k: int, alpha: int, *rest: Any
    ) -> int:
        a, b, (beta,), c, (count, sums, algo) = (
            rest[:4], rest[4:8], rest[8:9], rest[9:13], rest[13:],
        )  # fmt: skip
        assert ctypes.c_float.from_address(alpha).value == 1 and algo == -1
        assert ctypes.c_float.from_address(beta).value == 0
        if self.status:
            return self.status
        self.calls.append((self.stream, sums))

        def columns(matrix: Any, rows: int, width: int, turned: int) -> np.ndarray:
            """(count, rows, width) of matrices that lie column by column, perhaps transposed."""
            address, kind, leading, step = matrix
            high, wide = (width, rows) if turned else (rows, width)
            assert leading >= high
            dtype = numpy_type(NAMES[kind])
            size = dtype.itemsize
            n = 1 + (count - 1) * step + (wide - 1) * leading + high - 1
            raw = np.frombuffer((ctypes.c_uint8 * (n * size)).from_address(address), dtype)
            strides = (step * size, size, leading * size)
            seen = as_strided(raw, (count, high, wide), strides)
            return seen.swapaxes(1, 2) if turned else seen

        x, y = columns(a, m, k, ta), columns(b, k, n, tb)
        columns(c, m, n, 0)[...] = x.astype(np.float64) @ y.astype(np.float64)
        return 0
