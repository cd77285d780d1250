# SPDX-License-Identifier: Apache-2.0
"""Functions of every element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import nnl.functions as F
import nnl.workspace as ws
from nnl.converters.onnx.importing.arithmetic import expm1, log1p
from nnl.converters.onnx.values.values import dtype_of, is_var, same_rank, tagged, var
from nnl.dialects.theano.variable import (
    array_of,
    as_dtype,
    as_tensor_variable,
    config,
    fraction,
    handled,
    joint,
    made,
    promoted,
    sizes_of,
)
from nnl.dialects.theano.variable import cast as _cast


def given(x: Any) -> Any:
    """A tensor as it is, a stack of those in a list, anything else as an array."""
    if isinstance(x, (list, tuple)):
        x = as_tensor_variable(x)
    return x if isinstance(x, ws.Tensor) else array_of(x)


def _flat(f: Callable[..., Any]) -> Callable[..., Any]:
    """A function of steps, whose gradient is zero: nnl's own let gradients through."""
    return lambda x: f(F.unlink(x))


def _steps(x: Any) -> Any:
    return F.sign(x, 0.0)


def _to_zero(x: Any) -> Any:
    return F.sign(x, 0.0) * F.floor(F.abs(x))


FRACTIONS: dict[str, Callable[..., Any]] = {
    "exp": F.exp,
    "exp2": lambda x: F.exp(x * np.log(2.0)),
    "expm1": expm1,
    "log": F.log,
    "log2": lambda x: F.log(x) * (1 / np.log(2.0)),
    "log10": lambda x: F.log(x) * (1 / np.log(10.0)),
    "log1p": log1p,
    "sqrt": lambda x: F.pow_scalar(x, 0.5),
    "inv": lambda x: F.r_div_scalar(x, 1.0),
    "sin": F.sin,
    "cos": F.cos,
    "tan": F.tan,
    "arcsin": F.asin,
    "arccos": F.acos,
    "arctan": F.atan,
    "sinh": F.sinh,
    "cosh": F.cosh,
    "tanh": F.tanh,
    "arcsinh": F.asinh,
    "arccosh": F.acosh,
    "arctanh": F.atanh,
    "erf": F.erf,
    "erfc": lambda x: 1.0 - F.erf(x),
    "deg2rad": lambda x: x * (np.pi / 180),
    "rad2deg": lambda x: x * (180 / np.pi),
    "sigmoid": F.sigmoid,
    "hard_sigmoid": lambda x: F.maximum_scalar(F.minimum_scalar(x * 0.2 + 0.5, 1.0), 0.0),
    "softplus": F.softplus,
    "softsign": F.softsign,
}

NUMBERS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "neg": (np.negative, lambda x: -x),
    "abs_": (np.abs, F.abs),
    "sgn": (np.sign, _flat(_steps)),
    "sqr": (np.square, lambda x: x * x),
    "ceil": (np.ceil, _flat(F.ceil)),
    "floor": (np.floor, _flat(F.floor)),
    "round_half_to_even": (np.rint, _flat(lambda x: handled("Round", x))),
    "round_half_away_from_zero": (
        lambda x: np.sign(x) * np.floor(np.abs(x) + 0.5),
        _flat(lambda x: _steps(x) * F.floor(F.abs(x) + 0.5)),
    ),
    "trunc": (np.trunc, _flat(_to_zero)),
}


def of_numbers(type: str, x: Any, dtype: Any, on_arrays: Any, on_variables: Any) -> Any:
    """A function of every element of x, by the one for what x is."""
    x = given(x)

    def compute(x: Any) -> Any:
        return on_variables(x) if is_var(x) else on_arrays(x)

    return made(type, compute, [x], sizes_of(x), dtype or x.dtype)


def of_fractions(type: str, f: Callable[..., Any], x: Any, sizes: Any = None) -> Any:
    """A function of a Variable that has fractions."""
    x = given(x)
    dtype = fraction(x)
    sizes = sizes_of(x) if sizes is None else sizes
    return made(type, lambda x: f(var(_cast(x, dtype))), [x], sizes, dtype)


def _unary(name: str) -> Callable[..., Any]:
    def function(x: Any) -> Any:
        if name in NUMBERS:
            return of_numbers(name, x, None, *NUMBERS[name])
        return of_fractions(name, FRACTIONS[name], x)

    function.__name__, function.__doc__ = name, f"{name} of every element."
    return function


globals().update({name: _unary(name) for name in (*FRACTIONS, *NUMBERS)})

neg, abs_, sgn, sqr, floor, sigmoid = map(_unary, ("neg", "abs_", "sgn", "sqr", "floor", "sigmoid"))

exp, log, sqrt, trunc = map(_unary, ("exp", "log", "sqrt", "trunc"))


def round(x: Any, mode: str = "half_to_even") -> Any:
    """The nearest whole numbers; of two as near the even one, or the one farther from zero."""
    return _unary(f"round_{mode}")(x)


def iround(x: Any, mode: str = "half_away_from_zero") -> Any:
    """The same, as integers."""
    return cast(round(x, mode), "int64")


def isnan(x: Any) -> Any:
    """Whether each element is no number."""
    return of_numbers("isnan", x, bool, np.isnan, F.isnan)


def isinf(x: Any) -> Any:
    """Whether each element is infinite."""
    return of_numbers("isinf", x, bool, np.isinf, F.isinf)


def invert(x: Any) -> Any:
    """Negation of truth values; of integers -1 - x."""
    x = given(x)
    if np.dtype(x.dtype).kind == "b":
        return of_numbers("invert", x, bool, np.logical_not, F.logical_not)
    return -1 - x


