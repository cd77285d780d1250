# SPDX-License-Identifier: Apache-2.0
"""ONNX file or message -> the typed view of nnl.converters.onnx.file.model."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from nnl.converters.nnp.members import Member, in_memory, whole
from nnl.converters.onnx.file import operators
from nnl.converters.onnx.file.errors import DAMAGE, OnnxError, reason_of
from nnl.converters.onnx.file.model import Function, Graph, Model, ValueInfo, subgraphs
from nnl.converters.onnx.file.operators import Node, UnknownNode
from nnl.converters.onnx.file.tensors import array_of, dtype_of_code

OLDEST_OPSET = 1
_WEIGHTS = (7, 5, 9)  # ModelProto.graph, GraphProto.initializer, TensorProto.raw_data

Runs = Mapping[int, tuple[int, int]]
NO_RUNS: Runs = {}


def read(source: Any) -> Model:
    """Read a model.

    Args:
        source: Path of an .onnx file, its bytes, or an onnx.ModelProto. External data is looked
            for in the folder of the file, and only there.
    Raises:
        OnnxError: It is not an ONNX model, or damaged. The message names file, node and reason.
        FileNotFoundError: There is no such file.
    """
    if isinstance(source, (str, os.PathLike)):
        path = Path(source)
        with naming(str(source)):
            with open(path, "rb", buffering=0) as file:
                return _read(whole(file, "the file"), path.parent, str(source))
    if isinstance(source, (bytes, bytearray, memoryview)):
        with naming(""):
            return _read(in_memory(source, "the file"), None, "")
    from onnx import ModelProto

    if isinstance(source, ModelProto):
        with naming(""):
            return model_of(source, None, {}, None, "")
    raise TypeError(f"read: source is {type(source).__name__}, wanted a path, bytes or ModelProto")


class naming:
    """Context manager: what leaves it is an OnnxError that names the file."""

    def __init__(self, file: str) -> None:
        self.file = file

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if isinstance(error, OnnxError):
            if not error.file and self.file:
                raise type(error)(error.reason, self.file, error.node) from error.__cause__
        elif isinstance(error, (*DAMAGE, ValueError)):
            raise OnnxError(reason_of(error), self.file) from error


def _read(source: Member, folder: Path | None, file: str) -> Model:
    from google.protobuf.message import DecodeError
    from onnx import ModelProto

    data = source.begin()  # weights stay views of it
    proto = ModelProto()
    try:
        message, runs = source.split_message(_WEIGHTS)
        proto.ParseFromString(message)
    except (DecodeError, ValueError) as e:
        raise OnnxError(f"not an ONNX model, or a damaged one ({e})") from None
    model = model_of(proto, memoryview(data).toreadonly(), runs, folder, file)
    source.wait()
    return model


def model_of(proto: Any, data: Any, runs: Runs, folder: Path | None, file: str) -> Model:
    """The typed view of a ModelProto.

    Args:
        data, runs: Where the bytes of its long initializers lie, by their number.
    """
    if not proto.HasField("graph"):
        raise OnnxError("the model has no graph: not an ONNX model, or a damaged one")
    opsets = opsets_of(proto.opset_import, proto.ir_version)
    if opsets[""] < OLDEST_OPSET:
        raise OnnxError(f"the model is for version {opsets['']} of ONNX's operators, wanted >= 1")
    functions = {}
    for f in proto.functions:
        functions[f.domain, f.name] = function_of(f)
    reader = Reader(opsets, folder)
    graph = reader.graph(proto.graph, frozenset(), data, runs)
    metadata = {e.key: e.value for e in proto.metadata_props}
    producer = f"{proto.producer_name} {proto.producer_version}".strip()
    return Model(
        graph, opsets, functions, proto.ir_version, producer, proto.doc_string, metadata, file
    )


def function_of(proto: Any) -> Function:
    """The typed view of a FunctionProto; its nodes are read where it is called."""
    opsets = opsets_of(proto.opset_import, 8)
    inputs, outputs = tuple(proto.input), tuple(proto.output)
    return Function(proto.name, proto.domain, inputs, outputs, opsets, proto.SerializeToString())


def opsets_of(imports: Any, ir_version: int) -> dict[str, int]:
    """Version by domain; files of IR 2 and older say none and mean version 1."""
    opsets = {("" if o.domain == "ai.onnx" else o.domain): o.version for o in imports}
    if "" not in opsets:
        opsets[""] = 1 if ir_version < 3 else _newest_version()
    return opsets


def _newest_version() -> int:
    from onnx import defs

    return int(defs.onnx_opset_version())


class Reader:
    """Reads graphs and nodes of one set of operator versions.

    Args:
        attributes: Values that replace references inside the body of a function.
    """

    def __init__(
        self,
        opsets: dict[str, int],
        folder: Path | None,
        attributes: Mapping[str, Any] | None = None,
    ) -> None:
        self.opsets, self.folder, self.bound = opsets, folder, attributes

    def graph(
        self, proto: Any, outer: frozenset[str], data: Any = None, runs: Runs = NO_RUNS
    ) -> Graph:
        """The typed view of a GraphProto.

        Args:
            outer: Names that its nodes may read from the graphs around it.
        Raises:
            OnnxError: It has a cycle, or a node reads a value that nothing makes.
        """
        initializers = {}
        for i, tensor in enumerate(proto.initializer):
            raw = data[slice(*runs[i])] if i in runs else None
            initializers[tensor.name] = array_of(tensor, self.folder, raw)
        for sparse in proto.sparse_initializer:
            initializers[sparse.values.name] = dense(sparse, self.folder)
        inputs = [value_info(v) for v in proto.input]
        outputs = [value_info(v) for v in proto.output]
        own = {v.name for v in inputs} | set(initializers)
        made = {name for n in proto.node for name in n.output}
        inside = outer | own | made
        nodes = [self.node(n, inside) for n in proto.node]
        graph = Graph(proto.name, nodes, inputs, outputs, initializers)
        check_names(graph, inside)
        graph.sort()
        return graph

    def node(self, proto: Any, outer: frozenset[str]) -> Node:
        """The typed view of a NodeProto."""
        for text in (proto.op_type, proto.domain, proto.name, *proto.input, *proto.output):
            if not isinstance(text, str):  # protobuf hands out bytes where text is damaged
                raise OnnxError(f"a node has the name {text!r}, which is not UTF-8")
        domain = "" if proto.domain == "ai.onnx" else proto.domain
        where = {"outputs": tuple(proto.output), "name": proto.name}
        try:
            attributes = self.attributes(proto, outer)
        except OnnxError as e:
            e = OnnxError(
                e.reason, node=e.node or UnknownNode(proto.op_type, domain, **where).label
            )
            raise e from None
        version = self.opsets.get(domain)
        cls = None if version is None else find_class(proto.op_type, version, domain)
        node: Node
        if cls is None:
            node = UnknownNode(proto.op_type, domain, *proto.input, **where)
            node.attributes = attributes
        else:
            node = cls(*proto.input, **where, **attributes)
        node.captured = captured(node)
        return node

    def attributes(self, proto: Any, outer: frozenset[str]) -> dict[str, Any]:
        """A node's attributes as Python values; references replaced, absent ones left out."""
        out = {}
        for a in proto.attribute:
            if a.ref_attr_name:
                value = (self.bound or {}).get(a.ref_attr_name)
                if value is not None:
                    out[a.name] = value
            else:
                out[a.name] = self.attribute(a, outer)
        return out

    def attribute(self, a: Any, outer: frozenset[str]) -> Any:
        """One AttributeProto as a Python value."""
        from onnx import AttributeProto as A

        kind = a.type
        if kind == A.FLOAT:
            return a.f
        if kind == A.INT:
            return a.i
        if kind == A.STRING:
            return _text(a.name, a.s)
        if kind == A.TENSOR:
            return array_of(a.t, self.folder)
        if kind == A.GRAPH:
            return self.graph(a.g, outer)
        if kind == A.SPARSE_TENSOR:
            return dense(a.sparse_tensor, self.folder)
        if kind == A.TYPE_PROTO:
            return type_info("", a.tp)
        if kind in (A.FLOATS, A.INTS):
            return tuple(a.floats if kind == A.FLOATS else a.ints)
        if kind == A.STRINGS:
            return tuple(_text(a.name, s) for s in a.strings)
        if kind == A.TENSORS:
            return tuple(array_of(t, self.folder) for t in a.tensors)
        if kind == A.GRAPHS:
            return tuple(self.graph(g, outer) for g in a.graphs)
        if kind == A.TYPE_PROTOS:
            return tuple(type_info("", t) for t in a.type_protos)
        raise OnnxError(f"attribute {a.name!r} has the type {kind}, which is not supported")


