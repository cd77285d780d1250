# SPDX-License-Identifier: Apache-2.0
"""Parameters in NNabla's files: .h5, .protobuf and .nntxt, alone or inside a .nnp archive."""

from __future__ import annotations

import io
import logging
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from nnl.converters.nnp.members import ArrayLocation, BytesFile, Member, members, sealed, whole
from nnl.converters.nnp.messages import messages, parse
from nnl.converters.nnp.wire import check_size, join_parameters, split_parameters
from nnl.core.arrays.spec import ShapeError
from nnl.core.graph.variable import Variable
from nnl.core.parameters.atomic import replacing
from nnl.core.parameters.parameter import (
    all_or_nothing,
    get_parameter,
    get_parameter_or_create,
    get_parameters,
)
from nnl.data.damage import numbers
from nnl.ext.native import LARGE

logger = logging.getLogger("nnl")

SAVED = (".h5", ".protobuf")
LOADED = (".h5", ".protobuf", ".nntxt", ".prototxt", ".nnp")
# Bytes. Arrays that begin at such places are read in three quarters of the time: memory begins at
# such places too, and copies between what is aligned alike are the fastest.
ALIGNMENT = 64


class Stored(NamedTuple):
    """A parameter as it stands in a file."""

    name: str
    value: np.ndarray[Any, Any]
    need_grad: bool


def stored_of(params: Mapping[str, Variable]) -> list[Stored]:
    """Parameters with their present values."""
    return [Stored(name, v.data.read("host"), v.need_grad) for name, v in params.items()]


def save_parameters(
    path: str | os.PathLike[str] | BinaryIO,
    params: Mapping[str, Variable] | None = None,
    extension: str | None = None,
) -> None:
    """Write parameters to a file that NNabla reads as well.

    The file appears under its name when it is complete: a save that fails or is killed leaves the
    file that was there before. .h5 keeps every dtype, .protobuf stores float32.

    Args:
        path: Path, or a file open for writing bytes.
        params: Variables by name; all parameters of the current scope if left out.
        extension: ".h5" or ".protobuf"; that of the path unless given, needed for a file.
    Raises:
        ValueError: The extension is neither, or .protobuf would have more than 2^31 - 1 bytes.
    """
    if params is None:
        params = get_parameters(grad_only=False)
    kind = _extension("save_parameters", path, extension, SAVED)
    if not params:
        logger.warning(
            "save_parameters: %s gets no parameters, for there are none here; a Module saves its "
            "own by its save_parameters (documentation: guides/own_layer#layers-as-objects)",
            path,
        )
    stored = stored_of(params)
    if kind == ".protobuf":
        check_size(f"save_parameters: {path}", [(p.name, p.value) for p in stored])
    content = stored_bytes(stored, kind)
    content = sealed(content) if kind == ".protobuf" else content
    if isinstance(path, (str, os.PathLike)):
        with replacing(path) as temporary:
            temporary.write_bytes(content)
    else:
        path.write(content)


def load_parameters(
    path: str | os.PathLike[str] | BinaryIO,
    proto: Any = None,
    needs_proto: bool = False,
    extension: str = ".nntxt",
) -> Any:
    """Read parameters into the current scope; those that do not exist are created.

    All shapes are compared first, so a file that does not fit changes nothing. Values keep the
    dtype of an .h5 file; those of the other formats are float32.

    Args:
        path: Path, or a file open for reading bytes. Of a .nnp archive, the parameters are read.
        proto: An NNablaProtoBuf message to add the parameters to.
        needs_proto: Return such a message even for formats that have none.
        extension: That of the format if path is a file; a path has its own.
    Returns:
        An NNablaProtoBuf message with the parameters if proto was given, needs_proto is True or
        the file holds one; else None.
    Raises:
        ValueError: The extension or the content is not one of the formats.
        ShapeError: A parameter exists with another shape.
        FileNotFoundError: There is no such file.
    """
    if isinstance(path, (str, os.PathLike)):
        kind = _extension("load_parameters", path, None, LOADED)
        with open(path, "rb", buffering=0) as file:
            stored = _read(file, kind, f"load_parameters: {path}")
    else:
        kind = _extension("load_parameters", path, extension, LOADED)
        stored = _read(path, kind, "load_parameters: file")
    _check_shapes(stored)
    _tell_strangers(stored, path)
    for variable, p in zip(_registered(stored), stored, strict=True):
        set_value(variable, p.value)
    if proto is None and not needs_proto and kind in (".h5", ".nnp"):
        return None
    proto = messages()["NNablaProtoBuf"]() if proto is None else proto
    _add_to_proto(proto, stored)
    return proto


