# SPDX-License-Identifier: Apache-2.0
"""What stands around a kernel whose arrays are not those of the caller."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nnl.core.spec import Spec


def list_of_one(call: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel of one array, for an op whose list of outputs happens to have one."""

    def run(*bufs: Any) -> Any:
        y = call(*bufs)
        return y if isinstance(y, tuple) else (y,)

    return run


def with_casts(
    call: Callable[..., Any],
    cast: tuple[Spec | None, ...],
    specs: tuple[Spec | None, ...],
    writes: tuple[int, ...],
) -> Callable[..., Any]:
    """A kernel for inputs of other dtypes: they are converted, and back what it writes."""
    dtypes = [
        c.dtype if c is not None and s is not None and c is not s else None
        for c, s in zip(cast, specs, strict=True)
    ]
    back = [i for i in writes if dtypes[i] is not None]

    def run(*bufs: Any, **kw: Any) -> Any:
        inner = [b if t is None else b.astype(t) for b, t in zip(bufs, dtypes, strict=True)]
        out = call(*inner, **kw)
        for i in back:
            bufs[i][...] = inner[i]
        return out

    return run
