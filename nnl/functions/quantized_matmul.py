# SPDX-License-Identifier: Apache-2.0
"""Products with weights of 4 or 8 bits, whose scales belong to groups of a row."""

from __future__ import annotations

import numpy as np

from nnl.core.arrays.spec import ShapeError
from nnl.core.ops.op import OPS, Cost, Sample, op
from nnl.functions.affine import batch_matmul

CATEGORY = "Quantization"

__all__ = ["dequantize_groups", "quantized_matmul"]

FLOAT32 = np.dtype(np.float32)


def check_groups(name, attributes, w, scale, offset):
    """How many values a row of w holds; raises where bits, groups and shapes do not fit."""
    bits, size = attributes.bits, attributes.group_size
    if bits not in (4, 8):
        raise ValueError(f"{name}: bits is {bits}, wanted 4 or 8")
    if size < 2 or size % 2:
        raise ValueError(f"{name}: group_size is {size}, wanted an even number from 2 on")
    if w.dtype != np.uint8 or len(w.shape) != 2:
        raise ShapeError(f"{name}: w is {w}, wanted uint8 and 2 axes")
    columns = w.shape[1] * 8 // bits
    if columns % size:
        raise ShapeError(
            f"{name}: w {w} has {columns} values of {bits} bits in a row, "
            f"wanted a multiple of group_size {size}"
        )
    for argument, p in (("scale", scale), ("offset", offset)):
        if p is not None and p.shape != (w.shape[0], columns // size):
            wanted = (w.shape[0], columns // size)
            raise ShapeError(f"{name}: {argument} {p} must have the shape {wanted}")
    return columns


def unpacked(xp, w, bits):
    """Codes (rows, columns), one in a byte, from bytes that hold two if they have 4 bits."""
    return w if bits == 8 else xp.stack((w & 15, w >> 4), axis=-1).reshape(len(w), -1)


def values_of(xp, codes, bits, scale, offset, dtype=FLOAT32):
    """The weights that codes (rows, columns), scales and offsets (rows, groups) stand for."""
    y = codes.reshape(*scale.shape, codes.shape[1] // scale.shape[1]).astype(dtype)
    scale = scale.astype(dtype)[:, :, None]
    if offset is None:
        y -= dtype.type(2 ** (bits - 1))
        y *= scale
    else:
        y *= scale
        y += offset.astype(dtype)[:, :, None]
    return y.reshape(codes.shape)


@op("dequantize_groups", keep=("w", "scale", "offset"))
class dequantize_groups:
    r"""Weights of 4 or 8 bits as floating-point numbers: $y_{ij} = s_{ig}\,q_{ij} + o_{ig}$.

    g = j / group_size is the group of column j. Without offset, $o = -2^{bits - 1} s$: codes are
    symmetric around the middle of their range.

    Args:
        w: (rows, columns bits / 8) of uint8; of 4 bits two codes lie in a byte, the first one in
            its low half.
        scale: (rows, columns / group_size), in any floating-point type, which is kept.
        offset: The same shape, or left out: what code 0 stands for.
        bits: 4 or 8.
        group_size: Columns with one scale, an even number.
    Returns:
        (rows, columns), float32.
    Raises:
        ShapeError: Shapes do not fit, or w is not uint8.
        ValueError: Another number of bits, or an odd group_size.
    Source: Dettmers and Zettlemoyer, The case for 4-bit precision, arXiv:2212.09720; the operator
        MatMulNBits of ONNX Runtime has the same order of codes.
    Example:
        >>> F.dequantize_groups(array([[0x98, 0x0f]], np.uint8), array([[0.5]]), group_size=4).d
        array([[ 0. ,  0.5,  3.5, -4. ]], dtype=float32)
    """

    bits: int = 4
    group_size: int = 32

    def infer(self, w, scale, offset=None):
        columns = check_groups("dequantize_groups", self, w, scale, offset)
        return w.with_shape((w.shape[0], columns)).with_dtype(np.float32)

    def forward(self, xp, w, scale, offset=None):
        return values_of(xp, unpacked(xp, w, self.bits), self.bits, scale, offset)

    def vjp(self, gy):
        return None, None, None

    def cost(self, w, scale, offset=None):
        y = self.infer(w, scale, offset)
        return Cost(flops=2 * y.size, bytes=w.nbytes + scale.nbytes + y.nbytes)

    def samples(rng):
        for bits, columns, size, half in ((4, 64, 32, np.float16), (8, 48, 16, np.float32)):
            w = rng.integers(0, 256, (5, columns * bits // 8), np.uint8)
            scale, offset = rng.uniform(0.5, 1, (2, 5, columns // size)).astype(half)
            for o in (None, -8 * offset):
                yield Sample(w, scale, o, bits=bits, group_size=size, grad=(False,) * 3, order=0)


@op("quantized_matmul", keep=("w", "scale", "offset"))
class quantized_matmul:
    r"""Product with the transpose of weights of 4 or 8 bits: $y = \hat x\, W^T$.

    W is what `dequantize_groups` makes of w, scale and offset. With activation_bits=8 every group
    of x is rounded to 8 bits with a scale of its own, so that products are those of integers:
    $$\hat x_j = t_g\,\mathrm{round}(x_j / t_g), \quad t_g = \max_{j \in g} |x_j| / 127$$
    With 32, $\hat x = x$. The gradient by x is $g_y W$ in both cases; weights get none.

    Args:
        x: (..., columns).
        w, scale, offset: As for `dequantize_groups`; rows are outputs.
        bits, group_size: As for `dequantize_groups`.
        activation_bits: 8 or 32.
    Returns:
        (..., rows), in the type of x. Groups of x with a value that is not finite give nan.
    Raises:
        ShapeError: Shapes do not fit, or w is not uint8.
        ValueError: Another number of bits, or an odd group_size.
    Source: Dettmers and Zettlemoyer, The case for 4-bit precision, arXiv:2212.09720.
    Example:
        >>> w, scale = array([[0x98, 0x0f]], np.uint8), array([[0.5]])  # 0, 0.5, 3.5, -4
        >>> F.quantized_matmul(array([[1, 2, 127, 0]]), w, scale, group_size=4).d
        array([[445.5]], dtype=float32)
    """

    bits: int = 4
    group_size: int = 32
    activation_bits: int = 8

    def infer(self, x, w, scale, offset=None):
        columns = check_groups("quantized_matmul", self, w, scale, offset)
        if self.activation_bits not in (8, 32):
            raise ValueError(
                f"quantized_matmul: activation_bits is {self.activation_bits}, wanted 8 or 32"
            )
        if not x.shape or x.shape[-1] != columns:
            raise ShapeError(
                f"quantized_matmul: x {x} must have {columns} columns, as the rows of w"
            )
        return x.with_shape((*x.shape[:-1], w.shape[0]))

    def forward(self, xp, x, w, scale, offset=None):
        if self.activation_bits == 8:
            groups = x.reshape(*x.shape[:-1], scale.shape[1], self.group_size)
            most = xp.max(xp.abs(groups), axis=-1, keepdims=True)
            finite = xp.isfinite(most)
            to_codes = xp.where(finite & (most > 0), 127 / xp.where(most > 0, most, 1), 0)
            codes = xp.rint(xp.where(finite, groups, 0) * to_codes.astype(x.dtype))
            unit = xp.where(finite, most / 127, xp.nan).astype(x.dtype)
            x = (codes * unit).reshape(x.shape)
        codes = unpacked(xp, w, self.bits)
        return xp.matmul(x, values_of(xp, codes, self.bits, scale, offset, x.dtype).T)

    def vjp(self, gy, *, w, scale, offset):
        weights = dequantize_groups(w, scale, offset, bits=self.bits, group_size=self.group_size)
        rows = OPS["reshape"](gy, shape=(-1, gy.shape[-1]))
        gx = batch_matmul(rows, weights)
        return OPS["reshape"](gx, shape=(*gy.shape[:-1], weights.shape[1])), None, None, None

    def cost(self, x, w, scale, offset=None):
        y = self.infer(x, w, scale, offset)
        moved = x.nbytes + w.nbytes + scale.nbytes * (1 if offset is None else 2) + y.nbytes
        return Cost(flops=2 * y.size * x.shape[-1], bytes=moved)

    def samples(rng):
        grad = (True, False, False, False)
        for bits, columns, size in ((4, 256, 32), (8, 128, 16), (4, 24, 6), (8, 256, 128)):
            w = rng.integers(0, 256, (7, columns * bits // 8), np.uint8)
            scale, offset = rng.uniform(0.5, 1, (2, 7, columns // size)).astype(np.float16)
            x, given = rng.normal(size=(2, 3, columns)), {"bits": bits, "group_size": size}
            for o in (None, -8 * offset):
                yield Sample(x, w, scale, o, **given, grad=grad, order=0)
                yield Sample(x, w, scale, o, activation_bits=32, **given, grad=grad, order=1)
        w, scale = np.zeros((2, 128), np.uint8), np.zeros((2, 8), np.float32)
        yield Sample(np.zeros((0, 256)), w, scale, None, grad=grad, order=0)
