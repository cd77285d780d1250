# SPDX-License-Identifier: Apache-2.0
"""Writing nnl graphs as ONNX files."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from nnl.converters.networks.model import Model, Network
from nnl.converters.networks.open_networks import record_networks
from nnl.converters.onnx.exporting import families as _families  # noqa: F401  registers the handlers
from nnl.converters.onnx.exporting.file import Contents, to_model, write
from nnl.converters.onnx.exporting.nodes.context import Exporter, Refused
from nnl.converters.onnx.exporting.nodes.tensor import Tensor
from nnl.converters.onnx.exporting.open_sizes import OnnxOpener
from nnl.converters.onnx.file.errors import OnnxError, UnsupportedOperator
from nnl.converters.onnx.running.any_batch import AnyBatch, in_order
from nnl.core.graph.node import Node, Value, capture
from nnl.core.graph.variable import Variable
from nnl.core.parameters.parameter import get_parameters, parameter_scope
from nnl.graph.lowering.infer_again import infer_again
from nnl.graph.lowering.lowering import lower
from nnl.graph.open_sizes.recording import Axes, OpenGraphs, record_open
from nnl.graph.passes.rewriting.input_types import DEFAULTS, computed_type
from nnl.graph.program.sizes import Dim
from nnl.graph.saving.saving import record_function

logger = logging.getLogger("nnl")

OLDEST_OPSET, DEFAULT_OPSET = 7, 18
EXTERNAL_BYTES = 1 << 31  # a protobuf message cannot be larger; weights go into a file of their own

Key = tuple[int, int]
Named = Mapping[str, Variable] | Sequence[Variable] | Variable

__all__ = ["save", "export"]


def save(
    path: str | os.PathLike[str],
    outputs: Any,
    inputs: Named | None = None,
    *,
    opset: int | None = None,
    ir_version: int | None = None,
    batch: str | None = "N",
    batch_axes: Mapping[str, int | None] | None = None,
    open: Axes | None = None,
    ranges: Mapping[str, Sequence[int]] | None = None,
    external_data: bool | None = None,
    external_threshold: int = EXTERNAL_BYTES,
    name: str = "network",
) -> None:
    """Write a graph as an ONNX file, for inference.

    Batch normalisation uses its running statistics and dropout does nothing. Names come from the
    parameters and the Variables. The file is checked with onnx.checker before it takes its place.
    The same graph gives the same bytes.

    Args:
        path: File to write; a good file there is replaced only by a good one.
        outputs: Variables by name, a sequence of them, one Variable, or a network loaded from a
            .nnp file (anything with `inputs` and `outputs`).
        inputs: What the caller of the model gives, by name or in order. All leaves that are not
            registered parameters, if left out. Other leaves are stored with their values.
        opset: Version of the ONNX operators, 7 to the newest that the package onnx knows; 18 if
            left out.
        ir_version: Version of the file format; the oldest that has the operators if left out.
        batch: Name of the batch size, which stays open; None fixes all sizes as they are.
        batch_axes: Axis of the batch size by input name, None for an input without. The first
            axis of the inputs where it has the size that the first input has there, if left out.
        open, ranges: All open sizes by name, as of `nnl.save_program`: `outputs` is then a
            function of the inputs, by name, that builds the network.
        external_data: Write the weights to `path` + ".data". True always, False never; if left
            out, when the file would exceed external_threshold bytes.
        name: Name of the graph in the file.
    Raises:
        UnsupportedOperator: Functions have no ONNX form; the message lists all of them.
        ValueError: The graph or an argument cannot be used; TypeError: it is not a graph.
        ModuleNotFoundError: The package onnx is missing.
    """
    sizes = batch, batch_axes, open, ranges
    found = _contents(outputs, inputs, opset, sizes, name, ir_version)
    external = external_data
    if external is None:
        external = found.weight_bytes() >= external_threshold
    write(path, found, external)


def save_model(path: str, model: Model, opset: int | None, ir_version: int | None) -> None:
    """Write what a file has, for all sizes that it leaves open.

    Raises:
        Like `save`; ValueError: no size is open, or the nodes would differ, or have to be told a
            number that follows from no sizes.
    """

    def use(graphs: OpenGraphs, networks: list[Network]) -> Contents:
        names = {}
        for network in networks:
            with parameter_scope("", network.parameters):
                names.update(_parameter_names())
        found = opened(graphs, _checked_opset(opset), names)
        return Contents(found, networks[0].name, ir_version)

    found = record_networks(model, use)
    write(path, found, found.weight_bytes() >= EXTERNAL_BYTES)


def export(
    outputs: Any,
    inputs: Named | None = None,
    *,
    opset: int | None = None,
    ir_version: int | None = None,
    batch: str | None = "N",
    batch_axes: Mapping[str, int | None] | None = None,
    open: Axes | None = None,
    ranges: Mapping[str, Sequence[int]] | None = None,
    name: str = "network",
) -> Any:
    """The ModelProto that `save` would write, with the weights in it.

    Raises:
        Like `save`.
    """
    sizes = batch, batch_axes, open, ranges
    return to_model(_contents(outputs, inputs, opset, sizes, name, ir_version))


def _contents(
    outputs: Any,
    inputs: Named | None,
    opset: int | None,
    sizes: tuple[Any, Any, Any, Any],
    name: str,
    ir_version: int | None,
) -> Contents:
    opset = _checked_opset(opset)
    batch, batch_axes, open, ranges = sizes
    if open is not None or (callable(outputs) and not hasattr(outputs, "outputs")):

        def use(graphs: OpenGraphs) -> Exporter:
            return opened(graphs, opset, _parameter_names())

        given = _named(inputs or {}, "inputs", "x")
        found = record_function("save", outputs, given, open, ranges, use)
        return Contents(found, name, ir_version)
    parameters: dict[Key, str] = {}
    if hasattr(outputs, "outputs") and hasattr(outputs, "inputs"):
        network = outputs
        outputs = _variables(network.outputs)
        inputs = _variables(network.inputs) if inputs is None else inputs
        name = getattr(network, "name", name)
        stored = _variables(network.variables)
        parameters = {v.edge.key: n for n, v in stored.items() if v.edge.node is None}
    wanted = _named(outputs, "outputs", "y")
    parameters.update(_parameter_names())
    edges = [v.edge for v in wanted.values()]
    leaves = _leaves(edges)
    if inputs is None:
        free = [Variable.on(v) for v in leaves if v.key not in parameters and _is_array(v)]
        given = _named(free, "inputs", "x") if free else {}
    else:
        given = _named(inputs, "inputs", "x")
    _check_graph(wanted, given)
    _warn_of_unread(given, {v.key for v in (*leaves, *edges)})
    found = written(opset, wanted, given, parameters)
    axes = {} if batch is None else _batch_axes(given, batch_axes)
    if axes and batch is not None:
        found = _of_any_batch(found, wanted, given, parameters, batch, axes)
    return Contents(found, name, ir_version)


def _of_any_batch(
    found: Exporter,
    wanted: Mapping[str, Variable],
    given: Mapping[str, Variable],
    parameters: Mapping[Key, str],
    batch: str,
    axes: Mapping[str, int],
) -> Exporter:
    """What a graph is written as, for any batch size."""
    sizes = sorted({given[n].shape[axis] for n, axis in axes.items()})
    if len(sizes) > 1:
        raise ValueError(f"save: the inputs have different batch sizes: {sizes}")
    names = {
        n: [batch if i == axes.get(n) else size for i, size in enumerate(v.shape)]
        for n, v in given.items()
    }
    try:
        graph = AnyBatch(wanted, given, axes, parameters)
        return record_open(
            lambda s: graph.at(s[batch]),
            {batch: Dim(1)},
            names,
            {batch},
            lambda graphs: opened(graphs, found.opset, parameters),
        )
    except UnsupportedOperator:
        raise
    except ValueError as e:
        text = str(e).removeprefix("save: ")
        raise OnnxError(
            f"save: {text}: give batch=None to fix the batch size, or batch_axes to say where it is"
        ) from None


def opened(graphs: OpenGraphs, opset: int, parameters: Mapping[Key, str]) -> Exporter:
    """The nodes of a graph for all open sizes, of those at several.

    Raises:
        UnsupportedOperator: Functions cannot be written, all are named; ValueError: the nodes would
            differ, or have to be told a number that follows from no sizes.
    """
    folded: dict[Any, Any] = {}
    parts = zip(graphs.graphs, _moving(graphs.graphs), strict=True)
    found = [written(opset, *graph, parameters, folded, moving) for graph, moving in parts]
    result: Exporter = OnnxOpener(found, graphs.sizes).run()
    return result


def _moving(graphs: Sequence[tuple[Any, Any]]) -> list[dict[Key, frozenset[int]]]:
    """Axes of the values of each graph that have another size in others."""
    found: list[dict[Key, frozenset[int]]] = [{} for _ in graphs]
    ends = [[v.edge for v in given.values()] for _, given in graphs]
    for values, (outputs, _) in zip(ends, graphs, strict=True):
        for node in capture([v.edge for v in outputs.values()]):
            values += [Value.of(node, k, s, False, None) for k, s in enumerate(node.out_specs)]
    for same in zip(*ends, strict=False):  # if they are not, what compares the nodes says where
        sizes = enumerate(zip(*[v.current_spec.shape for v in same], strict=False))
        axes = frozenset([axis for axis, each in sizes if len(set(each)) > 1])
        for own, v in zip(found, same, strict=True):
            own[v.key] = axes
    return found


def written(
    opset: int,
    outputs: Mapping[str, Variable],
    inputs: Mapping[str, Variable],
    parameters: Mapping[Key, str],
    folded: dict[Any, Any] | None = None,
    moving: Mapping[Key, frozenset[int]] | None = None,
) -> Exporter:
    """A graph in ONNX nodes.

    Raises:
        UnsupportedOperator: Functions cannot be written, all are named.
    """
    exporter = Exporter(opset, folded, moving)
    edges = [v.edge for v in outputs.values()]
    nodes = capture(edges)
    infer_again(nodes)
    types = _input_types(nodes, edges, inputs)
    for n, v in inputs.items():
        exporter.inputs[n] = x = Tensor(n, types.get(n, v.spec.dtype), v.shape)
        exporter.values[v.edge.key] = x
        x.moving = (moving or {}).get(v.edge.key)
    for leaf in _leaves(edges):
        if leaf.key not in exporter.values:
            value = leaf.array.read("host")
            name = parameters.get(leaf.key, leaf.name)
            exporter.values[leaf.key] = Tensor(name, value.dtype, value.shape, value=value)
    try:
        exporter.write(nodes)
    except Refused as e:
        raise UnsupportedOperator(f"save: {e}") from None
    if exporter.refused:
        listed = "; ".join(f"{k} ({v})" for k, v in sorted(exporter.refused.items()))
        raise UnsupportedOperator(
            f"save: these functions cannot be written with opset {opset}: {listed} "
            "(documentation: onnx_export#functions-in-onnx-files)"
        )
    for n, v in outputs.items():
        y = exporter.values[v.edge.key]
        if y.name != "" or y.value is not None:  # an input, an initializer, or another output
            y = exporter.emit("Identity", y)
            y.shape = v.shape
        y.name = n
        exporter.outputs[n] = y
    return exporter


def _warn_of_unread(given: Mapping[str, Variable], read: Collection[Key]) -> None:
    for n, v in given.items():
        if v.edge.key not in read:
            logger.warning("save: no function reads the input %r", n)


def _checked_opset(opset: int | None) -> int:
    try:
        from onnx.defs import onnx_opset_version
    except ModuleNotFoundError as e:
        raise ModuleNotFoundError("save needs the package onnx: pip install nnl[onnx]") from e
    newest = onnx_opset_version()
    if opset is None:
        return min(DEFAULT_OPSET, newest)
    if not isinstance(opset, int) or not OLDEST_OPSET <= opset <= newest:
        raise ValueError(f"save: opset is {opset!r}, wanted {OLDEST_OPSET} to {newest}")
    return opset


def _parameter_names() -> dict[Key, str]:
    return {v.edge.key: n for n, v in get_parameters(grad_only=False).items()}


def _variables(entries: Mapping[str, Any]) -> dict[str, Variable]:
    """Variables of a loaded network: entries hold them, or are them."""
    return {n: getattr(v, "variable_instance", v) for n, v in entries.items()}


def _named(given: Named, what: str, prefix: str) -> dict[str, Variable]:
    """Variables by the names they get in the file."""
    if isinstance(given, Mapping):
        named = dict(given)
    else:
        named = {}
        for v in [given] if isinstance(given, Variable) else given:
            base = getattr(v, "name", "") or prefix
            n, i = base, 0
            while n in named:
                i += 1
                n = f"{base}_{i}"
            named[n] = v
    for n, v in named.items():
        if not isinstance(v, Variable):
            raise TypeError(f"save: {what}: {n!r} is {type(v).__name__}, wanted nnl.Variable")
    if not named and what == "outputs":
        raise ValueError("save: outputs is empty, wanted at least one Variable")
    return named


def _leaves(edges: Sequence[Value]) -> list[Value]:
    """Leaves in the order in which the program used them."""
    return [v for v in in_order(capture(edges), ()) if isinstance(v, Value)]


def _is_array(v: Value) -> bool:
    return v.node is None and v.current_spec.dtype.kind in "fiub"


def _check_graph(wanted: Mapping[str, Variable], given: Mapping[str, Variable]) -> None:
    keys = {v.edge.key for v in given.values()}
    for n, v in wanted.items():
        if v.edge.node is None and v.edge.key not in keys:
            raise ValueError(
                f"save: the output {n!r} was not computed by a recorded function: build the graph "
                "without auto_forward"
            )
    for n, v in given.items():
        if v.edge.node is not None:
            raise ValueError(
                f"save: the input {n!r} is computed by {v.edge.node.op.name}, wanted a Variable "
                "that nothing computes: use its unlinked()"
            )


def _batch_axes(
    given: Mapping[str, Variable], axes: Mapping[str, int | None] | None
) -> dict[str, int]:
    if axes is None:
        first = next((v.shape[0] for v in given.values() if v.shape), None)
        return {n: 0 for n, v in given.items() if v.shape and v.shape[0] == first}
    found = {}
    for n, axis in axes.items():
        if n not in given:
            raise ValueError(f"save: batch_axes: there is no input {n!r}, only {sorted(given)}")
        if axis is None:
            continue
        if not -given[n].ndim <= axis < given[n].ndim:
            raise ValueError(
                f"save: batch_axes: axis {axis} is outside of the {given[n].ndim} axes of {n!r}"
            )
        found[n] = axis % given[n].ndim
    return found


def _input_types(
    nodes: Sequence[Node], edges: Sequence[Value], given: Mapping[str, Variable]
) -> dict[str, Any]:
    """{input: the type it is computed with}, of inputs in numpy's default types."""
    defaults = {n: v for n, v in given.items() if v.spec.dtype in DEFAULTS}
    if not defaults:
        return {}
    program, binding = lower(nodes, ())
    slots = binding.slot_of
    program.outputs = {f"{i}": slots[e.key] for i, e in enumerate(edges) if e.key in slots}
    return {
        n: computed_type(program, slots[v.edge.key])
        for n, v in defaults.items()
        if v.edge.key in slots
    }
