# SPDX-License-Identifier: Apache-2.0
from nnl.converters.nnp.graph_capture import create_graph_from_variable
from nnl.converters.nnp.graph_def import ProtoFunction, ProtoGraph, ProtoNetwork, ProtoVariable
from nnl.converters.nnp.graph_def_files import load, save
from nnl.converters.nnp.graph_executor import ProtoExecutor
from nnl.converters.nnp.graph_recorder import (
    get_default_graph,
    get_default_graph_by_variable,
    graph,
    graph_name,
    reset_default_graph,
)

__all__ = [
    "ProtoExecutor",
    "ProtoFunction",
    "ProtoGraph",
    "ProtoNetwork",
    "ProtoVariable",
    "create_graph_from_variable",
    "get_default_graph",
    "get_default_graph_by_variable",
    "graph",
    "graph_name",
    "load",
    "reset_default_graph",
    "save",
]
