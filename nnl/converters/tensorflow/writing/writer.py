# SPDX-License-Identifier: Apache-2.0
"""Networks as frozen graphs, checkpoints with graphs, and folders of SavedModel."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import numpy as np

from nnl.converters.networks.model import Network
from nnl.converters.tensorflow import checkpoint
from nnl.converters.tensorflow.messages import SERVING, code_of_dtype, messages, shape_proto
from nnl.converters.tensorflow.writing.operators import Builder
from nnl.converters.tflite.writer import TARGET as LITE
from nnl.converters.tflite.writer import Emitted, emitted
from nnl.core.parameters.atomic import replacing

TARGET = replace(LITE, name="TF_PB")


def save(path: str | os.PathLike[str], network: Network | Emitted) -> None:
    """Write a network as a frozen graph: placeholders have the names of its inputs, nodes those
    of its outputs.

    Raises:
        CannotLower: TensorFlow lacks functions; all are listed.
        ValueError: The weights are larger than a message can be.
    """
    content = graph_def(network).SerializeToString()
    with replacing(path) as temporary, open(temporary, "wb") as file:
        file.write(content)


def save_meta(path: str | os.PathLike[str], network: Network | Emitted) -> None:
    """Write a network as a graph with variables, PREFIX.meta, and their values, a checkpoint of
    version 2 of that prefix beside it.

    Raises:
        CannotLower: TensorFlow lacks functions; all are listed.
        ValueError: The path does not end with ".meta".
    """
    if not os.fspath(path).endswith(".meta"):
        raise ValueError(f"{path}: a graph with a checkpoint is named PREFIX.meta")
    meta, variables = _meta_graph(network)
    with replacing(path) as temporary:
        checkpoint.save(temporary.with_suffix(""), variables)
        temporary.write_bytes(meta.SerializeToString())


def save_folder(path: str | os.PathLike[str], network: Network | Emitted) -> None:
    """Write a network as a SavedModel, whose signature has the names of inputs and outputs.

    Raises:
        CannotLower: TensorFlow lacks functions; all are listed.
    """
    meta, variables = _meta_graph(network)
    saved = messages()["SavedModel"](saved_model_schema_version=1, meta_graphs=[meta])
    with replacing(path, folder=True) as folder:
        (folder / "variables").mkdir()
        checkpoint.save(folder / "variables" / "variables", variables)
        (folder / "saved_model.pb").write_bytes(saved.SerializeToString())


def graph_def(network: Network | Emitted) -> Any:
    """A network as a GraphDef without variables."""
    return _built(_said(network), False).proto


def _said(network: Network | Emitted) -> Emitted:
    return network if isinstance(network, Emitted) else emitted(network, TARGET)


def _built(said: Emitted, variables: bool) -> Builder:
    b = Builder([*said.inputs.values(), *said.outputs.values()], variables)
    for t in said.inputs.values():
        name = b.ends[id(t)]
        b.names[id(t)] = b.node("Placeholder", name=name, dtype=t.dtype, shape=t.shape)
    for op in said.ops:
        b.add(op)
    for t in said.outputs.values():
        b.end(t)
    return b


def _meta_graph(network: Network | Emitted) -> tuple[Any, dict[str, Any]]:
    """A network as a MetaGraphDef, and the values of its variables."""
    said = _said(network)
    b = _built(said, True)
    variables = b.variables or {}
    meta = messages()["MetaGraphDef"]()
    _add_saving(b, variables, meta.saver_def)
    meta.graph_def.CopyFrom(b.proto)
    meta.meta_info_def.tags.append("serve")
    signature = meta.signature_def[SERVING]
    signature.method_name = "tensorflow/serving/predict"
    for ends, infos in ((said.inputs, signature.inputs), (said.outputs, signature.outputs)):
        for name, t in ends.items():
            infos[name].name = f"{b.ends[id(t)]}:0"
            infos[name].dtype = code_of_dtype(t.dtype)
            infos[name].tensor_shape.CopyFrom(shape_proto(t.shape))
    return meta, variables


def _add_saving(b: Builder, variables: dict[str, Any], saver: Any) -> None:
    """Add the nodes that save and restore variables."""

    def texts(values: list[bytes]) -> str:
        array = np.array(values, object)
        return b.node("Const", name=b.unique("save/names"), value=array, dtype=array.dtype)

    file = b.constant(np.array(b"model", object), name="save/Const")
    names = list(variables)
    types = [v.dtype for v in variables.values()]
    done, all_restored = b.unique("save/control_dependency"), b.unique("save/restore_all")
    if names:
        which = [file, texts([n.encode() for n in names]), texts([b""] * len(names))]
        reads = [f"{n}/read" for n in names]
        written = b.node("SaveV2", *which, *reads, name=b.unique("save/SaveV2"), dtypes=types)
        found = b.node("RestoreV2", *which, name=b.unique("save/RestoreV2"), dtypes=types)
        given = [
            b.node("AssignVariableOp", n, f"{found}:{i}", name=b.unique("save/Assign"), dtype=t)
            for i, (n, t) in enumerate(zip(names, types, strict=True))
        ]
    else:
        written, given = file, []
    b.node("Identity", file, f"^{written}", name=done, T=np.dtype(object))
    b.node("NoOp", *[f"^{n}" for n in given], name=all_restored)
    saver.filename_tensor_name, saver.save_tensor_name = f"{file}:0", f"{done}:0"
    saver.restore_op_name, saver.max_to_keep, saver.version = all_restored, 5, 2
