# SPDX-License-Identifier: Apache-2.0
"""Arithmetic operators of Variable and NdArray, in terms of functions looked up by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nnl.core.array import NdArray
from nnl.core.array_views import view
from nnl.core.context import STATE, using
from nnl.core.dispatch import apply
from nnl.core.graph import Node, Value, capture
from nnl.core.op import OPS
from nnl.core.spec import ShapeError
from nnl.core.variable import Variable

_ARRAYS = (Variable, NdArray)
_SCALARS = (int, float, np.number, np.bool_)
_WRAP = "wrap the array with nnl.NdArray.from_numpy_array or nnl.Variable.from_numpy_array"


def _binary(symbol: str, array_op: str, scalar_op: Callable[[Any, float], Any]) -> Any:
    def method(self: Any, value: Any) -> Any:
        if isinstance(value, _ARRAYS):
            return OPS[array_op](self, value)
        if isinstance(value, _SCALARS):
            return scalar_op(self, value)  # type: ignore[arg-type]
        if isinstance(value, np.ndarray):
            raise TypeError(f"{type(self).__name__} {symbol} numpy array: {_WRAP}")
        return NotImplemented

    return method


def _scalar(op: str, convert: Callable[[float], float] = float) -> Callable[[Any, float], Any]:
    return lambda x, val: OPS[op](x, convert(val))


def _reflected(symbol: str, op: str) -> Any:
    def method(self: Any, value: Any) -> Any:
        if isinstance(value, _SCALARS) and op:
            return OPS[op](self, float(value))
        if isinstance(value, np.ndarray):
            raise TypeError(f"numpy array {symbol} {type(self).__name__}: {_WRAP}")
        return NotImplemented

    return method


def _in_place(compute: Any, same_memory_for_arrays: bool) -> Any:
    def method(self: NdArray, value: Any) -> NdArray:
        result: NdArray = compute(self, value)
        if result is NotImplemented or (isinstance(value, _ARRAYS) and not same_memory_for_arrays):
            return result
        if result.shape != self.shape:
            raise ShapeError(f"in-place operator: {self.spec} cannot hold the result {result.spec}")
        if STATE.trace is not None:
            STATE.trace.assign(self, result)
            return self
        if "host" in self.bufs and result.spec is self.spec:
            np.copyto(self.touch("host"), result.read("host"))
        else:
            self.set_spec(result.spec)
            self.write(*next(iter(result.bufs.items())))
        return self

    return method


def matmul(a: Any, b: Any) -> Any:
    """numpy's matmul: 1-d operands become a row or a column, leading axes broadcast.

    Raises:
        ShapeError: An operand is a scalar, or the inner sizes differ.
    """
    if isinstance(b, np.ndarray):
        raise TypeError(f"{type(a).__name__} @ numpy array: {_WRAP}")
    if not isinstance(b, _ARRAYS):
        return NotImplemented
    if isinstance(a, NdArray) != isinstance(b, NdArray):  # computed at once, like a + b
        a, b = (x if isinstance(x, NdArray) else x.data for x in (a, b))
    sa, sb = a.shape, b.shape
    if not sa or not sb:
        raise ShapeError(f"matmul: got shapes {sa} and {sb}, wanted at least one axis each")
    a2 = OPS["reshape"](a, shape=(1, *sa)) if len(sa) == 1 else a
    b2 = OPS["reshape"](b, shape=(*sb, 1)) if len(sb) == 1 else b
    if a2.shape[-1] != b2.shape[-2]:
        raise ShapeError(f"matmul: got shapes {sa} and {sb}, their inner sizes differ")
    if len(a2.shape) == len(b2.shape) == 2:
        y = OPS["affine"](a2, b2)
    else:
        n = max(len(a2.shape), len(b2.shape))
        a2, b2 = (_pad_rank(x, n) for x in (a2, b2))
        y = OPS["batch_matmul"](a2, b2)
    shape = y.shape
    if len(sb) == 1:
        shape = shape[:-1]
    if len(sa) == 1:
        shape = shape[: len(shape) - 1 - (len(sb) > 1)] + shape[len(shape) - (len(sb) > 1) :]
    return y if shape == y.shape else OPS["reshape"](y, shape=shape)


def _pad_rank(x: Any, n: int) -> Any:
    lead = n - len(x.shape)
    return OPS["reshape"](x, shape=(1,) * lead + x.shape) if lead else x


_add = _binary("+", "add2", _scalar("add_scalar"))
_sub = _binary("-", "sub2", _scalar("add_scalar", lambda v: -float(v)))
_mul = _binary("*", "mul2", _scalar("mul_scalar"))
_div = _binary("/", "div2", _scalar("mul_scalar", lambda v: 1.0 / float(v)))
_pow = _binary("**", "pow2", _scalar("pow_scalar"))


def _iterate(self: Any) -> Any:
    if not self.shape:
        raise TypeError("iteration over a scalar Variable or NdArray")
    return (self[i] for i in range(self.shape[0]))


def _reshape(self: Variable, shape: Sequence[int], unlink: bool = False) -> Variable:
    """The same memory under another shape.

    Args:
        shape: Sizes; one may be -1.
        unlink: Return a leaf, cut off from the graph, instead of a function's output.
    Raises:
        ShapeError: The sizes do not multiply to this variable's.
    """
    if not unlink:
        y: Variable = OPS["reshape"](self, shape=shape)
        return y
    nd = view(self.data, shape)
    edge = Value.leaf(nd, self.need_grad)
    if self.need_grad:
        edge.own_grad = view(self.grad, shape)
    return Variable.of_edge(edge, nd)


def _no_grad(self: Variable) -> Variable:
    """A copy of the static graph below in which nothing needs a gradient; its leaves share the
    memory of those here."""
    copies: dict[tuple[Node, int], Variable] = {}
    leaves: dict[int, Variable] = {}

    def copy(v: Value | None) -> Variable | None:
        if v is None:
            return None
        if v.node is not None:
            return copies[v.node, v.index]
        if id(v) not in leaves:
            leaves[id(v)] = Variable.on(v).unlinked(need_grad=False)
        return leaves[id(v)]

    for node in capture([self.edge]):
        with using(auto_forward=False, no_grad=True, target=node.target):
            ys = apply(node.op, node.attrs, tuple([copy(v) for v in node.inputs]))
        for i, y in enumerate(ys if isinstance(ys, tuple) else (ys,)):
            copies[node, i] = y
    result = copy(self.edge)
    assert result is not None
    return result


Variable.reshape = _reshape  # type: ignore[attr-defined]
Variable.no_grad = _no_grad  # type: ignore[attr-defined]

for _cls in _ARRAYS:
    for _name, _method in {
        "__add__": _add,
        "__radd__": _reflected("+", "add_scalar"),
        "__sub__": _sub,
        "__rsub__": _reflected("-", "r_sub_scalar"),
        "__mul__": _mul,
        "__rmul__": _reflected("*", "mul_scalar"),
        "__truediv__": _div,
        "__rtruediv__": _reflected("/", "r_div_scalar"),
        "__pow__": _pow,
        "__rpow__": _reflected("**", "r_pow_scalar"),
        "__matmul__": matmul,
        "__rmatmul__": _reflected("@", ""),
        "__neg__": lambda self: OPS["mul_scalar"](self, -1.0),
        "__pos__": lambda self: self,
        "__iter__": _iterate,
        # numpy would otherwise take an ndarray operand apart element by element
        "__array_ufunc__": None,
    }.items():
        setattr(_cls, _name, _method)

for _name, _method in {
    "__iadd__": _in_place(_add, True),
    "__isub__": _in_place(_sub, True),
    "__imul__": _in_place(_mul, False),
    "__itruediv__": _in_place(_div, False),
    "__ipow__": _pow,
}.items():
    setattr(NdArray, _name, _method)
