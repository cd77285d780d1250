# SPDX-License-Identifier: Apache-2.0
"""ProtoGraphs in files, and their executors: which variables of a network are data and results."""

from __future__ import annotations

import io
import os
import tempfile
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from nnl.converters.nnp.archive import Files, read_files
from nnl.converters.nnp.graph_def import ProtoGraph, ProtoNetwork, executor_message, graph_of
from nnl.converters.nnp.writer import write_to
from nnl.core.graph.variable import Variable
from nnl.core.parameters.parameter import Scope


class ProtoExecutor:
    """Inputs and outputs of a network, as an Executor message.

    Attributes:
        proto: The message.
        network_name: Name of the network.
    """

    def __init__(self, proto: Any) -> None:
        self.proto, self.network_name = proto, str(proto.network_name)

    @staticmethod
    def from_proto(proto: Any) -> ProtoExecutor:
        """The executor of a message."""
        return ProtoExecutor(proto)

    @staticmethod
    def create_from_dict(executor: Mapping[str, Any], network: ProtoNetwork) -> ProtoExecutor:
        """The executor of an entry {name, network, data: [name], output: [name]}.

        Raises:
            ValueError: The network has no variable of such a name.
        """
        variables = network.variables
        for kind in ("data", "output"):
            for name in executor[kind]:
                if name not in variables:
                    raise ValueError(
                        f"ProtoExecutor.create_from_dict: {kind}: the network {network.name!r} has "
                        f"no variable {name!r}, only {list(variables)}"
                    )
        return ProtoExecutor(executor_message(executor, network))

    def as_proto(self) -> Any:
        """The message."""
        return self.proto


# ---- files ----


def load(
    filename: Files,
    batch_size: int | None = None,
    exclude_parameter: bool = False,
    parameter_only: bool = False,
    extension: str = ".nntxt",
    parameter_scope: Scope | None = None,
    rng: Any = None,
) -> ProtoGraph:
    """Read a file into a ProtoGraph.

    Args:
        batch_size: Takes the place of -1 in shapes.
        exclude_parameter: Leave parameters as they are.
        parameter_only: Read no networks.
        parameter_scope: Where parameters go; a new one if left out.
        rng: numpy RandomState for initial values that the file does not hold.
    Raises:
        ValueError: The file is broken.
    """
    content = read_files(filename, extension, "graph_def.load")
    if exclude_parameter:
        content.promised = []
    if parameter_only:
        del content.proto.network[:]
        del content.proto.executor[:]
    scope: Scope = OrderedDict() if parameter_scope is None else parameter_scope
    return graph_of(content, batch_size, scope, rng)


def save(
    filename: Any,
    content: ProtoGraph | ProtoNetwork | Sequence[ProtoGraph | ProtoNetwork],
    include_parameters: bool = False,
    variable_batch_size: bool = True,
    extension: str = ".nnp",
    executors: Sequence[Mapping[str, Any]] | None = None,
) -> None:
    """Write graphs or networks, which share their parameters, to one file.

    Args:
        filename: A path, or a file open for writing bytes with its extension.
    Raises:
        ValueError: content is empty.
    """
    several = isinstance(content, (list, tuple))
    given: list[Any] = list(content) if several else [content]  # type: ignore[arg-type]
    if not given:
        raise ValueError("graph_def.save: content is empty")
    networks: list[ProtoNetwork] = []
    parameters: dict[str, Variable] = {}
    for part in given:
        owner = part if isinstance(part, ProtoGraph) else part.owner
        networks += part.networks.values() if isinstance(part, ProtoGraph) else [part]
        parameters.update(owner.get_parameters())
    whole = ProtoGraph(parameter_scope=OrderedDict())
    whole.set_parameters(parameters)
    whole.networks.update((n.name, n) for n in networks)
    for part in given:
        owner = part if isinstance(part, ProtoGraph) else part.owner
        whole.executors.update(owner.executors)
    if isinstance(filename, io.IOBase):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, f"network{extension}")
            whole.save(path, include_parameters, variable_batch_size, executors, networks)
            with open(path, "rb") as file:
                write_to(filename, file.read())
    else:
        whole.save(filename, include_parameters, variable_batch_size, executors, networks)
    for part in given:
        owner = part if isinstance(part, ProtoGraph) else part.owner
        for name, executor in whole.executors.items():
            if executor.network_name in owner.networks:
                owner.executors[name] = executor
