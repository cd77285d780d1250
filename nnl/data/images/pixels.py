# SPDX-License-Identifier: Apache-2.0
"""From the bytes of a picture to the pixels of a sample: simplejpeg decodes what it can, Pillow
the rest; a view is resampled as Pillow does it."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from nnl.data.as_seen import colours, orientation, upright
from nnl.data.crc32c import masked
from nnl.data.damage import naming
from nnl.data.images.sources import Piece
from nnl.data.images.views import View
from nnl.ext.native import library

Array = np.ndarray[Any, Any]

MAX_PIXELS = 100_000_000  # of a picture: 300 MB when it is decoded
MAX_BYTES = 1 << 28  # of its file


class Header(NamedTuple):
    """What a picture says of itself."""

    height: int  # upright
    width: int
    quick: bool  # whether simplejpeg decodes it: a grey or coloured JPEG
    turn: int = 1  # its EXIF flag, where the decoder does not turn it


def read_piece(piece: Piece) -> bytes | Array:
    """The bytes of a picture; of one that lies as pixels, (height, width, 1 or 3).

    Raises:
        ValueError: There are no bytes, or more than pictures have; or their checksum is another.
    """
    offset, length = piece.offset, piece.length
    with open(piece.path, "rb") as file:
        if length is None:
            length = os.fstat(file.fileno()).st_size - offset
        if not 0 < length <= MAX_BYTES:
            raise ValueError(f"it has {length} bytes, wanted 1 to {MAX_BYTES}")
        file.seek(offset)
        data = file.read(length)
        checksum = file.read(4) if piece.inside else b""
    if len(data) < length:
        raise ValueError(f"only {len(data)} of its {length} bytes are there")
    if piece.inside:
        if int.from_bytes(checksum, "little") != masked(data):
            raise ValueError("its record has another checksum")
        begin, length = piece.inside
        return data[begin : begin + length]
    if piece.shape:
        return np.frombuffer(data, np.uint8).reshape(piece.shape).transpose(1, 2, 0)
    return data


def read_header(data: bytes) -> Header:
    """Size and kind of a picture, without decoding it.

    Raises:
        ValueError: It is none that can be read, or has more than MAX_PIXELS pixels.
    """
    header = None
    if data.startswith(b"\xff\xd8"):
        try:
            import simplejpeg

            height, width, colours, _ = simplejpeg.decode_jpeg_header(data)
            header = _upright(height, width, colours != "CMYK", _turn_of_jpeg(data))
        except (ImportError, ValueError):
            pass  # Pillow's part, and its judgement
    if header is None:
        with _opened(data) as picture:
            turn = 1 if picture.format == "TIFF" else orientation(picture)  # which Pillow turns
            header = _upright(picture.height, picture.width, False, turn)
    if header.height * header.width > MAX_PIXELS:
        raise ValueError(
            f"it has {header.width} x {header.height} pixels, at most {MAX_PIXELS} are read"
        )
    return header


def _upright(height: int, width: int, quick: bool, turn: int) -> Header:
    sides = (width, height) if turn >= 5 else (height, width)
    return Header(*sides, quick, turn)


def _turn_of_jpeg(data: bytes) -> int:
    """The EXIF flag; without a parser for the many pictures that have none."""
    start = data.find(b"Exif\0\0", 0, 1 << 16)
    if start < 4 or data[start - 4 : start - 2] != b"\xff\xe1":
        return 1
    return orientation(data[start : start + (1 << 16)])


def decode(data: bytes, header: Header, exact: bool, shrink: int = 1) -> Array:
    """The pixels of a picture, uint8 (height, width, 3), RGB.

    Args:
        exact: Whether a JPEG's colours are spread smoothly over the pixels that share them.
        shrink: 1, 2, 4 or 8; a JPEG comes smaller by as much, its sides rounded up. Other pictures
            and those that simplejpeg refuses come whole.
    Raises:
        ValueError: The picture is damaged, as Pillow judges it.
    """
    height, width = -(-header.height // shrink), -(-header.width // shrink)
    if header.turn >= 5:
        height, width = width, height
    if header.quick:
        import simplejpeg

        try:
            found: Array = simplejpeg.decode_jpeg(
                data, "RGB", fastupsample=not exact, min_height=height, min_width=width
            )
            return upright(found, header.turn)
        except ValueError:
            pass  # it warns of much that Pillow takes
    with _opened(data) as picture:
        return upright(colours(picture), header.turn)


@contextmanager
def _opened(data: bytes) -> Iterator[Any]:
    from PIL import Image, UnidentifiedImageError

    try:
        with naming("Pillow"):
            try:
                opened = Image.open(io.BytesIO(data))
            except UnidentifiedImageError:
                raise ValueError("Pillow: its bytes are no picture of a known kind") from None
            with opened as picture:
                yield picture
    except Image.DecompressionBombError as error:
        raise ValueError(f"Pillow: {error}") from error


def shrink_of(view: View, size: int) -> int:
    """How much smaller a picture may be decoded so that its view has `size` pixels or more."""
    x0, y0, x1, y1 = view.box
    least = min(x1 - x0, y1 - y0)
    return next(shrink for shrink in (8, 4, 2, 1) if shrink == 1 or least >= shrink * size)


def resample(pixels: Array, view: View, out: Array) -> None:
    """Write a view of a picture into `out`, uint8 (size, size, 3): bilinear, over all pixels that
    fall on a new one."""
    native = library()
    if native is not None:
        native.resample(np.ascontiguousarray(pixels), *view, out)
        return
    from PIL import Image

    left, top, right, bottom = view.region
    x0, y0, x1, y1 = view.box
    part = Image.fromarray(np.ascontiguousarray(pixels[top:bottom, left:right]))
    box = (x0 - left, y0 - top, x1 - left, y1 - top)
    found = np.asarray(part.resize(out.shape[1::-1], Image.Resampling.BILINEAR, box))
    out[...] = found[:, ::-1] if view.mirrored else found


def render(
    data: bytes | Array, view_of: Callable[[int, int], View], exact: bool, out: Array
) -> None:
    """Decode the bytes of a picture and write the view that `view_of(height, width)` chooses.

    Args:
        data: A picture in a file's format, or its pixels.
        exact: Whether to decode every pixel as it is; if not, a JPEG is decoded smaller where the
            view allows it.
        out: uint8 (size, size, 3).
    Raises:
        ValueError: The picture is damaged or too large.
    """
    if isinstance(data, bytes):
        header = read_header(data)
        height, width = header.height, header.width
        view = view_of(height, width)
        shrink = 1 if exact or not header.quick else shrink_of(view, out.shape[0])
        pixels = decode(data, header, exact, shrink)
        if pixels.shape[:2] != (height, width):
            view = view.shrunk(shrink, *pixels.shape[:2])
    else:
        view, pixels = view_of(*data.shape[:2]), np.broadcast_to(data, (*data.shape[:2], 3))
    resample(pixels, view, out)
