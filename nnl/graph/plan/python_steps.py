# SPDX-License-Identifier: Apache-2.0
"""Calls without arguments: a step that Python computes, on the arrays that slots hold by then."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from nnl.core.arrays.spec import Spec
from nnl.core.graph.dispatch import Bound

Thunk = Callable[[], Any]


def same_types(bound: Bound, outs: Sequence[Spec]) -> bool:
    """Whether what a call gives has the types of its slots: where there is no kernel, whole numbers
    of 8 bits are made as floats."""
    return all(a.dtype == b.dtype for a, b in zip(bound.out_specs, outs, strict=False))


def run_and_copy(call: Any, slots: list[Any], ins: tuple[int, ...], outs: tuple[int, ...]) -> Thunk:
    def run() -> None:
        ys = call(*[slots[i] for i in ins])
        for o, y in zip(outs, ys if isinstance(ys, tuple) else (ys,), strict=True):
            slots[o][...] = y

    return run


def run_into(call: Any, slots: list[Any], ins: tuple[int, ...], out: int) -> Thunk:
    def run() -> None:
        call(*[slots[i] for i in ins], out=slots[out])

    return run


def run_for_effect(call: Any, slots: list[Any], ins: tuple[int, ...]) -> Thunk:
    def run() -> None:
        call(*[slots[i] for i in ins])

    return run
