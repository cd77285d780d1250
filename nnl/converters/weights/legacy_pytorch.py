# SPDX-License-Identifier: Apache-2.0
"""What torch.save wrote before PyTorch 1.6: a row of pickles, then the storages in turn."""

from __future__ import annotations

from typing import Any, BinaryIO

from nnl.converters.nnp.members import whole
from nnl.converters.weights.pickle_reader import brief, read_pickles
from nnl.converters.weights.tensors import DTYPES, Array, item_size

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
