# SPDX-License-Identifier: Apache-2.0
"""Definitions on a device: every op's own `forward`, with an array module in numpy's place."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import numpy as np

from nnl.core.arrays.spec import Spec
from nnl.core.ops.op import Op
from nnl.ext.library import Array, Call, into
from nnl.ext.numpy import definition as defined

logger = logging.getLogger("nnl")

MOST_CONSTANTS = 512  # tables that definitions make on the host and use on the device


class NotCapturable(RuntimeError):
    """A step cannot be part of a recorded graph; the text says why."""


class Products(Protocol):
    """Multiplies matrices, also while a graph is recorded."""

    def matmul(self, xp: Any, a: Array, b: Array, out: Array = None) -> Array: ...

    def einsum(self, xp: Any, equation: str, *operands: Array, **kw: Any) -> Array: ...


class ArrayModule:
    """An array module whose asarray() keeps what it has copied to the device.

    Definitions make small tables with numpy and give them to xp.asarray: always the same ones for
    the same shapes. Kept, they are copied once, and a definition copies nothing while a graph is
    recorded. Nobody may write to such an array.

    Args:
        products: What multiplies matrices, also while a graph is recorded; xp if left out.
    """

    def __init__(self, xp: Any, products: Products | None = None) -> None:
        self._xp, self._products = xp, products
        self._constants: OrderedDict[tuple[Any, ...], Any] = OrderedDict()
        self._held: list[Array] | None = None

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._xp, name)
        self.__dict__[name] = value  # found directly from now on
        return value

    @property
    def fft(self) -> Any:
        """The module of Fourier transforms."""
        self._check("the tables of its Fourier transform may be dropped before the graph is")
        return self._xp.fft

    def matmul(self, a: Any, b: Any, out: Any = None) -> Any:
        """The product of matrices; definitions call it instead of writing a @ b."""
        if self._products is None:
            return self._xp.matmul(a, b, out=out)
        return self._products.matmul(self._xp, a, b, out)

    def einsum(self, equation: Any, *operands: Any, **kw: Any) -> Any:
        """As numpy's."""
        if self._products is None or not isinstance(equation, str) or "->" not in equation:
            return self._xp.einsum(equation, *operands, **kw)
        return self._products.einsum(self._xp, equation, *operands, **kw)

    @contextmanager
    def recording(self) -> Iterator[list[Array]]:
        """While a graph is recorded: refuse what cannot be in one.

        Yields:
            The kept tables that the graph reads; it contains their addresses, so they must live as
            long as the graph does.
        """
        held: list[Array] = []
        self._held = held
        try:
            yield held
        finally:
            self._held = None

    def array(self, a: Any, dtype: Any = None, **kw: Any) -> Any:
        """A new array on the device."""
        if not isinstance(a, self._xp.ndarray):
            self._check("it copies an array of the host")
        return self._xp.array(a, dtype, **kw)

    def asarray(self, a: Any, dtype: Any = None) -> Any:
        """The array on the device; the same one again for the same values of the host."""
        if isinstance(a, self._xp.ndarray):
            return self._xp.asarray(a, dtype)
        host = np.asarray(a, dtype)
        key = host.shape, host.dtype.str, host.tobytes()
        found = self._constants.get(key)
        if found is None:
            self._check("it copies a table that it has not copied before")
            found = self._constants[key] = self._xp.asarray(host)
            if len(self._constants) > MOST_CONSTANTS:
                self._constants.popitem(last=False)
        else:
            self._constants.move_to_end(key)
        if self._held is not None:
            self._held.append(found)
        return found

    def _check(self, why: str) -> None:
        if self._held is not None:
            raise NotCapturable(why)


def definition(
    op: Op,
    attrs: Any,
    in_specs: tuple[Spec | None, ...],
    out_specs: tuple[Spec, ...],
    xp: ArrayModule,
    space: str,
) -> tuple[Call, bool] | None:
    """(call, whether it takes out=) for any op that has a definition.

    A definition with the attribute `host` is computed by numpy, on copies in host memory; the value
    says why it cannot be computed on a device.
    """

    made = any(hasattr(attrs, name) for name in ("ufunc", "forward")) and not attrs.in_parts
    same = op.view and not op.written(attrs)
    if made and not same and not getattr(xp, "computes", True):  # this module makes arrays only
        found = defined(op, attrs, in_specs, out_specs, np, "host")
        return found and (on_host(found[0], xp, op.written(attrs), "it has no kernel"), False)

    def forward() -> tuple[Call, bool]:
        host, writes = partial(attrs.forward, np), op.written(attrs)
        why = getattr(attrs, "host", None)
        if why:
            return on_host(host, xp, writes, why), False
        return or_on_host(op.name, partial(attrs.forward, xp), host, xp, writes), True

    return defined(op, attrs, in_specs, out_specs, xp, space, forward)


def on_host(call: Call, xp: ArrayModule, writes: tuple[int, ...], why: str) -> Call:
    """A call on arrays of the host as a call on arrays of the device; it copies, and waits."""

    def run(*bufs: Any, **kw: Any) -> Any:
        xp._check(f"it runs on the host: {why}")
        hosts = [None if b is None else b.get() for b in bufs]
        y = call(*hosts, **kw)
        for i in writes:
            if bufs[i] is not None:
                bufs[i][...] = xp.array(hosts[i])
        if isinstance(y, tuple):
            return tuple(xp.array(np.asarray(v), order="C") for v in y)
        return xp.array(np.asarray(y), order="C")

    return run


def or_on_host(name: str, call: Call, host: Call, xp: ArrayModule, writes: tuple[int, ...]) -> Call:
    """The call; where the array module lacks a library for it, that on the host from then on."""
    instead: Call | None = None

    def run(*bufs: Any, **kw: Any) -> Any:
        nonlocal instead
        if instead is None:
            try:
                return call(*bufs, **kw)
            except ImportError as e:
                why = str(e).split("\n")[0]
                logger.warning("%s is computed on the host: %s", name, why)
                instead = on_host(host, xp, writes, why)
        return into(instead, *bufs, **kw)

    return run
