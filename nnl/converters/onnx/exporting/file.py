# SPDX-License-Identifier: Apache-2.0
"""Names, protobuf messages and files of a graph that the exporter has put together."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nnl.converters.onnx.exporting.nodes.context import Exporter, onnx_type
from nnl.converters.onnx.exporting.nodes.tensor import NodeRecord, Subgraph, Tensor, as_initializer
from nnl.converters.onnx.file.errors import UnsupportedOperator
from nnl.core.parameters.atomic import replacing

_ALIGNMENT = 64  # bytes between the starts of external weights: one cache line, for memory maps
_LONG = 1 << 30  # bytes whose writing takes seconds, so that progress is shown
_SMALL = 1024  # bytes; smaller initializers stay in the .onnx file (shape inference reads them)


@dataclass
class Contents:
    """Everything that is written: a finished exporter, with names for everything."""

    exporter: Exporter
    name: str
    ir_version: int | None = None  # None for the oldest that has the operators

    def __post_init__(self) -> None:
        self.inputs = list(self.exporter.inputs.values())
        self.outputs = list(self.exporter.outputs.values())
        self.nodes = self._used_nodes()
        self.initializers = self._used_initializers()
        self._name_all()

    def weight_bytes(self) -> int:
        """Size of the weights in bytes."""
        return sum(t.value.nbytes for t in self.initializers)

    def _used_nodes(self) -> list[NodeRecord]:
        """Nodes that an output depends on."""
        needed = {id(y) for y in self.outputs}
        used = []
        for node in reversed(self.exporter.ops):
            if any(id(y) in needed for y in node.outs):
                used.append(node)
                needed.update(map(id, node.reads))
        return used[::-1]

    def _used_initializers(self) -> list[Tensor]:
        found: dict[int, Tensor] = {}
        for node in self.nodes:
            for x in node.reads:
                if x.value is not None:
                    found.setdefault(id(x), x)
        return list(found.values())

    def _name_all(self) -> None:
        names = [t.name for t in (*self.inputs, *self.outputs)]
        taken = set(names)
        if len(taken) < len(names):
            twice = sorted({n for n in names if names.count(n) > 1})
            raise ValueError(f"save: several inputs and outputs have the names {twice}")
        counts: dict[str, int] = {}
        for t in self.initializers:
            t.name = _fresh(t.name or "constant", taken, counts)
        for node in _every(self.nodes):
            for graph in node.subgraphs:
                for x in graph.inputs:
                    x.name = _fresh("inner", taken, counts, always=True)
            for y in node.outs:
                if y.name == "" and y.hint:
                    y.name = _fresh(y.hint, taken, counts)
                elif y.name == "":
                    y.name = _fresh(node.name.lower(), taken, counts, always=True)


def _every(nodes: Sequence[NodeRecord]) -> Iterator[NodeRecord]:
    """Nodes, and those of the graphs inside them."""
    for node in nodes:
        yield node
        for graph in node.subgraphs:
            yield from _every(graph.nodes)


def _fresh(base: str, taken: set[str], counts: dict[str, int], always: bool = False) -> str:
    """A name not taken so far: base, or base with a number."""
    name = base
    while name in taken or (always and name == base):
        counts[base] = counts.get(base, 0) + 1
        name = f"{base}_{counts[base]}"
    taken.add(name)
    return name


def to_model(contents: Contents, external: str | None = None) -> Any:
    """The ModelProto.

    Args:
        external: Name of the file that holds the larger weights; None keeps them in the message.
    """
    from onnx import helper

    graph = helper.make_graph(
        [_node(n, i) for i, n in enumerate(contents.nodes)],
        contents.name,
        [_value_info(t) for t in contents.inputs],
        [_value_info(t) for t in contents.outputs],
    )
    places = dict(_places(contents)) if external is not None else {}
    for t in contents.initializers:
        _add_initializer(graph.initializer.add(), t, external, places.get(id(t)))
    versions = [helper.make_opsetid("", contents.exporter.opset)]
    # before IR 4 every weight is an input as well
    oldest = max(4, helper.find_min_ir_version_for(versions))
    return helper.make_model(
        graph,
        opset_imports=versions,
        ir_version=_ir_version(contents.ir_version, oldest),
        producer_name="nnl",
    )


def _ir_version(wanted: int | None, oldest: int) -> int:
    from onnx import IR_VERSION

    if wanted is None:
        return oldest
    if not oldest <= wanted <= IR_VERSION:
        raise ValueError(
            f"save: ir_version is {wanted}, wanted {oldest} (the oldest for these operators) to "
            f"{IR_VERSION}"
        )
    return wanted


def _node(record: NodeRecord, index: int) -> Any:
    from onnx import AttributeProto, helper

    inputs = ["" if x is None else x.name for x in record.ins]
    outputs = [y.name for y in record.outs]
    node = helper.make_node(record.name, inputs, outputs, name=f"{record.name}_{index}")
    for name, value in sorted(record.options.items()):
        # an empty sequence does not say its type; those that can be empty are shapes
        kind = AttributeProto.INTS if value == () else None
        value = _graph(value, node.name) if isinstance(value, Subgraph) else value
        node.attribute.append(helper.make_attribute(name, value, attr_type=kind))
    return node


def _graph(inner: Subgraph, name: str) -> Any:
    from onnx import helper

    def infos(tensors: Sequence[Tensor]) -> list[Any]:
        return [_value_info(t) for t in tensors]

    nodes = [_node(n, i) for i, n in enumerate(inner.nodes)]
    return helper.make_graph(nodes, name, infos(inner.inputs), infos(inner.outputs))


def _value_info(t: Tensor) -> Any:
    from onnx import helper

    dims = [
        f"{t.name}_{i}" if i == t.open_axis else None if n == -1 else n
        for i, n in enumerate(t.shape or ())
    ]
    return helper.make_tensor_value_info(t.name, onnx_type(t.dtype), dims)


def _places(contents: Contents) -> Iterator[tuple[int, int]]:
    """(id, offset in the data file) of the initializers that go there."""
    offset = 0
    for t in contents.initializers:
        if t.value.nbytes >= _SMALL:
            yield id(t), offset
            offset += -(-t.value.nbytes // _ALIGNMENT) * _ALIGNMENT


def _add_initializer(message: Any, t: Tensor, external: str | None, offset: int | None) -> None:
    from onnx import TensorProto

    message.name, message.data_type = t.name, onnx_type(t.dtype)
    message.dims.extend(t.value.shape)
    if external is None or offset is None:
        message.raw_data = as_initializer(t.value).tobytes()
        return
    message.data_location = TensorProto.EXTERNAL
    for key, value in (("location", external), ("offset", offset), ("length", t.value.nbytes)):
        message.external_data.add(key=key, value=str(value))


def write(path: str | os.PathLike[str], contents: Contents, external: bool) -> None:
    """Write and check the files, then move them to their places.

    The weights are moved first: whoever sees the new .onnx file finds its weights.
    """
    from onnx import checker, shape_inference

    with replacing(path) as file:
        data_name = f"{file.name}.data" if external else None
        model = to_model(contents, data_name)
        if data_name is not None:
            _write_weights(file.with_name(data_name), contents)
        file.write_bytes(model.SerializeToString(deterministic=True))
        try:
            checker.check_model(str(file), full_check=True)
        except (checker.ValidationError, shape_inference.InferenceError) as error:
            raise UnsupportedOperator(
                f"opset {contents.exporter.opset} has no valid form of this: {error}",
                f"save: {path}",
            ) from error


def _write_weights(path: Path, contents: Contents) -> None:
    from tqdm import tqdm

    places, total = dict(_places(contents)), contents.weight_bytes()
    bar = tqdm(total=total, unit="B", unit_scale=True, disable=total < _LONG, desc=path.name)
    with open(path, "wb") as f, bar:
        for t in contents.initializers:
            if id(t) in places:
                f.write(bytes(places[id(t)] - f.tell()))
                f.write(memoryview(as_initializer(t.value)).cast("B"))
                bar.update(t.value.nbytes)
