# SPDX-License-Identifier: Apache-2.0
"""What stands in .nnp archives and the other files of NNabla, before anything is built from it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, BinaryIO

from nnl.converters.nnp.members import Member, members, whole
from nnl.converters.nnp.messages import messages, parse
from nnl.converters.nnp.parameter_files import Stored, binary_parameters, from_proto, read_h5

READ = (".nnp", ".nntxt", ".prototxt", ".protobuf", ".h5")
_TEXT = (".nntxt", ".prototxt")

Files = str | os.PathLike[str] | BinaryIO | Sequence[Any]


@dataclass
class Content:
    """Everything that one or several files hold.

    Attributes:
        where: The files, for messages.
        proto: NNablaProtoBuf message without parameters.
        promised: Parameters whose values may still be read.
        states: Solver states by the optimizer's name: extension and content.
        files: What the values are read from.
    """

    where: str
    proto: Any
    promised: list[Stored] = field(default_factory=list)
    states: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    files: list[Member] = field(default_factory=list)

    @property
    def stored(self) -> list[Stored]:
        """The parameters.

        Raises:
            ValueError: Their file is damaged.
        """
        self.wait()
        return self.promised

    def wait(self) -> None:
        """Come back when all values are there; raises as `stored`."""
        for file in self.files:
            file.wait()


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
    found: list[_Part] = []
    for file, name in zip(several, names, strict=True):
        is_path = isinstance(file, (str, os.PathLike))
        kind = os.path.splitext(name)[1] if is_path else extension
        if kind not in READ:
            raise ValueError(
                f"{function}: {name} has the extension {kind!r}, wanted {', '.join(READ[:-1])} or "
                f"{READ[-1]}"
            )
        where = f"{function}: {name}"
        with open(file, "rb", buffering=0) if is_path else nullcontext(file) as opened:
            if kind != ".nnp":
                found += _add(content, whole(opened, where), where, kind)
                continue
            for part, member in members(opened, where):
                found += _add(content, member, f"{where}: {part}", os.path.splitext(part)[1], part)
    for stored, message, where in found:  # by now the weights are being read
        content.promised += stored
        if message is not None:
            proto = message()
            content.promised += from_proto(proto, where)
            del proto.parameter[:]
            content.proto.MergeFrom(proto)
    return content


# Parameters, what gives a message, and where it stands.
_Part = tuple[list[Stored], Callable[[], Any] | None, str]


def _add(content: Content, file: Member, where: str, kind: str, name: str = "") -> list[_Part]:
    """What the file holds; states of solvers are added at once."""
    content.files.append(file)
    if kind in _TEXT:
        return [([], partial(parse, "NNablaProtoBuf", file.read().tobytes(), True, where), where)]
    if kind == ".protobuf":
        proto, stored = binary_parameters(file)
        return [(stored, lambda: proto, where)]
    if kind == ".h5":
        return [(read_h5(file), None, where)]
    if kind == ".optimizer":
        _add_states(content, os.path.basename(name), file.read().tobytes(), where)
    return []


def _add_states(content: Content, name: str, data: bytes, where: str) -> None:
    """<optimizer>_<Solver>_optimizer.h5.optimizer, or a .protobuf with several optimizers."""
    stem, kind = os.path.splitext(os.path.splitext(name)[0])
    if kind == ".h5":
        optimizer = stem.removesuffix("_optimizer").rpartition("_")[0]
        content.states[optimizer] = kind, data
    elif kind == ".protobuf":
        for optimizer in parse("NNablaProtoBuf", data, False, where).optimizer:
            content.states[optimizer.name] = kind, optimizer.SerializeToString()
