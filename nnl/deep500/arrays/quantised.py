# SPDX-License-Identifier: Apache-2.0
"""Quantised numbers, and products of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from nnl.converters.onnx.file.tensors import dtype_of_code
from nnl.deep500.arrays.windows import WindowOperators


class QuantisedOperators(WindowOperators):
    """Scales and zero points are for all numbers, or for every place of one axis."""

    def along_axis(self, x: Any, v: Any, axis: int) -> Any:
        """One number for all of x, or one per place of an axis; more are what they are."""
        if v is None or self.rank(v) != 1:
            return v
        rank = self.rank(x)
        return self.reshape(v, [-1 if i == axis % rank else 1 for i in range(rank)])

    def visit_DequantizeLinear(self, node: Any, x: Any, scale: Any, zero: Any = None) -> Any:
        if node.attributes.get("block_size", 0):
            return self.missing(node)
        y = self.cast(x, self.dtype(scale))
        if zero is not None:
            y = y - self.along_axis(
                x, self.cast(zero, self.dtype(scale)), self.quantised_axis(node)
            )
        return y * self.along_axis(x, scale, self.quantised_axis(node))

    def quantised_axis(self, node: Any) -> int:
        return int(node.attributes.get("axis", 1))

    def visit_QuantizeLinear(self, node: Any, x: Any, scale: Any, zero: Any = None) -> Any:
        code = node.attributes.get("output_dtype", 0)
        if node.attributes.get("block_size", 0):
            return self.missing(node)
        dtype = np.dtype(np.uint8) if zero is None else np.dtype(self.dtype(zero))
        dtype = dtype_of_code(code, "QuantizeLinear") if code else dtype
        if dtype.kind not in "iu":
            return self.missing(node)
        axis = self.quantised_axis(node)
        zero = self.along_axis(x, zero, axis)
        return self.quantised(x, self.along_axis(x, scale, axis), zero, dtype)

    def quantised(self, x: Any, scale: Any, zero: Any, dtype: Any) -> Any:
        """Numbers as the nearest integers that the dtype has."""
        y = self.rounded(x / scale)
        y = y if zero is None else y + self.cast(zero, self.dtype(x))
        low, high = (self.like(y, float(getattr(np.iinfo(dtype), k))) for k in ("min", "max"))
        y = self.where(y < low, low, self.where(y > high, high, y))
        return self.cast(y, dtype)

    def shifted(self, x: Any, zero: Any, axis: int) -> Any:
        """Integers less their zero point as float64, where products and sums of them are exact."""
        y = self.cast(x, np.float64)
        zero = None if zero is None else self.along_axis(x, zero, axis)
        return y if zero is None else y - self.cast(zero, np.float64)

    def visit_MatMulInteger(self, node: Any, a: Any, b: Any, az: Any = None, bz: Any = None) -> Any:
        y = self.matmul(self.shifted(a, az, -2), self.shifted(b, bz, -1))
        return self.cast(y, np.int32)

    def visit_ConvInteger(self, node: Any, x: Any, w: Any, xz: Any = None, wz: Any = None) -> Any:
        y = self.visit_Conv(node, self.shifted(x, xz, 1), self.shifted(w, wz, 0))
        return self.cast(y, np.int32)

    def visit_QLinearMatMul(
        self, node: Any, a: Any, sa: Any, az: Any, b: Any, sb: Any, bz: Any, sy: Any, yz: Any
    ) -> Any:
        a = self.shifted(a, az, -2) * self.cast(self.along_axis(a, sa, -2), np.float64)
        b = self.shifted(b, bz, -1) * self.cast(self.along_axis(b, sb, -1), np.float64)
        y = self.matmul(a, b)
        sy = self.cast(self.along_axis(y, sy, -2), np.float64)
        return self.quantised(y, sy, self.along_axis(y, yz, -2), self.dtype(yz))

    def visit_QLinearConv(
        self, node: Any, x: Any, sx: Any, xz: Any, w: Any, sw: Any, wz: Any, sy: Any, yz: Any,
        b: Any = None,
    ) -> Any:  # fmt: skip
        bias = None if b is None else self.cast(b, np.float64)
        y = self.visit_Conv(node, self.shifted(x, xz, 1), self.shifted(w, wz, 0), bias)
        scale = self.cast(self.along_axis(y, sw, 1), np.float64) * self.cast(sx, np.float64)
        return self.quantised(y * scale, self.cast(sy, np.float64), yz, self.dtype(yz))
