# SPDX-License-Identifier: Apache-2.0
"""Graphs for TensorBoard, beside all that tensorboardX can write."""

from __future__ import annotations

from typing import Any

from nnl.core.graph.function import Function
from nnl.core.graph.node import Value, capture
from nnl.core.graph.variable import Variable
from nnl.core.parameters.parameter import get_parameters

try:
    from tensorboardX import SummaryWriter
    from tensorboardX.proto.attr_value_pb2 import AttrValue
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.proto.graph_pb2 import GraphDef
    from tensorboardX.proto.node_def_pb2 import NodeDef
    from tensorboardX.proto.tensor_shape_pb2 import TensorShapeProto
    from tensorboardX.proto.types_pb2 import DT_FLOAT
    from tensorboardX.proto.versions_pb2 import VersionDef
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "nnl.experimental.tb_graph_writer needs tensorboardX: pip install tensorboardX"
    ) from error

__all__ = ["TBGraphWriter"]


class TBGraphWriter(SummaryWriter):  # type: ignore[misc]
    """A tensorboardX.SummaryWriter that also writes graphs.

    Args:
        log_dir: Folder of the event files: `tensorboard --logdir=log_out`.
    """

    def __init__(self, log_dir: str = "log_out", comment: str = "", **kwargs: Any) -> None:
        super().__init__(log_dir, comment, **kwargs)

    def from_variable(self, leaf: Variable, output_name: str = "output") -> None:
        """Write the graph that computes a Variable.

        Args:
            output_name: What the Variable is called.
        """
        parameters = {v.edge.key: k for k, v in get_parameters(grad_only=False).items()}
        names = {**parameters, leaf.edge.key: output_name}  # of edges, by key
        made: dict[Any, str] = {}  # function names, by the keys of their outputs
        counts: dict[str, int] = {}
        written: set[Any] = set()
        nodes: list[Any] = []

        def unique(name: str) -> str:
            counts[name] = counts.get(name, -1) + 1
            return f"{name}_{counts[name]}"

        def variable(value: Value) -> str:
            """The name of an edge; its node is made when it is met first."""
            key, function = value.key, made.get(value.key)
            if key not in names:
                scope, slash, base = (function or "").rpartition("/")
                names[key] = unique(f"{scope}{slash}v_{base}" if function else "Input")
            if key not in written:
                written.add(key)
                shape = Variable.on(value).shape
                nodes.append(_variable_node(names[key], shape, [function] if function else []))
            return names[key]

        for node in capture([leaf.edge]):
            f = Function(node)
            inputs = [v.edge for v in f.inputs]
            parameter = next((parameters[v.key] for v in inputs if v.key in parameters), "")
            scope, slash, _ = parameter.rpartition("/")
            name = unique(f"{scope}{slash}{f.name}")
            arguments = ",".join(f"{k}={v}" for k, v in f.args.items())
            given = [variable(v) for v in inputs]
            nodes.append(_function_node(name, f.name, given, "parameters", arguments))
            made.update({y.edge.key: name for y in f.outputs})
        variable(leaf.edge)
        self._write(nodes)

    def from_graph_def(self, graph_def: Any) -> None:
        """Write a network of nnl.graph_def, or the default one of a graph."""
        network = graph_def.default_graph() if hasattr(graph_def, "default_graph") else graph_def
        made = {y: f.name for f in network.functions.values() for y in f.outputs}
        nodes = [
            _variable_node(name, v.shape, [made[name]] if name in made else [])
            for name, v in (*network.parameters.items(), *network.variables.items())
        ]
        for f in network.functions.values():
            arguments = ",".join(f"{k}={v}" for k, v in f.args.items())
            nodes.append(_function_node(f.name, f.type, f.inputs, "arguments", arguments))
        self._write(nodes)

    def _write(self, nodes: list[Any]) -> None:
        graph = GraphDef(node=nodes, versions=VersionDef(producer=22))
        self.file_writer.add_event(Event(graph_def=graph.SerializeToString()))


def _variable_node(name: str, shape: Any, inputs: list[str]) -> Any:
    sizes = TensorShapeProto(dim=[TensorShapeProto.Dim(size=n) for n in shape])
    attributes = {"shape": AttrValue(shape=sizes), "dtype": AttrValue(type=DT_FLOAT)}
    return NodeDef(name=name, op="Variable", input=inputs, attr=attributes)


def _function_node(name: str, kind: str, inputs: Any, key: str, arguments: str) -> Any:
    return NodeDef(
        name=name, op=kind, input=inputs, attr={key: AttrValue(s=arguments.encode("utf-8"))}
    )
