# SPDX-License-Identifier: Apache-2.0
"""A .tflite file as tensors and operators, after everything that can be checked has been."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nnl.converters.tflite.flatbuffer import Damaged, unpack
from nnl.converters.tflite.schema import BY_NUMBER, IDENTIFIER, TABLES, TYPES, VERSION

MAX_ELEMENTS = 2**30  # of one tensor; a file that says more lies
MAX_AXES = 16


@dataclass(eq=False)
class FileTensor:
    """A tensor of a file.

    Attributes:
        value: Of a constant, in real numbers if it is quantized.
        open: Axes whose sizes the file leaves open; its shape has 1 there.
        scale, zero: What stored numbers stand for, if all have one scale.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    value: Any
    open: tuple[int, ...]
    scale: float = 0.0
    zero: int = 0


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


class File:
    """Attributes:
    inputs, outputs: Numbers of tensors by name.
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
        graph = model["subgraphs"][0]
        self.name = graph["name"] or "network"
        self.tensors = [self._tensor(i, t) for i, t in enumerate(graph["tensors"])]
        self.operators = [self._operator(i, o) for i, o in enumerate(graph["operators"])]
        for i in (*graph["inputs"], *graph["outputs"]):
            self._check(i)
        self.inputs = {self._end(i): i for i in graph["inputs"]}
        self.outputs = {self._end(i): i for i in graph["outputs"]}
        for signature in model["signature_defs"][:1]:
            self.inputs = self._named(self.inputs, signature["inputs"])
            self.outputs = self._named(self.outputs, signature["outputs"])

    def _check(self, i: int) -> int:
        if not 0 <= i < len(self.tensors):
            raise Damaged(f"damaged: there is no tensor {i}")
        return i

    def _end(self, i: int) -> str:
        return self.tensors[i].name or f"tensor_{i}"

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
        if t["sparsity"] is not None:
            raise Damaged(f"tensor {i} is sparse, which nnl does not read")
        if len(shape) > MAX_AXES or is_impossible(shape):
            raise Damaged(f"damaged: tensor {i} has the impossible shape {shape}")
        value = self._value(i, t["buffer"], shape, dtype)
        if value is not None and t["quantization"] is not None:
            value = _real(i, value, t["quantization"])
        is_open = tuple([a for a, n in enumerate(t["shape_signature"]) if n == -1])
        q = t["quantization"] or {"scale": [], "zero_point": []}
        scale = q["scale"][0] if len(q["scale"]) == 1 else 0.0
        zero = (q["zero_point"] or [0])[0]
        return FileTensor(t["name"] or "", shape, dtype, value, is_open, scale, zero)

    def _value(self, i: int, n: int, shape: tuple[int, ...], dtype: Any) -> Any:
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
            return None if math.prod(shape) else np.zeros(shape, dtype)
        if len(data) != math.prod(shape) * dtype.itemsize:
            raise Damaged(
                f"damaged: tensor {i} has {len(data)} bytes, wanted {dtype.name}{list(shape)}"
            )
        return np.frombuffer(data.tobytes(), dtype.newbyteorder("<")).astype(dtype).reshape(shape)

    def _operator(self, i: int, o: dict[str, Any]) -> FileOperator:
        if o["opcode_index"] >= len(self.codes):
            raise Damaged(f"damaged: there is no operator code {o['opcode_index']}")
        code = self.codes[o["opcode_index"]]
        row = BY_NUMBER.get(max(code["short_code"], code["builtin_code"]))
        for t in (*o["inputs"], *o["outputs"]):
            if t != -1:
                self._check(t)
        if row is None:
            name, options = f"operator number {code['builtin_code']}", {}
        else:
            name = row.name if row.name != "CUSTOM" else f"CUSTOM {code['custom_code']!r}"
            options = {f.name: f.default if not f.many else [] for f in row.options}
            if o["options"] is not None and o["options_type"] == row.options_type:
                options = o["options"](row.name)
        return FileOperator(name, f"operator {i} ({name})", o["inputs"], o["outputs"], options)


def is_impossible(shape: Sequence[int]) -> bool:
    """Whether no file means this shape."""
    return min(shape, default=1) < 0 or math.prod([max(n, 1) for n in shape]) > MAX_ELEMENTS


def _real(i: int, value: Any, q: dict[str, Any]) -> Any:
    """What quantized numbers stand for: scale (number - zero point), along an axis or for all."""
    scale = np.array(q["scale"], np.float32)
    if not scale.size:
        return value
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
    return np.asarray((value.astype(np.float32) - zero) * scale)
