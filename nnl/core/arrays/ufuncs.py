# SPDX-License-Identifier: Apache-2.0
"""What numpy's element-wise functions do with a Variable or NdArray: np.exp(x) is F.exp(x)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from nnl.core.arguments.annotations import values_of
from nnl.core.settings.registry import OPS

# numpy's name -> the operator's method, and that of the right operand if the left one is none of us
_OPERATORS = {
    "add": ("__add__", "__radd__"),
    "subtract": ("__sub__", "__rsub__"),
    "multiply": ("__mul__", "__rmul__"),
    "divide": ("__truediv__", "__rtruediv__"),
    "power": ("__pow__", "__rpow__"),
    "matmul": ("__matmul__", "__rmatmul__"),
}
_COMPARISONS = {
    "less": ("__lt__", "__gt__"),
    "less_equal": ("__le__", "__ge__"),
    "greater": ("__gt__", "__lt__"),
    "greater_equal": ("__ge__", "__le__"),
    "equal": ("__eq__", "__eq__"),
    "not_equal": ("__ne__", "__ne__"),
}


def _op(name: str) -> Callable[[Any], Any]:
    return lambda x: OPS[name](x)


def _sign(x: Any) -> Any:
    return OPS["sign"](x, alpha=0.0)


_SAME = "exp log sin cos tan sinh cosh tanh floor ceil isnan isinf logical_not"
_OF_ONE: dict[str, Callable[[Any], Any]] = {
    **{name: _op(name) for name in _SAME.split()},
    **{f"arc{name}": _op(f"a{name}") for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh")},
    "absolute": _op("abs"),
    "fabs": _op("abs"),
    "sign": _sign,
    "sqrt": lambda x: x**0.5,
    "square": lambda x: x * x,
    "reciprocal": lambda x: 1.0 / x,
    "negative": lambda x: -x,
    "positive": lambda x: x,
}


class Ufuncs:
    """The methods that numpy looks for."""

    __slots__ = ()

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kw: Any) -> Any:
        """The function of ours, or the operator, that computes the same."""
        name = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"
        if kw and not any(isinstance(x, np.ndarray) for x in inputs):
            raise TypeError(
                f"numpy.{name} of a {type(self).__name__} takes no {', '.join(kw)}: it makes a "
                f"new {type(self).__name__}"
            )
        found: Any = NotImplemented
        if name in _OF_ONE:
            found = _OF_ONE[name](*inputs)
        elif name in _OPERATORS:
            first, second = _OPERATORS[name]
            a, b = inputs
            found = getattr(a, first)(b) if isinstance(a, Ufuncs) else getattr(b, second)(a)
        elif name in _COMPARISONS:
            first, second = _COMPARISONS[name]
            # numpy has made an array of a scalar of its own
            a, b = (x[()] if isinstance(x, np.ndarray) and not x.ndim else x for x in inputs)
            found = getattr(a, first)(b) if isinstance(a, Ufuncs) else getattr(b, second)(a)
            if found is NotImplemented and name in ("equal", "not_equal"):  # of an NdArray
                return name == "not_equal"
        if found is NotImplemented:
            no_numpy(f"numpy.{name}", self)
        return found

    def __array_function__(self, function: Any, types: Any, args: Any, kw: Any) -> Any:
        """Their shape, as numpy takes a Variable for one object; what computes is an error."""
        own = {np.shape: "shape", np.ndim: "ndim", np.size: "size"}.get(function)
        if own is not None and len(args) == 1 and not kw:
            return getattr(self, own)
        no_numpy(f"numpy.{function.__name__}", self)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        """One object, though it has a length: np.sum([x, y]) adds Variables as NNabla does."""
        if dtype not in (None, object):
            no_numpy("numpy.array", self)
        array = np.empty((), object)
        array.fill(self)
        return array


def no_numpy(what: str, x: Any) -> None:
    """Say what to write instead."""
    raise TypeError(
        f"{what} of a {type(x).__name__}: write {values_of(x)} for its values, or a function of "
        "nnl.functions"
    )
