# SPDX-License-Identifier: Apache-2.0
"""Random numbers: RandomStreams and MRG_RandomStreams."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import nnl.functions as F
from nnl.converters.onnx.values.values import is_var, reshape, tagged, var
from nnl.dialects.theano import elementwise as E
from nnl.dialects.theano import reduction as R
from nnl.dialects.theano.elements import argsort
from nnl.dialects.theano.elementwise import given
from nnl.dialects.theano.shaping import integers
from nnl.dialects.theano.variable import (
    as_dtype,
    as_tensor_variable,
    joint,
    made,
    sizes_of,
    value_now,
)


class RandomStreams:
    """Random variables: each call of a function draws new ones.

    Args:
        seed: Two streams of one seed draw the same. Nothing but the seed and the order of calls of
            its methods decides what is drawn.
    """

    def __init__(self, seed: Any = None) -> None:
        self.seed(seed)

    def seed(self, seed: Any = None) -> None:
        """Start again; variables that were made before go on as they are."""
        if seed is not None:
            seed = int(np.ravel(np.asarray(seed))[0])
        self._draws = np.random.default_rng(seed)

    def _next(self) -> int:
        return int(self._draws.integers(1, 2**31 - 1))

    def _draw(
        self, type: str, size: Any, ndim: int | None, inputs: list[Any], dtype: Any,
        f: Callable[..., Any],
    ) -> Any:  # fmt: skip
        values, seed = [given(x) for x in inputs], self._next()
        if size is None or (isinstance(size, (tuple, list)) and not size):
            shape: list[Any] = []
            sizes: Any = joint(*values) if values else ()
        else:
            shape = [integers(size)]
            count = sizes_of(shape[0])[0] if ndim is None else ndim
            if count is None:
                raise ValueError(f"{type}: how many axes size has is not known: give ndim")
            sizes = (None,) * count

        def compute(*given: Any) -> Any:
            given, of = given[: len(values)], given[len(values) :]
            wanted = (
                tuple([int(n) for n in value_now(of[0], "size").reshape(-1)])
                if of
                else np.broadcast_shapes(*[v.shape for v in given])
            )
            return f(seed, wanted, *given)

        return made(type, compute, [*values, *shape], sizes, as_dtype(dtype), constant=False)

    def uniform(
        self, size: Any = (), low: Any = 0.0, high: Any = 1.0, ndim: int | None = None,
        dtype: Any = None, **more: Any,
    ) -> Any:  # fmt: skip
        """Between low and high, each place as likely."""

        def draw(seed: int, shape: Any, low: Any, high: Any) -> Any:
            y = F.rand(shape=shape, seed=seed)
            return _add(_mul(y, _less(high, low)), low)

        return self._draw("uniform", size, ndim, [low, high], dtype, draw)

    def normal(
        self, size: Any = (), avg: Any = 0.0, std: Any = 1.0, ndim: int | None = None,
        dtype: Any = None, **more: Any,
    ) -> Any:  # fmt: skip
        """Of the normal distribution of this mean and standard deviation."""

        def draw(seed: int, shape: Any, avg: Any, std: Any) -> Any:
            return _add(_mul(F.randn(shape=shape, seed=seed), std), avg)

        return self._draw("normal", size, ndim, [avg, std], dtype, draw)

    def binomial(
        self, size: Any = (), n: int = 1, p: Any = 0.5, ndim: int | None = None,
        dtype: Any = "int64", **more: Any,
    ) -> Any:  # fmt: skip
        """How many of n trials succeed, of which each does with the probability p."""

        def draw(seed: int, shape: Any, p: Any) -> Any:
            y = F.rand(shape=(int(n), *shape), seed=seed)
            y = F.less(y, F.broadcast(_ranked(p, len(shape) + 1), y.shape))
            return tagged(F.sum(y, axis=0), np.int64)

        return self._draw("binomial", size, ndim, [p], dtype, draw)

    def random_integers(
        self, size: Any = (), low: Any = 0, high: Any = 1, ndim: int | None = None,
        dtype: Any = "int64", **more: Any,
    ) -> Any:  # fmt: skip
        """Whole numbers from low to high, both ends included."""
        low, high = int(low), int(high)

        def draw(seed: int, shape: Any) -> Any:
            y = F.floor(F.rand(shape=shape, seed=seed) * float(high + 1 - low))
            return tagged(F.minimum_scalar(y, float(high - low)) + float(low), np.int64)

        return self._draw("random_integers", size or (), ndim, [], dtype, draw)

    def multinomial(
        self, size: Any = None, n: int = 1, pvals: Any = None, ndim: int | None = None,
        dtype: Any = "int64", **more: Any,
    ) -> Any:  # fmt: skip
        """How often each column is drawn in n draws of each row of pvals."""
        p = as_tensor_variable(pvals)

        def draw(seed: int, _: Any, p: Any) -> Any:
            p = var(p)
            flat = F.reshape(p, (-1, p.shape[-1]))
            upper = F.cumsum(flat, axis=1)
            r = F.rand(shape=(flat.shape[0], 1, int(n)), seed=seed)
            total = F.reshape(upper[:, -1:], (-1, 1, 1))
            r = r * F.broadcast(total, r.shape)
            shape = (*flat.shape, int(n))
            below = F.less(
                F.broadcast(r, shape), F.broadcast(F.reshape(upper, (*flat.shape, 1)), shape)
            )
            up_to = F.sum(below, axis=2)  # draws that fall in this column or one before
            y = F.concatenate(up_to[:, :1], up_to[:, 1:] - up_to[:, :-1], axis=1)
            return tagged(F.reshape(y, p.shape), np.int64)

        return self._draw("multinomial", None, None, [p], dtype, draw)

    def choice(
        self, size: Any = (), a: Any = 2, replace: bool = True, p: Any = None,
        ndim: int | None = None, dtype: Any = "int64", **more: Any,
    ) -> Any:  # fmt: skip
        """Numbers below a, or elements of a vector; each as likely, or with probabilities p."""
        if not replace:
            raise NotImplementedError("choice: replace=False; permutation gives a part of it")
        values = as_tensor_variable(a)
        n = values if values.ndim == 0 else values.shape[0]
        u = self.uniform(size, ndim=ndim)
        if p is None:
            at = E.minimum(E.cast(E.floor(u * n), "int64"), E.sub(n, 1))
        else:
            upper = R.cumsum(given(p), 0)
            flat = u.flatten().dimshuffle(0, "x")
            at = R.sum(E.ge(flat, upper.dimshuffle("x", 0)), axis=1)
            at = E.minimum(at, E.sub(n, 1)).reshape(u.shape, ndim=u.ndim)
        return E.cast(at, dtype) if values.ndim == 0 else values[at]

    def permutation(
        self, size: Any = None, n: Any = 1, ndim: int | None = None, dtype: Any = "int64",
        **more: Any,
    ) -> Any:  # fmt: skip
        """The numbers below n in any order; several rows of these."""
        rows = [] if not size else [size] if not isinstance(size, (tuple, list)) else list(size)
        return E.cast(argsort(self.uniform((*rows, n)), axis=-1), dtype)

    def shuffle_row_elements(self, input: Any) -> Any:
        """Each row of a matrix in another order, or a vector."""
        x = as_tensor_variable(input)
        return (
            x[self.permutation(n=x.shape[0])]
            if x.ndim == 1
            else _rows(x, self.permutation((x.shape[0],), x.shape[1]))
        )

    def updates(self) -> list[Any]:
        """None: what a stream remembers belongs to the functions that draw of it."""
        return []

    state_updates: list[Any] = []


def _rows(x: Any, order: Any) -> Any:
    from nnl.dialects.theano.elements import arange

    return x[arange(x.shape[0]).dimshuffle(0, "x"), order]


def _ranked(x: Any, rank: int) -> Any:
    x = var(x)
    return reshape(x, (1,) * (rank - len(x.shape)) + tuple(x.shape))


def _mul(y: Any, x: Any) -> Any:
    if not is_var(x) and np.ndim(x) == 0:
        return F.mul_scalar(y, float(x))
    return y * F.broadcast(_ranked(x, len(y.shape)), y.shape)


def _add(y: Any, x: Any) -> Any:
    if not is_var(x) and np.ndim(x) == 0:
        return F.add_scalar(y, float(x))
    return y + F.broadcast(_ranked(x, len(y.shape)), y.shape)


def _less(a: Any, b: Any) -> Any:
    if not is_var(a) and not is_var(b):
        return np.asarray(a) - np.asarray(b)
    rank = max(len(np.shape(a)) if not is_var(a) else len(a.shape), len(b.shape))
    return _ranked(a, rank) - _ranked(b, rank)


MRG_RandomStreams = RandomStreams
