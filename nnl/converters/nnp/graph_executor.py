# SPDX-License-Identifier: Apache-2.0
"""Executors of ProtoGraphs: which variables of a network are data and results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nnl.converters.nnp.graph_def import ProtoNetwork, executor_message


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
