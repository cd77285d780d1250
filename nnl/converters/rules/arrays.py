# SPDX-License-Identifier: Apache-2.0
"""Functions of the shapes and places of arrays in terms of simpler ones."""

from __future__ import annotations

from typing import Any

import numpy as np

import nnl.functions as F
from nnl.converters.rules.building import constant, filled, like, taken


def _triangle(a: Any, x: Any) -> Any:
    kept = (np.triu if a.upper else np.tril)(np.ones(x.shape[-2:]), a.k)
    return F.where(constant(np.broadcast_to(kept, x.shape)), x, filled(x, 0.0))


def _grid(a: Any, *xs: Any) -> Any:
    """Axes of results are the inputs in order, or with the first two exchanged."""
    places = list(range(len(xs)))
    if not a.ij_indexing and len(xs) > 1:
        places[:2] = 1, 0
    sizes = [0] * len(xs)
    for x, place in zip(xs, places, strict=True):
        sizes[place] = x.size
    found = []
    for x, place in zip(xs, places, strict=True):
        shape = [1] * len(xs)
        shape[place] = x.size
        found.append(F.broadcast(F.reshape(x, tuple(shape)), tuple(sizes)))
    return tuple(found)


def _from_sources(a: Any, x: Any) -> Any:
    """Elements of axes again: those at the border, or mirrored ones."""
    if getattr(a, "mode", "") == "constant":
        return None
    for axis, source in enumerate(a.sources(np, x.shape)):
        if source is not None:
            x = taken(x, axis, source)
    return F.identity(x)


def _broadcast_to(a: Any, x: Any, y: Any) -> Any:
    axis = x.ndim - y.ndim if a.axis is None or a.axis < 0 else a.axis
    shape = (1,) * axis + y.shape + (1,) * (x.ndim - axis - y.ndim)
    return F.broadcast(F.reshape(y, shape), x.shape)


def _cumprod(a: Any, x: Any) -> Any:
    axis = (a.axis or 0) % x.ndim
    shape = tuple(1 if i == axis else n for i, n in enumerate(x.shape))
    parts = [F.reshape(p, shape) for p in F.split(x, axis=axis)] if x.shape[axis] > 1 else [x]
    if a.reverse:
        parts.reverse()
    done = [parts[0]]
    for p in parts[1:]:
        done.append(done[-1] * p)
    if a.exclusive:
        done = [F.broadcast(like(x, 1.0), shape), *done[:-1]]
    if a.reverse:
        done.reverse()
    return F.concatenate(*done, axis=axis) if len(done) > 1 else done[0]


def _unpooled(a: Any, x: Any) -> Any:
    """Every pixel with axes of its own, which are stretched."""
    at = x.ndim - len(a.kernel) - a.channel_last
    narrow, wide = list(x.shape[:at]), list(x.shape[:at])
    for n, k in zip(x.shape[at:], (*a.kernel, *[1] * a.channel_last), strict=True):
        narrow += [n, 1]
        wide += [n, k]
    y = F.broadcast(F.reshape(x, narrow), wide)
    return F.reshape(y, a.infer(x.spec).shape)


RULES = {
    "trilu": _triangle,
    "meshgrid": _grid,
    "broadcast_to": _broadcast_to,
    "pad": _from_sources,
    "shift": _from_sources,
    "unpooling": _unpooled,
    "cumprod": _cumprod,
    "eye_like": lambda a, x: constant(np.eye(x.shape[-2], x.shape[-1], a.k)),
}
