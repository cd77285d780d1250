# SPDX-License-Identifier: Apache-2.0
"""Arrays made of sizes, and chosen elements."""

from __future__ import annotations

from typing import Any

import numpy as np

import nnl.functions as F
import nnl.workspace as ws
from nnl.converters.onnx.importing.indexing import scatter
from nnl.converters.onnx.values.values import broadcast as expanded
from nnl.converters.onnx.values.values import dtype_of, is_var, shape_of, tagged, var
from nnl.converters.onnx.values.values import transpose as _transpose
from nnl.dialects.theano import elementwise as E
from nnl.dialects.theano.elementwise import given
from nnl.dialects.theano.indexing import scattered, take
from nnl.dialects.theano.reduction import axes_of
from nnl.dialects.theano.reduction import sum as _sum
from nnl.dialects.theano.shaping import count_of, integers, numbers, reshape, stack
from nnl.dialects.theano.variable import (
    Apply,
    as_dtype,
    as_tensor_variable,
    cast,
    constant,
    made,
    promoted,
    sizes_of,
    value_now,
)


def arange(start: Any, stop: Any = None, step: Any = 1, dtype: Any = None) -> Any:
    """start, start + step, ... before stop."""
    start, stop = (0, start) if stop is None else (start, stop)
    values = [given(v) for v in (start, stop, step)]
    if dtype is None:
        dtype = promoted(*values)
        dtype = np.dtype(np.int64) if dtype.kind in "iub" else dtype

    def compute(*values: Any) -> Any:
        return np.arange(*[value_now(v, "a bound")[()] for v in values])

    return made("arange", compute, values, (None,), as_dtype(dtype))


def alloc(value: Any, *shape: Any) -> Any:
    """A value in each place of a shape."""
    value = given(value)
    sizes = integers(shape[0] if len(shape) == 1 and isinstance(shape[0], (list, tuple)) else shape)

    def compute(value: Any, sizes: Any) -> Any:
        return expanded(value, numbers(sizes, "the shape"))

    known_sizes = (
        [1 if d == 1 else None for d in sizes]
        if not isinstance(sizes, ws.Tensor)
        else [None] * count_of(sizes, "alloc")
    )
    return made("alloc", compute, [value, sizes], known_sizes, value.dtype)


def zeros(shape: Any, dtype: Any = None) -> Any:
    """Zeros in a shape."""
    shape = shape if isinstance(shape, (list, tuple)) else _parts(shape)
    return alloc(np.zeros((), as_dtype(dtype)), *shape)


def ones(shape: Any, dtype: Any = None) -> Any:
    """Ones in a shape."""
    shape = shape if isinstance(shape, (list, tuple)) else _parts(shape)
    return alloc(np.ones((), as_dtype(dtype)), *shape)


def _parts(shape: Any) -> list[Any]:
    if isinstance(shape, ws.Tensor) and shape.ndim:
        return [shape[i] for i in range(count_of(shape, "the shape"))]  # type: ignore[index]
    return list(shape) if isinstance(shape, np.ndarray) and shape.ndim else [shape]


def _like(value: float, type: str) -> Any:
    def function(model: Any, dtype: Any = None, opt: bool = False) -> Any:
        x = given(model)
        made_of = as_dtype(dtype or x.dtype)

        def compute(x: Any) -> Any:
            return np.full(shape_of(x), value, made_of)

        return made(type, compute, [x], sizes_of(x), made_of)

    function.__name__, function.__doc__ = type, f"{value:g} in each place of another's shape."
    return function


zeros_like, ones_like = _like(0, "zeros_like"), _like(1, "ones_like")


def fill(a: Any, b: Any) -> Any:
    """b in each place of the shape of a."""
    a, b = given(a), given(b)
    return made("fill", lambda a, b: expanded(b, shape_of(a)), [a, b], sizes_of(a), b.dtype)


def eye(n: Any, m: Any = None, k: Any = 0, dtype: Any = None) -> Any:
    """Ones on a diagonal of zeros."""
    values = [given(v) for v in (n, n if m is None else m, k)]

    def compute(*values: Any) -> Any:
        return np.eye(*[int(value_now(v, "a size")) for v in values])

    return made("eye", compute, values, (None, None), as_dtype(dtype))


