# SPDX-License-Identifier: Apache-2.0
"""theano.tensor: variables of all types, and functions of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nnl.dialects.theano import elements as _elements
from nnl.dialects.theano import elementwise as _elementwise
from nnl.dialects.theano import nnet as _nnet
from nnl.dialects.theano import reduction as _reduction
from nnl.dialects.theano import shaping as _shaping
from nnl.dialects.theano.gradient import Lop, Rop, grad, hessian, jacobian  # noqa: F401
from nnl.dialects.theano.methods import TensorVariable  # noqa: F401
from nnl.dialects.theano.variable import (
    TensorType,
    as_tensor_variable,
    constant,  # noqa: F401
)
from nnl.dialects.theano.variable import config as _config

_HELPERS = (
    "given",
    "of_numbers",
    "broadcast",
    "axes_of",
    "reduced",
    "integers",
    "numbers",
    "count_of",
)


def own(module: Any) -> dict[str, Any]:
    """The names of Theano that a module defines."""
    found = {k: v for k, v in vars(module).items() if k[0] != "_" and k not in _HELPERS}
    return {k: v for k, v in found.items() if getattr(v, "__module__", "") == module.__name__}


_LETTERS = {
    "b": "int8",
    "w": "int16",
    "i": "int32",
    "l": "int64",
    "u": "uint8",
    "f": "float32",
    "d": "float64",
    "": "floatX",
}
_RANKS = {"scalar": (), "vector": (False,), "row": (True, False), "col": (False, True)} | {
    n: (False,) * k
    for n, k in {"matrix": 2, "tensor3": 3, "tensor4": 4, "tensor5": 5, "tensor6": 6}.items()
}


def _variable(rank: str, letter: str) -> Callable[..., Any]:
    def variable(name: str | None = None, dtype: Any = None) -> Any:
        kind = dtype or (_config.floatX if letter == "" else _LETTERS[letter])
        return TensorType(kind, _RANKS[rank])(name)

    variable.__name__ = letter + rank
    variable.__doc__ = f"A {rank} of {_LETTERS[letter]}."
    return variable


def _several(one: Callable[..., Any]) -> Callable[..., Any]:
    def variables(*names: Any) -> list[Any]:
        given = names[0] if len(names) == 1 else names
        listed = [None] * given if isinstance(given, int) else given
        return [one(n) for n in listed]

    variables.__name__ = f"{one.__name__}s"
    variables.__doc__ = f"Several of {one.__name__}, by their names or their number."
    return variables


for _rank in _RANKS:
    for _letter in _LETTERS:
        _one = globals()[f"{_letter}{_rank}"] = _variable(_rank, _letter)
        _plural = "matrices" if _rank == "matrix" else f"{_rank}s"
        globals()[f"{_letter}{_plural}"] = _several(_one)

for _source in (_elementwise, _reduction, _shaping, _elements):
    globals().update(own(_source))
globals().update(
    abs=_elementwise.abs_,
    as_tensor=as_tensor_variable,
    bitwise_and=_elementwise.and_,
    bitwise_or=_elementwise.or_,
    bitwise_xor=_elementwise.xor,
    bitwise_not=_elementwise.invert,
    conj=lambda x: x,
    divide=_elementwise.true_div,
    div_proxy=_elementwise.true_div,
    extract_diag=_elements.diagonal,
    floor_div=_elementwise.int_div,
    logical_not=_elementwise.invert,
    matmul=_reduction.dot,
    power=_elementwise.pow,
    sign=_elementwise.sgn,
    square=_elementwise.sqr,
    subtract=_elementwise.sub,
    take=_elements.take_,
    true_divide=_elementwise.true_div,
    var=_reduction.var_,
)


def shape(x: Any) -> Any:
    """Sizes of the axes, as a vector."""
    return as_tensor_variable(x).shape


def tensor(dtype: Any, broadcastable: Any, name: str | None = None) -> Any:
    """A variable of any type."""
    return TensorType(dtype, broadcastable)(name)


softmax = _nnet.softmax
TensorConstant = type("TensorConstant", (), {})  # none is: constants are variables like others
