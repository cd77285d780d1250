# SPDX-License-Identifier: Apache-2.0
"""Files of the safetensors format: a JSON header and one run of bytes.

    8 bytes   length of the header, little endian
    header    {name: {"dtype": "F32", "shape": [..], "data_offsets": [begin, end]}}
    data      the arrays; offsets count from here, every byte belongs to exactly one array

Source: https://github.com/huggingface/safetensors, "Format".
"""

from __future__ import annotations

import json
from typing import Any

from nnl.converters.weights.tensors import Array, as_array

MAX_HEADER = 100_000_000  # bytes, the bound of the format
_DTYPES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "bf16",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "i1",
    "U64": "<u8",
    "U32": "<u4",
    "U16": "<u2",
    "U8": "u1",
    "BOOL": "?",
}


def read_safetensors(data: Array, where: str) -> dict[str, Array]:
    """The arrays of a file by name; bfloat16 becomes float32, the others are views of `data`.

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
    body = data[8 + length :]
    found: dict[str, Array] = {}
    runs: list[tuple[int, int, str]] = []
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end, dtype, shape = _entry(name, entry, body.size, where)
            runs.append((begin, end, name))
            found[name] = as_array(body[begin:end], dtype, shape, f"{where}: {name!r}")
    at = 0
    for begin, end, name in sorted(runs):
        if begin != at:
            raise ValueError(f"{where}: {name!r} begins at byte {begin}, wanted {at}")
        at = end
    if at != body.size:
        raise ValueError(f"{where}: {body.size - at} bytes behind the last array belong to none")
    return found


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


def _entry(name: str, entry: Any, size: int, where: str) -> tuple[int, int, str, tuple[int, ...]]:
    at = f"{where}: {name!r}"
    if not isinstance(entry, dict):
        raise ValueError(f"{at}: wanted dtype, shape and data_offsets, got {entry!r:.80}")
    fields: list[Any] = [entry.get(k) for k in ("dtype", "shape", "data_offsets")]
    dtype, shape, offsets = fields
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise ValueError(f"{at}: the dtype {dtype!r:.40} is not supported, only {list(_DTYPES)}")
    if not _sizes(shape) or not _sizes(offsets) or len(offsets) != 2:
        raise ValueError(f"{at}: its shape is {shape!r:.80}, its offsets {offsets!r:.80}")
    begin, end = offsets
    if not begin <= end <= size:
        raise ValueError(f"{at}: bytes {begin} to {end} are not in the {size} bytes of the file")
    return begin, end, _DTYPES[dtype], tuple(shape)


def _sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(n) is int and n >= 0 for n in value)
