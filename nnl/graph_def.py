# SPDX-License-Identifier: Apache-2.0
from nnl.converters.nnp.graph_capture import (
    create_graph_from_variable,
    get_default_graph,
    graph,
    reset_default_graph,
)
from nnl.converters.nnp.graph_def import ProtoFunction, ProtoGraph, ProtoNetwork, ProtoVariable
from nnl.converters.nnp.graph_def_files import load, save

__all__ = [
    "ProtoFunction",
    "ProtoGraph",
    "ProtoNetwork",
    "ProtoVariable",
    "create_graph_from_variable",
    "get_default_graph",
    "graph",
    "load",
    "reset_default_graph",
    "save",
]
