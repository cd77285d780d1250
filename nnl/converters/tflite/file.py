# SPDX-License-Identifier: Apache-2.0
"""A .tflite file as tensors and operators, after everything that can be checked has been."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nnl.converters.tflite.flatbuffer import Damaged, unpack
from nnl.converters.tflite.schema import (
    BFLOAT16,
    BY_NUMBER,
    IDENTIFIER,
    INT4,
    TABLES,
    TYPES,
    VERSION,
)

SPARSE = 1  # format of a level; 0 is dense


def dense(what: str, sparsity: Mapping[str, Any], values: Any, shape: Sequence[int]) -> Any:
    """The array whose stored values stand in the order of levels.

    A level goes along one axis, or along one axis of blocks, those of which axis d are block_map's
    axes; `traversal_order` names them. Each place of the levels before holds, if the level is
    dense, every number of the axis, else those from `segments[i]` to `segments[i + 1]` of
    `indices`, where i counts the places.

    Raises:
        Damaged: The levels do not fit the shape, or the number of values.
    """
    order, blocks, levels = (sparsity[k] for k in ("traversal_order", "block_map", "levels"))
    rank = len(shape)
    sizes = dict(zip(order, [level["dense_size"] for level in levels], strict=False))
    wanted = list(range(rank + len(blocks)))
    if sorted(order) != wanted or len(levels) != len(wanted) or len(set(blocks)) < len(blocks):
        raise Damaged(f"damaged: {what} has the sparse axes {order}, with {list(shape)}")
    inner = {d: sizes[rank + k] for k, d in enumerate(blocks)}  # sizes of blocks by their axis
    places = {a: np.zeros(1, np.int64) for a in order[:1]}
    count = 1
    for axis, level in zip(order, levels, strict=True):
        repeats, along = _along(what, level, count, len(values))
        places = {a: np.repeat(p, repeats) for a, p in places.items()} | {axis: along}
        count = len(along)
    if count != len(values):
        raise Damaged(f"damaged: {what} has {len(values)} values for {count} places")
    at = []
    for d, n in enumerate(shape):
        index = places[d]
        if d in inner:
            index = index * inner[d] + places[rank + blocks.index(d)]
        if index.size and not (0 <= index.min() and index.max() < n):
            raise Damaged(f"damaged: {what} has values outside of {list(shape)}")
        at.append(index)
    y = np.zeros(tuple(shape), values.dtype)
    y[tuple(at)] = values
    return y


def _along(what: str, level: Mapping[str, Any], count: int, most: int) -> tuple[Any, Any]:
    """How often each of `count` places goes on, and the numbers along the axis of a level."""
    if level["format"] != SPARSE:
        n = level["dense_size"]
        if n < 1 or count * n > most:
            raise Damaged(f"damaged: {what} has more places than its {most} values")
        return n, np.tile(np.arange(n), count)
    segments, indices = (_vector(what, level, k) for k in ("segments", "indices"))
    repeats = np.diff(segments)
    if len(segments) != count + 1 or segments[0] or repeats.min() < 0:
        raise Damaged(f"damaged: {what} has {len(segments)} segments for {count} places")
    if len(indices) != segments[-1]:
        raise Damaged(f"damaged: {what} has {len(indices)} indices, wanted {segments[-1]}")
    return repeats, indices


def _vector(what: str, level: Mapping[str, Any], key: str) -> Any:
    kind, read = level[f"{key}_type"], level[key]
    if kind not in (1, 2, 3) or read is None:
        raise Damaged(f"damaged: {what} has no {key}")
    found = np.asarray(read(f"Vector{kind}")["values"], np.int64)
    if not len(found) and key == "segments":
        raise Damaged(f"damaged: {what} has no {key}")
    return found


MAX_ELEMENTS = 2**30  # of one tensor; a file that says more lies
MAX_AXES = 16


@dataclass(eq=False)
class FileTensor:
    """A tensor of a file.

    Attributes:
        value: Of a constant, in real numbers if it is quantized.
        open: Axes whose sizes the file leaves open; its shape has 1 there.
        scale, zero: What stored numbers stand for, if all have one scale.
        stored: Of a constant in 8 bits around 0: its numbers, and their scales along its axes.
        state: Whether it keeps its value from run to run, at first 0.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    value: Any
    open: tuple[int, ...]
    scale: float = 0.0
    zero: int = 0
    state: bool = False
    stored: tuple[Any, Any] | None = None


