# SPDX-License-Identifier: Apache-2.0
"""Fourier transforms. Complex numbers are a last axis of two, as ONNX has them."""

from __future__ import annotations

from typing import Any

import numpy as np

from nnl.converters.onnx.importing.signal import mel_weight_matrix
from nnl.deep500.arrays.shapes import ShapeOperators


class SignalOperators(ShapeOperators):
    """Over the primitive fourier(x, n, axis, inverse), which cuts or fills up with zeros."""

    def fourier(self, x: Any, n: int, axis: int, inverse: bool) -> Any: ...

    def visit_DFT(self, node: Any, x: Any, length: Any = None, axis: Any = None) -> Any:
        at = self.axis(x, node.axis if axis is None and node.since < 20 else self.near(axis))
        n = self.shape(x)[at] if length is None else self.ints(length)[0]
        x = self.complex(x)
        if node.inverse and node.onesided:  # the other side is its mirror, and the result is real
            m = self.shape(x)[at]
            n = 2 * (m - 1) if length is None else n
            rest = self.flip(self.span(x, at, 1, n - m + 1), [at])
            x = self.concatenate([x, rest * self.like(x, [1, -1])], at)
            return self.span(self.fourier(x, n, at, True), self.rank(x) - 1, 0, 1)
        y = self.fourier(x, n, at, bool(node.inverse))
        return self.span(y, at, 0, n // 2 + 1) if node.onesided else y

    def near(self, axis: Any) -> int:
        return -2 if axis is None else self.ints(axis)[0]

    def complex(self, x: Any) -> Any:
        if self.shape(x)[-1] == 2:
            return x
        return self.pad(x, [(0, 0)] * (self.rank(x) - 1) + [(0, 1)], 0)

    def visit_STFT(self, node: Any, x: Any, step: Any, window: Any = None, size: Any = None) -> Any:
        n = self.shape(window)[0] if size is None else self.ints(size)[0]
        length, hop = self.shape(x)[1], self.ints(step)[0]
        places = np.arange(0, length - n + 1, hop)[:, None] + np.arange(n)
        frames = self.take(x, self.constant(places.astype(np.int64)), 1)  # (batch, frames, n, 1)
        if window is not None:
            frames = frames * self.reshape(window, (n, 1))
        y = self.fourier(self.complex(frames), n, 2, False)
        return self.span(y, 2, 0, n // 2 + 1) if node.onesided else y

    def visit_MelWeightMatrix(self, node: Any, *given: Any) -> Any:
        return self.constant(mel_weight_matrix(None, node, *[self.host(v) for v in given]))
