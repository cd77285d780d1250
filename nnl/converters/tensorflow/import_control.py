# SPDX-License-Identifier: Apache-2.0
"""Importers of control flow, of arrays of tensors, and of variables."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from nnl.converters.onnx.importing.control import stacked
from nnl.converters.onnx.importing.shape import joined, part
from nnl.converters.onnx.values.values import ints, reshape, scalar, shape_of
from nnl.converters.tensorflow.interpreter import (
    DEAD,
    HANDLERS,
    Handler,
    Unsupported,
    tf_import,
)
from nnl.converters.tensorflow.messages import TensorFlowError, dtype_of_code, sizes_of

MAX_LENGTH = 2**16  # of an array of tensors


# ---- version 1 ----


@tf_import("Switch", "RefSwitch")
def switch(ctx: Any, node: Any, x: Any, condition: Any) -> Any:
    """The value as one of two outputs, nothing as the other."""
    chosen = ctx.decided(condition, "the condition")
    return [DEAD, x] if chosen else [x, DEAD]


@tf_import("Merge", "RefMerge")
def merge(ctx: Any, node: Any, *xs: Any) -> Any:
    """The value that there is."""
    at = next(i for i, x in enumerate(xs) if x is not DEAD)
    return [xs[at], np.int32(at)]


# ---- version 2 ----


def function_of(node: Any, name: str) -> str:
    found = node.attr(name)
    if found is None or not hasattr(found, "name"):
        raise TensorFlowError(f"has no function {name!r}")
    return str(found.name)


@tf_import("PartitionedCall", "StatefulPartitionedCall")
def call(ctx: Any, node: Any, *xs: Any) -> Any:
    """The results of a function."""
    return ctx.call(function_of(node, "f"), xs)


@tf_import("If", "StatelessIf")
def if_(ctx: Any, node: Any, condition: Any, *xs: Any) -> Any:
    """The results of one of two functions."""
    chosen = ctx.decided(condition, "the condition")
    return ctx.call(function_of(node, "then_branch" if chosen else "else_branch"), xs)


@tf_import("Case", "StatelessCase")
def case(ctx: Any, node: Any, index: Any, *xs: Any) -> Any:
    """The results of one of several functions; of the last one for an index outside."""
    branches = node.attr("branches", [])
    at = int(scalar(index, what="the index"))
    if not branches:
        raise TensorFlowError("has no functions")
    return ctx.call(branches[at if 0 <= at < len(branches) else -1].name, xs)


# ---- arrays of tensors: tuples, which the flow of version 1 carries, or one array ----


class Elements:
    """The parts of an array along its first axis, taken apart when somebody asks for one."""

    def __init__(self, whole: Any) -> None:
        sizes = shape_of(whole)
        if not sizes or sizes[0] > MAX_LENGTH:
            raise TensorFlowError(f"takes {sizes} apart")
        self.whole = whole

    def __len__(self) -> int:
        return shape_of(self.whole)[0]

    @cached_property
    def parts(self) -> tuple[Any, ...]:
        """All of them."""
        return _parts(self.whole)


def _tuple(items: Any) -> tuple[Any, ...]:
    items = items.parts if isinstance(items, Elements) else items
    if not isinstance(items, tuple):
        raise TensorFlowError("is given no array of tensors")
    return items


def _length(value: Any) -> int:
    n = int(scalar(value, what="the length"))
    if not 0 <= n <= MAX_LENGTH:
        raise TensorFlowError(f"wants an array of {n} tensors")
    return n


def _at(items: Any, index: Any, most: int) -> int:
    i = int(scalar(index, what="the index"))
    if not 0 <= i < most:
        raise TensorFlowError(f"has no element {i}")
    return i


def _written(items: Any, index: Any, value: Any) -> tuple[Any, ...]:
    i, items = _at(items, index, MAX_LENGTH), _tuple(items)
    whole = (*items, *[None] * (i + 1 - len(items)))
    return (*whole[:i], value, *whole[i + 1 :])


def _values(node: Any, items: Any) -> list[Any]:
    """All elements; what nothing was written to is zeros like the others."""
    items = _tuple(items)
    some = next((v for v in items if v is not None), None)
    if some is None:
        shape = sizes_of(node.attr("element_shape")) if node.attr("element_shape") else None
        if items and (shape is None or min(shape, default=0) < 0):
            raise TensorFlowError("reads an array of tensors before something was written")
        some = np.zeros(
            shape or (), dtype_of_code(node.attr("element_dtype", node.attr("dtype", 1)))
        )
    zeros = np.zeros(shape_of(some), np.float32)
    return [zeros if v is None else v for v in items]


def _parts(x: Any) -> tuple[Any, ...]:
    sizes = shape_of(x)
    return tuple(reshape(part(x, 0, i, i + 1), sizes[1:]) for i in range(sizes[0]))


@tf_import("TensorArrayScatterV3")
def array_scatter(ctx: Any, node: Any, handle: Any, index: Any, x: Any, items: Any) -> Any:
    """The array with parts of x as elements."""
    for i, value in zip(ints(index, "the indices"), Elements(x).parts, strict=True):
        items = _written(items, np.array(i), value)
    return [items]


@tf_import("TensorArrayGatherV3")
def array_gather(ctx: Any, node: Any, handle: Any, index: Any, items: Any) -> Any:
    """Elements along a new first axis."""
    values = _values(node, items)
    return stacked([values[_at(items, np.array(i), len(values))] for i in ints(index)], 0)


@tf_import("TensorArrayConcatV3")
def array_concat(ctx: Any, node: Any, handle: Any, items: Any) -> Any:
    """Elements behind each other."""
    values = _values(node, items)
    return [joined(values, 0), np.array([shape_of(v)[0] for v in values], np.int64)]


# ---- variables: a text names one, `state` has its value ----


@tf_import("VarHandleOp", "VariableV2", "Variable")
def variable(ctx: Any, node: Any) -> Any:
    """The name of a variable; of version 1, where it is read, its value."""
    name = node.attr("shared_name", "") or node.name
    if node.op == "VarHandleOp" or name not in ctx.state:
        return np.array(name, object)
    return ctx.state[name]


def _name(handle: Any) -> Any:
    """What a text in an array says; None if it is none."""
    is_text = isinstance(handle, np.ndarray) and handle.dtype.kind == "O" and handle.size == 1
    return handle.item() if is_text else None


@tf_import("ReadVariableOp")
def read_variable(ctx: Any, node: Any, handle: Any) -> Any:
    """The value of a variable."""
    name = _name(handle)
    if name not in ctx.state:
        raise Unsupported(f"reads the variable {name!r}, whose value is not in the files")
    return ctx.read(name)


@tf_import("AssignVariableOp", "Assign")
def assign(ctx: Any, node: Any, handle: Any, value: Any) -> Any:
    """Give a variable a value."""
    name = _name(handle)
    if name is not None:
        ctx.assign(name, value)
    return [value]


@tf_import("AssignAddVariableOp", "AssignSubVariableOp")
def assign_sum(ctx: Any, node: Any, handle: Any, value: Any) -> Any:
    """Add to a variable, or subtract from it."""
    name = _name(handle)
    change = HANDLERS["Sub" if "Sub" in node.op else "AddV2"]
    ctx.assign(name, change(ctx, node, read_variable(ctx, node, handle), value))
    return []


@tf_import("RestoreV2", "Restore")
def restore(ctx: Any, node: Any, prefix: Any, names: Any, slices: Any = None) -> Any:
    """Tensors of a checkpoint."""
    if ctx.files is None:
        raise Unsupported("reads a checkpoint, and there is none")
    keys = [n.decode() if isinstance(n, bytes) else str(n) for n in np.reshape(names, -1)]
    return [ctx.files(key) for key in keys]


# ---- operators that are one expression ----

_EXPRESSIONS: dict[str, Handler] = {
    "Enter RefEnter NextIteration RefNextIteration LoopCond": lambda ctx, node, x: [x],
    "Exit RefExit": lambda ctx, node: list(ctx.leave(ctx.scope, node)),
    "TensorListReserve": lambda ctx, node, shape, length: [(None,) * _length(length)],
    "EmptyTensorList": lambda ctx, node, shape, most: [()],
    "TensorListFromTensor": lambda ctx, node, x, shape: [Elements(x)],
    "TensorListGetItem": lambda ctx, node, items, index, shape: [
        _values(node, items)[_at(items, index, len(items))]
    ],
    "TensorListSetItem": lambda ctx, node, items, index, value: [_written(items, index, value)],
    "TensorListPushBack": lambda ctx, node, items, value: [(*_tuple(items), value)],
    "TensorListLength": lambda ctx, node, items: np.array(len(items), np.int32),
    "TensorListStack": lambda ctx, node, items, shape: (
        items.whole if isinstance(items, Elements) else stacked(_values(node, items), 0)
    ),
    "TensorArrayV3": lambda ctx, node, length: [np.array(0, np.int32), (None,) * _length(length)],
    "TensorArrayReadV3": lambda ctx, node, handle, index, items: [
        _values(node, items)[_at(items, index, len(items))]
    ],
    "TensorArrayWriteV3": lambda ctx, node, handle, index, value, items: [
        _written(items, index, value)
    ],
    "TensorArraySizeV3": lambda ctx, node, handle, items: np.array(len(items), np.int32),
}

for _names, _expression in _EXPRESSIONS.items():
    tf_import(*_names.split())(_expression)
