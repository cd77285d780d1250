# SPDX-License-Identifier: Apache-2.0
"""Read, write and resize images through Pillow.

Arrays are (height, width) for grey images and (height, width, channels) otherwise, or (channels,
height, width) with channel_first. Sizes are (width, height), as image programs write them.
"""

from __future__ import annotations

import os
from typing import IO, Any

import numpy as np

from nnl.data import as_seen as _as_seen

Array = np.ndarray[Any, Any]

INTERPOLATIONS = ("nearest", "bilinear", "bicubic", "hamming", "box", "lanczos")
MODES = {1: "L", 3: "RGB", 4: "RGBA"}


def imread(
    path: str | os.PathLike[str] | IO[bytes],
    grayscale: bool = False,
    size: tuple[int, int] | None = None,
    interpolate: str = "bilinear",
    channel_first: bool = False,
    as_uint16: bool = False,
    num_channels: int = -1,
) -> Array:
    """Read an image file, turned as its EXIF flag says, which cameras write instead of turning it.

    Args:
        path: File name, or a file opened for reading in binary mode.
        grayscale: Whether to convert to grey.
        size: (width, height) to resize to; None keeps the size.
        interpolate: See imresize.
        channel_first: Whether the channels come first in the shape.
        as_uint16: Whether to return uint16, 8-bit images scaled by 257; else uint8, 16-bit images
            divided by 256.
        num_channels: 3 or 4 to convert to RGB or RGBA; -1 keeps what the file has; 0 and 1 go
            with grayscale and give (height, width) and (height, width, 1).
    Returns:
        uint8 or uint16 array.
    Raises:
        ValueError: num_channels does not go with grayscale.
    """
    from PIL import Image

    if num_channels not in (-1, 0, 1, 3, 4):
        raise ValueError(f"imread: num_channels={num_channels} is not one of -1, 0, 1, 3, 4")
    if num_channels in (0, 1) and not grayscale:
        raise ValueError(f"imread: num_channels={num_channels} needs grayscale=True")
    with Image.open(path) as opened:
        opened.load()
        picture: Any = opened
        flag = _as_seen.orientation(opened)
    if picture.mode in _as_seen.SHOWN_AS:
        picture = picture.convert(_as_seen.SHOWN_AS[picture.mode])
    if picture.mode == "P":
        picture = picture.convert("RGBA" if "transparency" in picture.info else "RGB")
    if picture.mode.startswith("I"):  # 16 bits a pixel, always grey in Pillow
        img = np.asarray(picture).astype(np.uint16)
        img = img if as_uint16 else (img >> 8).astype(np.uint8)
        if num_channels in (3, 4):
            full = np.full_like(img, np.iinfo(img.dtype).max)
            img = np.stack([img, img, img, full][:num_channels], axis=-1)
    else:
        if grayscale:
            picture = picture.convert("L")
        if num_channels in (3, 4):
            picture = picture.convert(MODES[num_channels])
        img = np.array(picture).astype(np.uint8)
        img = img.astype(np.uint16) * 257 if as_uint16 else img
    img = _as_seen.upright(img, flag)
    if num_channels == 1:
        img = img.reshape(*img.shape[:2], 1)
    if size is not None:
        img = imresize(img, size, interpolate)
    return img.transpose(2, 0, 1) if channel_first and img.ndim == 3 else img


def _as_pixels(img: Array, as_uint16: bool, auto_scale: bool) -> Array:
    """The image as uint8 or uint16, in full range."""
    if img.dtype == np.uint16 or (img.dtype == np.uint8 and not as_uint16):
        return img
    if img.dtype == np.uint8:
        return img.astype(np.uint16) * 257
    if not auto_scale:
        raise ValueError(
            f"imsave: img is {img.dtype}; auto_scale=True is needed unless it is uint8 or uint16"
        )
    if img.size and not (img.min() >= 0 and img.max() <= 1):
        raise ValueError(
            f"imsave: img is {img.dtype} from {img.min()} to {img.max()}, values in [0, 1] wanted "
            "unless it is uint8 or uint16"
        )
    kind = np.uint16 if as_uint16 else np.uint8
    return (img * float(np.iinfo(kind).max)).astype(kind)


def imsave(
    path: str | os.PathLike[str],
    img: Array,
    channel_first: bool = False,
    as_uint16: bool = False,
    auto_scale: bool = True,
) -> None:
    """Write an image file; its format follows from the file name.

    Args:
        path: File name. The file appears under it only when it is complete.
        img: uint8, uint16, or any other type with values in [0, 1]. Grey, or with 1 to 4 channels.
        channel_first: Whether the channels come first in the shape.
        as_uint16: Whether to write 16 bits a channel; so does an img of uint16.
        auto_scale: Whether values in [0, 1] are scaled to the full range; if not, img must be
            uint8 or uint16.
    Raises:
        ValueError: img has another rank, number of channels, or range of values.
        NotImplementedError: 16 bits are asked for a colour image, which Pillow cannot write.
    """
    from PIL import Image

    from nnl.core.parameters.atomic import replacing

    img = np.asarray(img)
    if img.ndim not in (2, 3):
        raise ValueError(f"imsave: img has the shape {img.shape}, 2 or 3 axes wanted")
    if channel_first and img.ndim == 3:
        img = img.transpose(1, 2, 0)
    if img.ndim == 3 and img.shape[2] not in (1, 2, 3, 4):
        raise ValueError(f"imsave: img has {img.shape[2]} channels, 1 to 4 wanted")
    pixels = _as_pixels(img, as_uint16, auto_scale)
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    if pixels.dtype == np.uint16 and pixels.ndim == 3:
        raise NotImplementedError(
            f"imsave: 16 bits for {pixels.shape[2]} channels; save them as uint8, or one by one"
        )
    Image.init()
    extension = os.path.splitext(path)[1].lower()
    if extension not in Image.EXTENSION:
        raise ValueError(f"imsave: {os.fspath(path)!r} has no extension of an image format")
    picture = Image.fromarray(np.ascontiguousarray(pixels))
    with replacing(path) as temporary:
        picture.save(temporary, format=Image.EXTENSION[extension])


