# SPDX-License-Identifier: Apache-2.0
"""Which sizes depend on the batch: every shape rule is asked twice, at two batch sizes.

What a function infers from its inputs follows by itself. Attributes that hold sizes (the shape of
a reshape) were computed for one batch size by the user's program; here they are moved to another.
Following the whole graph is in export_follow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from nnl.converters.onnx.export_tensor import Shape, Tensor
from nnl.core.context import using
from nnl.core.graph import Node
from nnl.core.op import Op

_RULES: dict[str, Callable[..., dict[str, Any]]] = {}


def moves(*names: str) -> Callable[[Any], Any]:
    """Decorator: (attrs, inputs, batch, moved_batch) -> attributes that change with the batch."""

    def register(rule: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
        for name in names:
            _RULES[name] = rule
        return rule

    return register


def moved_attributes(
    op: Op, attrs: Any, inputs: Sequence[Tensor | None], batch: int, moved_batch: int
) -> Any:
    """The attributes that the user's program would have given at another batch size."""
    rule = _RULES.get(op.name)
    changed = rule(attrs, inputs, batch, moved_batch) if rule is not None else {}
    return op.attrs(**{**attrs.as_dict(), **changed}) if changed else attrs


def moving_axes(x: Tensor) -> list[int]:
    """Axes of x whose size depends on the batch."""
    pairs = zip(x.shape or (), x.moved or (), strict=True)
    return [i for i, (a, b) in enumerate(pairs) if a != b]


def row_size(x: Tensor) -> int | None:
    """How many neighbouring elements of x, in memory, belong to one sample; None if unclear."""
    axes = moving_axes(x)
    return x.inner * prod(x.sizes[axes[0] + 1 :]) if len(axes) == 1 else None


