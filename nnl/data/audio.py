# SPDX-License-Identifier: Apache-2.0
"""Read, write and resample sound: .wav files of integers, and .raw samples without a header.

Arrays are (samples, channels), or (channels, samples) with channel_first.
"""

from __future__ import annotations

import os
import wave
from collections.abc import Mapping
from typing import IO, Any

import numpy as np

from nnl.data.loader import load_wav

Array = np.ndarray[Any, Any]
Source = str | os.PathLike[str] | IO[bytes]

__all__ = [
    "auload",
    "auread",
    "auresize",
    "ausave",
    "auwrite",
    "get_available_backends",
    "get_backend",
    "minmax_auto_scale",
    "set_backend",
]

# NNabla reads with pydub. Scripts that choose it get Python's wave module, which reads the same.
BACKENDS = ("wave", "pydub")
_RATE = 48000  # what auresize takes the rate of its input to be; only ratios count
_backend = "wave"


def get_available_backends() -> list[str]:
    """Names that set_backend takes."""
    return list(BACKENDS)


def get_backend() -> str:
    """The name that was set."""
    return _backend


def set_backend(backend: str) -> None:
    """Choose a backend by name; all of them are the same.

    Raises:
        ValueError: There is none of this name.
    """
    global _backend
    if backend not in BACKENDS:
        raise ValueError(f"set_backend: backend is {backend!r}, wanted one of {BACKENDS}")
    _backend = backend


def auread(
    path: Source,
    channel_first: bool = False,
    raw_format_param: Mapping[str, int] | None = None,
) -> Array:
    """Read a .wav or .raw file.

    Args:
        path: File name, or a file opened for reading in binary mode; without a name it is .wav.
        raw_format_param: Of a .raw file: sample_width in bytes, channels and frame_rate.
    Returns:
        uint8 for 8 bits, int16 for 16, int32 for 24 (scaled by 256) and 32.
    Raises:
        ValueError: It is another kind of file, or raw_format_param is missing.
    """
    extension = _extension(path, default=".wav")
    if extension == ".wav":
        audio = load_wav(path)
    elif extension == ".raw":
        if raw_format_param is None:
            raise ValueError(
                f"auread: {path} has no header: raw_format_param must give sample_width, channels "
                "and frame_rate"
            )
        audio = _read_raw(path, **raw_format_param)
    else:
        raise ValueError(
            f"auread: {path} is {extension or 'without extension'}, wanted .wav or .raw"
        )
    return audio.T if channel_first else audio


def _read_raw(path: Source, sample_width: int, channels: int, frame_rate: int) -> Array:
    kinds = {1: np.uint8, 2: np.dtype("<i2"), 4: np.dtype("<i4")}
    if sample_width not in kinds:
        raise ValueError(f"auread: sample_width is {sample_width}, wanted 1, 2 or 4 bytes")
    if hasattr(path, "read"):
        content = path.read()
    else:
        with open(path, "rb") as f:
            content = f.read()
    return np.frombuffer(content, kinds[sample_width]).reshape(-1, channels)


def ausave(
    path: str | IO[bytes], audio_arr: Array, channel_first: bool = False, frame_rate: int = 48000
) -> None:
    """Write a .wav file.

    Args:
        audio_arr: Integers of 8, 16 or 32 bits, with two axes.
        frame_rate: Samples per second.
    Raises:
        ValueError: The name is not .wav, or the array has another dtype or number of axes.
    """
    audio = _samples_first("ausave", audio_arr, channel_first)
    if _extension(path, default="") != ".wav":
        raise ValueError(f"ausave: path is {path!r}, wanted a name that ends with .wav")
    if audio.dtype.kind not in "iu" or audio.dtype.itemsize not in (1, 2, 4):
        raise ValueError(f"ausave: audio_arr is {audio.dtype}, wanted integers of 8, 16 or 32 bits")
    if audio.dtype == np.int8:
        audio = (audio.astype(np.int16) + 128).astype(np.uint8)  # .wav counts 8 bits from 0
    if isinstance(path, str):
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with wave.open(path, "wb") as f:
        f.setnchannels(audio.shape[1])
        f.setsampwidth(audio.dtype.itemsize)
        f.setframerate(frame_rate)
        f.writeframes(np.ascontiguousarray(audio).astype(audio.dtype.newbyteorder("<")).tobytes())


def auresize(audio_arr: Array, size: tuple[int, int], channel_first: bool = False) -> Array:
    """Resample linearly to another number of samples, and copy or average the channels.

    Args:
        size: (samples, channels).
    Returns:
        (samples, channels) of the same dtype, also with channel_first, as in NNabla.
    Raises:
        ValueError: Neither side has one channel, and their numbers differ.
    """
    if not isinstance(size, (list, tuple)) or len(size) != 2:
        raise ValueError(f"auresize: size is {size!r}, wanted (samples, channels)")
    audio = _samples_first("auresize", audio_arr, channel_first)
    samples, channels = size
    if channels != audio.shape[1] and 1 not in (channels, audio.shape[1]):
        raise ValueError(
            f"auresize: audio_arr has {audio.shape[1]} channels, and size wants {channels}: only "
            "one channel can become several, or several one"
        )
    whole = np.floor if audio.dtype.kind in "iu" else np.asarray
    y = whole(_resampled(audio.astype(np.float64), samples))
    if channels == 1:
        y = whole(y.mean(1, keepdims=True))
    return np.broadcast_to(y, (samples, channels)).astype(audio.dtype)


def _resampled(x: Array, samples: int) -> Array:
    """Value k lies at k * rate: between two samples of x; after the last one, that one stays."""
    if samples == len(x):
        return x
    rate = int(_RATE * samples / len(x) + 1)  # NNabla's, a little above the ratio
    place = np.arange(samples) * (_RATE / rate)
    right = np.minimum(np.ceil(np.arange(samples) * _RATE / rate).astype(np.int64), len(x) - 1)
    weight = np.clip(right - place, 0, 1)[:, None]
    y: Array = x[np.maximum(right - 1, 0)] * weight + x[right] * (1 - weight)
    return y


def minmax_auto_scale(audio_arr: Array, out_datatype: Any) -> Array:
    """Scale so that the smallest and the largest value become those of another dtype.

    Raises:
        ValueError: The dtype has more than 4 bytes.
    """
    if not isinstance(audio_arr, np.ndarray):
        raise ValueError(
            f"minmax_auto_scale: audio_arr is {type(audio_arr).__name__}, wanted numpy.ndarray"
        )
    dtype = np.dtype(out_datatype)
    if dtype.itemsize > 4:
        raise ValueError(f"minmax_auto_scale: out_datatype is {dtype}, wanted at most 4 bytes")
    limits = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
    low, high = np.float64(limits.min), np.float64(limits.max)
    first, last = np.float64(audio_arr.min()), np.float64(audio_arr.max())
    if first == last:
        share = np.full(audio_arr.shape, float(first != 0))
    else:
        share = (audio_arr - first) / (last - first)
    return (share * (high - low) + low).astype(dtype)


def _extension(path: Any, default: str) -> str:
    name = path if isinstance(path, (str, os.PathLike)) else getattr(path, "name", "")
    return os.path.splitext(os.fspath(name))[1].lower() if name else default


def _samples_first(function: str, audio: Array, channel_first: bool) -> Array:
    if not isinstance(audio, np.ndarray) or audio.ndim != 2:
        shape = getattr(audio, "shape", type(audio).__name__)
        raise ValueError(f"{function}: audio_arr is {shape}, wanted an array (samples, channels)")
    return audio.T if channel_first else audio


auwrite, auload = ausave, auread