def cast(x: Any, dtype: Any) -> Any:
    """The elements as another type; fractions are cut off."""
    x = given(x)
    dtype = as_dtype(dtype)
    if isinstance(x, ws.Tensor) and np.dtype(x.dtype) == dtype:
        return x
    return made("cast", lambda x: _cast(x, dtype), [x], sizes_of(x), dtype)


def broadcast(type: str, compute: Callable[..., Any], *inputs: Any, dtype: Any = None) -> Any:
    """A function of values of one type that are broadcast to one shape."""
    values = [given(x) for x in inputs]
    common = promoted(*values)
    if dtype == "fraction":
        common = dtype = common if common.kind == "f" else np.dtype(config.floatX)

    def run(*values: Any) -> Any:
        return compute(*[_cast(v, common) for v in values])

    return made(type, run, values, joint(*values), dtype or common)


def _named(type: str, name: str, dtype: Any = None) -> Callable[..., Any]:
    def function(a: Any, b: Any, *more: Any) -> Any:
        y = broadcast(type, lambda a, b: handled(name, a, b, fmod=0), a, b, dtype=dtype)
        return function(y, *more) if more else y

    function.__name__ = type
    function.__doc__ = f"{name} of every pair of elements."
    return function


add, sub, mul = _named("add", "Add"), _named("sub", "Sub"), _named("mul", "Mul")

true_div = _named("true_div", "Div", "fraction")

maximum, minimum = _named("maximum", "Max"), _named("minimum", "Min")

eq, lt, le = (
    _named("eq", "Equal", bool),
    _named("lt", "Less", bool),
    _named("le", "LessOrEqual", bool),
)

gt, ge = _named("gt", "Greater", bool), _named("ge", "GreaterOrEqual", bool)


def neq(a: Any, b: Any) -> Any:
    """Whether each pair of elements differs."""
    return broadcast("neq", lambda a, b: handled("Not", handled("Equal", a, b)), a, b, dtype=bool)


def _power(a: Any, b: Any) -> Any:
    if not is_var(a) and not is_var(b):
        return np.power(a, b) if dtype_of(a).kind == "f" else np.power(a.astype(np.int64), b)
    if not is_var(b) and b.size == 1 and b.ndim == 0 and float(b) == 2:
        return a * a
    return handled("Pow", a, b)


def pow(a: Any, b: Any) -> Any:
    """Power."""
    return broadcast("pow", _power, a, b)


def _quotient(a: Any, b: Any) -> Any:
    return handled("Div", *[tagged(var(v), np.float32) for v in (a, b)])


def int_div(a: Any, b: Any) -> Any:
    """Quotient, rounded down."""

    def compute(a: Any, b: Any) -> Any:
        if not is_var(a) and not is_var(b):
            return np.floor_divide(a, b)
        return F.floor(F.unlink(_quotient(a, b)))

    return broadcast("int_div", compute, a, b)


def mod(a: Any, b: Any) -> Any:
    """Remainder, of the sign of b."""

    def compute(a: Any, b: Any) -> Any:
        if not is_var(a) and not is_var(b):
            return np.mod(a, b)
        whole = F.floor(F.unlink(_quotient(a, b)))
        return handled("Sub", a, handled("Mul", whole, b))

    return broadcast("mod", compute, a, b)


def _logical(type: str, name: str, on_integers: Callable[..., Any]) -> Callable[..., Any]:
    def function(a: Any, b: Any) -> Any:
        def compute(a: Any, b: Any) -> Any:
            if dtype_of(a).kind == "b":
                return handled(name, a, b)
            if not is_var(a) and not is_var(b):
                return on_integers(a, b)
            raise ValueError(f"{type}: of integers that depend on inputs")

        return broadcast(type, compute, a, b)

    function.__name__, function.__doc__ = type, f"{name} of every pair of elements."
    return function


and_ = _logical("and_", "And", np.bitwise_and)

or_ = _logical("or_", "Or", np.bitwise_or)

xor = _logical("xor", "Xor", np.bitwise_xor)


def arctan2(a: Any, b: Any) -> Any:
    """The angle of the point (b, a)."""

    def compute(a: Any, b: Any) -> Any:
        return F.atan2(*same_rank(var(a), var(b)))

    return broadcast("arctan2", compute, a, b, dtype="fraction")


def switch(cond: Any, ift: Any, iff: Any) -> Any:
    """ift where cond is not zero, iff elsewhere."""
    values = [given(x) for x in (cond, ift, iff)]
    common = promoted(*values[1:])

    def compute(c: Any, a: Any, b: Any) -> Any:
        return handled("Where", _cast(c, bool), _cast(a, common), _cast(b, common))

    return made("switch", compute, values, joint(*values), common)


def where(cond: Any, ift: Any = None, iff: Any = None) -> Any:
    """ift where cond is not zero, iff elsewhere; alone, where cond is not zero."""
    if ift is None and iff is None:
        from nnl.dialects.theano.elements import nonzero

        return nonzero(cond)
    return switch(cond, ift, iff)


def clip(x: Any, min: Any, max: Any) -> Any:
    """x, cut to what lies between min and max."""
    x, low, high = given(x), given(min), given(max)

    def compute(x: Any, low: Any, high: Any) -> Any:
        return handled("Min", handled("Max", x, low), high)

    return broadcast("clip", compute, x, low, high)


def isclose(a: Any, b: Any, rtol: float = 1e-05, atol: float = 1e-08) -> Any:
    """Whether |a - b| <= atol + rtol |b|."""
    return le(abs_(sub(a, b)), add(mul(abs_(b), rtol), atol))
