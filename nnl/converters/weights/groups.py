# SPDX-License-Identifier: Apache-2.0
"""Weights of 4 or 8 bits in groups: rounded here, or as GPTQ and AWQ keep them in safetensors."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from nnl.functions.quantized_matmul import unpacked, values_of

Array = np.ndarray[Any, Any]

AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # where column i of 8 lies in a word


class Groups(NamedTuple):
    """A matrix (rows, columns), as `nnl.functions.quantized_matmul` takes it.

    Attributes:
        order: Where the columns of the groups stand in the matrix, if not in order.
    """

    w: Array
    scale: Array
    offset: Array | None
    bits: int
    group_size: int
    order: Array | None = None

    def array(self) -> Array:
        """The matrix in float32."""
        codes = unpacked(np, self.w, self.bits)
        found = np.asarray(values_of(np, codes, self.bits, self.scale, self.offset))
        return found if self.order is None else found[:, np.argsort(self.order)]

    def rows(self, order: Array) -> Groups:
        """The matrix with its rows in another order."""
        offset = None if self.offset is None else self.offset[order]
        return self._replace(w=self.w[order], scale=self.scale[order], offset=offset)


def packed(codes: Array, bits: int) -> Array:
    """Codes (rows, columns) in bytes: of 4 bits two, the first one in the low half."""
    codes = np.ascontiguousarray(codes, np.uint8)
    return codes if bits == 8 else codes[:, ::2] | codes[:, 1::2] << 4


def rounded(w: Array, bits: int = 4, group_size: int = 32, symmetric: bool = False) -> Groups:
    r"""Round a matrix to the nearest values that its groups have.

    With n = $2^{bits}$: where symmetric, $s = \max |w| / (n / 2 - 1)$ and the code of 0 is n / 2;
    else $s = (\max w - \min w) / (n - 1)$ and code 0 stands for min w. Scales and offsets are
    float16, and codes are chosen for them as they are then.

    Raises:
        ValueError: group_size does not divide the columns, or a weight is not finite or too large
            for float16.
    """
    rows, columns = w.shape
    if group_size < 2 or group_size % 2 or columns % group_size:
        raise ValueError(
            f"group_size is {group_size}, wanted an even divisor of the {columns} columns"
        )
    groups = np.asarray(w, np.float32).reshape(rows, -1, group_size)
    if not (np.abs(groups).max(initial=0) <= np.finfo(np.float16).max):
        raise ValueError("a weight is not finite, or too large for float16")
    most = 2**bits - 1
    if symmetric:
        unit, offset = np.abs(groups).max(axis=2) / (most // 2), None
        scale = unit.astype(np.float16)
        least = -(2.0 ** (bits - 1)) * scale.astype(np.float32)
    else:
        low, high = (np.clip(f(axis=2), *b) for f, b in ((groups.min, (None, 0)),
                                                          (groups.max, (0, None))))  # fmt: skip
        scale, offset = ((high - low) / most).astype(np.float16), low.astype(np.float16)
        least = offset.astype(np.float32)
    unit = scale.astype(np.float32)
    with np.errstate(divide="ignore", invalid="ignore"):
        codes = np.rint((groups - least[:, :, None]) / unit[:, :, None])
    codes = np.where(unit[:, :, None] > 0, np.clip(codes, 0, most), 0)
    return Groups(packed(codes.reshape(rows, columns), bits), scale, offset, bits, group_size)


def calibrated(
    w: Array, inputs: Array, bits: int = 4, group_size: int = 32, symmetric: bool = False
) -> Groups:
    r"""As `rounded`, column by column, each error made good by the columns behind it.

    What is made small is $\|X (W - \hat W)^T\|^2$ for the inputs X (n, columns) of the layer, with
    a hundredth of the mean of $X^T X$'s diagonal added to it.

    Raises:
        ValueError: As of `rounded`; inputs have other columns, none, or one that is not finite.
    Source: Frantar et al., GPTQ, arXiv:2210.17323, algorithm 1.
    """
    columns = w.shape[1]
    if inputs.ndim != 2 or inputs.shape[1] != columns or not len(inputs):
        raise ValueError(f"the inputs have the shape {inputs.shape}, wanted (n, {columns})")
    x = inputs.astype(np.float64)
    if not np.isfinite(x).all():
        raise ValueError("an input of the calibration is not finite")
    product = x.T @ x
    diagonal = np.diag(product).copy()
    product[np.diag_indices(columns)] += 0.01 * diagonal.mean() + (diagonal.mean() == 0)
    inverse = np.linalg.cholesky(np.linalg.inv(product)).T  # upper
    rest = np.array(w, np.float64)
    parts = []
    for at in range(0, columns, group_size):
        end = at + group_size
        part = rounded(rest[:, at:end].astype(np.float32), bits, group_size, symmetric)
        middle = 2.0 ** (bits - 1)
        unit = part.scale[:, 0].astype(np.float64)
        least = -middle * unit if part.offset is None else part.offset[:, 0].astype(np.float64)
        codes, errors = np.zeros((len(w), group_size)), np.zeros((len(w), group_size))
        for i in range(group_size):
            column = rest[:, at + i]
            with np.errstate(divide="ignore", invalid="ignore"):
                code = np.where(
                    unit > 0, np.clip(np.rint((column - least) / unit), 0, 2**bits - 1), 0
                )
            codes[:, i] = code
            errors[:, i] = (column - (code * unit + least)) / inverse[at + i, at + i]
            rest[:, at + i : end] -= errors[:, i, None] * inverse[at + i, at + i : end]
        rest[:, end:] -= errors @ inverse[at:end, end:]
        parts.append(part._replace(w=packed(codes, bits)))
    w, scale = (np.concatenate([p[k] for p in parts], axis=1) for k in (0, 1))
    offset = None if symmetric else np.concatenate([p.offset for p in parts], axis=1)
    return Groups(w, scale, offset, bits, group_size)


def _fields(words: Array, axis: int, bits: int, order: tuple[int, ...] | None = None) -> Array:
    """The codes that 32-bit words hold along an axis."""
    count = 32 // bits
    places = np.array(order or range(count), np.uint32) * np.uint32(bits)
    fields = words.view(np.uint32)[..., None] >> places & np.uint32(2**bits - 1)
    fields = np.moveaxis(fields, -1, axis + 1).astype(np.uint8)
    shape = list(words.shape)
    shape[axis] *= count
    return fields.reshape(shape)


def from_gptq(
    qweight: Array, qzeros: Array, scales: Array, g_idx: Array | None, bits: int, added: int = 1
) -> Groups:
    """A layer of GPTQ's: words along the inputs, zero points less `added` along the outputs.

    Args:
        qweight: (columns bits / 32, rows), int32.
        qzeros: (groups, rows bits / 32), int32.
        scales: (groups, rows).
        g_idx: The group of each column, as many of each ("desc_act"); None where they are in order.
        added: 1, or 0 in the second version of the format.
    Raises:
        ValueError: Sizes do not fit, or groups have different numbers of columns.
    """
    codes = _fields(qweight, 0, bits)
    zeros = _fields(qzeros, 1, bits).astype(np.float32) + added
    columns, (groups, rows) = codes.shape[0], scales.shape
    size = _group_size(columns, groups, codes.shape[1] == rows and zeros.shape == scales.shape)
    if g_idx is None or np.array_equal(g_idx, np.arange(columns) // size):
        return _of_columns(codes, zeros, scales, bits, size)
    order = np.argsort(g_idx, kind="stable")
    if not np.array_equal(g_idx[order], np.arange(columns) // size):
        raise ValueError(f"g_idx is not {size} columns for each of {groups} groups")
    return _of_columns(codes[order], zeros, scales, bits, size)._replace(order=order)


def from_awq(qweight: Array, qzeros: Array, scales: Array, bits: int = 4) -> Groups:
    """A layer of AWQ's: words along the outputs, in an order of their own.

    Args:
        qweight: (columns, rows / 8), int32.
        qzeros: (groups, rows / 8), int32.
        scales: (groups, rows).
    Raises:
        ValueError: Sizes do not fit, or bits is not 4.
    """
    if bits != 4:
        raise ValueError(f"it has {bits} bits, wanted 4")
    codes, zeros = (_fields(v, 1, 4, AWQ_ORDER) for v in (qweight, qzeros))
    fits = codes.shape[1] == scales.shape[1] and zeros.shape == scales.shape
    size = _group_size(codes.shape[0], len(scales), fits)
    return _of_columns(codes, zeros.astype(np.float32), scales, bits, size)


def _group_size(columns: int, groups: int, fits: bool) -> int:
    if not fits or not groups or columns % groups or columns // groups % 2:
        raise ValueError("qweight, qzeros and scales do not fit each other")
    return columns // groups


def _of_columns(codes: Array, zeros: Array, scales: Array, bits: int, size: int) -> Groups:
    scale = np.ascontiguousarray(scales.T)
    offset = (-zeros.T * scale.astype(np.float32)).astype(scale.dtype)
    return Groups(packed(codes.T, bits), scale, offset, bits, size)