def reshaped_axis(x: Tensor, shape: Shape, batch: int) -> tuple[int, int] | None:
    """Where the batch goes when x is reshaped: its axis, and its `inner` there.

    Elements of one sample that are neighbours in memory stay so. Where that leaves a choice, as a
    batch size of 1 may, the batch gets an axis of its own, the first one possible.
    """
    row = row_size(x)
    if row is None:
        return None
    found = []
    for i, n in enumerate(shape):
        tail = prod(shape[i + 1 :])
        inner = row // tail if tail and row % tail == 0 else 0
        if inner and n % (batch * inner) == 0:
            found.append((n // (batch * inner), i, inner))
    return min(found)[1:] if found else None


@moves("reshape")
def _reshape(attrs: Any, inputs: Sequence[Tensor], batch: int, moved_batch: int) -> dict[str, Any]:
    x = inputs[0]
    found = reshaped_axis(x, attrs.shape, batch)
    if found is None:
        return {}
    shape = list(attrs.shape)
    shape[found[0]] = shape[found[0]] // batch * moved_batch
    return {"shape": tuple(shape)}


@moves("broadcast")
def _broadcast(
    attrs: Any, inputs: Sequence[Tensor], batch: int, moved_batch: int
) -> dict[str, Any]:
    x, shape = inputs[0], list(attrs.shape)
    lead = len(shape) - x.ndim
    for i in moving_axes(x):
        if shape[lead + i] == x.sizes[i]:
            shape[lead + i] = (x.moved or ())[i]
    return {"shape": tuple(shape)}


_SOURCES = ("constant", "rand", "randn", "randint", "rand_binomial", "rand_beta", "rand_gamma")


def candidates(op: Op, attrs: Any, inputs: Sequence[Tensor | None], batch: int) -> list[int | None]:
    """Axes that a function without batch may have made of the batch size, likely ones first."""
    if op.name == "broadcast":
        x = inputs[0]
        if x is None or moving_axes(x):
            return [None]
        lead = len(attrs.shape) - x.ndim
        stretched = [i for i in range(len(attrs.shape)) if i < lead or x.sizes[i - lead] == 1]
    elif op.name in _SOURCES:
        stretched = list(range(len(attrs.shape)))
    else:
        return [None]
    axes: list[int | None] = [i for i in stretched if attrs.shape[i] == batch]
    return [*axes, None] if batch > 1 else [None, *axes]


@moves("slice")
def _slice(attrs: Any, inputs: Sequence[Tensor], batch: int, moved_batch: int) -> dict[str, Any]:
    x = inputs[0]
    start, stop = list(attrs.start), list(attrs.stop)
    lead = x.ndim - len(stop)
    for i in moving_axes(x):
        if i < lead:
            continue
        size, moved = x.sizes[i], (x.moved or ())[i]
        if attrs.step[i - lead] > 0 and stop[i - lead] >= size:
            stop[i - lead] = moved
        elif attrs.step[i - lead] < 0 and start[i - lead] >= size - 1:
            start[i - lead] = moved - 1
    return {"start": tuple(start), "stop": tuple(stop)}


@moves("onnx_resize")
def _onnx_resize(
    attrs: Any, inputs: Sequence[Tensor], batch: int, moved_batch: int
) -> dict[str, Any]:
    x, sizes = inputs[0], list(attrs.sizes)
    for i in moving_axes(x) if sizes else ():
        if sizes[i] == x.sizes[i]:
            sizes[i] = (x.moved or ())[i]
    return {"sizes": tuple(sizes)}


def stretched(
    op: Op, attrs: Any, inputs: Sequence[Tensor | None]
) -> dict[int, tuple[Shape, Shape]]:
    """Inputs of a concatenation that have to follow the batch of the others: their shapes at both
    batch sizes.

    At a batch size of 1 a constant may stand beside a batch (a class token beside patches); what
    the program had to do to stretch it, F.broadcast, is nothing at that size and leaves no node.
    """
    if op.name != "concatenate":
        return {}
    moving = {
        i: (x.sizes[i], (x.moved or ())[i])
        for x in inputs
        if x is not None
        for i in moving_axes(x)
        if i != attrs.axis and 1 in (x.sizes[i], (x.moved or ())[i])
    }
    found = {}
    for k, x in enumerate(inputs):
        if x is not None and any(x.sizes[i] == (x.moved or ())[i] for i in moving):
            pairs = [moving.get(i, (n, n)) for i, n in enumerate(x.sizes)]
            found[k] = tuple(a for a, _ in pairs), tuple(b for _, b in pairs)
    return found


def inner_of(name: str, inputs: Sequence[Tensor | None], y: Tensor, batch: int) -> int:
    """`inner` of an output: as in the input that its batch axis comes from."""
    axes = moving_axes(y)
    if len(axes) != 1:
        return 1
    x = inputs[0] if inputs else None
    if name == "reshape" and x is not None:
        found = reshaped_axis(x, y.sizes, batch)
        return 1 if found is None else found[1]
    size = y.sizes[axes[0]]
    for x in inputs:
        if x is not None and x.shape is not None:
            if any(x.shape[i] == size for i in moving_axes(x)):
                return x.inner
    return max(size // batch, 1)


def inferred(node: Node, attrs: Any, shapes: Sequence[Shape | None]) -> list[Shape]:
    """Output shapes of a node for other attributes and input shapes than its own.

    Raises:
        ValueError: The function does not take these shapes.
    """
    specs = [
        None if v is None else v.current_spec.with_shape(v.current_spec.shape if s is None else s)
        for v, s in zip(node.inputs, shapes, strict=True)
    ]
    if attrs is node.attrs and all(
        v is None or v.current_spec is s for v, s in zip(node.inputs, specs, strict=True)
    ):
        return [s.shape for s in node.out_specs]
    with using(target=node.target):
        out = attrs.infer(*specs)
    outs = out if isinstance(out, tuple) else (out,)
    if len(outs) != len(node.out_specs):
        raise ValueError("the number of its outputs depends on it")
    return [s.shape for s in outs]
