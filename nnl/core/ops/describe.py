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