def imresize(
    img: Array, size: tuple[int, int], interpolate: str = "bilinear", channel_first: bool = False
) -> Array:
    """Resize an image.

    Args:
        img: Grey, or with any number of channels.
        size: (width, height).
        interpolate: nearest, bilinear, bicubic, hamming, box or lanczos. When the image becomes
            smaller, the kernel covers all pixels that fall on a new one.
        channel_first: Whether the channels come first in the shape.
    Returns:
        Same dtype as img if that is uint8 or uint16, else float32.
    Raises:
        ValueError: size is not two positive numbers, img has another rank, or interpolate is
            unknown.
    """
    from PIL import Image

    img = np.asarray(img)
    if interpolate not in INTERPOLATIONS:
        raise ValueError(f"imresize: interpolate={interpolate!r} is not one of {INTERPOLATIONS}")
    if len(size) != 2 or min(size) < 1:
        raise ValueError(f"imresize: size={tuple(size)} is not (width, height) in pixels")
    if img.ndim not in (2, 3):
        raise ValueError(f"imresize: img has the shape {img.shape}, 2 or 3 axes wanted")
    method = Image.Resampling[interpolate.upper()]
    if channel_first and img.ndim == 3:
        img = img.transpose(1, 2, 0)
    if img.dtype == np.uint8 and (img.ndim == 2 or img.shape[2] in (2, 3, 4)):
        # all channels at once: Pillow weighs the colours of RGBA and LA by alpha
        picture = Image.fromarray(np.ascontiguousarray(img))
        resized = np.array(picture.resize(tuple(size), method))
    else:
        planes = img[:, :, None] if img.ndim == 2 else img
        resized = np.stack(
            [_resize_plane(planes[:, :, i], size, method) for i in range(planes.shape[2])], axis=-1
        )
        resized = resized[:, :, 0] if img.ndim == 2 else resized
    return resized.transpose(2, 0, 1) if channel_first and resized.ndim == 3 else resized


def _resize_plane(plane: Array, size: tuple[int, int], method: Any) -> Array:
    from PIL import Image

    if plane.dtype == np.uint8:
        return np.array(Image.fromarray(np.ascontiguousarray(plane)).resize(tuple(size), method))
    wide = Image.fromarray(np.ascontiguousarray(plane, np.float32)).resize(tuple(size), method)
    resized = np.array(wide)
    if plane.dtype == np.uint16:
        # bicubic and lanczos overshoot
        return np.clip(resized, 0, np.iinfo(np.uint16).max).astype(np.uint16)
    return resized


def minmax_auto_scale(img: Array, as_uint16: bool) -> Array:
    """Stretch the values of an image so that its least is 0 and its greatest the full range."""
    kind = np.uint16 if as_uint16 else np.uint8
    high = int(np.iinfo(kind).max)
    return rescale_pixel_intensity(img, img.min(), img.max(), 0, high, kind)


def rescale_pixel_intensity(
    img: Array,
    input_low: float = 0,
    input_high: float = 255,
    output_low: float = 0,
    output_high: float = 255,
    output_type: Any = None,
) -> Array:
    """Map [input_low, input_high] linearly to [output_low, output_high].

    Args:
        img: Any numeric array.
        output_type: dtype of the result, to which values are truncated; None is img's.
    Raises:
        ValueError: the input range is empty.
    """
    if input_low == input_high:
        raise ValueError(f"rescale_pixel_intensity: the input range is empty, only {input_low}")
    unit = (np.asarray(img, np.float64) - input_low) / (float(input_high) - float(input_low))
    scaled = unit * (output_high - output_low) + output_low
    return scaled.astype(img.dtype if output_type is None else output_type)


def get_backend() -> str:
    """Name of what reads and writes images."""
    return "PilBackend"


def get_available_backends() -> list[str]:
    """Names of everything that can read and write images."""
    return ["PilBackend"]


def set_backend(backend: str) -> None:
    """Choose what reads and writes images.

    Raises:
        NotImplementedError: it is not PilBackend, the only one.
    """
    if backend not in ("PilBackend", "PIL", "pil"):
        raise NotImplementedError(f"set_backend: {backend!r} is not here; use 'PilBackend'")


imload = imread
imwrite = imsave
