# SPDX-License-Identifier: Apache-2.0
"""Importers of products whose weights have 4 or 8 bits, as ONNX Runtime writes language models."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import nnl.functions as F
from nnl.converters.onnx.file.errors import OnnxError
from nnl.converters.onnx.file.registry import onnx_import
from nnl.converters.onnx.values.values import array, reshape, shape_of, var


@onnx_import("MatMulNBits", domain="com.microsoft")
def matmul_nbits(
    ctx: Any, node: Any, x: Any, w: Any, scale: Any, zero: Any = None, order: Any = None,
    bias: Any = None,
) -> Any:  # fmt: skip
    """Product with the transpose of weights whose blocks of a row have a scale each."""
    a = node.attributes
    rows, columns, bits, block = a["N"], a["K"], a.get("bits", 4), a.get("block_size", 0)
    if order is not None:
        raise OnnxError("has the input g_idx, which is not read: groups of any order of columns")
    if bits not in (4, 8) or block < 16 or block % 2 or min(rows, columns) < 1:
        raise OnnxError(
            f"has N {rows}, K {columns}, bits {bits}, block_size {block}, "
            "wanted 4 or 8 bits and blocks of an even number from 16 on"
        )
    blocks = -(-columns // block)
    w = array(w, "B")
    sizes = (("B", w.size, rows * blocks * block * bits // 8),
             ("scales", math.prod(shape_of(scale)), rows * blocks))  # fmt: skip
    for name, size, wanted in sizes:
        if size != wanted:
            raise OnnxError(f"{name} has {size} values, wanted {wanted}")
    scale, offset, x = reshape(scale, (rows, blocks)), None, var(x)
    if zero is not None:
        units = array(scale, "scales").astype(np.float32)
        offset = var(-units * _zeros(array(zero, "zero_points"), bits, (rows, blocks)))
    if blocks * block != columns:  # the last block is filled up
        x = F.pad(x, (0, 0) * (x.ndim - 1) + (0, blocks * block - columns))
    y = F.quantized_matmul(
        x, var(w.reshape(rows, -1)), var(scale), offset, bits=bits, group_size=block,
        activation_bits=8 if a.get("accuracy_level", 0) == 4 else 32,
    )  # fmt: skip
    return y if bias is None else y + reshape(var(bias), (1,) * (y.ndim - 1) + (rows,))


def _zeros(zero: Any, bits: int, shape: tuple[int, int]) -> Any:
    """Zero points as floats; those of a row fill whole bytes where they are packed."""
    if zero.dtype != np.uint8:
        return zero.reshape(shape).astype(np.float32)
    rows, blocks = shape
    if zero.size != rows * -(-blocks * bits // 8):
        raise OnnxError(f"zero_points has {zero.size} bytes for scales of the shape {shape}")
    zero = zero.reshape(rows, -1)
    if bits == 4:
        zero = np.stack((zero & 15, zero >> 4), axis=-1).reshape(rows, -1)[:, :blocks]
    return zero.astype(np.float32)