@dataclass(eq=False)
class FileOperator:
    """An operator of a file.

    Attributes:
        label: For messages.
        ins: Numbers of tensors, -1 for one left out.
    """

    name: str
    label: str
    ins: list[int]
    outs: list[int]
    options: dict[str, Any]


@dataclass(eq=False)
class Graph:
    """A graph of a file.

    Attributes:
        inputs, outputs: Numbers of tensors by name.
        given, made: The same in the order of the file.
    """

    name: str
    tensors: list[FileTensor]
    operators: list[FileOperator]
    given: list[int]
    made: list[int]
    inputs: dict[str, int]
    outputs: dict[str, int]


class File:
    """Attributes:
    graphs: The first one is what runs.
    """

    def __init__(self, data: bytes) -> None:
        self.data = data
        if self.data[4:8] != IDENTIFIER:
            raise Damaged("is no .tflite file")
        model = unpack(TABLES, "Model", self.data)
        if model["version"] != VERSION:
            raise Damaged(f"its version is {model['version']}, wanted {VERSION}")
        if not model["subgraphs"]:
            raise Damaged("damaged: it has no graph")
        self.buffers = model["buffers"]
        self.codes = model["operator_codes"]
        self.graphs = [self._graph(i, g) for i, g in enumerate(model["subgraphs"])]
        first = self.graphs[0]
        for signature in [s for s in model["signature_defs"] if not s["subgraph_index"]][:1]:
            first.inputs = self._named(first.inputs, signature["inputs"])
            first.outputs = self._named(first.outputs, signature["outputs"])

    def _graph(self, n: int, graph: dict[str, Any]) -> Graph:
        tensors = [self._tensor(i, t) for i, t in enumerate(graph["tensors"])]
        where = f"graph {n}, " if n else ""
        operators = [self._operator(i, o, where) for i, o in enumerate(graph["operators"])]
        used = [i for o in operators for i in (*o.ins, *o.outs) if i != -1]
        for i in (*used, *graph["inputs"], *graph["outputs"]):
            if not 0 <= i < len(tensors):
                raise Damaged(f"damaged: there is no tensor {i}")
        given, made = (
            {tensors[i].name or f"tensor_{i}": i for i in graph[k]} for k in ("inputs", "outputs")
        )
        name = graph["name"] or "network"
        return Graph(name, tensors, operators, graph["inputs"], graph["outputs"], given, made)

    def _named(self, ends: dict[str, int], maps: Any) -> dict[str, int]:
        """Inputs or outputs under the names of a signature, if it has one for each."""
        names = {m["tensor_index"]: m["name"] for m in maps}
        if set(names) != set(ends.values()) or len(set(names.values())) != len(ends):
            return ends
        return {names[i] or "": i for i in ends.values()}

    def _tensor(self, i: int, t: dict[str, Any]) -> FileTensor:
        dtype: np.dtype[Any] | None = TYPES.get(t["type"])
        shape = tuple(t["shape"])
        if dtype is None:
            raise Damaged(f"tensor {i} has the type number {t['type']}, which nnl does not know")
        if len(shape) > MAX_AXES or is_impossible(shape):
            raise Damaged(f"damaged: tensor {i} has the impossible shape {shape}")
        value, stored = self._value(i, t, shape, dtype), None
        if value is not None and t["quantization"] is not None:
            value, stored = _real(i, value, t["quantization"])
        is_open = tuple([a for a, n in enumerate(t["shape_signature"]) if n == -1])
        q = t["quantization"] or {"scale": [], "zero_point": []}
        scale = q["scale"][0] if len(q["scale"]) == 1 else 0.0
        zero = (q["zero_point"] or [0])[0]
        state = bool(t["is_variable"]) and value is None
        return FileTensor(t["name"] or "", shape, dtype, value, is_open, scale, zero, state, stored)

    def _value(self, i: int, t: dict[str, Any], shape: tuple[int, ...], dtype: Any) -> Any:
        n = t["buffer"]
        if not 0 <= n < len(self.buffers):
            raise Damaged(f"damaged: there is no buffer {n}, which tensor {i} has")
        buffer = self.buffers[n]
        data = buffer["data"]
        start, size = buffer["offset"], buffer["size"]
        if start > 1:  # behind the tables, in large files
            if start + size > len(self.data):
                raise Damaged(f"damaged: the values of tensor {i} do not fit into the file")
            data = np.frombuffer(self.data, np.uint8, size, start)
        if not len(data):
            return None if math.prod(shape) or dtype.kind == "O" else np.zeros(shape, dtype)
        if dtype.kind == "O":
            return None  # texts, which no operator here reads
        if t["sparsity"] is not None:
            return dense(f"tensor {i}", t["sparsity"], _numbers(data, t["type"], dtype), shape)
        bits = {INT4: 4, BFLOAT16: 16}.get(t["type"], 8 * dtype.itemsize)
        if len(data) != (math.prod(shape) * bits + 7) // 8:
            raise Damaged(
                f"damaged: tensor {i} has {len(data)} bytes, wanted {dtype.name}{list(shape)}"
            )
        return _numbers(data, t["type"], dtype)[: math.prod(shape)].reshape(shape)

    def _operator(self, i: int, o: dict[str, Any], where: str) -> FileOperator:
        if o["opcode_index"] >= len(self.codes):
            raise Damaged(f"damaged: there is no operator code {o['opcode_index']}")
        code = self.codes[o["opcode_index"]]
        row = BY_NUMBER.get(max(code["short_code"], code["builtin_code"]))
        if row is None:
            name, options = f"operator number {code['builtin_code']}", {}
        else:
            name = row.name if row.name != "CUSTOM" else f"CUSTOM {code['custom_code']!r}"
            options = {f.name: f.default if not f.many else [] for f in row.options}
            if o["options"] is not None and o["options_type"] == row.options_type:
                options = o["options"](row.name)
            if row.name == "STABLEHLO_COMPOSITE" and o["more"] is not None:
                options = o["more"]("Composite")
            if row.name == "CUSTOM":
                options = {"bytes": bytes(o["custom_options"])}
        return FileOperator(
            name, f"{where}operator {i} ({name})", o["inputs"], o["outputs"], options
        )


