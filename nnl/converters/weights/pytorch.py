# SPDX-License-Identifier: Apache-2.0
"""state_dicts and modules that torch.save wrote: a zip archive of one pickle and a member per
storage, before PyTorch 1.6 a row of pickles and then the storages.
"""

from __future__ import annotations

import math
from typing import Any, BinaryIO

import numpy as np

from nnl.converters.nnp.members import SUSPICIOUS, members, whole
from nnl.converters.weights.pickle_reader import Record, Tensor, brief, read_pickle, read_pickles
from nnl.converters.weights.tensors import DTYPES, Array, as_array, check_shape, item_size

MAGIC = 0x1950A86A20F9469CFC6C  # the first pickle
VERSION = 1001  # the second
_PICKLES = 5  # those, the writer's system, the object, and the storages' keys in their order
_COUNT = 8  # bytes of the number of elements before each storage
_TAR = slice(257, 262)  # where a tar archive says that it is one


def read_legacy(file: BinaryIO, where: str) -> tuple[Any, dict[str, Array]]:
    """The object that was saved, and the bytes of its storages by key, always little-endian.

    Raises:
        ValueError: The file is damaged or another, or a pickle does anything but describe tensors.
    """
    data = whole(file, where).read()
    if data[_TAR].tobytes() == b"ustar":
        raise ValueError(
            f"{where}: a tar archive, as PyTorch before 0.1.10 wrote: load and save it with a "
            "newer PyTorch"
        )
    pickle = data[:1].tobytes() == b"\x80"
    if not pickle or read_pickles(data.data, 1, where)[0][0] != MAGIC:
        raise ValueError(
            f"{where}: neither a zip archive, as PyTorch 1.6 and later write, nor the row of "
            "pickles of earlier ones"
        )
    objects, storages, at = read_pickles(data.data, _PICKLES, where)
    _, version, _, root, keys = objects
    if version != VERSION:
        raise ValueError(f"{where}: the version is {brief(version)}, wanted {VERSION}")
    if type(keys) is not list or not all(type(k) is str for k in keys):
        raise ValueError(f"{where}: the storages are {brief(keys)}, wanted a list of names")
    found: dict[str, Array] = {}
    for key in keys:
        storage = storages.get(key)
        if storage is None or storage.kind not in DTYPES:
            kind = "unknown" if storage is None else storage.kind[:80]
            raise ValueError(f"{where}: the type of the storage {key[:80]!r} is {kind}")
        count = int.from_bytes(data[at : at + _COUNT].tobytes(), "little", signed=True)
        at += _COUNT
        size = storage.size * item_size(storage.kind)
        if count != storage.size or at + size > len(data):
            raise ValueError(
                f"{where}: the storage {key[:80]!r} of {storage.size} elements has {count}, and "
                f"{max(len(data) - at, 0)} bytes are left"
            )
        found[key] = data[at : at + size]
        at += size
    return root, found


MAX_DEPTH = 16  # of dicts in dicts
MAX_NAMES = 2**25  # characters of all names: a dict may stand in many places, and in itself
MAX_SHARED = 16  # times the bytes of the file: the most for its tensors, which share storages


def read_pytorch(file: BinaryIO, where: str) -> dict[str, Array]:
    """The tensors of a file by name; those in dicts of dicts have names joined with a dot, those in
    lists their number, those of modules the names of their state_dict.

    Nothing of the pickle is executed: see `pickle_reader`.

    Raises:
        ValueError: The file is damaged, was written by PyTorch before 0.1.10, or calls anything
            but what describes tensors.
    """
    packed = file.read(2) == b"PK"
    file.seek(0)
    root, parts, big = _unzipped(file, where) if packed else (*read_legacy(file, where), False)
    tensors: dict[str, Tensor] = {}
    module = isinstance(root, Record) and _of_module(root)
    if not module and not isinstance(root, (dict, list, tuple, Tensor)):
        raise ValueError(f"{where}: it holds {brief(root)}, wanted a dict of tensors or a module")
    _collect(root, tensors, where)
    storages: dict[str, Array] = {}
    found = {}
    claimed = there = 0
    for name, t in tensors.items():
        at = f"{where}: {name!r}"
        key = t.storage.key
        if key not in storages:
            storages[key] = _storage(t, parts.get(key), big, at)
            there += storages[key].nbytes
        found[name] = _window(t, storages[key], at)
        claimed += found[name].nbytes
        if claimed > max(SUSPICIOUS, MAX_SHARED * there):
            raise ValueError(f"{where}: the tensors share storages more than {MAX_SHARED} times")
    return found


def _unzipped(file: BinaryIO, where: str) -> tuple[Any, dict[str, Array], bool]:
    """The object that was saved, the bytes of its storages, and whether they are big-endian."""
    parts = {name: member.read() for name, member in members(file, where, "zip archive")}
    folder = next((n.removesuffix("data.pkl") for n in parts if n.endswith("data.pkl")), None)
    if folder is None:
        raise ValueError(f"{where}: there is no member data.pkl, as torch.save writes")
    order = parts.get(f"{folder}byteorder")
    big = order is not None and order.tobytes() == b"big"
    root = read_pickle(parts[f"{folder}data.pkl"].data, f"{where}: data.pkl")
    data = f"{folder}data/"
    return root, {n.removeprefix(data): p for n, p in parts.items() if n.startswith(data)}, big


def _of_module(record: Record) -> dict[Any, Any]:
    """What a module gives to its state_dict; nothing if it is another object."""
    state = record.state
    groups = [state.get(k) for k in ("_parameters", "_buffers", "_modules")]
    if not all(isinstance(g, dict) for g in groups):
        return {}
    hidden = state.get("_non_persistent_buffers_set")
    left_out = {n for n in hidden if type(n) is str} if isinstance(hidden, list) else set()
    parameters, buffers, modules = groups
    return {**parameters, **{k: v for k, v in buffers.items() if k not in left_out}, **modules}


def _collect(root: Any, found: dict[str, Tensor], where: str) -> None:
    characters = 0
    modules: dict[int, dict[Any, Any]] = {}  # made once, in however many places one stands

    def walk(value: Any, path: str, depth: int) -> None:
        nonlocal characters
        if isinstance(value, Tensor):
            found[path or "tensor"] = value
        elif isinstance(value, (dict, list, tuple, Record)):
            if depth > MAX_DEPTH:
                raise ValueError(
                    f"{where}: dicts, lists and modules are nested more than {MAX_DEPTH} deep"
                )
            if isinstance(value, Record) and id(value) not in modules:
                modules[id(value)] = _of_module(value)
            entries = modules[id(value)] if isinstance(value, Record) else value
            for key, entry in entries.items() if isinstance(entries, dict) else enumerate(entries):
                name = f"{path}.{key}" if path else str(key)
                characters += len(name) + 1
                if characters > MAX_NAMES:
                    raise ValueError(f"{where}: the names have more than {MAX_NAMES} characters")
                walk(entry, name, depth + 1)

    walk(root, "", 0)


def _storage(t: Tensor, raw: Array | None, big: bool, where: str) -> Array:
    kind = DTYPES.get(t.storage.kind)
    if kind is None:
        raise ValueError(f"{where}: its dtype {t.storage.kind} is not supported")
    if raw is None:
        raise ValueError(f"{where}: the file has no storage {t.storage.key[:80]!r}")
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
