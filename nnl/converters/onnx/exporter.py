# SPDX-License-Identifier: Apache-2.0
"""Writing nnl graphs as ONNX files."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from nnl.converters.onnx import export_families as _families  # noqa: F401  registers the handlers
from nnl.converters.onnx.errors import OnnxError, UnsupportedOperator
from nnl.converters.onnx.export_context import Exporter, Refused
from nnl.converters.onnx.export_file import Contents, to_model, write
from nnl.converters.onnx.export_follow import Follower, leaf_at_both
from nnl.converters.onnx.export_tensor import Tensor
from nnl.core.graph import Node, Value, capture
from nnl.core.parameter import get_parameters
from nnl.core.variable import Variable
from nnl.graph.lowering import lower
from nnl.graph.passes.input_types import DEFAULTS, computed_type

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
    external_data: bool | None = None,
    external_threshold: int = EXTERNAL_BYTES,
    name: str = "network",
    elsewhere: Any = None,
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
        external_data: Write the weights to `path` + ".data". True always, False never; if left
            out, when the file would exceed external_threshold bytes.
        name: Name of the graph in the file.
        elsewhere: The same network at another batch size: `inputs` and `outputs` by name. What
            depends on the batch size is what differs there; without, it is followed through the
            graph, and numbers in it are taken as they are.
    Raises:
        UnsupportedOperator: Functions have no ONNX form; the message lists all of them.
        ValueError: The graph or an argument cannot be used; TypeError: it is not a graph.
        ModuleNotFoundError: The package onnx is missing.
    """
    contents = _contents(outputs, inputs, opset, batch, batch_axes, name, ir_version, elsewhere)
    external = external_data
    if external is None:
        external = contents.weight_bytes() >= external_threshold
    write(path, contents, external)


def export(
    outputs: Any,
    inputs: Named | None = None,
    *,
    opset: int | None = None,
    ir_version: int | None = None,
    batch: str | None = "N",
    batch_axes: Mapping[str, int | None] | None = None,
    name: str = "network",
) -> Any:
    """The ModelProto that `save` would write, with the weights in it.

    Raises:
        Like `save`.
    """
    return to_model(_contents(outputs, inputs, opset, batch, batch_axes, name, ir_version))


def _contents(
    outputs: Any,
    inputs: Named | None,
    opset: int | None,
    batch: str | None,
    batch_axes: Mapping[str, int | None] | None,
    name: str,
    ir_version: int | None,
    elsewhere: Any = None,
) -> Contents:
    opset = _checked_opset(opset)
    parameters: dict[Key, str] = {}
    if hasattr(outputs, "outputs") and hasattr(outputs, "inputs"):
        network = outputs
        outputs = _variables(network.outputs)
        inputs = _variables(network.inputs) if inputs is None else inputs
        name = getattr(network, "name", name)
        stored = _variables(network.variables)
        parameters = {v.edge.key: n for n, v in stored.items() if v.edge.node is None}
    wanted = _named(outputs, "outputs", "y")
    parameters.update({v.edge.key: n for n, v in get_parameters(grad_only=False).items()})
    edges = [v.edge for v in wanted.values()]
    leaves = _leaves(edges)
    if inputs is None:
        free = [Variable.on(v) for v in leaves if v.key not in parameters and _is_array(v)]
        given = _named(free, "inputs", "x") if free else {}
    else:
        given = _named(inputs, "inputs", "x")
    _check_graph(wanted, given)
    _warn_of_unread(given, {v.key for v in (*leaves, *edges)})
    batch_of = _batch_axes(given, batch_axes) if batch is not None else {}
    if elsewhere is None:
        exporter, declared = _written(opset, edges, leaves, parameters, given, batch_of)
    else:
        batch_of = _moving_axes(given, elsewhere.inputs)
        other = next(elsewhere.inputs[n].shape[axis] for n, axis in batch_of.items())
        there = [elsewhere.outputs[n].edge for n in wanted]
        exporter, declared = _written(
            opset,
            edges,
            leaves,
            parameters,
            given,
            batch_of,
            other,
            [n.attrs for n in capture(there)],
        )
    results = [(n, exporter.values[v.edge.key]) for n, v in wanted.items()]
    return Contents(exporter, declared, results, name, batch or "", ir_version)


