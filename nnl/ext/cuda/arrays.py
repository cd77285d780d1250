# SPDX-License-Identifier: Apache-2.0
"""A device as the rest of nnl sees it: an array module, a memory space, and a backend over both.

What is written here asks the array module for nothing but arrays, so the tests run it on one that
stands for CuPy.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from nnl.core.context import STATE, Backend

MOST_CONSTANTS = 512  # tables that definitions make on the host and use on the device


class ArrayModule:
    """An array module whose asarray() keeps what it has copied to the device.

    Definitions make small tables with numpy and give them to xp.asarray: always the same ones for
    the same shapes. Kept, they are copied once, and a definition copies nothing while a CUDA graph
    is captured. Nobody may write to such an array.
    """

    def __init__(self, xp: Any) -> None:
        self._xp = xp
        self._constants: OrderedDict[tuple[Any, ...], Any] = OrderedDict()

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._xp, name)
        self.__dict__[name] = value  # found directly from now on
        return value

    def asarray(self, a: Any, dtype: Any = None) -> Any:
        """The array on the device; the same one again for the same values of the host."""
        if isinstance(a, self._xp.ndarray):
            return self._xp.asarray(a, dtype)
        host = np.asarray(a, dtype)
        key = host.shape, host.dtype.str, host.tobytes()
        found = self._constants.get(key)
        if found is None:
            found = self._constants[key] = self._xp.asarray(host)
            if len(self._constants) > MOST_CONSTANTS:
                self._constants.popitem(last=False)
        else:
            self._constants.move_to_end(key)
        return found


class DeviceSpace:
    """The memory of a device."""

    def __init__(self, xp: Any) -> None:
        self.xp = xp

    def to_host(self, buf: Any) -> np.ndarray[Any, Any]:
        host: np.ndarray[Any, Any] = buf.get()
        return host

    def from_host(self, array: np.ndarray[Any, Any]) -> Any:
        return self.xp.array(array, order="C")

    def full(self, shape: tuple[int, ...], dtype: Any, value: Any) -> Any:
        return self.xp.full(shape, value, dtype)


def is_half(dtype: Any) -> bool:
    """Whether a dtype is a floating-point type of 16 bits."""
    return dtype.itemsize == 2 and dtype.kind in "fV"


def make_backend(name: str, space: str, xp: Any) -> Backend:
    """The backend that computes every definition with an array module.

    A definition with the attribute `host` is computed by numpy, on copies in host memory; the value
    says why it cannot be computed on a device.
    """
    module = ArrayModule(xp)

    def bind(
        op: Any, attrs: Any, in_specs: tuple[Any, ...], out_specs: tuple[Any, ...]
    ) -> tuple[Callable[..., Any], bool] | None:
        into = False
        ufunc = getattr(attrs, "ufunc", None)
        if ufunc is not None:
            call, into = getattr(module, ufunc), True
        elif hasattr(attrs, "forward"):
            code = type(attrs).forward.__code__
            names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            if getattr(attrs, "host", None):
                call = partial(_on_host, attrs.forward, module, op.written(attrs))
            else:
                call, into = partial(attrs.forward, module), "out" in names
            if "dtype" in names:  # a result whose type no input tells
                call = partial(call, dtype=out_specs[0].dtype)
        elif hasattr(attrs, "decompose"):
            call = partial(_run_decomposed, attrs, STATE.target, space)
        else:
            return None
        if any(s is not None and is_half(s.dtype) for s in (*in_specs, *out_specs)):
            call = partial(_through_float32, call, op.written(attrs), out_specs)
            return call, len(out_specs) == 1
        return call, into

    return Backend(name, space, bind)


def _on_host(
    forward: Callable[..., Any], xp: Any, writes: tuple[int, ...], *bufs: Any, **kw: Any
) -> Any:
    """Copy the inputs to the host, compute there, and copy the results back."""
    hosts = [None if b is None else b.get() for b in bufs]
    y = forward(np, *hosts, **kw)
    for i in writes:
        bufs[i][...] = xp.array(hosts[i])
    if isinstance(y, tuple):
        return tuple(xp.array(np.asarray(v), order="C") for v in y)
    return xp.array(np.asarray(y), order="C")


def _through_float32(
    call: Callable[..., Any],
    writes: tuple[int, ...],
    out_specs: tuple[Any, ...],
    *bufs: Any,
    out: Any = None,
) -> Any:
    """Compute in float32 on arrays of 16 bits, and round every result once."""
    wide = [b.astype(np.float32) if b is not None and is_half(b.dtype) else b for b in bufs]
    y = call(*wide)
    for i in writes:
        if wide[i] is not bufs[i]:
            bufs[i][...] = wide[i].astype(bufs[i].dtype)
    if out is not None:
        out[...] = y.astype(out.dtype)
        return out
    ys = y if isinstance(y, tuple) else (y,)
    narrow = [a.astype(s.dtype, copy=False) for a, s in zip(ys, out_specs, strict=True)]
    return tuple(narrow) if isinstance(y, tuple) else narrow[0]


def _run_decomposed(attrs: Any, target: Any, space: str, *bufs: Any) -> Any:
    from nnl.core.array import NdArray
    from nnl.core.context import using
    from nnl.core.spec import Spec

    xs = [None if b is None else NdArray.holding(Spec.of(b.shape, b.dtype), space, b) for b in bufs]
    with using(record=False, auto_forward=True, target=target):
        y = attrs.decompose(*xs)
    if isinstance(y, tuple):
        return tuple(v.read(space) for v in y)
    return y.read(space)
