# SPDX-License-Identifier: Apache-2.0
"""Whether frames of a video follow from each other."""

from __future__ import annotations

from typing import Any

import numpy as np

from nnl.core.arrays.spec import ShapeError
from nnl.metrics.checks import Array, real


def warp(images: Any, flow: Any) -> tuple[Array, Array]:
    """Images moved by an optical flow, bilinearly.

    Args:
        images: (B, C, H, W).
        flow: (B, 2, H, W), in pixels: column and row of the place that a pixel comes from, less
            its own.
    Returns:
        The moved images; and (B, 1, H, W), whether a pixel came from within the image.
    Raises:
        ShapeError: The flow has another size.
    Example:
        >>> moved, inside = warp(np.arange(3.0).reshape(1, 1, 1, 3), np.ones((1, 2, 1, 3)) * [1])
        >>> moved[0, 0, 0], inside[0, 0, 0]
        (array([1., 2., 2.]), array([False, False, False]))
    """
    x, f = real("warp", "images", images, 4), real("warp", "flow", flow, 4)
    b, _, h, w = x.shape
    if f.shape != (b, 2, h, w):
        raise ShapeError(f"warp: flow has the shape {f.shape}, wanted {(b, 2, h, w)}")
    column, row = f[:, 0] + np.arange(w), f[:, 1] + np.arange(h)[:, None]
    inside = (column >= 0) & (column <= w - 1) & (row >= 0) & (row <= h - 1)
    column, row = column.clip(0, w - 1), row.clip(0, h - 1)
    left, top = np.floor(column).astype(int), np.floor(row).astype(int)
    right, below = np.minimum(left + 1, w - 1), np.minimum(top + 1, h - 1)
    u, v = (column - left)[:, None], (row - top)[:, None]
    batch = np.arange(b)[:, None, None]

    def at(r: Array, c: Array) -> Array:
        return np.moveaxis(x[batch, :, r, c], -1, 1)

    upper = at(top, left) * (1 - u) + at(top, right) * u
    lower = at(below, left) * (1 - u) + at(below, right) * u
    return upper * (1 - v) + lower * v, inside[:, None]


def warping_error(frames: Any, flows: Any, masks: Any | None = None) -> float:
    """Temporal consistency: the mean squared difference of frames and their moved predecessors.

    Args:
        frames: (T, C, H, W), at least two.
        flows: (T - 1, 2, H, W); from each later frame to the one before it, as of warp.
        masks: (T - 1, 1, H, W), True where the flow holds and nothing was hidden; None: anywhere.
    Returns:
        In squared units of the frames, over places that came from within the image.
    Raises:
        ShapeError, ValueError: Shapes do not fit, or no place is left.
    Source: Lai et al., Learning Blind Video Temporal Consistency, arXiv:1808.00449, equation 8.
    Example:
        >>> warping_error(np.arange(2.0).reshape(2, 1, 1, 1), np.zeros((1, 2, 1, 1)))
        1.0
    """
    x = real("warping_error", "frames", frames, 4)
    if len(x) < 2:
        raise ShapeError(f"warping_error: frames have the shape {x.shape}, wanted two or more")
    moved, inside = warp(x[:-1], flows)
    if masks is not None:
        m = np.asarray(masks, bool)
        if m.shape != inside.shape:
            raise ShapeError(
                f"warping_error: masks have the shape {m.shape}, wanted {inside.shape}"
            )
        inside = inside & m
    if not inside.any():
        raise ValueError("warping_error: no place of any frame came from within the one before")
    return float((((x[1:] - moved) ** 2).mean(1, keepdims=True))[inside].mean())
