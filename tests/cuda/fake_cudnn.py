# SPDX-License-Identifier: Apache-2.0
"""Stands in for NVIDIA's front end: takes the same calls, and computes on host memory by numpy.

What it is told is put together to a Graph again, so that a wrong port, size or attribute in the
lowering shows as a wrong result.
"""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np

from nnl.ext.cuda.cudnn.lower import NAMED, RETURNED
from nnl.ext.cuda.cudnn.rules import BINARY, RULES, UNARY
from nnl.ext.cuda.cudnn.spec import Array, Graph, Node, rows
from tests.cuda.evaluate import evaluate, numpy_type

RETURN_ONE = {
    "conv_fprop": "Y", "conv_dgrad": "DX", "conv_wgrad": "DW", "matmul": "C", "reduction": "out",
    "batchnorm_inference": "Y",
}  # fmt: skip
# Arguments that say how to compute, not what.
DROPPED = ("norm_forward_phase", "generate_stats", "compute_data_type", "name")


class NotSupportedError(Exception):
    """The front end's error where there is no engine."""


class Tensor:
    def __init__(self, graph: Pygraph) -> None:
        self.uid, self.dim, self.stride, self.dtype = graph.next_uid(), (), (), "float32"
        self.constant = False

    def set_uid(self, uid: int) -> Tensor:
        self.uid = uid
        return self

    def set_data_type(self, dtype: str) -> Tensor:
        self.dtype = dtype
        return self

    def set_dim(self, dim: list[int]) -> Tensor:
        self.dim = tuple(dim)
        return self

    def set_stride(self, stride: list[int]) -> Tensor:
        self.stride = tuple(stride)
        return self

    def set_output(self, value: bool) -> Tensor:
        assert value
        return self


