# SPDX-License-Identifier: Apache-2.0
"""Importers of convolutions: padding of every kind, transposed and deformable ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

import nnl.functions as F
from nnl.converters.networks.windows import full_sizes, reach, same_padding
from nnl.converters.onnx.file.errors import OnnxError
from nnl.converters.onnx.file.registry import onnx_import
from nnl.converters.onnx.importing.shape import padded
from nnl.converters.onnx.values.values import (
    array,
    check_size,
    ints,
    is_var,
    reshape,
    shape_of,
    var,
)
from nnl.core.ops.op import OPS


def window(node: Any, sizes: Sequence[int], kernel: Sequence[int]) -> tuple[Any, Any, Any, Any]:
    """Strides, dilations, and pads before and after, of a node that slides a window.

    Args:
        sizes: Spatial sizes of the input.
        kernel: Sizes of the window.
    """
    n = len(sizes)
    strides = node.strides or (1,) * n
    dilations = getattr(node, "dilations", None) or (1,) * n
    if not len(strides) == len(dilations) == len(kernel) == n:
        raise OnnxError(f"window {tuple(kernel)}, strides {strides}: wanted {n} numbers each")
    if min((*strides, *dilations), default=1) < 1:
        raise OnnxError(f"strides {strides} and dilations {dilations} must be at least 1")
    auto = getattr(node, "auto_pad", None) or "NOTSET"
    pads = node.pads or (0,) * 2 * n
    if auto == "NOTSET":
        if len(pads) != 2 * n:
            raise OnnxError(f"pads {pads}: wanted {2 * n} numbers")
        return strides, dilations, pads[:n], pads[n:]
    if auto == "VALID":
        return strides, dilations, (0,) * n, (0,) * n
    low, high = same_padding(sizes, reach(kernel, dilations), strides)
    return strides, dilations, *((low, high) if auto == "SAME_UPPER" else (high, low))


@onnx_import("Conv")
def conv(ctx: Any, node: Any, x: Any, w: Any, b: Any = None) -> Any:
    """Convolution, of any number of spatial axes."""
    return convolved(node, var(x), var(w), None if b is None else var(b))


def convolved(node: Any, x: Any, w: Any, b: Any = None) -> Any:
    """F.convolution with the attributes of an ONNX node; pads that differ are made first."""
    strides, dilations, before, after = window(node, x.shape[2:], w.shape[2:])
    spatial = zip(x.shape[2:], before, after, strict=True)
    check_size([*x.shape[:2], *(max(0, n + b + a) for n, b, a in spatial)])
    if before != after or min(before, default=0) < 0:
        x = padded(x, (0, 0, *before), (0, 0, *after))
        before = (0,) * len(before)
    return F.convolution(
        x, w, b, base_axis=1, pad=before, stride=strides, dilation=dilations, group=node.group
    )


@onnx_import("ConvTranspose")
def conv_transpose(ctx: Any, node: Any, x: Any, w: Any, b: Any = None) -> Any:
    """Transposed convolution: the full result, cut or widened to the size asked for."""
    x, w = var(x), var(w)
    sizes, kernel = x.shape[2:], w.shape[2:]
    n = len(sizes)
    auto = node.auto_pad or "NOTSET"
    strides = node.strides or (1,) * n
    dilations = node.dilations or (1,) * n
    more = node.output_padding or (0,) * n
    full = full_sizes(sizes, reach(kernel, dilations), strides)
    check_size([x.shape[0], w.shape[1] * node.group, *full])
    wanted = None
    if node.output_shape:
        wanted = node.output_shape[-n:]
    elif auto.startswith("SAME"):
        wanted = tuple(s * t for s, t in zip(sizes, strides, strict=True))
    pads = node.pads or (0,) * 2 * n
    before, after = list(pads[:n]), list(pads[n:])
    if wanted is not None:
        for i in range(n):
            total = full[i] + more[i] - wanted[i]
            half = total // 2
            upper = auto == "SAME_UPPER"
            before[i], after[i] = (half, total - half) if upper else (total - half, half)
    options = {"stride": strides, "dilation": dilations, "group": node.group}
    if before == after and not any(more) and min(before, default=0) >= 0:
        bias = None if b is None else var(b)
        return F.deconvolution(x, w, bias, pad=tuple(before), **options)
    y = F.deconvolution(x, w, pad=(0,) * n, **options)
    low, high = [-p for p in before], [m - p for m, p in zip(more, after, strict=True)]
    y = padded(y, (0, 0, *low), (0, 0, *high))
    if b is None:
        return y
    return y + F.broadcast(reshape(var(b), (1, -1, *(1,) * n)), y.shape)


@onnx_import("DeformConv")
def deform_conv(
    ctx: Any, node: Any, x: Any, w: Any, offset: Any, b: Any = None, mask: Any = None
) -> Any:
    """Convolution whose window follows offsets, scaled by a mask."""
    x, w, offset = var(x), var(w), var(offset)
    strides, dilations, before, after = window(node, x.shape[2:], w.shape[2:])
    if before != after:
        x = padded(x, (0, 0, *before), (0, 0, *after))
        before = (0,) * len(before)
    return F.deformable_convolution(
        x,
        w,
        offset,
        None if mask is None else var(mask),
        None if b is None else var(b),
        pad=before,
        stride=strides,
        dilation=dilations,
        group=node.group,
        deformable_group=node.offset_group,
    )


@onnx_import("Col2Im")
def col2im(ctx: Any, node: Any, x: Any, image: Any, block: Any) -> Any:
    """Columns of patches added up into the image they were cut from."""
    image, block = ints(image, "image_shape"), ints(block, "block_shape")
    strides, dilations, before, after = window(node, image, block)
    n, channels = shape_of(x)[0], shape_of(x)[1] // math.prod(block)
    whole = [s + b + a for s, b, a in zip(image, before, after, strict=True)]
    check_size([n, channels, *whole])
    check_size([*block, *image], 16)
    spans = zip(whole, reach(block, dilations), strides, strict=True)
    counts = [(s - r) // t + 1 for s, r, t in spans]
    found = shape_of(x)[2]
    if min(counts) < 1 or math.prod(counts) != found:
        raise OnnxError(f"has {found} places of the block, and the image {whole} has {counts}")
    # flat position in the padded image of every (tap of the block, place of the block)
    taps = np.indices(block).reshape(len(block), -1, 1) * np.reshape(dilations, (-1, 1, 1))
    places = np.indices(counts).reshape(len(block), 1, -1) * np.reshape(strides, (-1, 1, 1))
    at = np.ravel_multi_index(tuple(taps + places), whole).reshape(1, -1)
    rows = reshape(x, (n * channels, at.size))
    if is_var(rows):
        data = F.transpose(rows, (1, 0))
        flat = (math.prod(whole), n * channels)
        y = OPS["scatter_nd"](data, var(at), shape=flat, add=True)
        y = F.transpose(y, (1, 0))
    else:
        y = np.zeros((n * channels, math.prod(whole)), array(x).dtype)
        np.add.at(y, (slice(None), at[0]), rows)
    y = reshape(y, (n, channels, *whole))
    return padded(y, (0, 0, *(-p for p in before)), (0, 0, *(-p for p in after)))
