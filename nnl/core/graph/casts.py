# SPDX-License-Identifier: Apache-2.0
"""The element types of a call: what its inputs are converted to, and how wide its results are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from nnl.core.arrays.spec import Spec
from nnl.core.settings.context import Context, Target

if TYPE_CHECKING:
    from nnl.core.ops.op import Op


def cast_spec(op: Op, i: int, spec: Spec | None, target: Target) -> Spec | None:
    """What the kernel gets for an input of this spec."""
    if spec is None:
        return None
    name = op.inputs[min(i, len(op.inputs) - 1)]
    if name in op.keep or name == "rng":
        return spec
    if name in op.integer:
        return spec if spec.dtype.kind in "iu" else spec.with_dtype(np.int64)
    if target.half is not None and spec.is_half:
        return spec  # kernels take any mixture of widths
    return spec if spec.dtype == target.float_dtype else spec.with_dtype(target.float_dtype)


def cast_specs(
    op: Op, attrs: Any, specs: tuple[Spec | None, ...], target: Target
) -> tuple[Spec | None, ...]:
    """What the kernel gets for inputs of these specs."""
    cast = tuple([cast_spec(op, i, s, target) for i, s in enumerate(specs)])
    takes = getattr(attrs, "takes", None)
    return cast if takes is None else takes(*cast)


def widened(op: Op, specs: Sequence[Spec | None]) -> list[Spec | None]:
    """What infer sees where results are stored in 16 bits: float32 all the same."""
    keep = [op.inputs[min(i, len(op.inputs) - 1)] in op.keep for i in range(len(specs))]
    return [
        s if k or s is None or not s.is_half else s.with_dtype(np.float32)
        for k, s in zip(keep, specs, strict=True)
    ]


def narrowed(op: Op, ins: Any, outs: tuple[Spec, ...], half: Any) -> tuple[Spec, ...]:
    """Output specs with float32 replaced by 16 bits, where the op says so or an input has them."""
    as_it_is = op.view or (op.inputs and op.inputs[0] in op.keep)
    if as_it_is or not (op.narrow or any(s is not None and s.is_half for s in ins)):
        return outs
    wide = [i in op.wide or s.dtype != np.float32 for i, s in enumerate(outs)]
    return tuple([s if w else s.with_dtype(half) for s, w in zip(outs, wide, strict=True)])


def with_casts(
    op: Op,
    call: Callable[..., Any],
    cast: tuple[Spec | None, ...],
    specs: tuple[Spec | None, ...],
    writes: tuple[int, ...],
) -> Callable[..., Any]:
    made = [
        partial(converted, whole(op, i, s), c.dtype)
        if c is not None and s is not None and c is not s
        else None
        for i, (c, s) in enumerate(zip(cast, specs, strict=True))
    ]
    back = [i for i in writes if made[i] is not None]
    for i in back if op.view else ():  # the result is what is written, as in updates of weights
        spec = specs[i]
        if spec is not None and spec.dtype.kind in "biu":
            name = op.inputs[min(i, len(op.inputs) - 1)]
            raise TypeError(
                f"{op.name}: {name} is {spec} and would be written with fractions cut off; "
                "give it floats (an array that was set to whole numbers has their type)"
            )

    def run(*bufs: Any, **kw: Any) -> Any:
        inner = [b if f is None else f(b) for b, f in zip(bufs, made, strict=True)]
        out = call(*inner, **kw)
        for i in back:
            bufs[i][...] = inner[i]
        return out

    return run


def whole(op: Op, i: int, spec: Spec) -> str:
    """What an input of this spec is called in an error if it must hold whole numbers; else ""."""
    name = op.inputs[min(i, len(op.inputs) - 1)]
    return f"{op.name}: {name}" if name in op.integer and spec.is_float else ""


def converted(what: str, dtype: Any, x: Any) -> Any:
    """An array in another type; labels and indices that are no whole numbers are an error."""
    if not what or not isinstance(x, np.ndarray):  # on a device, looking at values would wait
        return x.astype(dtype)
    with np.errstate(invalid="ignore"):
        y = x.astype(dtype)
    changed = y.astype(x.dtype) != x
    if np.count_nonzero(changed):  # faster than any()
        raise ValueError(
            f"{what} holds {float(x[changed][0]):g}, wanted whole numbers from -2^63 to 2^63 - 1"
        )
    return y


def wide(target: Target) -> Target:
    """The target without storage in 16 bits: what one op is made of is rounded once, at its end."""
    if target.half is None:
        return target
    names = [f"{name.partition(':')[0]}:float" for name in target.names]
    return Context(names, device_id=target.device_id).target
