# SPDX-License-Identifier: Apache-2.0
"""state_dicts that torch.save wrote: a zip archive of one pickle and a member per storage."""

from __future__ import annotations

import math
from typing import Any, BinaryIO

import numpy as np

from nnl.converters.nnp.members import SUSPICIOUS, members
from nnl.converters.weights.pickle_reader import Tensor, brief, read_pickle
from nnl.converters.weights.tensors import Array, as_array, check_shape

_DTYPES = {
    "DoubleStorage": "f8",
    "FloatStorage": "f4",
    "HalfStorage": "f2",
    "BFloat16Storage": "bf16",
    "LongStorage": "i8",
    "IntStorage": "i4",
    "ShortStorage": "i2",
    "CharStorage": "i1",
    "ByteStorage": "u1",
    "BoolStorage": "?",
}
MAX_DEPTH = 16  # of dicts in dicts
MAX_NAMES = 2**25  # characters of all names: a dict may stand in many places, and in itself
MAX_SHARED = 16  # times the bytes of the file: the most for its tensors, which share storages


def read_pytorch(file: BinaryIO, where: str) -> dict[str, Array]:
    """The tensors of a file by name; those in dicts of dicts have names joined with a dot.

    Nothing of the pickle is executed: see `pickle_reader`.

    Raises:
        ValueError: The file is damaged, is no zip archive (PyTorch before 1.6), or holds anything
            but tensors, numbers and strings in dicts.
    """
    kind = "zip archive, as PyTorch 1.6 and later write"
    parts = {name: member.read() for name, member in members(file, where, kind)}
    folder = next((n.removesuffix("data.pkl") for n in parts if n.endswith("data.pkl")), None)
    if folder is None:
        raise ValueError(f"{where}: there is no member data.pkl, as torch.save writes")
    order = parts.get(f"{folder}byteorder")
    big = order is not None and order.tobytes() == b"big"
    root = read_pickle(parts[f"{folder}data.pkl"].tobytes(), f"{where}: data.pkl")
    tensors: dict[str, Tensor] = {}
    if not isinstance(root, (dict, Tensor)):
        raise ValueError(f"{where}: it holds {brief(root)}, wanted a dict of tensors")
    _collect(root, tensors, where)
    storages: dict[tuple[str, str], Array] = {}
    found = {}
    claimed = there = 0
    for name, t in tensors.items():
        at = f"{where}: {name!r}"
        key = t.storage.key, t.storage.kind
        if key not in storages:
            storages[key] = _storage(t, parts.get(f"{folder}data/{t.storage.key}"), big, at)
            there += storages[key].nbytes
        found[name] = _window(t, storages[key], at)
        claimed += found[name].nbytes
        if claimed > max(SUSPICIOUS, MAX_SHARED * there):
            raise ValueError(f"{where}: the tensors share storages more than {MAX_SHARED} times")
    return found


def _collect(root: Any, found: dict[str, Tensor], where: str) -> None:
    characters = 0

    def walk(value: Any, path: str, depth: int) -> None:
        nonlocal characters
        if isinstance(value, Tensor):
            found[path or "tensor"] = value
        elif isinstance(value, dict):
            if depth > MAX_DEPTH:
                raise ValueError(f"{where}: dicts are nested more than {MAX_DEPTH} deep")
            for key, entry in value.items():
                name = f"{path}.{key}" if path else str(key)
                characters += len(name) + 1
                if characters > MAX_NAMES:
                    raise ValueError(f"{where}: the names have more than {MAX_NAMES} characters")
                walk(entry, name, depth + 1)

    walk(root, "", 0)


def _storage(t: Tensor, raw: Array | None, big: bool, where: str) -> Array:
    kind = _DTYPES.get(t.storage.kind)
    if kind is None:
        raise ValueError(f"{where}: its dtype {t.storage.kind} is not supported")
    if raw is None:
        raise ValueError(f"{where}: there is no member data/{t.storage.key}")
    swapped = kind if kind == "bf16" or not big else np.dtype(kind).newbyteorder(">")
    return as_array(raw, swapped, (t.storage.size,), where)


def _window(t: Tensor, storage: Array, where: str) -> Array:
    check_shape(t.shape, where)
    count = math.prod(t.shape)
    last = t.offset + sum((n - 1) * s for n, s in zip(t.shape, t.strides, strict=True))
    if count and last >= storage.size:
        raise ValueError(
            f"{where}: element {last} of a storage with {storage.size} elements is asked for"
        )
    if count > storage.size and count * storage.itemsize > SUSPICIOUS:  # an expanded one
        raise ValueError(f"{where}: {count} elements out of a storage with {storage.size}")
    if not count:
        return np.empty(t.shape, storage.dtype)
    strides = [s * storage.itemsize for s in t.strides]
    return np.lib.stride_tricks.as_strided(storage[t.offset :], t.shape, strides)
