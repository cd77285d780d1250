# SPDX-License-Identifier: Apache-2.0
"""The reference backend: every op's own `forward`, run by numpy in host memory."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from nnl.core.graph.casts import wide
from nnl.core.settings.context import BACKENDS, STATE, Backend, Context
from nnl.ext.host_device import *  # noqa: F403  # what scripts ask of a device

Call = Callable[..., Any]


def keep_freed_memory() -> None:
    """Let glibc's malloc keep up to 512 MB of freed memory instead of returning it at once.

    Define-by-run allocates every result anew. By default a large one comes from the system and goes
    back to it, and touching its pages again costs more than computing: a dynamic LeNet step takes
    19 ms without this and 12 ms with it. On other C libraries nothing happens.
    """
    mmap_threshold, trim_threshold = -3, -1  # names of the parameters in malloc.h
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(mmap_threshold, 256 << 20)
        mallopt(trim_threshold, 512 << 20)


keep_freed_memory()


def bind(
    op: Any, attrs: Any, in_specs: tuple[Any, ...], out_specs: tuple[Any, ...]
) -> tuple[Call, bool] | None:
    """(call, whether it takes out=) for any op that numpy can compute."""
    return definition(op, attrs, in_specs, out_specs, np, "host")


def definition(
    op: Any,
    attrs: Any,
    in_specs: tuple[Any, ...],
    out_specs: tuple[Any, ...],
    xp: Any,
    space: str,
    forward: Callable[[], tuple[Call, bool]] | None = None,
) -> tuple[Call, bool] | None:
    """(call, whether it takes out=) for any op that has a definition.

    Args:
        xp: The array module; space: where its arrays lie.
        forward: () -> (the call of an op with its own `forward`, whether that may take out=).
    """
    call: Call
    into = False
    ufunc = getattr(attrs, "ufunc", None)
    if ufunc is not None:
        call, into = getattr(xp, ufunc), True
    elif hasattr(attrs, "forward") and not attrs.in_parts:
        code = type(attrs).forward.__code__
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        call, may = forward() if forward is not None else (partial(attrs.forward, xp), True)
        into = may and "out" in names
        if "dtype" in names:  # a result whose type no input tells
            call = partial(call, dtype=out_specs[0].dtype)
    elif hasattr(attrs, "decompose"):
        call = partial(run_decomposed, attrs, wide(STATE.target), space)
    else:
        return None
    if xp is np and any(s.shape == () for s in out_specs):
        call = partial(_as_arrays, call)  # numpy turns results of rank 0 into scalars
    if any(s is not None and s.is_half for s in (*in_specs, *out_specs)):
        return partial(_through_float32, call, op.written(attrs), out_specs), len(out_specs) == 1
    return call, into


def _through_float32(
    call: Call, writes: tuple[int, ...], out_specs: tuple[Any, ...], *bufs: Any, out: Any = None
) -> Any:
    """Compute in float32 on arrays of 16 bits, and round every result once."""
    wide = [b.astype(np.float32) if b is not None and is_half(b.dtype) else b for b in bufs]
    y = call(*wide)
    for i in writes:
        if wide[i] is not bufs[i]:
            bufs[i][...] = wide[i].astype(bufs[i].dtype)
    ys = y if isinstance(y, tuple) else (y,)
    if out is not None:
        out[...] = ys[0].astype(out.dtype, copy=False)
        return out
    narrow = [a.astype(s.dtype, copy=False) for a, s in zip(ys, out_specs, strict=True)]
    return tuple(narrow) if isinstance(y, tuple) else narrow[0]


def is_half(dtype: Any) -> bool:
    """Whether a dtype is a floating-point type of 16 bits."""
    return dtype.itemsize == 2 and dtype.kind in "fV"


def _as_arrays(call: Call, *bufs: Any, **kw: Any) -> Any:
    y = call(*bufs, **kw)
    return tuple(np.asarray(v) for v in y) if isinstance(y, tuple) else np.asarray(y)


def run_decomposed(attrs: Any, target: Any, space: str, *bufs: Any) -> Any:
    """Compute what an op is made of, on buffers of a memory space."""
    from nnl.core.arrays.array import NdArray
    from nnl.core.arrays.spec import Spec
    from nnl.core.settings.context import using

    xs = [None if b is None else NdArray.holding(Spec.of(b.shape, b.dtype), space, b) for b in bufs]
    with using(make_nodes=False, auto_forward=True, target=target):
        y = attrs.decompose(*xs)
    for x, b in zip(xs, bufs, strict=True):
        if x is not None and (now := x.read(space)) is not b:
            b[...] = now  # a function has written it in another space
    if isinstance(y, tuple):
        return tuple(v.read(space) for v in y)
    return y.read(space)


NUMPY = Backend("numpy", "host", bind)
BACKENDS["numpy"] = lambda device_id: (NUMPY,)


def context(device_id: str = "", type_config: str = "float") -> Context:
    """The reference: numpy alone; see nnl.Context for type_config."""
    return Context([f"numpy:{type_config}"], array_class="CpuCachedArray", device_id=device_id)