def _tell_strangers(stored: list[Stored], path: Any) -> None:
    """Say so if none of the parameters in a file is one of those that there are."""
    known = get_parameters(grad_only=False)
    if known and stored and not any(p.name in known for p in stored):
        logger.info(
            "load_parameters: %s: none of its %d parameters (%s ...) is among the %d that there "
            "are (%s ...): they are added",
            *(path, len(stored), stored[0].name, len(known), next(iter(known))),
        )


def set_parameter_from_proto(proto: Any) -> None:
    """Set the parameters of the current scope from those of an NNablaProtoBuf message.

    Raises:
        ShapeError: A parameter exists with another shape; nothing is changed then.
    """
    stored = from_proto(proto, "set_parameter_from_proto")
    _check_shapes(stored)
    for variable, p in zip(_registered(stored), stored, strict=True):
        variable.d = p.value


def _registered(stored: list[Stored]) -> list[Variable]:
    """The parameters, missing ones new; none if one has no name, or the name of a scope."""

    def made() -> list[Variable]:
        return [
            get_parameter_or_create(p.name, p.value.shape, need_grad=p.need_grad) for p in stored
        ]

    found: list[Variable] = all_or_nothing(made, (), {})
    return found


def set_value(variable: Variable, value: np.ndarray[Any, Any]) -> None:
    """Set the value from memory that nobody else writes to: taken over where it can be."""
    nd = variable.data
    if value.dtype == nd.spec.dtype and is_well_placed(value) and "host" not in nd.bufs:
        nd.write("host", value)
    else:
        variable.d = value


def is_well_placed(value: np.ndarray[Any, Any]) -> bool:
    """Whether the memory is as good as what nnl would copy it to.

    An update of weights that do not begin at a cache line takes twice as long.
    """
    small = value.nbytes < LARGE
    return value.flags.carray and (small or value.ctypes.data % ALIGNMENT == 0)


def _extension(function: str, path: Any, given: str | None, known: tuple[str, ...]) -> str:
    name = str(path) if isinstance(path, (str, os.PathLike)) else "a file"
    extension = os.path.splitext(name)[1] if given is None else given
    if extension not in known:
        raise ValueError(
            f"{function}: path is {name!r} with the extension {extension!r}, "
            f"wanted {', '.join(known[:-1])} or {known[-1]}"
        )
    return extension


def _check_shapes(stored: list[Stored]) -> None:
    for p in stored:
        existing = get_parameter(p.name)
        if existing is not None and existing.shape != p.value.shape:
            raise ShapeError(
                f"load_parameters: {p.name!r} has the shape {p.value.shape} in the file, the "
                f"parameter that exists has {existing.shape}: clear_parameters() to replace it"
            )


# ---- HDF5: one dataset per parameter, at its name, with the attributes index and need_grad ----


def write_h5(target: str | os.PathLike[str] | BinaryIO, stored: Sequence[Stored]) -> None:
    """Write parameters to a path, or to a file open for reading and writing bytes."""
    import h5py

    with h5py.File(target, "w", alignment_threshold=4096, alignment_interval=ALIGNMENT) as out:
        for index, p in enumerate(stored):
            dataset = out.create_dataset(p.name, data=h5_value(p.value))
            dataset.attrs["need_grad"] = p.need_grad
            dataset.attrs["index"] = index


