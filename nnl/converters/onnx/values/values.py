# SPDX-License-Identifier: Apache-2.0
"""Values while a model runs, and the few conversions that handlers need.

A value is a numpy array (a constant, or anything known that is not floating point), an
nnl.Variable (what depends on inputs or parameters), a list (a sequence) or None (an input left
out, or an empty optional). A Variable whose ONNX type is not what its array holds, say a bool mask
that nnl keeps as float 0 and 1, carries that type in `info`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

import nnl.functions as F
from nnl.converters.onnx.file.errors import OnnxError
from nnl.core.graph.node import Value
from nnl.core.graph.variable import Variable
from nnl.core.parameters.parameter import array_of
from nnl.core.settings.context import STATE

MAX_BYTES = 2**31  # of one array that a node makes from a shape in the file; more is an attack
MAX_INTS = 2**20  # of a value that is read as sizes or axes


class _NeedsNumber(OnnxError):
    """Numbers must be known while a graph is built, and depend on its inputs.

    Attributes:
        value: The Variable that has them.
    """

    value: Any = None


class Sized(np.ndarray[Any, Any]):
    """A constant that follows from open sizes.

    Attributes:
        table: Whether it is what Range and the like make of sizes, or is computed from that: it is
            computed in the program, too. Sizes themselves are not: these become attributes.
        graph: The Variable that computes a table; None where it is evenly spaced, or something that
            needs its numbers has made it.
    """

    table: bool = False
    graph: Any = None


class Rows:
    """A sequence that a recorded loop makes.

    Attributes:
        added: Inside the loop: what the present trip adds to its end, which is all that it may do.
        rows: After the loop: all values, one behind the other along a new first axis.
    """

    def __init__(self, added: Sequence[Any] = (), rows: Any = None) -> None:
        self.added, self.rows = added, rows

    def __len__(self) -> int:
        raise OnnxError(
            "reads a sequence that a loop is making, or that has as many values as it has trips"
        )


class Counted(NamedTuple):
    """In `info` of a Variable: how many entries along an axis it has, which the run finds."""

    dtype: Any
    axis: int
    count: Any


def is_var(x: Any) -> bool:
    """Whether x is a Variable."""
    return isinstance(x, Variable)


def dtype_of(x: Any) -> np.dtype[Any]:
    """The ONNX element type of a value."""
    if isinstance(x, Variable):
        if isinstance(x.info, (Sized, Counted)):
            return x.info.dtype
        return x.info if isinstance(x.info, np.dtype) else x.spec.dtype
    return np.asarray(x).dtype


def is_float(dtype: Any) -> bool:
    """Whether this is a floating-point type, ml_dtypes' small ones included."""
    dtype = np.dtype(dtype)
    return dtype.kind == "f" or dtype.name.startswith(("bfloat", "float"))


def tagged(x: Variable, dtype: Any) -> Variable:
    """The same value with another ONNX element type."""
    dtype = np.dtype(dtype)
    if dtype_of(x) == dtype:
        return x
    y = Variable.of_edge(x.edge, x._data)
    y.info = dtype
    return y


def known(x: Any) -> bool:
    """Whether the value can be read now."""
    if isinstance(x, (list, tuple)):
        return all(known(v) for v in x)
    return not isinstance(x, Variable) or STATE.auto_forward


def array(x: Any, what: str = "a value") -> Any:
    """The value as a numpy array of its ONNX type.

    Raises:
        OnnxError: It depends on inputs that a static graph does not know yet.
    """
    if not isinstance(x, Variable):
        return np.asarray(x)
    if isinstance(x.info, Sized):
        return np.asarray(x.info)
    if not known(x):
        error = _NeedsNumber(
            f"needs the number in {what} while the graph is built, and it depends on the model's "
            "inputs: pass those inputs as numpy arrays, or call the model in nnl.auto_forward()"
        )
        error.value = x
        raise error
    return np.asarray(x.d).astype(dtype_of(x), copy=False)


