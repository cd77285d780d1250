# SPDX-License-Identifier: Apache-2.0
"""NnpLoader: networks of a file one at a time, for the batch size that is wanted."""

from __future__ import annotations

from collections import OrderedDict

from nnl.converters.nnp.archive import Files, read_files
from nnl.converters.nnp.building import NewParameters, build_networks
from nnl.converters.nnp.network_pass import NnpNetworkPass
from nnl.converters.nnp.network_reader import LoadedNetwork, LoadedVariable
from nnl.core.graph.variable import Variable
from nnl.core.parameters.parameter import Scope, get_parameters, parameter_scope, set_parameter

__all__ = ["NnpLoader", "NnpNetwork", "NnpNetworkPass"]


class NnpNetwork:
    """A network as a graph that can be run and trained.

    Args:
        network: What the reader built.
    """

    def __init__(self, network: LoadedNetwork) -> None:
        self.network = network

    @property
    def inputs(self) -> OrderedDict[str, Variable]:
        """What the user sets: no function computes it, and it is not a parameter."""
        return _variables(self.network.inputs)

    @property
    def outputs(self) -> OrderedDict[str, Variable]:
        """What is computed and no function reads."""
        return _variables(self.network.outputs)

    @property
    def variables(self) -> OrderedDict[str, Variable]:
        """All variables by name, parameters last."""
        return _variables(self.network.variables)


def _variables(entries: OrderedDict[str, LoadedVariable]) -> OrderedDict[str, Variable]:
    return OrderedDict((name, v.variable_instance) for name, v in entries.items())


class NnpLoader:
    """The networks of one or several files.

    Args:
        filepath: Path, open file, or several: .nnp, .nntxt, .prototxt, .protobuf, .h5.
        scope: Where the parameters of all networks are kept; one of the loader's own if left out.
        extension: That of the format if filepath is an open file.
    Raises:
        ValueError: A file is broken.
    """

    def __init__(
        self, filepath: Files, scope: Scope | None = None, extension: str = ".nntxt"
    ) -> None:
        self._content = read_files(filepath, extension, "NnpLoader")
        self._scope: Scope = OrderedDict() if scope is None else scope

    def get_network_names(self) -> list[str]:
        """Names of the networks, in the order of the file."""
        return [n.name for n in self._content.proto.network]

    def get_network(
        self, name: str, batch_size: int | None = None, callback: NnpNetworkPass | None = None
    ) -> NnpNetwork:
        """Build a network; its parameters are registered in the current scope.

        They have the values of the file, or what has been made of these since: all networks of a
        loader share theirs. Variables that had such names in the current scope keep their values.

        Args:
            name: One of get_network_names().
            batch_size: For a network with a variable batch size, instead of the saved one.
            callback: What to change in the network before it is built.
        Raises:
            ValueError: There is no such network, or it cannot be built; nothing is changed then.
            TypeError: callback is no NnpNetworkPass.
        """
        if callback is not None and not isinstance(callback, NnpNetworkPass):
            raise TypeError(
                f"NnpLoader.get_network: callback is {type(callback).__name__}, wanted "
                "NnpNetworkPass"
            )
        names = self.get_network_names()
        if name not in names:
            raise ValueError(
                f"{self._content.where}: there is no network {name!r}, only {sorted(names)}"
            )
        with parameter_scope("", self._scope):
            known = get_parameters(grad_only=False)
            stored = [p for p in self._content.stored if p.name not in known]
            parameters = NewParameters(stored, self._content.where, keep=True)
            network = build_networks(self._content, [name], batch_size, parameters, callback)[name]
            parameters.commit()
            found = get_parameters(grad_only=False)
        for key in network.parameters:
            set_parameter(key, found[key])
        return NnpNetwork(network)
