# SPDX-License-Identifier: Apache-2.0
"""Images against what they should be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from nnl.core.arrays.spec import ShapeError
from nnl.metrics.checks import Array, alike, positive, real

RADIUS, SIGMA = 5, 1.5  # pixels, of the window of SSIM
K1, K2 = 0.01, 0.03


def psnr(truth: Any, images: Any, data_range: float = 1.0) -> Array:
    r"""The peak signal-to-noise ratio of each image, $10 \log_{10}(L^2 / MSE)$, in decibels.

    Args:
        truth, images: (B, C, H, W).
        data_range: $L$, the largest value less the smallest one that images may have.
    Returns:
        (B,); infinite where nothing differs.
    Raises:
        ShapeError, ValueError: Shapes differ, or data_range is not above 0.
    Example:
        >>> psnr(np.zeros((1, 1, 2, 2)), np.full((1, 1, 2, 2), 0.1))
        array([20.])
    """
    a, b = _images("psnr", truth, images)
    positive("psnr", "data_range", data_range)
    error = ((a - b) ** 2).mean((1, 2, 3))
    with np.errstate(divide="ignore"):
        return 10 * np.log10(data_range**2 / error)


def ssim(truth: Any, images: Any, data_range: float = 1.0) -> Array:
    r"""The structural similarity of each image, with the Gaussian window of 11 x 11 of the paper.

    $$\frac{(2 \mu_a \mu_b + c_1)(2 \sigma_{ab} + c_2)}
           {(\mu_a^2 + \mu_b^2 + c_1)(\sigma_a^2 + \sigma_b^2 + c_2)}$$
    with $c_1 = (0.01 L)^2$ and $c_2 = (0.03 L)^2$, the mean over windows and channels.

    Args and errors as of psnr; height and width are at least 11.

    Returns:
        (B,), at most 1.
    Source: Wang et al., Image Quality Assessment: From Error Visibility to Structural Similarity,
        2004, equation 13.
    Example:
        >>> ssim(np.ones((1, 1, 16, 16)), np.ones((1, 1, 16, 16)))
        array([1.])
    """
    a, b = _images("ssim", truth, images)
    positive("ssim", "data_range", data_range)
    if min(a.shape[2:]) <= 2 * RADIUS:
        raise ShapeError(
            f"ssim: images have the shape {a.shape}, wanted at least {2 * RADIUS + 1} pixels a side"
        )
    mean_a, mean_b = _blurred(a), _blurred(b)
    var_a, var_b = _blurred(a * a) - mean_a**2, _blurred(b * b) - mean_b**2
    both = _blurred(a * b) - mean_a * mean_b
    c1, c2 = (K1 * data_range) ** 2, (K2 * data_range) ** 2
    similar = (2 * mean_a * mean_b + c1) * (2 * both + c2)
    similar /= (mean_a**2 + mean_b**2 + c1) * (var_a + var_b + c2)
    return similar.mean((1, 2, 3))


def perceptual_distance(
    a: Sequence[Any], b: Sequence[Any], weights: Sequence[Any] | None = None
) -> Array:
    r"""LPIPS: how far the maps of a network are apart, layer by layer.

    $$d = \sum_l \frac{1}{H_l W_l} \sum_{h,w} w_l \cdot (\hat a_{lhw} - \hat b_{lhw})^2$$
    where the vector of channels at each place has the length 1.

    Args:
        a, b: Maps (B, C, H, W), one of each layer of a network; those of the
            paper are of VGG16, after its blocks.
        weights: (C,) of each layer; None: 1, as of the paper's distance without learned weights.
    Returns:
        (B,), at least 0.
    Raises:
        ShapeError: Numbers of layers or shapes differ.
    Source: Zhang et al., The Unreasonable Effectiveness of Deep Features, arXiv:1801.03924,
        equation 1.
    Example:
        >>> perceptual_distance([np.ones((1, 2, 4, 4))], [np.eye(2)[:1].reshape(1, 2, 1, 1)
        ...     * np.ones((1, 1, 4, 4))])
        array([0.5858])
    """
    where = "perceptual_distance"
    if len(a) != len(b) or not len(a) or (weights is not None and len(weights) != len(a)):
        raise ShapeError(
            f"{where}: there are {len(a)} layers of a, {len(b)} of b"
            + ("" if weights is None else f", {len(weights)} of weights")
        )
    total: Any = 0
    for i, (x, y) in enumerate(zip(a, b, strict=True)):
        x, y = _images(where, x, y)
        apart = (_unit(x) - _unit(y)) ** 2
        if weights is not None:
            w = real(where, "weights", weights[i]).ravel()
            if w.size != x.shape[1]:
                raise ShapeError(f"{where}: layer {i} has {x.shape[1]} channels, {w.size} weights")
            apart *= w[:, None, None]
        total = total + apart.sum(1).mean((1, 2))
    return np.asarray(total)


def _images(where: str, truth: Any, images: Any) -> tuple[Array, Array]:
    a, b = real(where, "truth", truth, 4), real(where, "images", images, 4)
    alike(where, ("truth", "images"), a, b)
    return a, b


def _unit(x: Array) -> Array:
    return x / (np.sqrt((x * x).sum(1, keepdims=True)) + 1e-10)


def _blurred(x: Array) -> Array:
    """Means weighted by a Gaussian, of all windows that lie inside."""
    weights = np.exp(-0.5 * (np.arange(-RADIUS, RADIUS + 1) / SIGMA) ** 2)
    weights /= weights.sum()
    for axis in (2, 3):
        x = sliding_window_view(x, 2 * RADIUS + 1, axis) @ weights
    return x