def h5_value(value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """What an HDF5 file holds of an array: bfloat16, which it does not know, as float32."""
    return value.astype(np.float32) if value.dtype.kind == "V" else value


def _h5_bytes(stored: Sequence[Stored]) -> bytes:
    buffer = io.BytesIO()
    write_h5(buffer, stored)
    return buffer.getvalue()


def read_h5(file: Member) -> list[Stored]:
    """The parameters of an HDF5 file, in the order of their index.

    The values may still be read: wait for the file before you use them.

    Raises:
        ValueError: It is not an HDF5 file, is damaged, or holds anything but numbers.
    """
    found = file.hdf5_arrays()
    if found is None:
        return _by_library(file)
    values = file.arrays(
        [ArrayLocation(at, np.dtype(dtype), shape) for _, dtype, shape, at, _ in found]
    )
    stored = []
    for i, ((name, _, _, _, beside), value) in enumerate(zip(found, values, strict=True)):
        need_grad = bool(beside.get("need_grad", True))
        stored.append((beside.get("index", i), Stored(name, value, need_grad)))
    return _in_order(stored)


def _in_order(stored: list[tuple[int, Stored]]) -> list[Stored]:
    return [p for _, p in sorted(stored, key=lambda s: (s[0], s[1].name))]


def _by_library(file: Member) -> list[Stored]:
    import h5py

    found: list[tuple[int, Stored]] = []

    def visit(path: bytes, info: Any) -> None:
        if info.type == h5py.h5o.TYPE_DATASET:
            dataset = h5py.Dataset(h5py.h5d.open(source.id, path))
            name = _decoded(path, file.name)
            index = int(dataset.attrs.get("index", len(found)))
            need_grad = bool(dataset.attrs.get("need_grad", True))
            value = numbers(dataset, f"{file.name}: {name!r}")
            found.append((index, Stored(name, value, need_grad)))

    try:
        with h5py.File(BytesFile(file.read()), "r") as source:
            h5py.h5o.visit(source.id, visit, info=True)
    except _BROKEN as error:
        if str(error).startswith(file.name):
            raise
        raise ValueError(f"{file.name}: not an HDF5 file: {error}") from error
    return _in_order(found)


_BROKEN = (OSError, RuntimeError, KeyError, TypeError, ValueError, OverflowError, MemoryError)


def _decoded(path: bytes, where: str) -> str:
    try:
        return path.decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{where}: the name {path!r} is no UTF-8 text") from None


# ---- protobuf ----


def add_to_proto(proto: Any, params: Mapping[str, Variable]) -> None:
    """Add parameters to an NNablaProtoBuf message, as float32."""
    _add_to_proto(proto, stored_of(params))


def _add_to_proto(proto: Any, stored: list[Stored]) -> None:
    for p in stored:  # as bytes: number by number it takes fifty times as long
        proto.MergeFromString(join_parameters([p]))


def from_proto(proto: Any, where: str) -> list[Stored]:
    """The parameters of an NNablaProtoBuf message."""
    stored = []
    for message in proto.parameter:
        shape, data = tuple(message.shape.dim), np.array(message.data, np.float32)
        if min(shape, default=0) < 0 or data.size != math.prod(shape):
            raise ShapeError(
                f"{where}: {message.variable_name!r} has {data.size} values for the shape {shape}"
            )
        stored.append(Stored(message.variable_name, data.reshape(shape), message.need_grad))
    return stored


def _text_bytes(stored: Sequence[Stored]) -> bytes:
    from google.protobuf import text_format

    proto = messages()["NNablaProtoBuf"]()
    _add_to_proto(proto, list(stored))
    text: str = text_format.MessageToString(proto)
    return text.encode()


def stored_bytes(stored: Sequence[Stored], extension: str) -> bytes:
    """The content of a file of parameters: .h5, .protobuf or .nntxt."""
    return _BYTES[extension](stored)


def binary_parameters(file: Member) -> tuple[Any, list[Stored]]:
    """A binary message without its parameters, and these: wait for the file before you use them."""
    proto, found = split_parameters(file)
    return proto, [Stored(*p) for p in found]


def _read_protobuf(file: Member) -> list[Stored]:
    return binary_parameters(file)[1]


def _read_text(file: Member) -> list[Stored]:
    proto = parse("NNablaProtoBuf", file.read().tobytes(), True, file.name)
    return from_proto(proto, file.name)


# ---- any of them, or a .nnp: a zip archive of such files ----


def _read(file: Any, kind: str, where: str) -> list[Stored]:
    stored: list[Stored] = []
    inside = members(file, where) if kind == ".nnp" else [(kind, whole(file, where))]
    for name, member in inside:
        reader = _READERS.get(os.path.splitext(name)[1] or name)
        if reader is not None:
            stored += reader(member)
            member.wait()
    return stored


_BYTES: dict[str, Callable[[Sequence[Stored]], bytes]] = {
    ".h5": _h5_bytes,
    ".protobuf": join_parameters,
    ".nntxt": _text_bytes,
}
_READERS: dict[str, Callable[[Member], list[Stored]]] = {
    ".h5": read_h5,
    ".protobuf": _read_protobuf,
    ".nntxt": _read_text,
    ".prototxt": _read_text,
}
