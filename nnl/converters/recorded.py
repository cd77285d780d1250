# SPDX-License-Identifier: Apache-2.0
"""Functions that nnl.compile has recorded, as models: what they compute becomes a network."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from nnl.converters.formats import WriteOptions, format_of
from nnl.converters.networks.model import Built, Network, NnpModel
from nnl.converters.nnp.archive import Content
from nnl.core.graph.node import capture
from nnl.core.graph.variable import Variable
from nnl.core.parameters.parameter import get_parameters, parameter_scope, set_parameter

Named = Mapping[str, Variable]


class Recorded(Built):
    """A graph that was recorded for one batch size, with the inputs that it reads."""

    def __init__(self, where: str, name: str, inputs: Named, outputs: Named) -> None:
        self.where, self._name, self._outputs = where, name, dict(outputs)
        nodes = capture([v.edge for v in outputs.values()])
        self._read = {v.key for n in nodes for v in n.inputs if v is not None}
        self._inputs = {key: v for key, v in inputs.items() if v.edge.key in self._read}

    def content(self, batch_size: int | None = None) -> Content:
        return Content(self.where, *self._messages(self.network()))

    def network(self, batch_size: int | None = None, inference: bool = False) -> Network:
        if inference:
            return NnpModel(self.content()).network(inference=True)
        scope: OrderedDict[str, Any] = OrderedDict()
        registered = get_parameters(grad_only=False)
        with parameter_scope("", scope):
            for key, v in registered.items():
                if v.edge.key in self._read:
                    set_parameter(key, v)
        return Network(self._name, self._inputs, self._outputs, scope)


def save_network(path: str, name: str, inputs: Named, outputs: Named) -> None:
    """Write a graph as a file whose extension says which; see nnl.compile."""
    write = format_of(path, None, writing=True).write
    assert write is not None
    write(Recorded(path, name, inputs, outputs), path, WriteOptions())
