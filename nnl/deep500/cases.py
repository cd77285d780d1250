# SPDX-License-Identifier: Apache-2.0
"""ONNX's own tests as typed models, with the selection that every test of level 0 shares."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from nnl.converters.onnx import report
from nnl.converters.onnx.file.model import Model
from nnl.converters.onnx.file.reader import read


@dataclass
class Case:
    """A model, inputs, and the outputs that they must give.

    Attributes:
        data: Pairs of inputs by name and outputs by name.
        source: The bytes of the model.
    """

    name: str
    kind: str
    model: Model
    data: list[tuple[dict[str, Any], dict[str, Any]]]
    rtol: float
    atol: float
    source: bytes

    @property
    def operator(self) -> str:
        """The operator under test, where the model is one node; else ""."""
        nodes = self.model.graph.nodes
        if len(nodes) != 1 or "_expanded" in self.name:
            return ""
        return f"{nodes[0].domain}.{nodes[0].op_type}".lstrip(".")

    @property
    def floating(self) -> bool:
        """Whether an input or an output is float32, and none has another floating-point type."""
        types = [
            v.dtype
            for v in (*self.model.graph.inputs, *self.model.graph.outputs)
            if v.dtype is not None
        ]
        others = [t for t in types if t != np.float32 and t.kind not in "iub"]
        return any(t == np.float32 for t in types) and not others


@cache
def _loaded(kind: str) -> tuple[report.Case, ...]:
    """All tests of a kind: the onnx package makes them anew, which takes seconds."""
    return tuple(report.cases(kind))


def cases(
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    where: Callable[[str], bool] | None = None,
    kind: str = "node",
) -> Iterator[Case]:
    """ONNX's backend tests in alphabetical order.

    Args:
        include: Patterns of names, as of files ("test_conv*"); all if left out.
        exclude: Patterns of names that are left out.
        where: Says of a name whether it is wanted.
        kind: "node", "simple", "pytorch-converted", "pytorch-operator" or "real".
    """

    def wanted(name: str) -> bool:
        if include and not any(fnmatch.fnmatch(name, p) for p in include):
            return False
        if any(fnmatch.fnmatch(name, p) for p in exclude):
            return False
        return where is None or where(name)

    for case in _loaded(kind):
        if not wanted(case.name):
            continue
        source = case.model.SerializeToString()
        model = read(source)
        names = [v.name for v in model.graph.needed_inputs]
        outputs = [v.name for v in model.graph.outputs]
        data = []
        for given, expected in case.data:
            inputs = {n: v for n, v in zip(names, given, strict=False) if v is not None}
            data.append((inputs, dict(zip(outputs, expected, strict=False))))
        yield Case(case.name, kind, model, data, case.rtol, case.atol, source)
