# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: files of tensors by name, of version 1 (one table) and 2 (a table and shards)."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from nnl.converters.onnx.values.values import check_size
from nnl.converters.tensorflow import table
from nnl.converters.tensorflow.messages import (
    TensorFlowError,
    array_of,
    code_of_dtype,
    dtype_of_code,
    messages,
    parse,
    shape_proto,
    sizes_of,
)
from nnl.data.crc32c import masked

_MOST_SHARDS = 10**5


class Checkpoint:
    """Tensors by name; each is read when it is asked for.

    Args:
        prefix: The path without ".index"; of version 1, the path of the file.
    Raises:
        TensorFlowError: The files are damaged.
    """

    def __init__(self, prefix: str | os.PathLike[str]) -> None:
        self.prefix = os.fspath(prefix)
        self.where = f"{self.prefix}.index"
        is_new = os.path.exists(self.where)
        self.where = self.where if is_new else self.prefix
        try:
            with open(self.where, "rb") as file:
                self._entries = table.read(file.read())
            header = self._entries.pop(b"", b"")
            self._read_new(header) if is_new else self._read_old(header)
        except TensorFlowError as error:
            raise self._named(error) from None

    def _named(self, error: TensorFlowError) -> TensorFlowError:
        text = str(error)
        return error if text.startswith(self.prefix) else type(error)(f"{self.where}: {text}")

    def names(self) -> list[str]:
        """Names of all tensors, sorted."""
        return sorted(self._kinds)

    def __call__(self, name: str) -> Any:
        """One tensor.

        Raises:
            TensorFlowError: There is none of this name, or the files are damaged.
        """
        if name not in self._kinds:
            raise TensorFlowError(f"{self.where}: it has no tensor {name!r}")
        try:
            return self._array(name)
        except TensorFlowError as error:
            raise self._named(error) from None

    # ---- version 2 ----

    def _read_new(self, header: bytes) -> None:
        found = parse("BundleHeaderProto", header, self.where)
        if found.endianness or not 0 <= found.num_shards <= _MOST_SHARDS:
            raise TensorFlowError(
                "its numbers have the most significant byte first, or it is damaged"
            )
        self._shards = found.num_shards
        self._kinds: dict[str, Any] = {
            key.decode("utf-8", "replace"): parse("BundleEntryProto", value, self.where)
            for key, value in self._entries.items()
        }
        self._array = self._of_shard

    def _of_shard(self, name: str) -> Any:
        entry = self._kinds[name]
        shape = sizes_of(entry.shape)
        if entry.slices:
            raise TensorFlowError(f"the tensor {name!r} is stored in slices")
        path = Path(f"{self.prefix}.data-{entry.shard_id:05d}-of-{self._shards:05d}")
        dtype = dtype_of_code(entry.dtype)
        if dtype.kind == "O":
            return np.full(shape, b"", object) if math.prod(shape or (1,)) <= 2**16 else None
        wanted = math.prod(check_size(shape or ())) * dtype.itemsize
        if wanted != entry.size or not 0 <= entry.offset <= path.stat().st_size - wanted:
            raise TensorFlowError(f"the tensor {name!r} of shape {shape} does not fit its file")
        with open(path, "rb") as file:
            file.seek(entry.offset)
            raw = file.read(wanted)
        if len(raw) != wanted or (entry.crc32c and masked(raw) != entry.crc32c):
            raise TensorFlowError(f"the tensor {name!r} does not have its checksum")
        return np.frombuffer(raw, dtype).reshape(shape)  # type: ignore[arg-type]

    # ---- version 1 ----

    def _read_old(self, header: bytes) -> None:
        meta = parse("SavedTensorSlices", header, self.where).meta
        self._kinds = {t.name: t for t in meta.tensor}
        self._parts: dict[str, list[Any]] = {}
        for value in self._entries.values():
            part = parse("SavedTensorSlices", value, self.where).data
            self._parts.setdefault(part.name, []).append(part)
        self._array = self._of_parts

    def _of_parts(self, name: str) -> Any:
        kind = self._kinds[name]
        dtype, shape = dtype_of_code(kind.type), sizes_of(kind.shape) or ()
        check_size(shape, max(dtype.itemsize, 1))
        parts = self._parts.get(name, [])
        if sum(len(p.data.SerializeToString()) for p in parts) * 8 < math.prod(shape):
            raise TensorFlowError(f"the tensor {name!r} of shape {shape} is not in the file")
        whole = np.zeros(shape, dtype)
        if any(len(p.slice.extent) != len(shape) for p in parts):
            raise TensorFlowError(f"the slices of {name!r} are not of the shape {shape}")
        for part in parts:
            place = tuple(
                slice(e.start, e.start + e.length if e.WhichOneof("has_length") else None)
                for e in part.slice.extent
            )
            target = whole[place]
            data = part.data
            data.dtype = kind.type
            data.tensor_shape.CopyFrom(shape_proto(target.shape))
            target[...] = array_of(data)
        return whole


def save(prefix: str | os.PathLike[str], tensors: Mapping[str, np.ndarray[Any, Any]]) -> None:
    """Write a checkpoint of version 2: PREFIX.index and one shard.

    Each file is written under another name first; the index, without which there is no checkpoint,
    comes last.
    """
    entries, offset = {}, 0
    where = os.fspath(prefix)
    names = f"{where}.data-00000-of-00001", f"{where}.index"
    classes = messages()
    header = classes["BundleHeaderProto"](num_shards=1)
    header.version.producer = 1
    with open(f"{names[0]}.new", "wb") as file:
        for name in sorted(tensors, key=str.encode):
            array = tensors[name]
            raw = np.ascontiguousarray(array).tobytes()
            file.write(raw)
            entry = classes["BundleEntryProto"](
                dtype=code_of_dtype(array.dtype), offset=offset, size=len(raw), crc32c=masked(raw)
            )
            entry.shape.CopyFrom(shape_proto(array.shape))
            entries[name.encode()] = entry.SerializeToString()
            offset += len(raw)
    content = table.write({b"": header.SerializeToString(), **entries})
    Path(f"{names[1]}.new").write_bytes(content)
    for name in names:
        os.replace(f"{name}.new", name)
