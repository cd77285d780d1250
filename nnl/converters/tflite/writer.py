# SPDX-License-Identifier: Apache-2.0
"""Networks as .tflite files."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from nnl.converters.networks.layout import plain
from nnl.converters.networks.lowering import CannotLower, Lowered, Target, lower
from nnl.converters.networks.model import Model, Network
from nnl.converters.networks.open_networks import moving_nodes, record_networks
from nnl.converters.tflite import elementwise as _e  # noqa: F401  register handlers
from nnl.converters.tflite import shapes as _s  # noqa: F401
from nnl.converters.tflite import windows as _w  # noqa: F401
from nnl.converters.tflite.flatbuffer import pack
from nnl.converters.tflite.fusion import fused
from nnl.converters.tflite.graph import (
    HANDLERS,
    INT,
    Graph,
    Laid,
    Op,
    Refused,
    Tensor,
    finished,
    run_handler,
)
from nnl.converters.tflite.open_operators import LiteOpener
from nnl.converters.tflite.quantize import INT8, VERSIONS, Scales, quantized
from nnl.converters.tflite.rules import RULES
from nnl.converters.tflite.schema import (
    IDENTIFIER,
    NUMBER_OF_TYPE,
    OPERATORS,
    TABLES,
    VERSION,
)
from nnl.core.graph.node import Node, Value
from nnl.core.parameters.atomic import replacing
from nnl.core.parameters.parameter import get_parameters, parameter_scope
from nnl.graph.open_sizes.recording import OpenGraphs

Samples = Mapping[str, Any]
SIGNATURE = "serving_default"
RUNTIME = b"2.14.0"  # the first that has all operators in these versions


def save(
    path: str | os.PathLike[str], network: Network | Emitted, samples: Samples | None = None
) -> None:
    """Write a network for TensorFlow Lite, in float32 or in 8 bits.

    Args:
        network: It, or its operators.
        samples: Values of the inputs by name, one sample after the other: the network is written
            in 8 bits, with the ranges that it takes on them.
    Raises:
        CannotLower: The format lacks functions; all are listed.
    """
    if isinstance(network, Network):
        network, samples = network.calibrated(samples)
    found = network if isinstance(network, Emitted) else emitted(network)
    if samples is not None:
        _quantize(found, samples)
    content = packed(found)
    with replacing(path) as temporary, open(temporary, "wb") as file:
        file.write(content)


def _quantize(network: Emitted, samples: Samples) -> None:
    from nnl.converters.tflite.calibration import ranges_of

    tensors = numbered(network)
    found = ranges_of(bytes(packed(network)), samples)
    ranges = {id(tensors[i]): limits for i, limits in found.items()}
    inputs = list(network.inputs.values())
    network.ops, problems = quantized(Graph(), network.ops, inputs, ranges)
    if problems:
        raise CannotLower("TFLITE in 8 bits", network.name, problems)


def _refuses(node: Node, is_constant: Callable[[Value], bool]) -> str | None:
    """The reason that the handler of a function gives, asked with values of these shapes."""
    if node.op.name not in HANDLERS:
        return "there is no operator for it"
    g = Graph()
    try:
        xs = [
            None if v is None else _constant(v) if is_constant(v) else _placeholder(v)
            for v in node.inputs
        ]
        run_handler(g, node, xs)
    except Refused as refused:
        return str(refused)
    return None


TARGET = Target("TFLITE", _refuses, RULES)


def _type(v: Value) -> np.dtype[Any]:
    dtype = v.current_spec.dtype
    if dtype.kind in "fV":
        return np.dtype(np.float32)
    if dtype == np.uint64:
        return np.dtype(np.int64)
    if dtype in NUMBER_OF_TYPE:
        return np.dtype(dtype)
    return np.dtype(INT)


def _placeholder(v: Value) -> Laid:
    shape = v.current_spec.shape
    if 0 in shape:
        raise Refused("it has no elements")
    return Laid(Tensor(shape, _type(v)), plain(len(shape)))


def _constant(v: Value) -> Laid:
    array = v.array.read("host")
    if not array.size:
        raise Refused("it has no elements")
    value = np.ascontiguousarray(array.astype(_type(v), copy=False)).reshape(array.shape)
    return Laid(Tensor(value.shape, value.dtype, value), plain(value.ndim))


class Emitted:
    """A network in operators.

    Attributes:
        name: Of the network.
        ops: In an order in which they can run.
        inputs, outputs: Tensors by name; open sizes are -1.
    """

    def __init__(
        self, name: str, ops: list[Op], inputs: dict[str, Tensor], outputs: dict[str, Tensor]
    ) -> None:
        self.name, self.ops, self.inputs, self.outputs = name, ops, inputs, outputs


def emitted(
    network: Network, target: Target = TARGET, moving: Collection[int] | None = None
) -> Emitted:
    """Say a network in operators.

    Args:
        target: One with another name, for formats that have operators for all of them.
        moving: Ids of nodes that depend on open sizes; None where none is open.
    Raises:
        CannotLower: The format lacks functions; all are listed.
    """
    try:
        with parameter_scope("", network.parameters):
            parameters = get_parameters(grad_only=False)
        names = {v.edge.key: name for name, v in parameters.items()}
        lowered = lower(network, target, moving or ())
        return _emitted(network.name, lowered, names, moving is None)
    except Refused as refused:  # inputs and outputs; lower() has asked about the functions
        raise CannotLower(target.name, network.name, [f"an input or output: {refused}"]) from None


def emitted_open(model: Model, target: Target = TARGET) -> Emitted:
    """Say a network in operators for all sizes that its model leaves open.

    Raises:
        CannotLower: The format lacks functions; all are listed.
        ValueError: No size is open, or the operators would differ, or have to be told a number that
            follows from no sizes.
    """

    def use(graphs: OpenGraphs, networks: list[Network]) -> Emitted:
        pairs = zip(networks, moving_nodes(networks), strict=True)
        found = [emitted(n, target, moving) for n, moving in pairs]
        return LiteOpener(found, graphs.sizes, target.name).run()  # type: ignore[no-any-return]

    return record_networks(model, use)


def _emitted(name: str, lowered: Lowered, names: Mapping[Any, str], sizes_stay: bool) -> Emitted:
    g = Graph(sizes_stay)
    values: dict[Any, Laid] = {}
    inputs = {}
    for key, v in lowered.inputs.items():
        values[v.key] = x = _placeholder(v)
        x.tensor.name = key
        inputs[key] = x.tensor

    def value(v: Value) -> Laid:
        if v.key not in values:
            values[v.key] = x = _constant(v)
            x.tensor.name = names.get(v.key, "")
        return values[v.key]

    for node in lowered.nodes:
        g.label = node.op.name
        ys = run_handler(g, node, [None if v is None else value(v) for v in node.inputs])
        for i, y in enumerate(ys):
            values[id(node), i] = y
    outputs: dict[str, Tensor] = {}
    for key, v in lowered.outputs.items():
        t = g.plain(value(v))
        if t.value is not None or any(t is o for o in (*inputs.values(), *outputs.values())):
            t = g.op("RESHAPE", t, g.ints(*t.shape), new_shape=list(t.shape))
        outputs[key] = t
    ends = list(outputs.values())
    ops = finished(fused(g.ops, ends), ends)
    for key, t in outputs.items():
        t.name = key
    return Emitted(name, ops, inputs, outputs)


# ---- the file ----


def numbered(network: Emitted) -> list[Tensor]:
    """The tensors of a file, in the order of their numbers."""
    found = {id(t): t for t in network.inputs.values()}
    for op in network.ops:
        found |= {id(t): t for t in (*op.ins, *op.outs) if t is not None}
    return list(found.values())


def packed(network: Emitted) -> bytearray:
    """The bytes of a file."""
    every = numbered(network)
    numbers = {id(t): i for i, t in enumerate(every)}
    buffers: list[dict[str, Any]] = [{}]

    def number(t: Tensor | None) -> int:
        return -1 if t is None else numbers[id(t)]

    codes: list[tuple[str, int]] = []
    operators = []
    for op in network.ops:
        code = op.name, _version(op)
        if code not in codes:
            codes.append(code)
        row = OPERATORS[op.name]
        record: dict[str, Any] = {
            "opcode_index": codes.index(code),
            "inputs": [number(t) for t in op.ins],
            "outputs": [number(t) for t in op.outs],
        }
        if row.options_type:
            record |= {"options_type": row.options_type, "options": (op.name, op.options)}
        operators.append(record)
    names: dict[str, int] = {}
    records = []
    for t in every:
        buffer = 0
        if t.value is not None:
            buffer = len(buffers)
            buffers.append({"data": np.ascontiguousarray(t.value).reshape(-1).view(np.uint8)})
        records.append(
            {
                "shape": [1 if n == -1 else n for n in t.shape],  # open ones as 1
                "shape_signature": t.shape if -1 in t.shape else None,
                "type": NUMBER_OF_TYPE[t.dtype],
                "buffer": buffer,
                "name": _unique(t.name or "constant", names),
                "has_rank": True,
                "quantization": _quantization(t.scale),
            }
        )
    buffers.append({"data": np.frombuffer(RUNTIME.ljust(16, b"\0"), np.uint8)})
    ends = {
        kind: [{"name": n, "tensor_index": number(t)} for n, t in found.items()]
        for kind, found in (("inputs", network.inputs), ("outputs", network.outputs))
    }
    model = {
        "version": VERSION,
        "operator_codes": [_code(*c) for c in codes],
        "subgraphs": [
            {
                "tensors": records,
                "inputs": [number(t) for t in network.inputs.values()],
                "outputs": [number(t) for t in network.outputs.values()],
                "operators": operators,
                "name": network.name,
            }
        ],
        "description": "nnl",
        "buffers": buffers,
        "metadata": [{"name": "min_runtime_version", "buffer": len(buffers) - 1}],
        "signature_defs": [{**ends, "signature_key": SIGNATURE}],
    }
    return pack(TABLES, "Model", model, IDENTIFIER)


def _code(name: str, version: int) -> dict[str, Any]:
    number = OPERATORS[name].number
    return {"short_code": min(number, 127), "builtin_code": number, "version": version}


def _quantization(scale: Scales | None) -> dict[str, Any] | None:
    if scale is None:
        return None
    zeros = [scale.zero] * len(scale.scale)
    return {"scale": scale.scale, "zero_point": zeros, "quantized_dimension": scale.axis}


def _version(op: Op) -> int:
    """The oldest version of the operator that has what is said with it."""
    if any(t is not None and t.dtype == INT8 for t in op.ins):
        return VERSIONS.get(op.name, 2)
    if op.name == "BROADCAST_TO":
        return 2
    if op.name == "TRANSPOSE_CONV" and len(op.ins) > 3:
        return 3
    return 1


def _unique(name: str, known: dict[str, int]) -> str:
    count = known.get(name, 0)
    known[name] = count + 1
    return name if not count else _unique(f"{name}_{count}", known)
