# SPDX-License-Identifier: Apache-2.0
"""Small .tflite files, operator by operator, as converters of others write them, and LiteRT
beside nnl."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nnl.converters.tflite.flatbuffer import pack
from nnl.converters.tflite.reader import TfliteFile
from nnl.converters.tflite.schema import IDENTIFIER, NUMBER_OF_TYPE, OPERATORS, TABLES

RESOURCE = 13
RNG = np.random.default_rng(0)


class Graph:
    """A graph of a file that is being made."""

    def __init__(self, made: Made) -> None:
        self.made = made
        self.tensors: list[dict[str, Any]] = []
        self.operators: list[dict[str, Any]] = []
        self.inputs: list[int] = []
        self.outputs: list[int] = []

    def tensor(self, shape: Any, dtype: Any = np.float32, **more: Any) -> int:
        """A tensor that something computes, or with fields of its own."""
        number = NUMBER_OF_TYPE[np.dtype(dtype)]
        name = f"t{len(self.made.graphs)}_{len(self.tensors)}"
        self.tensors.append({"shape": list(shape), "type": number, "name": name, **more})
        return len(self.tensors) - 1

    def constant(self, value: Any, dtype: Any = np.float32, **more: Any) -> int:
        array = np.asarray(value, dtype)
        self.made.buffers.append({"data": np.frombuffer(array.tobytes(), np.uint8)})
        more = {"buffer": len(self.made.buffers) - 1, **more}
        return self.tensor(more.pop("shape", array.shape), dtype, **more)

    def input(self, shape: Any, dtype: Any = np.float32, **more: Any) -> int:
        self.inputs.append(self.tensor(shape, dtype, **more))
        return self.inputs[-1]

    def op(self, name: str, ins: Any, *outs: int, fields: Any = (), **options: Any) -> int:
        """An operator, and the first of its outputs."""
        row = OPERATORS[name]
        codes, code = self.made.codes, {"builtin_code": row.number}
        code["short_code"] = min(row.number, 127)
        code["version"] = options.pop("version", 1)
        if code not in codes:
            codes.append(code)
        op = {"opcode_index": codes.index(code), "inputs": list(ins), "outputs": list(outs)}
        if row.options_type:
            op |= {"options_type": row.options_type, "options": (row.name, options)}
        self.operators.append(op | dict(fields))
        return outs[0] if outs else -1

    def handle(self, name: str) -> int:
        """The handle of a state."""
        made = self.tensor((), type=RESOURCE)
        return self.op("VAR_HANDLE", (), made, shared_name=name)


class Made:
    """A file that is being made."""

    def __init__(self) -> None:
        self.buffers: list[dict[str, Any]] = [{}]
        self.codes: list[dict[str, Any]] = []
        self.graphs: list[Graph] = []

    def graph(self) -> Graph:
        self.graphs.append(Graph(self))
        return self.graphs[-1]

    def save(self, path: Path) -> str:
        keys = ("tensors", "inputs", "outputs", "operators")
        model = {
            "version": 3,
            "operator_codes": self.codes,
            "subgraphs": [{k: getattr(g, k) for k in keys} for g in self.graphs],
            "buffers": self.buffers,
        }
        path.write_bytes(pack(TABLES, "Model", model, IDENTIFIER))
        return str(path)


def normal(*shape: int) -> Any:
    return RNG.normal(size=shape).astype(np.float32)


def interpreter(path: str, reference: bool = False) -> Any:
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    kinds = OpResolverType
    kind = kinds.BUILTIN_REF if reference else kinds.AUTO
    found = Interpreter(path, num_threads=1, experimental_op_resolver_type=kind)
    found.allocate_tensors()
    return found


def invoked(found: Any, *values: Any) -> list[Any]:
    for t, v in zip(found.get_input_details(), values, strict=True):
        found.set_tensor(t["index"], np.asarray(v, t["dtype"]))
    found.invoke()
    return [found.get_tensor(t["index"]) for t in found.get_output_details()]


def agrees(path: str, runs: Sequence[Sequence[Any]], tolerance: float = 1e-5) -> None:
    """Several runs, one after the other, by LiteRT and by nnl."""
    theirs, network = interpreter(path), TfliteFile(path).network()
    for given in runs:
        want = invoked(theirs, *given)
        got = list(network.run(dict(zip(network.inputs, given, strict=True))).values())
        for a, b in zip(got, want, strict=True):
            assert a.shape == b.shape
            np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)
