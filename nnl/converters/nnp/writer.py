# SPDX-License-Identifier: Apache-2.0
"""save(): networks, parameters and training settings in a file that NNabla reads as well."""

from __future__ import annotations

import io
import logging
import os
import struct
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, BinaryIO

from nnl.converters.nnp.archive import Content
from nnl.converters.nnp.contents_writer import write_contents
from nnl.converters.nnp.members import sealed
from nnl.converters.nnp.messages import messages
from nnl.converters.nnp.parameter_files import (
    ALIGNMENT,
    add_to_proto,
    stored_bytes,
    stored_of,
)
from nnl.converters.nnp.solver_files import state_arrays, write_h5
from nnl.converters.nnp.wire import check_size
from nnl.core.graph.variable import Variable
from nnl.core.parameters.atomic import replacing
from nnl.core.parameters.parameter import get_parameters

logger = logging.getLogger("nnl")

VERSION = "0.1\n"
EXTENSIONS = (".nnp", ".nntxt", ".prototxt", ".protobuf")
FORMATS = (".h5", ".protobuf")
_ZIP_HEADER = 30  # bytes of a member before its name
_EXTRA = struct.Struct("<HH")  # kind and size of what may stand between name and content
_PADDING = 0xD935  # the kind that Android's zipalign uses
_DATE = (1980, 1, 1, 0, 0, 0)  # of every archive member, so that equal content is equal bytes


def save(
    filename: str | os.PathLike[str] | BinaryIO,
    contents: Mapping[str, Any],
    include_params: bool = False,
    variable_batch_size: bool = True,
    extension: str = ".nnp",
    parameters: Mapping[str, Variable] | None = None,
    parameter_format: str = ".h5",
    include_solver_state: bool = False,
    solver_state_format: str = ".h5",
) -> None:
    """Write networks and all that belongs to them; the file appears when it is complete.

    Args:
        filename: Path ending in .nnp, .nntxt, .prototxt or .protobuf; or a file open for writing
            bytes, or text if the format is one of text.
        contents: What to save, each key optional:
            networks: [{name, batch_size, outputs: {name: Variable}, names: {name: Variable}}]
            executors: [{name, network, data: [name], output: [name]}]
            optimizers: [{name, solver, network, dataset, weight_decay, lr_decay,
            lr_decay_interval, update_interval, scheduler}]
            datasets: [{name, uri, cache_dir, variables, shuffle, batch_size}]
            monitors: [{name, network, dataset}]
            global_config: {default_context}
            training_config: {max_epoch, iter_per_epoch, save_best}
        include_params: Put the parameters into the network's file. A .nnp has them in a file of
            their own otherwise, the other formats not at all.
        variable_batch_size: Write the batch size as -1, so that the network can be loaded with
            any. It is the first size of the input of the first function with a base_axis.
        extension: That of the format if filename is a file; a path has its own.
        parameters: Variables by name, those of the current scope if left out.
        parameter_format: Of the parameters' file in a .nnp, ".h5" or ".protobuf".
        include_solver_state: Save the states of the optimizers' solvers as well.
        solver_state_format: Of the states' file in a .nnp, ".h5" or ".protobuf".
    Raises:
        ValueError: An extension, a format or an entry of contents is not as described, or a
            network cannot have a variable batch size.
        NotImplementedError: A function has no type in .nnp files.
    """
    is_path = isinstance(filename, (str, os.PathLike))
    given = os.path.splitext(str(filename))[1] if is_path else extension
    if given not in EXTENSIONS:
        raise ValueError(
            f"save: the extension is {given!r}, wanted {', '.join(EXTENSIONS[:-1])} or "
            f"{EXTENSIONS[-1]}"
        )
    for name, value in (
        ("parameter_format", parameter_format),
        ("solver_state_format", solver_state_format),
    ):
        if value not in FORMATS:
            raise ValueError(f"save: {name} is {value!r}, wanted '.h5' or '.protobuf'")
    if parameters is None:
        parameters = get_parameters(grad_only=False)
    apart = given == ".nnp"
    proto = write_contents(
        contents, parameters, variable_batch_size, include_solver_state and not apart
    )
    content = Content(f"save: {filename}", proto, stored_of(parameters))
    if include_solver_state and apart:
        content.states = _states(contents, solver_state_format)
    kind = parameter_format if apart else None
    data = _file(content, given, ".nntxt" if include_params else kind)
    if isinstance(filename, (str, os.PathLike)):
        with replacing(filename) as temporary:
            temporary.write_bytes(data)
    else:
        write_to(filename, data)