def ints(x: Any, what: str = "a value") -> tuple[int, ...]:
    """The value as a flat tuple of ints.

    Raises:
        OnnxError: There are more than any shape, list of axes or lengths of a batch has.
    """
    values = array(x, what).reshape(-1)
    if values.size > MAX_INTS:
        raise OnnxError(f"{what} has {values.size} numbers, wanted at most {MAX_INTS}")
    return tuple(int(v) for v in values)


def scalar(x: Any, default: Any = None, what: str = "a value") -> Any:
    """The one number in x; `default` if x is None."""
    if x is None:
        return default
    value = array(x, what)
    if value.size != 1:
        raise OnnxError(f"{what} has the shape {value.shape}, wanted one number")
    return value.reshape(-1)[0].item()


def var(x: Any) -> Variable:
    """The value as a Variable; bools become 0 and 1, small floats float32."""
    if isinstance(x, Variable):
        return x
    if isinstance(x, Sized) and x.table and not STATE.auto_forward:
        v = var(np.asarray(x)) if x.graph is None else x.graph
        y = Variable.of_edge(v.edge, v._data)
        y.info = x  # handlers that need the numbers find them there
        return y
    a = np.asarray(x)
    dtype = a.dtype
    if dtype.kind == "O":
        raise OnnxError("strings cannot be computed with")
    if dtype.kind == "b" or (is_float(dtype) and dtype not in (np.float32, np.float64)):
        a = a.astype(np.float32)
    elif dtype.kind not in "fiu":
        raise OnnxError(f"values of type {dtype.name} cannot be computed with")
    nd = array_of(a)
    y = Variable.of_edge(Value.leaf(nd), nd)
    if a.dtype != dtype:
        y.info = dtype
    return y


def shape_of(x: Any) -> tuple[int, ...]:
    """Sizes of an array or Variable."""
    return tuple(x.shape)


def reshape(x: Any, shape: Sequence[int]) -> Any:
    """x with another shape, in its own kind."""
    shape = tuple(int(n) for n in shape)
    if shape_of(x) == shape:
        return x
    if is_var(x):
        return tagged(F.reshape(x, shape), dtype_of(x))
    return x.reshape(shape)


def transpose(x: Any, axes: Sequence[int]) -> Any:
    """x with its axes in another order, in its own kind."""
    axes = tuple(int(a) for a in axes)
    if axes == tuple(range(len(axes))):
        return x
    return tagged(F.transpose(x, axes), dtype_of(x)) if is_var(x) else np.transpose(x, axes)


def with_rank(x: Any, rank: int) -> Any:
    """x with sizes of 1 in front, so that it has this rank."""
    shape = shape_of(x)
    return x if len(shape) >= rank else reshape(x, (1,) * (rank - len(shape)) + shape)


def same_rank(*values: Any) -> list[Any]:
    """All values with the rank of the largest, as ONNX broadcasts them."""
    rank = max(len(shape_of(v)) for v in values)
    return [with_rank(v, rank) for v in values]


def broadcast(x: Any, shape: Sequence[int], keep: bool = False) -> Any:
    """x stretched to a shape, in its own kind.

    Args:
        keep: Record it even where x has that shape, as it may at some of several sizes.
    """
    shape = tuple(int(n) for n in shape)
    keep = keep and is_var(x)
    if shape_of(x) == shape and not keep:
        return x
    if not is_var(x):
        return np.broadcast_to(x, shape)
    x = with_rank(x, len(shape))
    if shape_of(x) == shape and not keep:
        return x
    return tagged(F.broadcast(x, shape), dtype_of(x))


def axis_of(axis: int, rank: int, what: str = "axis") -> int:
    """An axis counted from the front.

    Raises:
        OnnxError: There is no such axis.
    """
    if not -rank <= axis < max(rank, 1):
        raise OnnxError(f"{what} is {axis}, outside [-{rank}, {rank})")
    return axis + rank if axis < 0 else axis


def check_size(shape: Sequence[int], itemsize: int = 4) -> tuple[int, ...]:
    """The shape of an array about to be made, or an error if it is absurd."""
    shape = tuple(int(n) for n in shape)
    if any(n < 0 for n in shape) or math.prod(shape) * itemsize > MAX_BYTES:
        raise OnnxError(f"wants an array of shape {shape}, more than {MAX_BYTES} bytes or below 0")
    return shape
