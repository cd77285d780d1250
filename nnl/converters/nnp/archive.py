# SPDX-License-Identifier: Apache-2.0
"""What stands in .nnp archives and the other files of NNabla, before anything is built from it."""

from __future__ import annotations

import io
import os
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from nnl.converters.nnp.messages import messages, parse
from nnl.converters.nnp.parameter_files import Stored, from_proto, read_h5

READ = (".nnp", ".nntxt", ".prototxt", ".protobuf", ".h5")
_TEXT = (".nntxt", ".prototxt")
_MAX_RATIO = 200  # a member larger than this times its compressed size, and than _SUSPICIOUS,
_SUSPICIOUS = 2**28  # bytes, is no network: weights hardly get smaller

Files = str | os.PathLike[str] | BinaryIO | Sequence[Any]


@dataclass
class Content:
    """Everything that one or several files hold.

    Attributes:
        where: The files, for messages.
        proto: NNablaProtoBuf message without parameters.
        stored: Parameters.
        states: Solver states by the optimizer's name: extension and content.
    """

    where: str
    proto: Any
    stored: list[Stored] = field(default_factory=list)
    states: dict[str, tuple[str, bytes]] = field(default_factory=dict)


def read_files(files: Files, extension: str, function: str) -> Content:
    """Read one or several files; later ones add to earlier ones.

    Args:
        files: Paths, or files open for reading bytes.
        extension: That of the format of files that are open; a path has its own.
        function: Who reads, for messages.
    Raises:
        ValueError: An extension is unknown, or a file is not what its extension says.
    """
    several: Sequence[Any] = files if isinstance(files, (list, tuple)) else [files]
    names = [str(f) if isinstance(f, (str, os.PathLike)) else "file" for f in several]
    content = Content(f"{function}: {', '.join(names)}", messages()["NNablaProtoBuf"]())
    for file, name in zip(several, names, strict=True):
        is_path = isinstance(file, (str, os.PathLike))
        kind = os.path.splitext(name)[1] if is_path else extension
        if kind not in READ:
            raise ValueError(
                f"{function}: {name} has the extension {kind!r}, wanted {', '.join(READ[:-1])} or "
                f"{READ[-1]}"
            )
        where = f"{function}: {name}"
        with open(file, "rb") if is_path else nullcontext(file) as opened:
            if kind != ".nnp":
                data = opened.read()
                _add(content, name, data.encode() if isinstance(data, str) else data, where, kind)
                continue
            for member, data in _members(opened, where):
                _add(content, member, data, f"{where}: {member}")
    return content


def _add(content: Content, name: str, data: bytes, where: str, kind: str = "") -> None:
    kind = kind or os.path.splitext(name)[1]
    if kind in (*_TEXT, ".protobuf"):
        proto = parse("NNablaProtoBuf", data, kind in _TEXT, where)
        content.stored += from_proto(proto, where)
        del proto.parameter[:]
        content.proto.MergeFrom(proto)
    elif kind == ".h5":
        content.stored += read_h5(io.BytesIO(data), where)
    elif kind == ".optimizer":
        _add_states(content, os.path.basename(name), data, where)


def _add_states(content: Content, name: str, data: bytes, where: str) -> None:
    """<optimizer>_<Solver>_optimizer.h5.optimizer, or a .protobuf with several optimizers."""
    stem, kind = os.path.splitext(os.path.splitext(name)[0])
    if kind == ".h5":
        optimizer = stem.removesuffix("_optimizer").rpartition("_")[0]
        content.states[optimizer] = kind, data
    elif kind == ".protobuf":
        for optimizer in parse("NNablaProtoBuf", data, False, where).optimizer:
            content.states[optimizer.name] = kind, optimizer.SerializeToString()


def _members(file: BinaryIO, where: str) -> Iterator[tuple[str, bytes]]:
    """Names and contents of an archive; sizes are checked before anything is unpacked."""
    try:
        with zipfile.ZipFile(file) as archive:
            for entry in archive.infolist():
                _check_member(entry, where)
            for entry in archive.infolist():
                yield entry.filename, archive.read(entry)
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, OSError, ValueError) as error:
        if str(error).startswith(where):
            raise
        raise ValueError(f"{where}: not a .nnp archive: {error}") from error


def _check_member(entry: zipfile.ZipInfo, where: str) -> None:
    parts = entry.filename.replace("\\", "/").split("/")
    if ".." in parts or entry.filename.startswith(("/", "\\")):
        raise ValueError(f"{where}: the member {entry.filename!r} points outside the archive")
    if entry.file_size > max(_SUSPICIOUS, _MAX_RATIO * entry.compress_size):
        raise ValueError(
            f"{where}: the member {entry.filename!r} claims {entry.file_size} bytes out of "
            f"{entry.compress_size}"
        )