def write_content(
    path: str | os.PathLike[str], content: Content, parameters: str | None = ".protobuf"
) -> None:
    """Write .nnp, .nntxt, .prototxt or .protobuf; equal content gives equal bytes.

    Args:
        parameters: Format of the parameters in a .nnp: ".protobuf", ".h5", ".nntxt" (inside the
            network's file) or None for none.
    """
    kind = os.path.splitext(str(path))[1]
    if kind != ".nnp" and content.states:
        logger.warning("%s: the states of solvers are left out: .nnp keeps them", path)
    data = _file(replace(content, where=str(path)), kind, parameters)
    with replacing(path) as temporary:
        temporary.write_bytes(data)


def _file(content: Content, kind: str, parameters: str | None) -> bytes:
    """The bytes of a file of this extension; see write_content."""
    if kind != ".nnp" and parameters is not None:
        parameters = ".protobuf" if kind == ".protobuf" else ".nntxt"
    stored = [] if parameters is None else content.stored
    if parameters == ".protobuf":
        check_size(content.where, [(p.name, p.value) for p in stored])
    values = b"" if parameters is None else stored_bytes(stored, parameters)
    if kind == ".protobuf":
        return sealed(to_bytes(content.proto) + values)
    inside = parameters == ".nntxt"
    text = to_text(content.proto) + (values if inside else b"")
    if kind != ".nnp":
        return text
    members = {"nnp_version.txt": VERSION.encode(), "network.nntxt": text}
    if parameters is not None and not inside:
        members[f"parameter{parameters}"] = values
    together = type(content.proto)()
    for optimizer in content.proto.optimizer:
        extension, data = content.states.get(optimizer.name, ("", b""))
        if extension == ".h5":
            members[f"{optimizer.name}_{optimizer.solver.type}_optimizer.h5.optimizer"] = data
        elif extension:
            together.optimizer.add().ParseFromString(data)
    if together.optimizer:
        members["optimizer.protobuf.optimizer"] = to_bytes(together)
    return archive(members)


def write_to(file: Any, content: bytes) -> None:
    """Write to an open file, also to one of text, which takes messages in text form.

    Raises:
        TypeError: It is one of text, and the content is not.
    """
    try:
        file.write(content)
    except TypeError:
        if not content.isascii():
            raise TypeError("save: the file is open for text, wanted one for bytes") from None
        file.write(content.decode())


def create_proto(
    contents: Mapping[str, Any],
    include_params: bool = False,
    variable_batch_size: bool = True,
    save_solver_in_proto: bool = False,
) -> Any:
    """The NNablaProtoBuf message that `save` writes, for the parameters of the current scope."""
    parameters = get_parameters(grad_only=False)
    proto = write_contents(contents, parameters, variable_batch_size, save_solver_in_proto)
    if include_params:
        add_to_proto(proto, parameters)
    return proto


def to_text(message: Any) -> bytes:
    """The text form of a message."""
    from google.protobuf import text_format

    text: str = text_format.MessageToString(message)
    return text.encode()


def to_bytes(message: Any) -> bytes:
    """The binary form of a message, with sorted maps."""
    content: bytes = message.SerializeToString(deterministic=True)
    return content


def _states(contents: Mapping[str, Any], extension: str) -> dict[str, tuple[str, bytes]]:
    """The states of solvers, as `Content` has them."""
    solvers = {o["name"]: o["solver"] for o in contents.get("optimizers") or ()}
    if extension == ".protobuf":
        arrays = [a for s in solvers.values() for a in state_arrays(s)]
        check_size("save: the states of solvers", arrays)
    found = {}
    for name, solver in solvers.items():
        buffer = io.BytesIO()
        if extension == ".h5":
            write_h5(solver, buffer)
        else:
            message = messages()["Optimizer"](name=name)
            message.solver.type = solver.name
            solver.set_states_to_protobuf(message)
            buffer.write(message.SerializeToString())
        found[name] = extension, buffer.getvalue()
    return found


def archive(members: Mapping[str, bytes]) -> bytes:
    """A zip archive; stored, not compressed, as weights hardly get smaller. Members are aligned."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, content in members.items():
            entry = zipfile.ZipInfo(name, _DATE)
            begin = buffer.tell() + _ZIP_HEADER + len(name.encode()) + _EXTRA.size
            padding = -begin % ALIGNMENT
            entry.extra = _EXTRA.pack(_PADDING, padding) + bytes(padding)
            archive.writestr(entry, content)
    return buffer.getvalue()