class Pygraph:
    def __init__(self, module: FakeFrontEnd, **settings: Any) -> None:
        self.module, self.settings = module, settings
        self.tensors: list[Tensor] = []
        self.calls: list[tuple[str, dict[str, Tensor], dict[str, Tensor], dict[str, Any]]] = []
        self.graph: Graph | None = None
        self.selected = 0
        self.notes: list[str] = []

    def next_uid(self) -> int:
        return 900000 + len(self.tensors)

    def tensor(self, dim: Any, stride: Any, data_type: str, uid: int, name: str,
               is_pass_by_value: bool = False) -> Tensor:  # fmt: skip
        t = Tensor(self).set_uid(uid).set_dim(dim).set_stride(stride).set_data_type(data_type)
        t.constant = is_pass_by_value
        self.tensors.append(t)
        return t

    def __getattr__(self, op: str) -> Any:
        if op not in RULES:
            raise AttributeError(op)

        def call(*args: Any, **kw: Any) -> Any:
            if op in NAMED:
                assert not args, op
            else:
                assert len(args) == (1 if op in UNARY else 2), op
                assert (op in UNARY) != (op in BINARY)
            ins = dict(zip("ab", args, strict=False))
            ins |= {k: v for k, v in kw.items() if isinstance(v, Tensor)}
            attrs = {k: v for k, v in kw.items() if not isinstance(v, Tensor)}
            ports = RETURNED.get(op, (RETURN_ONE.get(op, "out"),))
            if op == "sdpa" and not attrs["generate_stats"]:
                ports = ("O",)
            outs = {}
            for port in ports:
                outs[port] = Tensor(self)
                self.tensors.append(outs[port])
            self.calls.append((op, ins, outs, attrs))
            made = list(outs.values())
            return made[0] if op not in RETURNED else [*made, None][: max(2, len(made))]

        return call

    # ---- what turns calls into a Graph ----

    def _attrs(self, op: str, ins: dict[str, Tensor], attrs: dict[str, Any]) -> dict[str, Any]:
        plain = {
            k: tuple(v) if isinstance(v, list) else v for k, v in attrs.items() if k not in DROPPED
        }
        if op.startswith("sdpa"):
            corner = plain.pop("diagonal_alignment", None)
            bound = plain.pop("diagonal_band_right_bound", None)
            assert (corner is None) == (bound is None) and bound in (None, 0)
            shift = ins["k"].dim[2] - ins["q"].dim[2]
            plain["causal"] = {None: None, "TOP_LEFT": 0, "BOTTOM_RIGHT": shift}[corner]
            plain["corner"] = "unused"
        return plain

    def validate(self) -> None:
        arrays = [
            Array(t.uid, t.dim, t.stride or rows(t.dim), t.dtype, 0.0 if t.constant else None)
            for t in self.tensors
        ]
        nodes = [
            Node(
                op,
                tuple((port, t.uid) for port, t in ins.items()),
                tuple((port, t.uid) for port, t in outs.items()),
                tuple(sorted(self._attrs(op, ins, attrs).items())),
            )
            for op, ins, outs, attrs in self.calls
        ]
        self.graph = Graph(tuple(arrays), tuple(nodes))
        self.graph.validate()

    def build_operation_graph(self) -> None:
        if self.module.declines(self.graph):
            raise NotSupportedError("no engine")

    def create_execution_plans(self, modes: list[str]) -> None:
        assert modes == ["A", "FALLBACK"]

    def deselect_numeric_notes(self, notes: list[str]) -> None:
        self.notes = notes

    def check_support(self) -> None:
        pass

    def build_plans(self) -> None:
        self.module.builds += 1

    def get_execution_plan_count(self) -> int:
        return 4

    def build_plan_at_index(self, i: int) -> None:
        if i == 1:
            raise NotSupportedError("not this one")
        self.selected = i

    def get_workspace_size(self) -> int:
        return 640

    def serialize(self, as_bytes: bool = False) -> bytes:
        assert as_bytes
        return repr((self.selected, self.graph)).encode()

    def deserialize(self, data: bytes) -> None:
        if not data.startswith(b"("):
            raise RuntimeError("parse error")
        names = {"Graph": Graph, "Array": Array, "Node": Node}
        self.selected, self.graph = eval(data.decode(), names)
        self.module.loads += 1

    def execute(self, pack: dict[int, int], workspace: int, handle: Any) -> None:
        assert self.graph is not None
        self.module.streams.append(handle.stream)
        arrays, memory = [], {}
        for a in self.graph.arrays:
            if a.value is not None:
                value = ctypes.c_float.from_address(pack[a.uid]).value
                a = Array(a.uid, a.dim, a.stride, a.dtype, value)
            elif not a.virtual:
                size = a.extent * numpy_type(a.dtype).itemsize
                raw = (ctypes.c_uint8 * size).from_address(pack[a.uid])
                memory[a.uid] = np.frombuffer(raw, np.uint8).view(numpy_type(a.dtype))
            arrays.append(a)
        ctypes.memset(workspace, 0x5A, self.get_workspace_size())
        evaluate(Graph(tuple(arrays), self.graph.nodes), memory)


class FakeFrontEnd:
    """The module. Attributes count what it was asked to do.

    Args:
        declines: (graph) -> whether there is no engine for it.
    """

    __version__ = "1.32.0"
    cudnnGraphNotSupportedError = NotSupportedError
    data_type = SimpleNamespace(FLOAT="float32", HALF="float16", BFLOAT16="bfloat16")
    heur_mode = SimpleNamespace(A="A", FALLBACK="FALLBACK")
    numerical_note = SimpleNamespace(TENSOR_CORE="tensor core", DOWN_CONVERT_INPUTS="down")
    reduction_mode = SimpleNamespace(ADD="ADD")
    norm_forward_phase = SimpleNamespace(TRAINING="TRAINING")
    diagonal_alignment = SimpleNamespace(TOP_LEFT="TOP_LEFT", BOTTOM_RIGHT="BOTTOM_RIGHT")

    def __init__(self, declines: Any = lambda graph: False, version: int = 91900) -> None:
        self.declines, self.version = declines, version
        self.builds = self.loads = self.handles = 0
        self.streams: list[int] = []
        self.graphs: list[Pygraph] = []

    def backend_version(self) -> int:
        return self.version

    def create_handle(self) -> Any:
        self.handles += 1
        return SimpleNamespace(stream=0)

    def set_stream(self, handle: Any, stream: int) -> None:
        handle.stream = stream

    def pygraph(self, **settings: Any) -> Pygraph:
        made = Pygraph(self, **settings)
        self.graphs.append(made)
        return made