def _numbers(data: Any, kind: int, dtype: np.dtype[Any]) -> Any:
    """The numbers of a type of the schema that bytes hold."""
    if kind == INT4:
        signed = data.astype(np.uint8).view(np.int8)
        return np.stack([(signed << 4) >> 4, signed >> 4], 1).reshape(-1)
    raw = data.tobytes()
    raw = raw[: len(raw) - len(raw) % (2 if kind == BFLOAT16 else dtype.itemsize)]
    if kind == BFLOAT16:
        return (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(raw, dtype.newbyteorder("<")).astype(dtype)


def is_impossible(shape: Sequence[int]) -> bool:
    """Whether no file means this shape."""
    return min(shape, default=1) < 0 or math.prod([max(n, 1) for n in shape]) > MAX_ELEMENTS


def _real(i: int, value: Any, q: dict[str, Any]) -> tuple[Any, Any]:
    """What quantized numbers stand for: scale (number - zero point), along an axis or for all; and
    `stored` of the tensor."""
    scale = np.array(q["scale"], np.float32)
    if not scale.size:
        return value, None
    zero = np.array(q["zero_point"] or [0] * scale.size, np.float32)
    axis = q["quantized_dimension"]
    shape = [1] * value.ndim
    if scale.size > 1:
        if not 0 <= axis < value.ndim or not scale.size == zero.size == value.shape[axis]:
            raise Damaged(f"damaged: tensor {i} has {scale.size} scales, and {value.shape}")
        shape[axis] = scale.size
    elif zero.size != 1:
        raise Damaged(f"damaged: tensor {i} has {zero.size} zero points, wanted 1")
    scale, zero = (v.reshape(shape) for v in (scale, zero))
    around_0 = value.dtype == np.int8 and value.ndim > 1 and not zero.any()
    real = np.asarray((value.astype(np.float32) - zero) * scale)
    return real, (value, scale) if around_0 else None
