# SPDX-License-Identifier: Apache-2.0
"""Pictures as people see them: turned as their EXIF flag says, in grey or red, green and blue."""

from __future__ import annotations

from typing import Any

import numpy as np

from nnl.data.damage import BROKEN

Array = np.ndarray[Any, Any]

# Modes of Pillow whose numbers are no colours that are seen.
SHOWN_AS = {"1": "L", "PA": "RGBA", "CMYK": "RGB", "YCbCr": "RGB", "HSV": "RGB"}
ORIENTATION = 0x0112  # the tag of EXIF
# How pixels become upright: the axes swapped, then the rows, then the columns reversed.
_TURNS = {
    2: (False, 1, -1), 3: (False, -1, -1), 4: (False, -1, 1),
    5: (True, 1, 1), 6: (True, 1, -1), 7: (True, -1, -1), 8: (True, -1, 1),
}  # fmt: skip


def colours(picture: Any) -> Array:
    """The pixels of a picture that Pillow has opened, (height, width, 3), uint8. Of 16 bits the
    upper eight: Pillow itself takes all above 255 for white."""
    if picture.mode.startswith("I"):
        grey = (np.asarray(picture).astype(np.uint16) >> 8).astype(np.uint8)
        return np.stack([grey] * 3, axis=-1)
    return np.asarray(picture.convert("RGB"))


def orientation(exif: Any) -> int:
    """How a camera was held: the EXIF flag of a picture that Pillow has opened, 1 for upright.

    Args:
        exif: The picture, or the bytes of its EXIF part.
    """
    from PIL import Image

    try:
        if isinstance(exif, bytes):
            found = Image.Exif()
            found.load(exif)
        else:
            found = exif.getexif()
        flag = found.get(ORIENTATION, 1)
    except BROKEN:  # a part that shows nothing
        return 1
    return flag if flag in _TURNS else 1


def upright(pixels: Array, flag: int) -> Array:
    """Pixels (height, width, ...) turned as the flag says."""
    if flag not in _TURNS:
        return pixels
    swapped, rows, columns = _TURNS[flag]
    turned = pixels.swapaxes(0, 1) if swapped else pixels
    return np.ascontiguousarray(turned[::rows, ::columns])
