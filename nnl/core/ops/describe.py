# SPDX-License-Identifier: Apache-2.0
"""What a definition tells about its function: example calls, what they cost, the ONNX operator."""

from __future__ import annotations

from typing import Any


class Sample:
    """One example call, from which tests are derived: input arrays and attributes.

    Args:
        inputs: Arrays by position (None for an input left out). Floats are tested in float32 and
            float64; integer arrays keep their dtype.
        grad: Which inputs are differentiable here; all floating-point ones unless given.
        order: Highest order of differentiation that holds at this point.
        attrs: Attributes by name.
    """

    def __init__(
        self,
        *inputs: Any,
        grad: tuple[bool, ...] | None = None,
        order: int = 2,
        **attrs: Any,
    ) -> None:
        self.inputs, self.grad, self.order, self.attrs = inputs, grad, order, attrs


class Cost:
    """What one call costs: floating-point operations and bytes read and written."""

    __slots__ = ("flops", "bytes")

    def __init__(self, flops: int, bytes: int) -> None:
        self.flops, self.bytes = int(flops), int(bytes)


class Onnx:
    """The ONNX node that a function corresponds to: operator, first opset, names of attributes.

    For the directions, export and import, that have no handler of their own (converters/onnx).
    """

    __slots__ = ("op_type", "since", "attrs")

    def __init__(self, op_type: str, since: int = 13, **attrs: str) -> None:
        self.op_type, self.since, self.attrs = op_type, since, attrs


class Alone:
    """The communicator of one process, for samples of functions that exchange arrays."""

    size, rank = 1, 0

    def find_group(self, group: str) -> list[int]:
        return [0]

    def sum(self, arrays: Any, group: str, of: str = "") -> None:
        """One process: the arrays are the sums."""

    def gather(self, xp: Any, x: Any, group: str, rows: Any = None) -> Any:
        rows = xp.empty((1, *x.shape), x.dtype) if rows is None else rows
        rows[0] = x
        return rows

    def gather_parts(self, wholes: Any, group: str) -> None:
        """One process: its parts are all."""

    def scatter_sum(self, xp: Any, parts: Any, group: str) -> Any:
        return parts[0].copy()

    def swap(self, xp: Any, parts: Any, group: str) -> Any:
        return parts.copy()

    def permute(self, xp: Any, x: Any, pairs: Any, group: str) -> Any:
        return x.copy() if pairs else xp.zeros_like(x)
