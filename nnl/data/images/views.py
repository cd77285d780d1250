# SPDX-License-Identifier: Apache-2.0
"""Which part of a picture becomes a sample: the crops of torchvision's reference recipe.

A view is chosen from the size of a picture alone, before it is decoded: whoever decodes may then
leave out what is not seen.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

SCALE = (0.08, 1.0)  # of a random crop's area to the picture's
RATIO = (3 / 4, 4 / 3)  # of its width to its height
TRIES = 10


class View(NamedTuple):
    """A part of a picture, in its pixels.

    The box becomes the sample; the region is what the filter at its edges may look at.
    """

    region: tuple[int, int, int, int]  # left, top, right, bottom
    box: tuple[float, float, float, float]
    mirrored: bool = False

    def shrunk(self, shrink: int, height: int, width: int) -> View:
        """The same part of the picture made smaller, when it has this height and width."""
        if shrink == 1:
            return self
        left, top, right, bottom = self.region
        region = (
            left // shrink,
            top // shrink,
            min(-(-right // shrink), width),
            min(-(-bottom // shrink), height),
        )
        x0, y0, x1, y1 = (edge / shrink for edge in self.box)
        return View(region, (x0, y0, min(x1, region[2]), min(y1, region[3])), self.mirrored)


def training_view(height: int, width: int, rng: np.random.Generator) -> View:
    """A random crop, mirrored every other time.

    Its area is uniform in SCALE, the logarithm of its ratio in RATIO; a picture in which none of
    ten such crops fits gives the largest crop in its middle that has a ratio in RATIO.

    Source: RandomResizedCrop and RandomHorizontalFlip of torchvision.
    """
    mirrored = rng.random() < 0.5
    low, high = math.log(RATIO[0]), math.log(RATIO[1])
    for _ in range(TRIES):
        a, b, c, d = rng.random(4).tolist()
        area = height * width * (SCALE[0] + a * (SCALE[1] - SCALE[0]))
        ratio = math.exp(low + b * (high - low))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            top, left = int(c * (height - h + 1)), int(d * (width - w + 1))
            break
    else:
        w = min(width, max(1, round(height * RATIO[1])))
        h = min(height, max(1, round(width / RATIO[0])))
        top, left = (height - h) // 2, (width - w) // 2
    region = (left, top, left + w, top + h)
    return View(region, region, mirrored)


def validation_view(height: int, width: int, size: int, resize: int) -> View:
    """The middle `size` x `size` of the picture when its shorter side is made `resize`.

    Source: Resize and CenterCrop of torchvision.
    """
    short, long = min(height, width), max(height, width)
    other = int(resize * long / short)
    new_height, new_width = (resize, other) if height <= width else (other, resize)
    top, left = round((new_height - size) / 2), round((new_width - size) / 2)
    y, x = height / new_height, width / new_width  # pixels of the picture per new one
    box = (left * x, top * y, (left + size) * x, (top + size) * y)
    return View((0, 0, width, height), (*box[:2], min(box[2], width), min(box[3], height)))
