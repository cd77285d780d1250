# SPDX-License-Identifier: Apache-2.0
"""Element-wise programs put together from those of single ops."""

from __future__ import annotations

from typing import Any

import numpy as np

from nnl.core.ops.elementwise import program_of
from nnl.ext.library import DTYPES, request
from tests.native.kernels import array_kernel, require_library, to_channels_last


class Program:
    """A program for the kernel-only op fused_elementwise: values are numbers, inputs come first."""

    def __init__(self, *shapes: tuple[int, ...]) -> None:
        self.shapes = [tuple(s) for s in shapes]
        self.code: list[int] = []
        self.constants: list[float] = []

    def add(self, op: str, *values: int, shape: tuple[int, ...] = (), **attrs: Any) -> int:
        """Append an op applied to values; returns the number of its result."""
        shapes = [self.shapes[v] if v < len(self.shapes) else shape for v in values]
        made = program_of(op, attrs, shapes)
        assert made is not None, op
        code, constants, _ = made
        base = len(self.shapes) + len(self.code) // 4

        def renumbered(v: int) -> int:
            if v < 0:
                return v - len(self.constants)
            return values[v] if v < len(values) else base + v - len(values)

        for i in range(0, len(code), 4):
            self.code += [code[i], *(renumbered(v) for v in code[i + 1 : i + 4])]
        self.constants += constants
        return len(self.shapes) + len(self.code) // 4 - 1

    def attributes(self, *outputs: int) -> dict[str, Any]:
        return {
            "code": tuple(self.code),
            "constants": tuple(self.constants),
            "outputs": outputs,
        }


def run(
    op: str,
    attrs: dict[str, Any],
    inputs: list[np.ndarray],
    outputs: list[tuple[tuple[int, ...], Any]],
    channels_last: tuple[set[int], set[int]] = (set(), set()),
) -> Any:
    """Outputs of a native kernel, as they lie in memory; None when it declines."""
    ins, outs = channels_last
    spec = {i: (x.shape, DTYPES[x.dtype.name], i in ins) for i, x in enumerate(inputs)}
    types = [np.dtype(t) for _, t in outputs]
    kernel = array_kernel(
        op,
        attrs,
        [spec[i] for i in range(len(inputs))],
        [
            (s, DTYPES[t.name], o in outs)
            for o, ((s, _), t) in enumerate(zip(outputs, types, strict=True))
        ],
        types,
    )
    if kernel is None:
        return None
    return kernel(*(to_channels_last(x) if i in ins else x for i, x in enumerate(inputs)))


def in_place(op: str, attrs: dict[str, Any], inputs: list[np.ndarray], target: int) -> np.ndarray:
    """The single output, written into the memory of input `target`."""
    x = inputs[target]
    specs = [(a.shape, DTYPES[a.dtype.name], False) for a in inputs]
    kernel = array_kernel(op, attrs, specs, [specs[target]], [x.dtype])
    kernel(*inputs, out=x)
    return x


def may_overwrite(op: str, attrs: dict[str, Any], ins: list[Any], outs: list[Any]) -> list[bool]:
    """Which inputs the first output may lie in."""
    specs = [[(s, DTYPES[np.dtype(t).name], False) for s, t in g] for g in (ins, outs)]
    lib = require_library()
    asked = request(lib, op, attrs, *specs)
    assert asked is not None
    kernel = lib.kernel(*asked, *specs)
    return [kernel.may_overwrite(0, i) for i in range(len(ins))]
