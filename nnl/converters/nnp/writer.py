# SPDX-License-Identifier: Apache-2.0
"""save(): networks, parameters and training settings in a file that NNabla reads as well."""

from __future__ import annotations

import io
import os
import struct
import zipfile
from collections.abc import Mapping
from typing import Any, BinaryIO

from nnl.converters.nnp.contents_writer import write_contents
from nnl.converters.nnp.members import sealed
from nnl.converters.nnp.parameter_files import ALIGNMENT, Stored, add_to_proto, stored_bytes
from nnl.converters.nnp.solver_files import state_arrays, write_h5
from nnl.converters.nnp.wire import check_size
from nnl.core.graph.variable import Variable
from nnl.core.parameters.atomic import replacing
from nnl.core.parameters.parameter import get_parameters

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
    binary = parameter_format if apart and not include_params else given if include_params else ""
    if binary == ".protobuf":
        check_size(f"save: {filename}", parameters.items())
    proto = write_contents(
        contents, parameters, variable_batch_size, include_solver_state and not apart
    )
    if include_params:
        add_to_proto(proto, parameters)
    if not apart:
        content = to_text(proto) if given != ".protobuf" else sealed(to_bytes(proto))
    else:
        members = {"nnp_version.txt": VERSION.encode(), "network.nntxt": to_text(proto)}
        if not include_params:
            members["parameter" + parameter_format] = _parameters(parameters, parameter_format)
        if include_solver_state:
            members |= _states(contents, proto, solver_state_format)
        content = archive(members)
    if isinstance(filename, (str, os.PathLike)):
        with replacing(filename) as temporary:
            temporary.write_bytes(content)
    else:
        write_to(filename, content)


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


def _parameters(parameters: Mapping[str, Variable], extension: str) -> bytes:
    stored = [Stored(k, v.data.read("host"), v.need_grad) for k, v in parameters.items()]
    return stored_bytes(stored, extension)


def _states(contents: Mapping[str, Any], proto: Any, extension: str) -> dict[str, bytes]:
    """Archive members with the solver states."""
    solvers = {o["name"]: o["solver"] for o in contents.get("optimizers") or ()}
    if extension == ".h5":
        members = {}
        for name, solver in solvers.items():
            buffer = io.BytesIO()
            write_h5(solver, buffer)
            members[f"{name}_{solver.name}_optimizer.h5.optimizer"] = buffer.getvalue()
        return members
    check_size(
        "save: the states of solvers", [a for s in solvers.values() for a in state_arrays(s)]
    )
    states = type(proto)()
    for name, solver in solvers.items():
        message = states.optimizer.add()
        message.name = name
        message.solver.type = solver.name
        solver.set_states_to_protobuf(message)
    return {"optimizer.protobuf.optimizer": to_bytes(states)}


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
