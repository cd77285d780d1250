# SPDX-License-Identifier: Apache-2.0
"""Load one value of a data set from a file: images, .npy, .csv and .wav.

Each loader takes a file name or an open file, the shape wanted (or None) and `normalize`.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable
from contextlib import contextmanager
from typing import IO, Any
from urllib.parse import urljoin, urlparse

import numpy as np

from nnl.data.damage import read_npy
from nnl.data.image import imread, imresize
from nnl.data.table import DIVIDERS, read_text, why_no_number

__all__ = [
    "FileReader",
    "get_file_extension",
    "imread",
    "imresize",
    "load",
    "load_csv",
    "load_image",
    "load_image_imread",
    "load_npy",
    "load_wav",
    "pydub_available",
]

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]
Source = str | os.PathLike[str] | IO[Any]

pydub_available = False  # NNabla's name; .wav is read here without it

REMOTE = ("http", "https")


class FileReader:
    """Open files that are named relative to a folder, or to the folder of a file or address.

    Args:
        base_uri: A folder, a file (its folder counts), or an http(s) address.
    """

    def __init__(self, base_uri: str | os.PathLike[str]) -> None:
        self._base_uri = os.fspath(base_uri)
        scheme = urlparse(self._base_uri).scheme
        if scheme == "s3":
            raise NotImplementedError(
                f"FileReader: {self._base_uri}: s3 is not read; copy the data to a local folder"
            )
        self._is_remote = scheme in REMOTE

    def path(self, filename: str | None = None) -> str:
        """The full name of a file; without one, the base itself."""
        if filename is None or urlparse(filename).scheme in REMOTE:
            return self._base_uri if filename is None else filename
        if self._is_remote:
            return urljoin(self._base_uri, filename)
        base = self._base_uri
        return os.path.join(base if os.path.isdir(base) else os.path.dirname(base), filename)

    def open(
        self, filename: str | None = None, textmode: bool = False, encoding: str = "utf-8-sig"
    ) -> IO[Any]:
        """Open a file for reading, as text or in binary mode."""
        path = self.path(filename)
        if urlparse(path).scheme in REMOTE:
            from urllib.request import urlopen

            with urlopen(path) as answer:
                content = io.BytesIO(answer.read())
            return io.TextIOWrapper(content, encoding) if textmode else content
        return open(path, encoding=encoding, newline="") if textmode else open(path, "rb")

    def listdir(self) -> list[str]:
        """Names of the files in the base folder.

        Raises:
            NotImplementedError: the base is an address.
        """
        if self._is_remote:
            raise NotImplementedError("FileReader: listdir() works in local folders only")
        return os.listdir(self._base_uri)


def get_file_extension(source: str) -> str:
    """The extension of a file name or address in lower case, with its dot."""
    name = source.strip()
    address = urlparse(name) if name.startswith(tuple(f"{s}:" for s in REMOTE)) else None
    return os.path.splitext(name if address is None else address.path)[1].lower()


@contextmanager
def _binary(file: Source) -> Any:
    if hasattr(file, "read"):
        yield file
    else:
        with FileReader(os.fspath(file)).open() as opened:
            yield opened


def _shaped(loader: str, array: Array, shape: Shape | None) -> Array:
    if shape is None:
        return array
    if array.size != int(np.prod(shape)):
        raise ValueError(
            f"{loader}: the file holds the shape {array.shape}, which does not fit {tuple(shape)}"
        )
    return array.reshape(shape)


def load_image(
    file: Source,
    shape: Shape | None = None,
    normalize: bool = False,
    channels: int | None = None,
) -> Array:
    """Load an image.

    Args:
        file: File name or open binary file.
        shape: (channels, height, width) to resize to; None keeps the size.
        normalize: Whether to divide by 255.
        channels: 1, 3 or 4 to convert to grey, RGB or RGBA; None keeps what the file has.
    Returns:
        (channels, height, width), one channel if the image is grey; uint8, or float64 if
        normalize.
    Raises:
        ValueError: shape has not 3 numbers, or the image another number of channels.
    """
    return load_image_imread(file, shape, 1.0 if normalize else 255, channels)


def load_image_imread(
    file: Source,
    shape: Shape | None = None,
    max_range: float = 1.0,
    channels: int | None = None,
) -> Array:
    """Load an image as (channels, height, width) with values from 0 to max_range.

    Args:
        file, shape, channels: As in load_image.
        max_range: Value of a full channel; 255 gives uint8, anything else float64.
    """
    if shape is not None and len(shape) != 3:
        raise ValueError(f"load_image: shape={tuple(shape)} is not (channels, height, width)")
    with _binary(file) as opened:
        img = imread(opened, channels == 1, num_channels=-1 if channels is None else channels)
    img = img[:, :, None] if img.ndim == 2 else img
    if shape is not None:
        wanted, height, width = shape
        if img.shape[2] != wanted:
            raise ValueError(
                f"load_image: the image has {img.shape[2]} channels, shape={tuple(shape)} "
                f"wants {wanted}: channels={wanted} converts it"
            )
        img = imresize(img, (width, height))
    img = img.transpose(2, 0, 1)
    return img if max_range == 255 else img * (max_range / 255.0)


def load_npy(path: Source, shape: Shape | None = None, normalize: bool = False) -> Array:
    """Load a .npy file, reshaped if a shape is given. `normalize` has no effect.

    Raises:
        ValueError: the number of elements does not fit shape, or the file holds Python objects.
    """
    with _binary(path) as opened:
        return _shaped("load_npy", read_npy(opened), shape)


def load_csv(file: Source, shape: Shape | None = None, normalize: bool = False) -> Array:
    """Load a matrix of numbers from a .csv file as float64. `normalize` has no effect.

    Raises:
        ValueError: a cell is no number, rows differ in length, or the elements do not fit shape.
    """
    with _binary(file) as opened:
        content = opened.read()
    text = content if isinstance(content, str) else read_text(content, "load_csv")
    first = text.partition("\n")[0]
    divider = next((d for d in reversed(DIVIDERS) if d in first), ",")  # numbers have commas, too
    rows = [
        [_number(cell) for cell in row]
        for row in csv.reader(text.splitlines(), delimiter=divider)
        if row
    ]
    if any(len(row) != len(rows[0]) for row in rows):
        raise ValueError("load_csv: the rows of the file differ in length")
    return _shaped("load_csv", np.array(rows, np.float64), shape)


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        raise ValueError(f"load_csv: {cell!r} is no number{why_no_number(cell)}") from None


def load_wav(path: Source, shape: Shape | None = None, normalize: bool = False) -> Array:
    """Load the samples of a .wav file of uncompressed integers. `normalize` has no effect.

    Returns:
        (samples, channels); uint8 for 8 bits, int16 for 16, int32 for 24 (scaled by 256) and 32.
    Raises:
        ValueError: the number of elements does not fit shape.
    """
    import wave

    with _binary(path) as opened, wave.open(opened) as wav:
        channels, width = wav.getnchannels(), wav.getsampwidth()
        raw = np.frombuffer(wav.readframes(wav.getnframes()), np.uint8)
    if width == 3:
        padded = np.zeros((raw.size // 3, 4), np.uint8)
        padded[:, 1:] = raw.reshape(-1, 3)  # little endian: the low byte is 0
        raw, width = padded.reshape(-1), 4
    samples = raw.view({1: "u1", 2: "<i2", 4: "<i4"}[width])
    return _shaped("load_wav", samples.reshape(-1, channels), shape)


load_audio = load_wav

_LOADERS: dict[str, Callable[..., Array]] = {
    **dict.fromkeys((".bmp", ".jpg", ".jpeg", ".png", ".gif", ".tif", ".tiff"), load_image),
    ".csv": load_csv,
    ".npy": load_npy,
    ".wav": load_wav,
}


def load(ext: str) -> Callable[..., Array]:
    """Return the loader of a file name extension, which includes its dot.

    Raises:
        ValueError: no loader reads files of this extension.
    """
    loader = _LOADERS.get(ext.lower())
    if loader is None:
        raise ValueError(
            f"load: no loader for the extension {ext!r}; there are {', '.join(sorted(_LOADERS))}"
        )
    return loader