def _written(
    opset: int,
    edges: Sequence[Value],
    leaves: Sequence[Value],
    parameters: Mapping[Key, str],
    given: Mapping[str, Variable],
    batch_of: Mapping[str, int],
    other: int | None = None,
    then: Sequence[Any] | None = None,
) -> tuple[Exporter, list[Tensor]]:
    """The exporter after its work, and the inputs.

    Args:
        other: Another batch size, any if left out.
        then: Attributes of the functions at that batch size; to be found out if left out.

    Raises:
        UnsupportedOperator: Functions cannot be written, all are named; OnnxError: they can, but
            not with an open batch size.
    """
    sizes = {given[n].shape[axis] for n, axis in batch_of.items()}
    if len(sizes) > 1:
        raise ValueError(f"save: the inputs have different batch sizes: {sorted(sizes)}")
    batch = sizes.pop() if sizes else None
    if other is None:
        other = 0 if batch is None else batch + 7
    exporter = Exporter(opset, batch, other)
    nodes = capture(edges)
    types = _input_types(nodes, edges, given)
    declared = _declare_inputs(exporter, given, batch_of, types)
    now = [n.attrs for n in nodes]
    axes: dict[Key, int] = {}
    if batch is None:
        then = now
    elif then is None:
        follower = Follower(nodes, exporter.values, parameters, batch, other)
        then, axes = follower.attrs, follower.leaf_axes
    try:
        _declare_leaves(exporter, leaves, parameters, axes)
        exporter.write(nodes, now, then)
    except Refused as e:
        raise UnsupportedOperator(f"save: {e}") from None
    if exporter.refused:
        listed = "; ".join(f"{k} ({v})" for k, v in sorted(exporter.refused.items()))
        raise UnsupportedOperator(
            f"save: these functions cannot be written with opset {opset}: {listed} "
            "(documentation: onnx_export#functions-in-onnx-files)"
        )
    if batch is not None:
        mirror = Exporter(opset, other, batch)
        _declare_inputs(mirror, given, batch_of, types)
        _declare_leaves(mirror, leaves, parameters, axes)
        mirror.write(nodes, then, now)
        _check_free_of_batch(exporter, mirror)
    return exporter, declared


def _warn_of_unread(given: Mapping[str, Variable], read: Collection[Key]) -> None:
    for n, v in given.items():
        if v.edge.key not in read:
            logger.warning("save: no function reads the input %r", n)


def _check_free_of_batch(exporter: Exporter, mirror: Exporter) -> None:
    """Written from the point of view of the other batch size, all nodes must be the same.

    Raises:
        OnnxError: One holds a size that depends on the batch.
    """
    for name, reason in mirror.refused.items():
        raise OnnxError(f"save: {name}: {reason}: give batch=None to fix the batch size")
    for a, b in zip(exporter.nodes, mirror.nodes, strict=False):
        if not a.same(b):
            raise OnnxError(
                f"save: {a.origin} fixes a size that depends on the batch size: give batch=None to "
                "fix the batch size"
            )


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
    found: dict[Key, Value] = {}
    for node in capture(edges):
        for i, v in enumerate(node.inputs):
            rng = node.op.takes_rng and i == len(node.inputs) - 1
            if v is not None and v.node is None and not rng:
                found.setdefault(v.key, v)
    return list(found.values())


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


def _moving_axes(given: Mapping[str, Variable], elsewhere: Mapping[str, Any]) -> dict[str, int]:
    """Axes of the inputs that have another size in the other graph."""
    return {
        n: i
        for n, v in given.items()
        for i, (a, b) in enumerate(zip(v.shape, elsewhere[n].shape, strict=True))
        if a != b
    }


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


def _declare_inputs(
    exporter: Exporter,
    given: Mapping[str, Variable],
    batch_of: Mapping[str, int],
    types: Mapping[str, Any],
) -> list[Tensor]:
    declared = []
    for n, v in given.items():
        shape, moved = list(v.shape), list(v.shape)
        if n in batch_of:
            shape[batch_of[n]] = exporter.batch or 0
            moved[batch_of[n]] = exporter.moved_batch
        x = Tensor(n, types.get(n, v.spec.dtype), tuple(shape), tuple(moved))
        if n in batch_of and exporter.batch_source is None:
            exporter.batch_source = (x, batch_of[n])
        exporter.values[v.edge.key] = x
        declared.append(x)
    return declared


def _declare_leaves(
    exporter: Exporter,
    leaves: Sequence[Value],
    parameters: Mapping[Key, str],
    batch_axes: Mapping[Key, int],
) -> None:
    """Parameters and constants; of one with a batch axis only the first sample is stored."""
    for leaf in leaves:
        if leaf.key in exporter.values:
            continue
        name = parameters.get(leaf.key, leaf.name)
        value = leaf.array.read("host")
        axis = batch_axes.get(leaf.key)
        if axis is None:
            x = Tensor(name, value.dtype, value.shape, value.shape, value=value)
        else:
            sizes = list(value.shape)
            sizes[axis] = exporter.batch or 0
            like = leaf_at_both(tuple(sizes), axis, exporter.moved_batch)
            first = exporter.constant(value.take([0], axis))
            target = exporter.shape_tensor(like.sizes, like.moved or ())
            x = exporter.emit("Expand", first, target)
            x.shape, x.moved = like.shape, like.moved
        exporter.values[leaf.key] = x