def find_class(op_type: str, version: int, domain: str) -> type[Node] | None:
    """The class of an operator, or None where onnx has no schema of it."""
    try:
        return operators.operator_class(op_type, version, domain)
    except OnnxError:
        return None


def captured(node: Node) -> tuple[str, ...]:
    """Names that the subgraphs of a node read from around it."""
    names: dict[str, None] = {}
    for graph in subgraphs(node):
        own = {v.name for v in graph.inputs} | set(graph.initializers)
        own |= {o for n in graph.nodes for o in n.outputs}
        for inner in graph.nodes:
            names.update(dict.fromkeys(n for n in (*inner.inputs, *inner.captured) if n))
        names.update(dict.fromkeys(v.name for v in graph.outputs))
        for name in own:
            names.pop(name, None)
    return tuple(names)


def check_names(graph: Graph, known: frozenset[str]) -> None:
    """Raise unless everything that is read is made somewhere."""
    for node in graph.nodes:
        for name in node.inputs:
            if name and name not in known:
                raise node.error(f"reads the value {name!r}, which nothing makes")
    for v in graph.outputs:
        if v.name and v.name not in known:
            raise OnnxError(f"the output {v.name!r} of graph {graph.name!r} is made by nothing")


def value_info(proto: Any) -> ValueInfo:
    """Name and type of a ValueInfoProto."""
    return type_info(proto.name, proto.type)


