# SPDX-License-Identifier: Apache-2.0
"""tf.image: images (N, H, W, C) or (H, W, C)."""

from __future__ import annotations

import numpy as np

from nnl.dialects.tensorflow.initializers import random_uniform
from nnl.dialects.tensorflow.nn import moments
from nnl.dialects.tensorflow.operation import handled
from nnl.dialects.tensorflow.table import N, cast, defined, tensor, whole


class ResizeMethod:
    """How images are resized."""

    BILINEAR, NEAREST_NEIGHBOR, BICUBIC = 0, 1, 2


_OPS = ("ResizeBilinear", "ResizeNearestNeighbor", "ResizeBicubic")


def resize_images(images, size, method=0, align_corners=False, preserve_aspect_ratio=False,
                  name=None):  # fmt: skip
    """Images of another height and width."""
    x = tensor(images)
    one = x.ndim == 3
    x = N.expand_dims(x, 0) if one else x
    y = handled(_OPS[method], x, whole(size), name=name, align_corners=align_corners)
    return N.squeeze(y, [0]) if one else y


def _by(method):
    return lambda images, size, align_corners=False, name=None: resize_images(
        images, size, method, align_corners, name=name
    )


def _axes(x):
    """The axes of one image."""
    return [x.ndim - 3, x.ndim - 2, x.ndim - 1]


def random_flip_left_right(image, seed=None):
    """Mirrored or not."""
    x = tensor(image)
    turned = N.less(random_uniform([], seed=seed), 0.5)
    return N.where(N.broadcast_to(turned, N.shape(x)), N.reverse(x, [x.ndim - 2]), x)


def adjust_contrast(images, contrast_factor):
    """Differences from the mean of each channel, larger."""
    x = tensor(images)
    mean = N.reduce_mean(x, _axes(x)[:2], True)
    return (x - mean) * contrast_factor + mean


def per_image_standardization(image):
    """Mean 0 and deviation 1, of pixels that are not all alike."""
    x = cast(image, np.float32)
    mean, variance = moments(x, _axes(x), keep_dims=True)
    count = N.reduce_prod(cast(N.shape(x)[-3:], np.float32))
    return (x - mean) / N.maximum(N.sqrt(variance), N.rsqrt(count))


def crop_to_bounding_box(image, offset_height, offset_width, target_height, target_width):
    """A rectangle."""
    rows = slice(offset_height, offset_height + target_height)
    return tensor(image)[..., rows, offset_width : offset_width + target_width, :]


def pad_to_bounding_box(image, offset_height, offset_width, target_height, target_width):
    """Zeros around."""
    x = tensor(image)
    h, w = x.sizes[-3:-1]
    rows = [(offset_height, target_height - offset_height - h)]
    rows = [*rows, (offset_width, target_width - offset_width - w), (0, 0)]
    return N.pad(x, np.array([(0, 0)] * (x.ndim - 3) + rows, np.int32))


def resize_image_with_crop_or_pad(image, target_height, target_width):
    """The middle, or zeros around."""
    x = tensor(image)
    h, w = x.sizes[-3:-1]
    high, wide = min(h, target_height), min(w, target_width)
    x = crop_to_bounding_box(x, (h - high) // 2, (w - wide) // 2, high, wide)
    low = (target_height - high) // 2, (target_width - wide) // 2
    return pad_to_bounding_box(x, *low, target_height, target_width)


def total_variation(images, name=None):
    """The sum of differences of neighbouring pixels."""
    x = tensor(images)
    down = N.abs(x[..., 1:, :, :] - x[..., :-1, :, :])
    right = N.abs(x[..., :, 1:, :] - x[..., :, :-1, :])
    return N.reduce_sum(down, _axes(x)) + N.reduce_sum(right, _axes(x))


_GREY = np.array([0.2989, 0.587, 0.114], np.float32)
# fmt: off
IMAGE = defined({
    "resize": resize_images,
    "resize_bilinear": _by(0),
    "resize_nearest_neighbor": _by(1),
    "resize_bicubic": _by(2),
    "resize_with_crop_or_pad": resize_image_with_crop_or_pad,
    "flip_left_right": lambda image: N.reverse(image, [tensor(image).ndim - 2]),
    "flip_up_down": lambda image: N.reverse(image, [tensor(image).ndim - 3]),
    "adjust_brightness": lambda image, delta: tensor(image) + delta,
    "random_brightness": lambda image, max_delta, seed=None: tensor(image) + random_uniform(
        [], -max_delta, max_delta, seed=seed),
    "random_contrast": lambda image, lower, upper, seed=None: adjust_contrast(
        image, random_uniform([], lower, upper, seed=seed)),
    "grayscale_to_rgb": lambda images, name=None: N.tile(
        images, [1] * (tensor(images).ndim - 1) + [3], name=name),
    "rgb_to_grayscale": lambda images, name=None: N.reduce_sum(
        tensor(images) * _GREY, -1, True, name=name),
})
