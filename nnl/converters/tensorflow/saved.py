# SPDX-License-Identifier: Apache-2.0
"""Graphs with variables, whose values are in a checkpoint: .meta files, folders of SavedModel."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from nnl.converters.tensorflow.checkpoint import Checkpoint
from nnl.converters.tensorflow.graph import Edge, Graph, Library, edge_of, graph_of
from nnl.converters.tensorflow.importer import TensorFlowModel, load, outputs_of, placeholders_of
from nnl.converters.tensorflow.interpreter import Interpreter, Scope
from nnl.converters.tensorflow.messages import SERVING, TensorFlowError, parse


def load_any(path: str | os.PathLike[str]) -> TensorFlowModel:
    """Load a frozen graph, a checkpoint, or a folder."""
    if os.path.isdir(path):
        return load_folder(path)
    known = os.fspath(path).endswith((".meta", ".ckpt"))
    return load_meta(path) if known else load(path)


def load_meta(path: str | os.PathLike[str]) -> TensorFlowModel:
    """Load PREFIX.meta with the checkpoint PREFIX beside it, or PREFIX, a checkpoint of version 1.

    Raises:
        TensorFlowError: A file is missing or damaged.
    """
    where = os.fspath(path)
    prefix = where.removesuffix(".meta")
    with open(f"{prefix}.meta", "rb") as file:
        meta = parse("MetaGraphDef", file.read(), where)
    return _model(meta, prefix, where, None)


def load_folder(path: str | os.PathLike[str]) -> TensorFlowModel:
    """Load a folder of SavedModel: what it calls serving_default, else its first signature.

    Raises:
        TensorFlowError: A file is missing or damaged.
    """
    where = os.fspath(path)
    if not os.path.isfile(os.path.join(where, "saved_model.pb")):
        raise TensorFlowError(f"{where} is a folder without saved_model.pb")
    with open(os.path.join(where, "saved_model.pb"), "rb") as file:
        saved = parse("SavedModel", file.read(), where)
    graphs = list(saved.meta_graphs)
    if not graphs:
        raise TensorFlowError(f"{where}: it has no graphs")
    meta = next((m for m in graphs if "serve" in m.meta_info_def.tags), graphs[0])
    names = sorted(n for n in meta.signature_def if not n.startswith("__"))
    chosen = SERVING if SERVING in names else names[0] if names else None
    signature = None if chosen is None else meta.signature_def[chosen]
    return _model(meta, os.path.join(where, "variables", "variables"), where, signature)


def _model(meta: Any, prefix: str, where: str, signature: Any) -> TensorFlowModel:
    try:
        graph, library = graph_of(meta.graph_def), Library(meta.graph_def.library)
        state = _restored(graph, library, meta.saver_def, prefix)
        if signature is None:
            outs = outputs_of(graph)
            ends = placeholders_of(graph, outs), outs
        else:
            ends = _edges(graph, signature.inputs), _edges(graph, signature.outputs)
        return TensorFlowModel(graph, library, ends, state, where)
    except TensorFlowError as error:
        if str(error).startswith((where, prefix)):
            raise
        raise type(error)(f"{where}: {error}") from None


def _edges(graph: Graph, infos: Any) -> dict[str, Edge]:
    found = {name: edge_of(infos[name].name) for name in sorted(infos)}
    for name, (node, _) in found.items():
        if node not in graph.nodes:
            raise TensorFlowError(f"{name!r} is {node!r}, which there is not")
    return found


def _restored(graph: Graph, library: Library, saver: Any, prefix: str) -> dict[str, Any]:
    """Values of variables: what the graph's own node gives them that restores a checkpoint."""
    node, file = saver.restore_op_name, edge_of(saver.filename_tensor_name)[0]
    if node not in graph.nodes:
        if any(n.op in ("VarHandleOp", "VariableV2", "Variable") for n in graph.nodes.values()):
            raise TensorFlowError("it has variables, and no node that restores their values")
        return {}
    if not (os.path.exists(f"{prefix}.index") or os.path.exists(prefix)):
        return {}
    ctx = Interpreter(library, {}, Checkpoint(prefix))
    ctx.following = True
    scope = Scope(graph)
    if file in graph.nodes:
        scope.values[file] = [np.array(prefix, object)]
    ctx.run(scope, [node])
    return ctx.state