def type_info(name: str, t: Any) -> ValueInfo:
    """A TypeProto, with the name of what has this type."""
    kinds = [t.WhichOneof("value") or "other"]
    while kinds[-1] in ("sequence_type", "optional_type"):
        t = getattr(t, kinds[-1]).elem_type
        kinds.append(t.WhichOneof("value") or "other")
    last = kinds[-1]
    outer, *inside = [k.removesuffix("_type") for k in kinds]
    inside = inside[:-1] if last == "tensor_type" else inside
    if last != "tensor_type":
        return ValueInfo(name, outer, inside=tuple(inside))
    tensor = t.tensor_type
    dtype = dtype_of_code(tensor.elem_type, f"value {name!r}") if tensor.elem_type else None
    shape = None
    if tensor.HasField("shape"):
        shape = tuple(
            d.dim_value if d.HasField("dim_value") else (d.dim_param or None)
            for d in tensor.shape.dim
        )
    return ValueInfo(name, outer, dtype, shape, tuple(inside))


def dense(sparse: Any, folder: Path | None) -> Any:
    """A SparseTensorProto as a full array."""
    values, at = array_of(sparse.values, folder), array_of(sparse.indices, folder)
    shape = tuple(sparse.dims)
    size = int(np.prod(shape, dtype=object))
    what = f"sparse tensor {sparse.values.name!r}"
    if any(n < 0 for n in shape) or size > 2**28:
        raise OnnxError(f"{what} has the shape {shape}")
    if at.ndim == 2 and at.shape == (values.size, len(shape)):
        if (at < 0).any() or (at >= np.array(shape)).any():
            raise OnnxError(f"{what} has an index outside its shape {shape}")
        at = np.ravel_multi_index(tuple(at.T), shape)
    if at.shape != (values.size,) or (at < 0).any() or (at >= size).any():
        raise OnnxError(f"{what} has {values.size} values and indices {at.shape} for {shape}")
    out = np.zeros(size, values.dtype)
    out[at] = values
    return out.reshape(shape)


def _text(name: str, value: bytes) -> str:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        raise OnnxError(f"attribute {name!r} is a string that is not UTF-8") from None
