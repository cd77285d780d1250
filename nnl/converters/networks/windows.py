# SPDX-License-Identifier: Apache-2.0
"""Windows that slide over pixels: what they span, and the padding that formats call SAME."""

from __future__ import annotations

from collections.abc import Sequence


def reach(kernel: Sequence[int], dilation: Sequence[int]) -> tuple[int, ...]:
    """Pixels that a window spans along each axis."""
    return tuple([(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)])


def full_sizes(sizes: Sequence[int], span: Sequence[int], stride: Sequence[int]) -> tuple[int, ...]:
    """Sizes of what a deconvolution of an image gives before it is cut."""
    return tuple([(n - 1) * s + r for n, r, s in zip(sizes, span, stride, strict=True)])


def same_padding(
    sizes: Sequence[int], span: Sequence[int], stride: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Pixels before and after an image of these sizes, with which ceil(size / stride) windows fit;
    of an odd number the larger part is after."""
    total = [
        max(0, (-(-n // s) - 1) * s + r - n) for n, r, s in zip(sizes, span, stride, strict=True)
    ]
    return tuple([t // 2 for t in total]), tuple([t - t // 2 for t in total])
