# SPDX-License-Identifier: Apache-2.0
"""Arithmetic operators of Variable and NdArray, in terms of functions looked up by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from nnl.core.arguments.annotations import values_of
from nnl.core.arrays.spec import ShapeError
from nnl.core.arrays.ufuncs import Ufuncs
from nnl.core.settings.context import STATE
from nnl.core.settings.registry import OPS

if TYPE_CHECKING:
    from nnl.core.arrays.array import NdArray

_SCALARS = (int, float, np.number, np.bool_)
_WRAP = "wrap the array with nnl.NdArray.from_numpy_array or nnl.Variable.from_numpy_array"


def _binary(symbol: str, array_op: str, scalar_op: Callable[[Any, float], Any]) -> Any:
    def method(self: Any, value: Any) -> Any:
        if isinstance(value, Operators):
            return OPS[array_op](self, value)
        if isinstance(value, _SCALARS):
            return scalar_op(self, value)  # type: ignore[arg-type]
        if isinstance(value, np.ndarray):
            if value.size == 1 and value.dtype.kind in "biuf":  # a number, as for NNabla
                return scalar_op(self, value.item())
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


def _comparison(symbol: str, name: str) -> Any:
    def method(self: Any, value: Any) -> Any:
        if isinstance(value, Operators):
            instead = f"F.{name}(x, y)"
        elif isinstance(value, _SCALARS):
            instead = f"F.{name}_scalar(x, {value})"
        elif isinstance(value, np.ndarray):
            raise TypeError(f"{type(self).__name__} {symbol} numpy array: {_WRAP}")
        else:
            return NotImplemented
        raise TypeError(
            f"{type(self).__name__} {symbol} {type(value).__name__}: {instead} compares the values"
        )

    return method


def _no_number(kind: str) -> Any:
    def method(self: Any) -> Any:
        raise TypeError(f"{kind}({type(self).__name__}): write {kind}({values_of(self)})")

    return method


def _in_place(compute: Any, same_memory_for_arrays: bool) -> Any:
    def method(self: NdArray, value: Any) -> NdArray:
        result: NdArray = compute(self, value)
        if result is NotImplemented or (
            isinstance(value, Operators) and not same_memory_for_arrays
        ):
            return result
        if result.shape != self.shape:
            raise ShapeError(f"in-place operator: {self.spec} cannot hold the result {result.spec}")
        if STATE.interpreter.assign(self, result):
            return self
        result.settle()
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
    if not isinstance(b, Operators):
        return NotImplemented
    if isinstance(a, ArrayOperators) != isinstance(b, ArrayOperators):  # at once, like a + b
        a, b = (x if isinstance(x, ArrayOperators) else x.data for x in (a, b))  # type: ignore[union-attr]
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


class Operators(Ufuncs):
    """What Variable and NdArray have in common."""

    __slots__ = ()
    __add__ = _binary("+", "add2", _scalar("add_scalar"))
    __radd__ = _reflected("+", "add_scalar")
    __sub__ = _binary("-", "sub2", _scalar("add_scalar", lambda v: -float(v)))
    __rsub__ = _reflected("-", "r_sub_scalar")
    __mul__ = _binary("*", "mul2", _scalar("mul_scalar"))
    __rmul__ = _reflected("*", "mul_scalar")
    __truediv__ = _binary("/", "div2", _scalar("mul_scalar", lambda v: 1.0 / float(v)))
    __rtruediv__ = _reflected("/", "r_div_scalar")
    __pow__ = _binary("**", "pow2", _scalar("pow_scalar"))
    __rpow__ = _reflected("**", "r_pow_scalar")
    __matmul__ = matmul
    __rmatmul__ = _reflected("@", "")
    __lt__ = _comparison("<", "less")
    __le__ = _comparison("<=", "less_equal")
    __gt__ = _comparison(">", "greater")
    __ge__ = _comparison(">=", "greater_equal")
    __float__ = _no_number("float")
    __int__ = _no_number("int")

    def __len__(self) -> int:
        """Size of the first axis."""
        shape = self.shape  # type: ignore[attr-defined]
        if not shape:
            raise TypeError(f"len({type(self).__name__}): it has no axis")
        return int(shape[0])

    def __bool__(self) -> bool:
        """True: it is there, whatever it holds."""
        return True

    def __neg__(self) -> Any:
        return OPS["mul_scalar"](self, -1.0)

    def __pos__(self) -> Any:
        return self


class ArrayOperators(Operators):
    """What only an NdArray has: it is written."""

    __slots__ = ()
    __iadd__ = _in_place(Operators.__add__, True)
    __isub__ = _in_place(Operators.__sub__, True)
    __imul__ = _in_place(Operators.__mul__, False)
    __itruediv__ = _in_place(Operators.__truediv__, False)
    __ipow__ = Operators.__pow__