def identity_like(x: Any) -> Any:
    """The unit matrix of the shape of x."""
    x = as_tensor_variable(x)
    return eye(x.shape[0], x.shape[1], dtype=x.dtype)


def _triangle(type: str, f: Any) -> Any:
    def function(x: Any, k: int = 0) -> Any:
        x = given(x)

        def compute(x: Any) -> Any:
            if not is_var(x):
                return f(x, k)
            return x * var(f(np.ones(x.shape[-2:], np.float32), k))

        return made(type, compute, [x], sizes_of(x), x.dtype)

    function.__name__, function.__doc__ = type, f"{type}: zeros on one side of a diagonal."
    return function


tril, triu = _triangle("tril", np.tril), _triangle("triu", np.triu)


def tri(n: Any, m: Any = None, k: int = 0, dtype: Any = None) -> Any:
    """Ones on and below a diagonal."""
    return tril(ones((n, n if m is None else m), dtype), k)


def _grid(sparse: bool) -> Any:
    class Grid:
        def __getitem__(self, index: Any) -> Any:
            made_of = np.ogrid[index] if sparse else np.mgrid[index]
            return [constant(a) for a in made_of]

    return Grid()


mgrid, ogrid = _grid(False), _grid(True)


def diagonal(x: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
    """The elements of a diagonal."""
    x = as_tensor_variable(x)
    if x.ndim != 2 or (axis1, axis2) != (0, 1):
        rest = [i for i in range(x.ndim) if i not in (axis1 % x.ndim, axis2 % x.ndim)]
        x = x.dimshuffle(axis1, axis2, *rest)

    def compute(x: Any) -> Any:
        rows, columns = shape_of(x)[:2]
        n = max(0, min(rows + min(offset, 0), columns - max(offset, 0)))
        at = np.arange(n)
        y = take(x, (at - min(offset, 0), at + max(offset, 0)))
        return _transpose(y, (*range(1, len(shape_of(y))), 0))

    return made("diagonal", compute, [x], (*x.sizes[2:], None), x.dtype)


def diag(v: Any, k: int = 0) -> Any:
    """The diagonal of a matrix, or a matrix with this diagonal."""
    x = as_tensor_variable(v)
    if x.ndim == 2:
        return diagonal(x, k)
    n = x.shape[0] + abs(k)
    at = arange(x.shape[0])
    return set_subtensor(zeros((n, n), x.dtype)[at - min(k, 0), at + max(k, 0)], x)


def trace(x: Any) -> Any:
    """The sum of the diagonal of a matrix."""
    return _sum(diagonal(x), axis=-1)


def nonzero(x: Any, return_matrix: bool = False) -> Any:
    """Places of the elements that are not zero: one vector an axis, or these as a matrix."""
    x = given(x)
    n = len(sizes_of(x))

    def compute(x: Any) -> Any:
        return list(np.nonzero(value_now(x, "which elements are not zero")))

    found = list(Apply("nonzero", compute, [x], [(None,)] * n, [np.int64] * n).outputs)
    return stack(found) if return_matrix else tuple(found)


def flatnonzero(x: Any) -> Any:
    """Places of the elements that are not zero, of all in one row."""
    return nonzero(as_tensor_variable(x).flatten())[0]


def nonzero_values(x: Any) -> Any:
    """The elements that are not zero."""
    return as_tensor_variable(x).flatten()[flatnonzero(x)]


def take_(x: Any, indices: Any, axis: int | None = None, mode: str = "raise") -> Any:
    """Elements at indices along an axis, or of all in one row."""
    x, at = as_tensor_variable(x), indices
    if axis is None:
        x, axis = x.flatten(), 0
    if mode != "raise":
        size = x.shape[axis]
        at = E.mod(at, size) if mode == "wrap" else E.clip(at, 0, E.sub(size, 1))
    return x[(slice(None),) * (axis % x.ndim) + (at,)]


def choose(a: Any, choices: Any) -> Any:
    """For each element of a the element in its place of the choice that it names."""
    x = as_tensor_variable(choices)
    index, n = as_tensor_variable(a), x.ndim - 1
    places = [
        constant(np.int64(0))
        + arange(x.shape[i + 1]).dimshuffle(*["x"] * i, 0, *["x"] * (n - 1 - i))
        for i in range(n)
    ]
    return x[(index, *places)]


def compress(condition: Any, x: Any, axis: int | None = None) -> Any:
    """Elements where the condition holds, along an axis."""
    return take_(x, flatnonzero(condition), axis)


def _sorting(places: bool) -> Any:
    def function(x: Any, axis: Any = -1, kind: Any = None, order: Any = None) -> Any:
        x = as_tensor_variable(x)
        if axis is None:
            x, axis = x.flatten(), 0
        at = axes_of(axis, x.ndim)[0]

        def compute(x: Any) -> Any:
            if not is_var(x):
                return np.argsort(x, at, kind="stable") if places else np.sort(x, at)
            y = F.sort(x, axis=at, only_index=places)
            return tagged(y, np.int64) if places else y

        return made(
            "argsort" if places else "sort", compute, [x], x.sizes, np.int64 if places else x.dtype
        )

    function.__name__ = "argsort" if places else "sort"
    function.__doc__ = ("Places of the elements" if places else "The elements") + " from the least."
    return function


sort, argsort = _sorting(False), _sorting(True)


def diff(x: Any, n: int = 1, axis: int = -1) -> Any:
    """Differences of neighbours along an axis, n times."""
    x = as_tensor_variable(x)
    at = (slice(None),) * (axis % x.ndim)
    for _ in range(n):
        x = x[(*at, slice(1, None))] - x[(*at, slice(None, -1))]
    return x


def bincount(x: Any, weights: Any = None, minlength: int | None = None) -> Any:
    """How often, or with what sum of weights, each number from 0 on is in x."""
    x = as_tensor_variable(x)
    counts = [] if weights is None else [given(weights)]

    def compute(x: Any, *weights: Any) -> Any:
        held = value_now(x, "what is counted")
        n = max(int(held.max(initial=-1)) + 1, minlength or 0)
        each = weights[0] if weights else np.ones(held.shape, np.int64)
        return scatter(np.zeros(n, dtype_of(each)), held[None].astype(np.int64), each, "add")

    return made("bincount", compute, [x, *counts], (None,), counts[0].dtype if counts else np.int64)


def to_one_hot(y: Any, nb_class: Any, dtype: Any = None) -> Any:
    """Rows of zeros with a one in the place that each element names."""
    y = as_tensor_variable(y)
    return E.cast(E.eq(y.dimshuffle(0, "x"), arange(nb_class).dimshuffle("x", 0)), dtype)


def fill_diagonal(a: Any, val: Any) -> Any:
    """A matrix with another diagonal."""
    x = as_tensor_variable(a)
    at = arange(E.minimum(x.shape[0], x.shape[1]))
    return set_subtensor(x[at, at], val)


def _written(x: Any, y: Any, add: bool) -> Any:
    op = getattr(x, "operator", None)
    if op is None or op.type != "subtensor":
        raise TypeError("x must be the result of a subtensor operation")
    base, template = op.inputs[0], op.template
    value = given(y)

    def compute(base: Any, value: Any, *parts: Any) -> Any:
        return scattered(base, template.filled(parts), cast(value, base_type), add)

    base_type = base.dtype
    return made(
        "inc_subtensor" if add else "set_subtensor",
        compute,
        [base, value, *op.inputs[1:]],
        sizes_of(base),
        base_type,
    )


def set_subtensor(
    x: Any, y: Any, inplace: bool = False, tolerate_inplace_aliasing: Any = None
) -> Any:
    """What x is a part of, with y in the place of that part."""
    return _written(x, y, False)


def inc_subtensor(
    x: Any, y: Any, inplace: bool = False, tolerate_inplace_aliasing: Any = None
) -> Any:
    """What x is a part of, with y added to that part, as often as it names an element."""
    return _written(x, y, True)


def roll(x: Any, shift: Any, axis: int | None = None) -> Any:
    """Elements moved along an axis; what leaves at the end comes in at the start."""
    x = as_tensor_variable(x)
    if axis is None:
        return reshape(roll(x.flatten(), shift, 0), x.shape, ndim=x.ndim)
    at = axes_of(axis, x.ndim)[0]
    size = x.shape[at]
    places = E.mod(E.sub(arange(size), shift), size)
    return x[(slice(None),) * at + (places,)]
