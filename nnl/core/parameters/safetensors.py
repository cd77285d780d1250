# SPDX-License-Identifier: Apache-2.0
"""Files of the safetensors format: a JSON header and one run of bytes.

    8 bytes   length of the header, little endian
    header    {name: {"dtype": "F32", "shape": [..], "data_offsets": [begin, end]}}
    data      the arrays; offsets count from here, every byte belongs to exactly one array

Source: https://github.com/huggingface/safetensors, "Format".
"""

from __future__ import annotations

import errno
import json
import mmap
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from nnl.core.parameters.atomic import replacing

Array = np.ndarray[Any, Any]

MAX_HEADER = 100_000_000  # bytes, the bound of the format
ALIGN = 64  # bytes: where data begins, so that mapped arrays do
PAGE = mmap.PAGESIZE
DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
}
_NAMES = {name: code for code, name in DTYPES.items()}


class Entry(NamedTuple):
    """Where an array lies: its bytes, from the beginning of the file, and its dtype by name."""

    begin: int
    end: int
    dtype: str
    shape: tuple[int, ...]


def read_header(data: Array, where: str) -> tuple[dict[str, Entry], dict[str, Any]]:
    """The arrays of a file by name, and its metadata.

    Args:
        data: All bytes of the file.
    Raises:
        ValueError: The file is not what the format says; the text names the array.
    """
    if data.size < 8:
        raise ValueError(f"{where}: {data.size} bytes are no safetensors file")
    length = int.from_bytes(data[:8].tobytes(), "little")
    if length > min(MAX_HEADER, data.size - 8):
        raise ValueError(
            f"{where}: the header claims {length} bytes, the file has {data.size - 8} after it"
        )
    header = _header(data[8 : 8 + length].tobytes(), where)
    start = 8 + length
    found = {
        name: _entry(name, entry, start, data.size, where)
        for name, entry in header.items()
        if name != "__metadata__"
    }
    at = start
    for name, entry in sorted(found.items(), key=lambda item: item[1]):
        if entry.begin != at:
            raise ValueError(
                f"{where}: {name!r} begins at byte {entry.begin - start}, wanted {at - start}"
            )
        at = entry.end
    if at != data.size:
        raise ValueError(f"{where}: {data.size - at} bytes behind the last array belong to none")
    metadata = header.get("__metadata__", {})
    return found, metadata if isinstance(metadata, dict) else {}


def save(
    path: str | os.PathLike[str], arrays: Mapping[str, Array], metadata: Mapping[str, str]
) -> None:
    """Write arrays, those with the largest elements first, so that each begins where it must.

    Raises:
        ValueError: The format has no such dtype.
    """
    head, order = _head(path, arrays, metadata)
    with replacing(path) as temporary, open(temporary, "wb") as f:
        f.write(head)
        for a in order:
            f.write(_bytes(a).data)


def packed(
    path: str | os.PathLike[str], arrays: Mapping[str, Array], metadata: Mapping[str, str]
) -> Array:
    """All bytes of such a file, for write_packed.

    Raises:
        ValueError: As save().
    """
    head, order = _head(path, arrays, metadata)
    size = len(head) + sum([a.nbytes for a in order])
    memory = np.empty(size + PAGE, np.uint8)
    start = -memory.ctypes.data % PAGE
    found, at = memory[start : start + size], 0
    for part in (np.frombuffer(head, np.uint8), *map(_bytes, order)):
        found[at : at + part.size] = part
        at += part.size
    return found


def write_packed(path: str | os.PathLike[str], data: Array) -> None:
    """Write a file from memory to disk, without a copy in the system's memory where that goes:
    it takes a processor several times as long as the rest.
    """
    with replacing(path) as temporary:
        at, pages = 0, data.size // PAGE * PAGE
        try:
            direct = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_DIRECT, 0o666)
            try:
                while at < pages:
                    at += os.pwrite(direct, data[at:pages].data, at)
            finally:
                os.close(direct)
        except AttributeError:  # not on Linux
            pass
        except OSError as error:  # a file system that cannot, or an end within a page
            if error.errno != errno.EINVAL:
                raise
        with open(temporary, "ab") as f:
            f.write(data[at:].data)


def _bytes(a: Array) -> Array:
    return np.ascontiguousarray(a).reshape(-1).view(np.uint8)


def _head(
    path: str | os.PathLike[str], arrays: Mapping[str, Array], metadata: Mapping[str, str]
) -> tuple[bytes, list[Array]]:
    """What a file begins with, and the arrays in order."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    order = sorted(arrays, key=lambda name: (-arrays[name].itemsize, name))
    at = 0
    for name in order:
        a = arrays[name]
        code = _NAMES.get(a.dtype.name)  # a slow property
        if code is None:
            raise ValueError(f"{path}: {name!r} is {a.dtype}, which safetensors does not have")
        header[name] = {
            "dtype": code,
            "shape": list(a.shape),
            "data_offsets": [at, at + a.nbytes],
        }
        at += a.nbytes
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % ALIGN)
    return len(text).to_bytes(8, "little") + text, [arrays[name] for name in order]


def _header(text: bytes, where: str) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in pairs:
            if name in found:
                raise ValueError(f"the name {name!r} is there twice")
            found[name] = value
        return found

    try:
        header = json.loads(text.decode("utf-8"), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: the header is no JSON: {error}") from error
    if not isinstance(header, dict):
        raise ValueError(f"{where}: the header is no JSON object")
    return header


def _entry(name: str, entry: Any, start: int, end: int, where: str) -> Entry:
    at = f"{where}: {name!r}"
    if not isinstance(entry, dict):
        raise ValueError(f"{at}: wanted dtype, shape and data_offsets, got {entry!r:.80}")
    fields: list[Any] = [entry.get(k) for k in ("dtype", "shape", "data_offsets")]
    dtype, shape, offsets = fields
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise ValueError(f"{at}: the dtype {dtype!r:.40} is not supported, only {list(DTYPES)}")
    if not _sizes(shape) or not _sizes(offsets) or len(offsets) != 2:
        raise ValueError(f"{at}: its shape is {shape!r:.80}, its offsets {offsets!r:.80}")
    first, last = offsets
    if not first <= last <= end - start:
        raise ValueError(
            f"{at}: bytes {first} to {last} are not in the {end - start} bytes of the file"
        )
    return Entry(start + first, start + last, DTYPES[dtype], tuple(shape))


def _sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(n) is int and n >= 0 for n in value)
